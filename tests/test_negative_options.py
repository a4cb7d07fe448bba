"""NegativeOptions: what a training says of the hard negatives there are, and what it refuses."""

import pathlib

import pytest

from retrieval_jax.data import features
from retrieval_jax.data.dataset import RetrievalData, load
from retrieval_jax.data.text_inputs import TextInputs
from retrieval_jax.data.vocabularies import WordPiece
from retrieval_jax.errors import UserError
from retrieval_jax.negative_options import NegativeOptions
from tests.data.toy_source import ListSource, write_tokenizer

TEXTS = {"p": "red", "q": "green", "r": "blue", "s": "a b"}
PAIRS = [
  features.pair("one", "a", "p", "", negative_ids=["q", "r", "s"]),
  features.pair("two", "b", "q", "", negative_ids=["p"]),
  features.pair("three", "c", "r", ""),
  features.pair("four", "d", "s", "", relevance=0, negative_ids=["p"]),  # no positive: no example
]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> RetrievalData:
  folder = tmp_path_factory.mktemp("data")
  inputs = TextInputs(WordPiece(str(write_tokenizer(folder / "tokenizer.json"))), 4, 8)
  corpus = [features.passage(id, text) for id, text in TEXTS.items()]
  return load(ListSource({"train": PAIRS, "corpus": corpus}), inputs, cache=folder)


def test_unused_negatives_are_said_once_with_the_way_to_use_them(data):
  (line,) = NegativeOptions().describe(data, 8)
  assert line.startswith(
    "warning: the data have up to 3 hard negatives a query (1.3 on average) and none is used"
  )
  assert "--gin.HARD_NEGATIVES=n" in line


def test_the_number_drawn_and_the_places_that_stay_empty_are_said(data):
  first, second = NegativeOptions(per_query=2).describe(data, 8)
  assert first == (
    "hard negatives: 2 drawn of up to 3 a query in every epoch (1.3 on average); a batch has 8 x (1 + 2) = 24 passages"
  )
  assert second == (
    "2 of 3 queries have fewer than 2, 1 of them none: their places stay empty, which makes 1.00 a query on average"
  )


def test_data_without_negatives_are_no_cause_for_a_word_and_an_error_if_they_are_asked_for(data):
  plain = data._replace(negatives=None)
  assert NegativeOptions().describe(plain, 8) == []
  NegativeOptions().check(plain)
  with pytest.raises(
    UserError, match=r"HARD_NEGATIVES=1, but toy/train has none\. .*negative_targets or negative_ids"
  ):
    NegativeOptions(per_query=1).check(plain)


def test_fewer_than_asked_for_is_an_error_only_where_that_is_wanted(data):
  NegativeOptions(per_query=2).check(data)
  with pytest.raises(
    UserError,
    match=r"2 of 3 queries have fewer that can be used: the first is 'two' with 1 \(the task's own\)\. Add some",
  ):
    NegativeOptions(per_query=2, allow_fewer=False).check(data)


def test_file_and_line_of_a_query_with_too_few(data, tmp_path: pathlib.Path):
  path = tmp_path / "negatives.tsv"
  path.write_text("query_id\tpassage_id\none\tq\ntwo\tp\n", encoding="utf-8")
  with pytest.raises(UserError, match=r"is 'two' with 1 \(.*negatives\.tsv:3\)"):
    NegativeOptions(str(path), per_query=3, allow_fewer=False).check(data)
  path.write_text("query_id\tpassage_id\none\tq\n", encoding="utf-8")
  with pytest.raises(UserError, match=r"is 'two' with 1 \(no line of .*negatives\.tsv names it\)"):
    NegativeOptions(str(path), per_query=3, allow_fewer=False).check(data)


@pytest.mark.parametrize("number", [-1, 1.5, True, None])
def test_numbers_that_cannot_be(number):
  with pytest.raises(UserError, match=r"HARD_NEGATIVES=.*: expected a whole number of at least 0"):
    NegativeOptions(per_query=number).check_number()
