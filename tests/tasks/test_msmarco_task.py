"""The Task msmarco_passage on folders of three passages in the layout of the release."""

import pathlib

import pytest
from task_files import judgements, write

from retrieval_jax.data.benchmarks import check_counts, check_files
from retrieval_jax.data.features import registered
from retrieval_jax.data.task_source import TaskSource
from retrieval_jax.errors import UserError


@pytest.fixture
def folder(root: pathlib.Path) -> pathlib.Path:
  folder = root / "msmarco_passage"
  write(folder / "collection.tsv", "0\ta red a", "1\tb red b", "01\tgreen")
  write(folder / "queries.train.tsv", "7\tred ?", "8\tblue ?", "9\tnot judged")
  write(folder / "qrels.train.tsv", "7\t0\t0\t1", "8\t0\t1\t1")
  write(folder / "queries.dev.small.tsv", "2\tgreen ?")
  write(folder / "qrels.dev.small.tsv", "2\t0\t01\t1")
  write(folder / "msmarco-test2019-queries.tsv", "19\tred ?", "20\tnobody judged this")
  write(folder / "2019qrels-pass.txt", "19 Q0 0 3", "19 Q0 1 1", "19 Q0 01 0")
  return folder


def test_the_splits(folder: pathlib.Path, read):
  assert judgements(read("msmarco_passage", "train")) == {"7": {"0": 1}, "8": {"1": 1}}
  dev = read("msmarco_passage", "dev_small")
  assert judgements(dev) == {"2": {"01": 1}}
  assert list(dev.passages.texts) == ["a red a", "b red b", "green"]
  assert dev.queries.texts[0] == "green ?"
  graded = read("msmarco_passage", "dl19")
  assert judgements(graded) == {"19": {"0": 3, "1": 1, "01": 0}}
  assert graded.passages.fingerprint == dev.passages.fingerprint  # one corpus, encoded once


def test_trec_counts_from_grade_2(folder: pathlib.Path, read):
  assert (
    read("msmarco_passage", "dl19").info.relevant_from,
    read("msmarco_passage", "dl19").info.metrics[0],
  ) == (
    2,
    "ndcg@10",
  )
  assert TaskSource("msmarco_passage", "dl20").info.relevant_from == 2
  assert read("msmarco_passage", "dev_small").info.relevant_from == 1
  assert TaskSource("msmarco_passage", "dev_small").info.metrics[0] == "mrr@10"
  assert "recall@1000" in TaskSource("msmarco_passage", "dev_small").info.metrics


def test_judgements_that_come_later_leave_the_corpus_as_it_is(folder: pathlib.Path, read):
  before = read("msmarco_passage", "dev_small")
  write(folder / "msmarco-test2020-queries.tsv", "21\tblue ?")
  write(folder / "2020qrels-pass.txt", "21 0 1 2")
  assert judgements(read("msmarco_passage", "dl20")) == {"21": {"1": 2}}
  assert read("msmarco_passage", "dl20").passages.fingerprint == before.passages.fingerprint
  write(folder / "qrels.dev.small.tsv", "2\t0\t0\t1")  # and other judgements are read
  assert judgements(read("msmarco_passage", "dev_small")) == {"2": {"0": 1}}
  write(folder / "collection.tsv", "0\ta", "1\tb", "01\tanother text")
  assert read("msmarco_passage", "dev_small").passages.texts[2] == "another text"


def test_there_is_no_split_called_test(folder: pathlib.Path, read):
  assert registered()["msmarco_passage"].splits == ("train", "dev_small", "dl19", "dl20", "corpus")
  with pytest.raises(UserError, match="no split 'test'; its splits of pairs: train, dev_small, dl19, dl20"):
    read("msmarco_passage", "test")


def test_a_cut_release_is_told(folder: pathlib.Path, read):
  dev = read("msmarco_passage", "dev_small")
  assert check_counts(dev) == [
    "msmarco_passage, split dev_small: 3 passages, but 8,841,823 are published: published results were measured on "
    "other data.",
    "msmarco_passage, split dev_small: 1 judged queries, but 6,980 are published: published results were measured on "
    "other data.",
  ]
  changed = check_files(dev)
  assert len(changed) == 5  # those with a published md5 that are here
  assert any(m.startswith(f"{folder}/queries.dev.small.tsv: its md5 is ") for m in changed)
  assert any(
    m.endswith(
      "4621c583f1089d223db228a4f95a05d1 is published: the file was changed, or is of another version."
    )
    for m in changed
  )


def test_a_file_that_is_missing(folder: pathlib.Path, read):
  with pytest.raises(UserError, match=r"neither msmarco-test2020-queries\.tsv nor"):
    read("msmarco_passage", "dl20")


def test_nothing_is_there(root: pathlib.Path, read):
  message = (
    f"looked at {root}/msmarco_passage, {root}/msmarco-passage, {root}/msmarco. Get it with `python scripts/"
  )
  with pytest.raises(
    UserError, match=message + "download_msmarco.py --names passage`, or set RETRIEVAL_JAX_DATA"
  ):
    read("msmarco_passage", "dev_small")
