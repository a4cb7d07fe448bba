"""Prefixes, titles and vocabularies of the two sides, and what is refused."""

import hashlib
import pathlib
from typing import Any

import numpy as np
import pytest
from toy_source import WORDS, write_tokenizer

from retrieval_jax.data.text_inputs import SideInputs, TextInputs
from retrieval_jax.data.vocabularies import WordPiece, pad_rows
from retrieval_jax.errors import UserError


@pytest.mark.parametrize(
  "item, written",
  [
    ("text", "p: text"),
    (" text ", "p:  text "),
    ({"text": " text "}, "p:  text "),
    ({"title": "", "text": "text"}, "p: text"),
    ({"title": None, "text": "text"}, "p: text"),
    ({"title": " ", "text": "text"}, "p: text"),
    ({"title": " T ", "text": "text", "_id": "7", "metadata": {}}, "p: <T> text"),
    ({"title": "{text}", "text": "{title}"}, "p: <{text}> {title}"),
    ({"title": "T", "text": ""}, "p: <T>"),
    (("T", "text"), "p: <T> text"),
    (("", "text"), "p: text"),
  ],
)
def test_passages_of_every_shape(word_piece: WordPiece, item: Any, written: str):
  side = TextInputs(word_piece, 4, 8, passage_prefix="p: ", passage_template="<{title}> {text}").passage_side
  assert side.written([item]) == [written]


def test_tokens_and_ragged_rows_of_dicts(word_piece: WordPiece):
  inputs = TextInputs(word_piece, 4, 8, query_prefix="e ", passage_prefix="d ")
  passages = [{"title": "a", "text": "b"}, "c", {"text": ""}]
  assert inputs.passage_tokens(passages)[:, :5].tolist() == [
    [2, 7, 4, 5, 3],
    [2, 7, 6, 3, 0],
    [2, 7, 3, 0, 0],
  ]
  np.testing.assert_array_equal(
    pad_rows(inputs.passage_side.ragged(passages), 8), inputs.passage_tokens(passages)
  )
  assert inputs.query_tokens(["a"]).tolist() == [[2, 8, 4, 3]]
  assert inputs.query_tokens([]).shape == (0, 4)


@pytest.mark.parametrize(
  "item",
  [
    {"title": "T"},
    {"text": None},
    {"text": "x", "title": 3},
    ("a",),
    ("a", "b", "c"),
    7,
    None,
    ["a", "b"],
    b"a",
  ],
)
def test_what_is_no_passage(inputs: TextInputs, item: Any):
  with pytest.raises(
    UserError, match=r'expected a text, \(title, text\) or a dict with "text" and perhaps "title"'
  ):
    inputs.passage_tokens(["fine", item])


@pytest.mark.parametrize("texts", ["a text", {"text": "a text"}])
def test_one_text_instead_of_a_list(inputs: TextInputs, texts: Any):
  with pytest.raises(UserError, match=r"got one text, .*; expected a list of them"):
    inputs.passage_tokens(texts)


@pytest.mark.parametrize(
  "template, problem",
  [
    ("{title}", "it has no {text}"),
    ("", "it has no {text}"),
    ("{titel} {text}", "{titel} is not known"),
    ("{} {text}", "{} is not known"),
    ("{text!r}", "{text} is not known"),
    ("{text:>8}", "{text} is not known"),
    ("{text.x}", "{text.x} is not known"),
    ("{text", "expected '}' before end of string"),
    (None, ""),
    (3, ""),
  ],
)
def test_templates_that_cannot_be(inputs: TextInputs, template: Any, problem: str):
  with pytest.raises(UserError) as error:
    inputs._replace(passage_template=template).passage_tokens(["a"])
  assert str(error.value).startswith(f"PASSAGE_TEMPLATE={template!r}: {problem}")
  assert str(error.value).endswith(
    'expected text with {text} and perhaps {title} in it, such as "{title} {text}".'
  )


def test_a_prefix_that_is_no_text(inputs: TextInputs):
  prefix: Any = None
  with pytest.raises(UserError, match="QUERY_PREFIX=None: expected text, '' for none"):
    inputs._replace(query_prefix=prefix).query_tokens(["a"])


def test_towers_of_two_kinds_have_two_vocabularies(inputs: TextInputs, tmp_path: pathlib.Path):
  swapped = [*WORDS[:4], *WORDS[4:9][::-1], *WORDS[9:]]
  other = WordPiece(str(write_tokenizer(tmp_path / "other.json", swapped)))
  both = inputs._replace(passage_vocabulary=other)
  assert both.query_tokens(["a"])[0, 1] == 4
  assert both.passage_tokens(["a"])[0, 1] == 8
  assert both.fingerprint != inputs.fingerprint
  assert both.query_side == inputs.query_side
  assert both.describe()["passage_vocabulary"] == repr(other)
  assert "passage_vocabulary" not in inputs.describe()


def test_fingerprint_covers_every_setting_and_is_as_ever_without(inputs: TextInputs):
  v = inputs.vocabulary.fingerprint
  sides = [hashlib.sha256(f"{v} {length} ".encode()).hexdigest() for length in (4, 8)]
  assert (
    inputs.fingerprint == hashlib.sha256(" ".join(sides).encode()).hexdigest()
  )  # as folders trained before titles
  changed = {"query_length": 5, "passage_length": 9, "query_prefix": "q", "passage_prefix": "p"}
  changed["passage_template"] = "{title}: {text}"
  marks = {inputs._replace(**{name: value}).fingerprint for name, value in changed.items()}
  assert len(marks | {inputs.fingerprint}) == 6
  assert {
    name: value for name, value in inputs._replace(**changed).describe().items() if name in changed
  } == changed
  assert (
    SideInputs(inputs.vocabulary, 4, "a", "{text}").fingerprint
    != SideInputs(inputs.vocabulary, 4, "a").fingerprint
  )
