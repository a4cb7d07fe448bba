"""A small vocabulary, and a data folder that holds nothing but what a test writes there."""

import pathlib
from collections.abc import Callable

import pytest

from retrieval_jax.data.benchmarks import ROOT_VARIABLE
from retrieval_jax.data.dataset import RetrievalData, load
from retrieval_jax.data.task_source import TaskSource
from retrieval_jax.data.text_inputs import TextInputs
from retrieval_jax.data.vocabularies import WordPiece
from tests.data.toy_source import write_tokenizer


@pytest.fixture
def root(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
  """The data folder."""
  folder = tmp_path / "data"
  folder.mkdir()
  monkeypatch.setenv(ROOT_VARIABLE, str(folder))
  return folder


@pytest.fixture
def read(tmp_path: pathlib.Path) -> Callable[[str, str], RetrievalData]:
  """Loads a split of a Task by its name."""
  inputs = TextInputs(WordPiece(str(write_tokenizer(tmp_path / "tokenizer.json"))), 4, 8)
  return lambda task, split: load(TaskSource(task, split), inputs, cache=tmp_path / "cache")
