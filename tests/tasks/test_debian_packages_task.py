"""The Task debian_packages: what it declares, and this machine's own packages where it has an index."""

import itertools
import pathlib

import pytest

from retrieval_jax.data import features, package_index
from retrieval_jax.data.task_source import TaskSource, import_tasks
from retrieval_jax.errors import UserError


def test_declares_itself_without_reading_anything():
  import_tasks()
  task = features.registered()["debian_packages"]
  assert task.splits == ("train", "test", "corpus")
  assert task.info.drop_identical
  assert task.info.metrics[0] == "map@10"


def test_this_machine(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
  monkeypatch.setenv("RETRIEVAL_JAX_CACHE", str(tmp_path / "cache"))
  source = TaskSource("debian_packages", "test")
  try:
    package_index.index_files()
  except UserError:
    with pytest.raises(UserError, match="this machine has no package index"):
      source.fingerprint()
    return
  assert source.fingerprint() == source.fingerprint()
  assert [file.name for file in source.files()] == ["nodes.tsv", "edges.test.tsv", "edges.train.tsv"]
  passages = {
    example[features.PASSAGE_ID]: example.get(features.TITLE) for example in source.examples("corpus")
  }
  assert passages["libc6"] == "libc6"
  for example in itertools.islice(source.examples("test"), 1000):
    assert {example[features.QUERY_ID], example[features.PASSAGE_ID]} <= passages.keys()
