"""Groups of tasks and their means, the data folder, and data that differ from what is published."""

import hashlib
import pathlib

import pytest
from toy_source import ListSource

from retrieval_jax.data import features
from retrieval_jax.data.benchmarks import (
  FORUMS,
  GROUPS,
  ROOT_VARIABLE,
  benchmark_dir,
  check_counts,
  check_files,
  data_root,
  macro_mean,
  members,
  tasks_of,
)
from retrieval_jax.data.dataset import load
from retrieval_jax.data.task_source import import_tasks
from retrieval_jax.data.text_inputs import TextInputs
from retrieval_jax.errors import UserError


def test_every_member_of_a_group_is_a_task_or_a_group():
  import_tasks()
  for name in GROUPS:
    assert set(tasks_of(name)) <= set(features.registered()), name
  assert (len(members("beir")), len(tasks_of("beir"))) == (18, 29)
  assert (len(members("beir_public")), len(tasks_of("beir_public"))) == (14, 25)
  assert len(members("beir_cqadupstack")) == 12
  assert tasks_of("beir_scifact") == ["beir_scifact"]
  assert members("beir_scifact") == ()


def test_the_mean_over_forums_counts_each_the_same():
  results = {f"beir_cqadupstack_{forum}": {"ndcg@10": i / 10, "p@1": 1.0} for i, forum in enumerate(FORUMS)}
  means = macro_mean("beir_cqadupstack", results)
  assert means == pytest.approx({"ndcg@10": sum(range(12)) / 120, "p@1": 1.0})


def test_a_group_within_a_group_counts_as_one():
  results = {name: {"ndcg@10": 0.0} for name in tasks_of("beir_public")}
  results |= {f"beir_cqadupstack_{forum}": {"ndcg@10": 0.7} for forum in FORUMS}
  assert macro_mean("beir_public", results) == pytest.approx({"ndcg@10": 0.7 / 14})


def test_metrics_that_a_member_lacks_are_left_out():
  results = {name: {"ndcg@10": 1.0, "p@1": 1.0} for name in tasks_of("multireqa")}
  results["multireqa_nq"] = {"ndcg@10": 1.0}
  assert macro_mean("multireqa", results) == {"ndcg@10": 1.0}


def test_a_mean_without_a_member_is_refused():
  results = {f"beir_cqadupstack_{forum}": {"ndcg@10": 0.5} for forum in FORUMS if forum != "tex"}
  with pytest.raises(UserError, match="the mean over 12 tasks, and 1 have no result: beir_cqadupstack_tex"):
    macro_mean("beir_cqadupstack", results)
  with pytest.raises(
    UserError, match="'beir_scifact' is no group of tasks; the groups: beir_cqadupstack, beir,"
  ):
    macro_mean("beir_scifact", results)


def test_the_data_folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
  monkeypatch.setenv(ROOT_VARIABLE, str(tmp_path))
  (tmp_path / "b").mkdir()
  assert benchmark_dir("a", "b", get="x") == tmp_path / "b"
  (tmp_path / "a").mkdir()
  assert benchmark_dir("a", "b", get="x") == tmp_path / "a"
  (tmp_path / "file").touch()
  message = f"c is not here: looked at {tmp_path}/c, {tmp_path}/file. Get it with `x`, or set {ROOT_VARIABLE}"
  with pytest.raises(UserError, match=message):
    benchmark_dir("c", "file", get="x")
  monkeypatch.setenv(ROOT_VARIABLE, "~/public")
  assert data_root() == pathlib.Path.home() / "public"
  monkeypatch.delenv(ROOT_VARIABLE)
  monkeypatch.setenv("RETRIEVAL_JAX_CACHE", str(tmp_path))
  assert data_root() == tmp_path / "data"


def test_counts_and_checksums(inputs: TextInputs, tmp_path: pathlib.Path):
  file = tmp_path / "train" / "a.tsv"
  file.parent.mkdir()
  file.write_text("text")
  examples = {
    "dev": [features.pair("q", "red", "p", "a"), features.pair("r", "blue", "p", "a", relevance=0)],
    "corpus": [features.passage("p", "a"), features.passage("s", "b")],
  }

  def messages(**declared) -> tuple[list[str], list[str]]:
    source = ListSource(examples, "dev", info=features.TaskInfo(**declared), paths=[file])
    data = load(source, inputs, cache=tmp_path / "cache")
    return check_counts(data), check_files(data)

  right = hashlib.md5(b"text").hexdigest()
  assert messages(counts={"dev": 2, "corpus": 2}, checksums={"train/a.tsv": right}) == ([], [])
  assert messages(counts={"test": 9}, checksums={"dev/a.tsv": "x", "n/a.tsv": "x", "b.tsv": "x"}) == ([], [])
  counts, files = messages(counts={"dev": 1_000, "corpus": 2}, checksums={"a.tsv": "0" * 32})
  assert counts == [
    "toy, split dev: 2 judged queries, but 1,000 are published: published results were measured on other data."
  ]
  assert files == [
    f"{file}: its md5 is {right}, but {'0' * 32} is published: the file was changed, or is of another version."
  ]
  assert check_counts(load(ListSource(examples, "dev"), inputs, cache=tmp_path / "cache")) == []


def test_a_split_may_have_a_corpus_of_its_own(inputs: TextInputs, tmp_path: pathlib.Path):
  examples = {
    "train": [features.pair("q", "red", "t1", "")],
    "dev": [features.pair("q", "red", "d1", "")],
    "test": [features.pair("q", "red", "x", "")],
    "corpus_train": [features.passage("t1", "a"), features.passage("t2", "b")],
    "corpus_dev": [features.passage("d1", "a")],
    "corpus": [features.passage("x", "a")],
  }
  for split, ids in {"train": ["t1", "t2"], "dev": ["d1"], "test": ["x"]}.items():
    data = load(ListSource(examples, split), inputs, cache=tmp_path / "cache")
    assert list(data.passages.ids) == ids
  with pytest.raises(UserError, match="toy has no split 'corpus_dev'; its splits of pairs: train, dev, test"):
    load(ListSource(examples, "corpus_dev"), inputs, cache=tmp_path / "cache")
