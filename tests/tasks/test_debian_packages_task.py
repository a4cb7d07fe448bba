"""The Tasks debian_packages and debian_packages_text: what they declare, and this machine's own packages where it has an index."""

import itertools
import json
import pathlib

import pytest

from retrieval_jax.data import features, package_index
from retrieval_jax.data.task_source import TaskSource, import_tasks
from retrieval_jax.errors import UserError


@pytest.mark.parametrize("name", ["debian_packages", "debian_packages_text"])
def test_declare_themselves_without_reading_anything(name: str):
  import_tasks()
  task = features.registered()[name]
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
    example[features.PASSAGE_ID]: json.loads(str(example[features.PASSAGE]))
    for example in source.examples("corpus")
  }
  assert passages["libc6"]["title"] == "libc6"
  assert len(passages["libc6"]["section"]) == 1
  for example in itertools.islice(source.examples("test"), 1000):
    assert {example[features.QUERY_ID], example[features.PASSAGE_ID]} <= passages.keys()
  text = TaskSource("debian_packages_text", "test")
  assert {features.PASSAGE_ID: "libc6", features.TITLE: "libc6"}.items() <= next(
    example.items() for example in text.examples("corpus") if example[features.PASSAGE_ID] == "libc6"
  )
