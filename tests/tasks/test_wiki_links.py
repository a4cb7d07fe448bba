"""The Tasks wiki_links*: splits, texts of both forms, links that are no results, and where they look."""

import pathlib

import pytest
from task_files import judgements, write

from retrieval_jax.data.bag_fitting import Limits, vocabulary_file
from retrieval_jax.data.bag_vocabulary import BagVocabulary, length
from retrieval_jax.data.dataset import load
from retrieval_jax.data.features import registered
from retrieval_jax.data.task_source import TaskSource, import_tasks
from retrieval_jax.data.text_inputs import TextInputs
from retrieval_jax.errors import UserError

SPEC = {"id": ("values", "id"), "ngrams": ("ngrams", "title"), "categories": ("values", "categories")}


def toy(folder: pathlib.Path) -> pathlib.Path:
  write(
    folder / "nodes.jsonl",
    {"id": 0, "title": "red cats", "text": "They purr.", "categories": ["pets"]},
    {"id": 1, "title": "red dogs", "text": "They bark.", "categories": ["pets", "guards"]},
    {"id": 2, "title": "trees", "text": "They grow."},
  )
  write(folder / "edges.train.tsv", "0\t1", "1\t2")
  write(folder / "edges.dev.tsv", "1\t0")
  write(folder / "edges.test.tsv", "0\t2")
  return folder


def test_both_declare_the_paper_s_measure():
  import_tasks()
  tasks = {name: task for name, task in registered().items() if name.startswith("wiki_links")}
  assert tuple(tasks) == ("wiki_links", "wiki_links_text")
  for task in tasks.values():
    assert task.splits == ("train", "dev", "test", "corpus")
    assert task.info.metrics[0] == "map@10"
    assert task.info.drop_identical


@pytest.mark.parametrize("place", ["wiki_links", "graph_wikispeedia"])
def test_texts(root: pathlib.Path, read, place: str):
  toy(root / place)
  data = read("wiki_links_text", "test")
  assert list(data.passages.texts) == ["red cats They purr.", "red dogs They bark.", "trees They grow."]
  assert judgements(data) == {"0": {"2": 1}}
  assert data.filtered.row(0)[0].tolist() == [1]  # 0 -> 1 is known from training
  assert read("wiki_links_text", "train").filtered is None


def test_bags(root: pathlib.Path, tmp_path: pathlib.Path):
  toy(root / "wiki_links")
  vocabulary = BagVocabulary(
    vocabulary_file(
      TaskSource("wiki_links"), SPEC, limits=Limits(min_counts={"ngrams": 1}), cache=tmp_path / "cache"
    )
  )
  assert vocabulary.tables == (("id", 4), ("ngrams", 7), ("categories", 3))
  inputs = TextInputs(vocabulary, length(vocabulary), length(vocabulary))
  data = load(TaskSource("wiki_links", "dev"), inputs, cache=tmp_path / "cache")
  assert judgements(data) == {"1": {"0": 1}}
  # id; red, then cats or dogs, with the pair behind them; categories by the number of their pages.
  assert data.queries.gather([0]).tolist() == [[2, 1, 4, 5, 1, 2]]
  assert data.passages.gather([0, 2]).tolist() == [[1, 1, 2, 3, 1, 0], [3, 6, 0, 0, 0, 0]]


def test_a_split_that_is_missing_and_nothing_at_all(root: pathlib.Path, read):
  with pytest.raises(
    UserError, match=rf"wiki_links is not here: looked at {root}/wiki_links, {root}/graph_wiki"
  ):
    read("wiki_links_text", "test")
  (toy(root / "wiki_links") / "edges.dev.tsv").unlink()
  with pytest.raises(UserError, match="wiki_links_text: there are no edges of 'dev'; found test, train"):
    read("wiki_links_text", "dev")
