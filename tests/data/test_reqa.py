"""Folders in ReQA's layout: sentences, questions, the source, and BM25 over the real one."""

import json
import pathlib
from typing import Any

import numpy as np
import pytest

from retrieval_jax.data import features
from retrieval_jax.data.dataset import load
from retrieval_jax.data.reqa import ReqaFolder, read_reqa_corpus, read_reqa_pairs
from retrieval_jax.data.text_inputs import TextInputs
from retrieval_jax.errors import UserError
from retrieval_jax.index.bm25 import BM25

TEXT = "🙂 red. b\u2028c."


def write(path: pathlib.Path, *records: Any) -> None:
  path.write_text("".join(f"{json.dumps(record, ensure_ascii=False)}\n" for record in records))


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
  root = tmp_path / "toy reqa"
  root.mkdir()
  write(root / "contexts.jsonl", {"context_id": "c1", "title": "t", "split": "test", "text": TEXT})
  write(
    root / "candidates.jsonl",
    {"candidate_id": "c1_0", "context_id": "c1", "response_start": 0, "response_end": 6},
    {"candidate_id": "c1_1", "context_id": "c1", "response_start": 7, "response_end": 11},
  )
  for split, gold in {"train": ["c1_0"], "test": ["c1_1", "c1_0"]}.items():
    question = {"question_id": f"q {split}", "question": "red ?", "context_id": "c1", "candidate_ids": gold}
    write(root / f"{split}.questions.jsonl", question)
  return root


def test_passages_and_pairs(folder: pathlib.Path):
  assert list(read_reqa_corpus(folder)) == [
    features.passage("c1_0", "🙂 red."),
    features.passage("c1_1", "b\u2028c."),
  ]
  assert [p["targets"] for p in read_reqa_corpus(folder, context=True)] == [
    f"🙂 red. {TEXT}",
    f"b\u2028c. {TEXT}",
  ]
  assert list(read_reqa_pairs(folder, "test")) == [
    features.pair("q test", "red ?", "c1_1", ""),
    features.pair("q test", "red ?", "c1_0", ""),
  ]


def test_source(folder: pathlib.Path, inputs: TextInputs, tmp_path: pathlib.Path):
  source = ReqaFolder(str(folder), "test")
  data = load(source, inputs, cache=tmp_path / "cache")
  assert (data.name, data.num_examples, list(data.passages.ids)) == ("toy reqa", 1, ["c1_0", "c1_1"])
  with_context = ReqaFolder(str(folder), "test", context=True)
  assert source.fingerprint() != with_context.fingerprint()
  assert source.task().name != with_context.task().name
  assert [file.name for file in source.files()] == [
    "contexts.jsonl",
    "candidates.jsonl",
    "test.questions.jsonl",
    "train.questions.jsonl",
  ]


@pytest.mark.parametrize(
  "name, record, message",
  [
    (
      "candidates",
      {"candidate_id": "c", "context_id": "c9", "response_start": 0, "response_end": 1},
      r"candidates\.jsonl:1: the context_id 'c9' is not in contexts\.jsonl",
    ),
    (
      "candidates",
      {"candidate_id": "c", "context_id": "c1", "response_start": 0, "response_end": 12},
      r"candidates\.jsonl:1: the sentence 0\.\.12; .* within the 11 characters of the context 'c1'",
    ),
    ("contexts", {"context_id": "c1"}, r"contexts\.jsonl:1: .* 'text' is not in it"),
    (
      "test.questions",
      {"question_id": "q", "question": "?"},
      r"test\.questions\.jsonl:1: candidate_ids is None",
    ),
    ("test.questions", {"question_id": 1, "question": "?"}, r"test\.questions\.jsonl:1: .*question_id is 1"),
  ],
)
def test_mistakes_name_file_and_line(folder: pathlib.Path, name: str, record: Any, message: str):
  write(folder / f"{name}.jsonl", record)
  with pytest.raises(UserError, match=message):
    list(read_reqa_pairs(folder, "test") if "questions" in name else read_reqa_corpus(folder))


def test_a_folder_without_questions(tmp_path: pathlib.Path):
  with pytest.raises(UserError, match=r"no <split>\.questions\.jsonl in it"):
    ReqaFolder(str(tmp_path)).splits()


@pytest.mark.parametrize("context, p1, mrr", [(True, 0.791, 0.865), (False, 0.769, 0.838)])
def test_bm25_on_xquad_reqa(data_dir: pathlib.Path, context: bool, p1: float, mrr: float):
  corpus = list(read_reqa_corpus(data_dir / "xquad_reqa", context=context))
  pairs = list(read_reqa_pairs(data_dir / "xquad_reqa", "test"))
  assert (len(corpus), len(pairs)) == (1180, 225)
  rows = {passage["passage_id"]: row for row, passage in enumerate(corpus)}
  found = BM25([str(passage["targets"]) for passage in corpus]).search(
    [str(pair["inputs"]) for pair in pairs], k=1180
  )
  hits = found.rows == np.array([rows[pair["passage_id"]] for pair in pairs])[:, None]
  ranks = np.where(hits.any(axis=1), hits.argmax(axis=1) + 1, np.inf)
  assert np.mean(ranks == 1) == pytest.approx(p1, abs=5e-4)
  assert np.mean(1 / ranks) == pytest.approx(mrr, abs=5e-4)
