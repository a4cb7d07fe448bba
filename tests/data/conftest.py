"""A small vocabulary and a source of literal examples, shared by the tests of the data layer."""

import pathlib

import pytest
from toy_source import ListSource, write_tokenizer

from retrieval_jax import paths
from retrieval_jax.data import features
from retrieval_jax.data.text_inputs import TextInputs
from retrieval_jax.data.vocabularies import WordPiece


@pytest.fixture(scope="session")
def word_piece(tmp_path_factory: pytest.TempPathFactory) -> WordPiece:
  """[CLS] 2, [SEP] 3, a..e 4..8, red 9, green 10, blue 11, ##ish 12, ? 13."""
  return WordPiece(str(write_tokenizer(tmp_path_factory.mktemp("vocabulary") / "tokenizer.json")))


@pytest.fixture
def inputs(word_piece: WordPiece) -> TextInputs:
  return TextInputs(word_piece, query_length=4, passage_length=8)


@pytest.fixture
def toy() -> ListSource:
  """Two queries with two positives and one, a passage that is judged 0, and one that nobody asks for."""
  return ListSource(
    {
      "train": [
        features.pair("q1", "red ?", "p1", "a red a"),
        features.pair("q1", "red ?", "p2", "b red b"),
        features.pair("q2", "green ?", "p3", "a green a"),
        features.pair("q2", "green ?", "p1", "a red a", relevance=0),
        features.pair("q3", "blue ?", "p4", "c", relevance=0),
      ]
    }
  )


@pytest.fixture(scope="session")
def pydocs_cache() -> pathlib.Path:
  """The cache of the test session, in which pydocs is built at most once."""
  from retrieval_jax.data import pydocs

  pydocs.prepare(paths.cache_dir())
  return paths.cache_dir()
