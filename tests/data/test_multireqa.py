"""MRQA contexts, MultiReQA's sentences of them, and which sentence answers which question."""

import json
import logging
import pathlib
from typing import Any

import pytest

from retrieval_jax.data import features
from retrieval_jax.data.mrqa import Answer, Question, read_mrqa
from retrieval_jax.data.multireqa import (
  Contexts,
  read_multireqa_corpus,
  read_multireqa_pairs,
  read_sentences,
)
from retrieval_jax.errors import UserError

CATS = "🙂 Cats purr. Dogs bark. Both sleep."  # sentences 0..12, 13..23, 24..35


def write(path: pathlib.Path, *records: Any) -> pathlib.Path:
  path.write_text("".join(f"{json.dumps(record)}\n" for record in records))
  return path


def question(qid: str, text: str, *spans: list[int]) -> dict[str, Any]:
  """A question whose answers are those (first, last) spans of CATS."""
  answers = [{"text": CATS[first : last + 1], "char_spans": [[first, last]]} for first, last in spans]
  return {"qid": qid, "question": text, "answers": [], "detected_answers": answers}


def candidate(name: str, start: int, end: int) -> dict[str, Any]:
  return {"candidate_id": name, "response_start": start, "response_end": end}


@pytest.fixture
def mrqa(tmp_path: pathlib.Path) -> pathlib.Path:
  """Two contexts; the answers of q3 cross the bounds of sentences or are none."""
  first = [
    question("q_1", "who purrs?", [2, 5]),
    question("q2", "who sleeps?", [24, 27], [2, 5], [13, 16]),
    question("q3", "who is loud?", [7, 16]),
  ]
  return write(
    tmp_path / "mrqa.jsonl",
    {"header": {"dataset": "Toy", "split": "dev"}},
    {"context": CATS, "qas": first, "id": ""},
    {"context": "Red.", "qas": [question("r1", "which?", [0, 2])]},
  )


@pytest.fixture
def candidates(tmp_path: pathlib.Path) -> pathlib.Path:
  return write(
    tmp_path / "candidates.json",
    candidate("My_Set_r1/_0_0", 0, 4),
    candidate("My_Set_q_1/q2/q3/_0", 0, 12),
    candidate("My_Set_q_1/q2/q3/_1", 13, 23),
    candidate("My_Set_q_1/q2/q3/_2", 24, 35),
  )


def test_spans_end_behind_their_last_character(mrqa: pathlib.Path):
  cats, red = read_mrqa(mrqa)
  assert cats.where == f"{mrqa}:2"
  assert cats.questions[0] == Question("q_1", "who purrs?", (Answer("Cats", ((2, 6),)),))
  assert cats.questions[1].spans == [(24, 28), (2, 6), (13, 17)]
  assert (red.text, len(red.questions)) == ("Red.", 1)


def test_sentences_find_their_contexts(mrqa: pathlib.Path, candidates: pathlib.Path):
  red, cats = read_sentences(candidates, Contexts([mrqa]))
  assert (red.context.text, cats.context.text) == ("Red.", CATS)
  assert [CATS[start:end] for _, start, end in cats.sentences] == [
    "🙂 Cats purr.",
    "Dogs bark.",
    "Both sleep.",
  ]


def test_passages_are_sentences_perhaps_with_their_context(mrqa: pathlib.Path, candidates: pathlib.Path):
  corpus = list(read_multireqa_corpus(candidates, [mrqa]))
  assert corpus[1] == features.passage("My_Set_q_1/q2/q3/_0", "🙂 Cats purr.")
  with_context = list(read_multireqa_corpus(candidates, [mrqa], context=True))
  assert [p["targets"] for p in with_context[:2]] == ["Red. Red.", f"🙂 Cats purr. {CATS}"]


