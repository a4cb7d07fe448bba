"""The Tasks lf_*: what they declare, where they look, and what they say of data that are not the published ones."""

import json
import pathlib

import pytest
from task_files import judgements, write

from retrieval_jax.data.benchmarks import check_counts
from retrieval_jax.data.features import registered
from retrieval_jax.data.task_source import TaskSource, import_tasks
from retrieval_jax.errors import UserError

NAMES = (
  *("lf_amazontitles_131k", "lf_amazon_131k", "lf_wikiseealso_320k", "lf_wikipedia_500k"),
  "lf_amazontitles_1_3m",
)


def toy(folder: pathlib.Path) -> pathlib.Path:
  write(folder / "lbl.json", *({"title": label, "content": "more"} for label in ("red", "green", "blue")))
  write(folder / "trn.json", {"title": "red ?", "content": "b", "target_ind": [0, 1]})
  write(folder / "tst.json", {"title": "a", "target_ind": []}, {"title": "blue ?", "target_ind": [2]})
  write(folder / "filter_labels_test.txt", "1 0")
  return folder


def test_every_task_declares_itself():
  import_tasks()
  tasks = {name: task for name, task in registered().items() if name.startswith("lf_")}
  assert tuple(tasks) == NAMES
  for name, task in tasks.items():
    assert task.info.metrics[:1] == ("p@1",), name
    assert {"psp@5", "psndcg@5"} <= set(task.info.metrics), name
    assert "terms" in task.info.source, name
    assert task.splits == ("train", "test", "corpus"), name
  lengths = {name: (task.info.query_length, task.info.passage_length) for name, task in tasks.items()}
  assert lengths == {name: (n, n) for name, n in zip(NAMES, (32, 128, 256, 256, 32), strict=True)}
  propensities = [task.info.propensity for task in tasks.values()]
  assert propensities == [(0.6, 2.6), (0.6, 2.6), (0.55, 1.5), (0.5, 0.4), (0.6, 2.6)]


@pytest.mark.parametrize(
  "place", ["extreme/LF-AmazonTitles-131K", "xc/LF-AmazonTitles-131K", "LF-AmazonTitles-131K"]
)
def test_the_places_that_are_looked_at(place: str, root: pathlib.Path, read):
  folder = toy(root / place)
  data = read("lf_amazontitles_131k", "test")
  assert judgements(data) == {"0": {"0": 0}, "1": {"2": 1}}
  assert list(data.passages.texts) == ["red", "green", "blue"]  # titles alone
  assert data.filtered.row(1)[0].tolist() == [0]
  assert data.label_counts.counts.tolist() == [1, 1, 0]
  assert str(folder / "lbl.json") in data.files


def test_full_texts(root: pathlib.Path, read):
  toy(root / "LF-Amazon-131K")
  data = read("lf_amazon_131k", "train")
  assert list(data.passages.texts) == ["red more", "green more", "blue more"]
  assert data.queries.texts[0] == "red ? b"


def test_a_cut_set_is_told(root: pathlib.Path, read):
  toy(root / "LF-AmazonTitles-131K")
  assert check_counts(read("lf_amazontitles_131k", "test")) == [
    "lf_amazontitles_131k, split test: 3 passages, but 131,073 are published: published results were measured on other "
    "data.",
    "lf_amazontitles_131k, split test: 2 judged queries, but 134,835 are published: published results were measured on "
    "other data.",
  ]


def test_nothing_is_there(root: pathlib.Path, read):
  message = rf"looked at {root}/extreme/LF-Wikipedia-500K, {root}/xc/LF-Wikipedia-500K, {root}/LF-Wikipedia-500K\. Get it"
  with pytest.raises(UserError, match=message):
    read("lf_wikipedia_500k", "test")


def test_a_release_without_texts_is_refused_with_a_hint(root: pathlib.Path, read):
  write(root / "LF-Amazon-131K" / "train.txt", "2 3 4", "0,1 0:0.5", "2 1:1")
  with pytest.raises(
    UserError, match=r"an old release that has features in place of texts.*prepare_extreme\.py"
  ):
    read("lf_amazon_131k", "test")


def test_a_training_file_that_is_missing(root: pathlib.Path, read):
  (toy(root / "LF-Amazon-131K") / "trn.json").unlink()
  with pytest.raises(UserError, match=r"no points of the split 'train' \(trn\.json or trn_X\.txt\)"):
    read("lf_amazon_131k", "test")  # its propensities are counted in train


def test_corpora_do_not_change_with_points(root: pathlib.Path, read):
  folder = toy(root / "LF-Amazon-131K")
  before = TaskSource("lf_amazon_131k").corpus_fingerprint("corpus")
  write(folder / "trn.json", {"title": json.dumps("x"), "target_ind": [2]})
  assert TaskSource("lf_amazon_131k").corpus_fingerprint("corpus") == before
  assert read("lf_amazon_131k", "test").label_counts.counts.tolist() == [0, 0, 1]