def test_a_sentence_answers_if_it_holds_a_whole_answer(
  mrqa: pathlib.Path, candidates: pathlib.Path, caplog: pytest.LogCaptureFixture
):
  with caplog.at_level(logging.WARNING):
    pairs = list(read_multireqa_pairs(candidates, [mrqa]))
  assert pairs == [
    features.pair("r1", "which?", "My_Set_r1/_0_0", ""),
    features.pair("q_1", "who purrs?", "My_Set_q_1/q2/q3/_0", ""),
    features.pair("q2", "who sleeps?", "My_Set_q_1/q2/q3/_0", ""),
    features.pair("q2", "who sleeps?", "My_Set_q_1/q2/q3/_1", ""),
    features.pair("q2", "who sleeps?", "My_Set_q_1/q2/q3/_2", ""),
  ]
  assert "4 questions, 5 pairs; 1 questions have no sentence with a whole answer, and 0 are of" in caplog.text


def test_questions_of_contexts_without_candidates_are_counted(
  mrqa: pathlib.Path, candidates: pathlib.Path, caplog: pytest.LogCaptureFixture
):
  write(candidates, candidate("My_Set_r1/_0_0", 0, 4))
  with caplog.at_level(logging.WARNING):
    assert len(list(read_multireqa_pairs(candidates, [mrqa]))) == 1
  assert "0 questions have no sentence with a whole answer, and 3 are of contexts without" in caplog.text
  write(candidates, candidate("My_Set_r1/_0_0", 3, 4))
  with pytest.raises(UserError, match=r"4 questions, 0 pairs; .* of the same data set and split"):
    list(read_multireqa_pairs(candidates, [mrqa]))


@pytest.mark.parametrize(
  "name, start, end, message",
  [
    (
      "My_Set_q9/q2/_0",
      0,
      4,
      r"json:2: .*'My_Set_q9/q2/_0': the qid 'Set_q9' is in no context of the MRQA files",
    ),
    (
      "My_Set_q2/r1/_0",
      0,
      4,
      r"json:2: .*: 0 contexts have its qids of the MRQA files\. Expected DATASET_qid/",
    ),
    ("q2", 0, 4, r"json:2: .*'q2': the qid '' is in no context"),
    (
      "My_Set_r1/_1",
      0,
      5,
      r"json:2: the sentence 0\.\.5; .* within the 4 characters of the context at .*jsonl:3",
    ),
    ("My_Set_r1/_1", 2, 2, r"json:2: the sentence 2\.\.2; expected response_start < response_end"),
    ("My_Set_r1/_1", None, 2, r"json:2: the sentence None\.\.2"),
    ("My_Set_r1/_0_0", 0, 4, r"json:2: the candidate_id 'My_Set_r1/_0_0' comes twice"),
  ],
)
def test_mistakes_in_candidates_name_file_and_line(
  mrqa: pathlib.Path, candidates: pathlib.Path, name: str, start: Any, end: int, message: str
):
  write(candidates, candidate("My_Set_r1/_0_0", 0, 4), candidate(name, start, end))
  with pytest.raises(UserError, match=message):
    list(read_multireqa_pairs(candidates, [mrqa]))


def test_sentences_of_a_context_stand_together(mrqa: pathlib.Path, candidates: pathlib.Path):
  rows = [candidate("S_r1/_0", 0, 2), candidate("S_q_1/q2/q3/_0", 0, 12), candidate("S_r1/_1", 2, 4)]
  with pytest.raises(UserError, match=r"json:3: the sentences of .*mrqa\.jsonl:3 do not stand together"):
    list(read_multireqa_corpus(write(candidates, *rows), [mrqa]))


@pytest.mark.parametrize(
  "record, message",
  [
    ({"header": {}}, r"jsonl:2: its keys are 'header'; expected an MRQA context"),
    ({"context": "x", "qas": [{"question": "q"}]}, r"jsonl:2: the question 'q' lacks qid"),
    ({"context": "x", "qas": ["q"]}, r"jsonl:2: in qas: 'q'; expected objects"),
    ({"context": "x", "qas": [question("q", "q", [0, 1])]}, r"jsonl:2: qid 'q': the answer .* 1 characters"),
    (
      {"context": "x", "qas": [{"qid": "q", "question": "q", "detected_answers": [{"text": "x"}]}]},
      r"jsonl:2: qid 'q': the detected answer .*KeyError: 'char_spans'",
    ),
  ],
)
def test_mistakes_in_mrqa_files_name_file_and_line(tmp_path: pathlib.Path, record: Any, message: str):
  with pytest.raises(UserError, match=message):
    list(read_mrqa(write(tmp_path / "x.jsonl", {"header": {}}, record)))
