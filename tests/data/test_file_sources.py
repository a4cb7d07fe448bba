"""BEIR folders and TSV files end to end: text on disk, seqio, tokens, batches."""

import dataclasses
import json
import os
import pathlib

import numpy as np
import pytest

from retrieval_jax.data import features
from retrieval_jax.data.dataset import load, make_batch
from retrieval_jax.data.file_sources import BeirFolder, JsonlPairs, TsvPairs
from retrieval_jax.data.text_inputs import TextInputs
from retrieval_jax.data.vocabularies import WordPiece
from retrieval_jax.errors import UserError


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
  root = tmp_path / "my data-set"
  (root / "qrels").mkdir(parents=True)
  documents = [
    {"_id": "01", "title": "red", "text": "a"},
    {"_id": "1", "text": "b\u2028c"},
    {"_id": "🙂", "text": ""},
  ]
  (root / "corpus.jsonl").write_text("\n".join(json.dumps(d, ensure_ascii=False) for d in documents))
  (root / "queries.jsonl").write_text('{"_id": "q", "text": "red ?"}\n')
  for split, rows in {"train": "q\t01\t1\nq\t1\t2\n", "test": "q\t1\t1\nq\t🙂\t0\n"}.items():
    (root / "qrels" / f"{split}.tsv").write_text(f"query-id\tcorpus-id\tscore\n{rows}")
  return root


def test_beir_folder_to_batch(folder: pathlib.Path, inputs: TextInputs, tmp_path: pathlib.Path):
  train = load(BeirFolder(str(folder)), inputs, cache=tmp_path / "cache")
  assert train.name == "my data-set"
  assert list(train.passages.ids) == ["01", "1", "🙂"]
  assert list(train.passages.texts) == ["red a", "b\u2028c", ""]
  batch = make_batch(train, np.array([0, -1]), seed=0, epoch=0)
  assert batch.positives.tolist() == [[0, 1], [-1, -1]]
  assert train.passages.gather([2]).tolist() == [[2, 3, 0, 0, 0, 0, 0, 0]]
  test = load(BeirFolder(str(folder), split="test"), inputs, cache=tmp_path / "cache")
  assert [column.tolist() for column in test.relevance.row(0)] == [[1, 2], [1, 0]]
  assert test.passages.fingerprint == train.passages.fingerprint
  with pytest.raises(UserError, match="my data-set has no split 'dev'; its splits of pairs: test, train"):
    load(BeirFolder(str(folder), split="dev"), inputs, cache=tmp_path / "cache")


def test_tsv_files_to_batch(inputs: TextInputs, tmp_path: pathlib.Path):
  (tmp_path / "train.tsv").write_text("red ?\ta red a\nred ?\tb\nblue ?\tc\n")
  (tmp_path / "test.tsv").write_text("query\tpassage\npink ?\td\n")
  source = TsvPairs(str(tmp_path / "train.tsv"), test=str(tmp_path / "test.tsv"))
  train = load(source, inputs, cache=tmp_path / "cache")
  assert (train.name, train.queries.num_rows, train.relevance.width) == ("train", 2, 2)
  test = load(dataclasses.replace(source, split="test"), inputs, cache=tmp_path / "cache")
  assert list(test.passages.texts) == ["d"]
  assert test.name == "test"
  with pytest.raises(
    UserError,
    match=r"train has no split 'dev'; its splits of pairs: train, test.* DEV_PATH.* or EVAL_SPLIT=train",
  ):
    load(dataclasses.replace(source, split="dev"), inputs, cache=tmp_path / "cache")


@pytest.mark.parametrize(
  "split, name", [("train", "pairs"), ("dev", "tune"), ("test", "held.out"), ("other", "pairs")]
)
def test_a_tsv_source_is_called_after_the_file_of_its_split(split: str, name: str):
  assert TsvPairs("a/pairs.tsv", split, dev="b/tune.tsv.gz", test="c/held.out.tsv").name == name


def test_a_path_that_is_no_tsv_file(folder: pathlib.Path):
  with pytest.raises(UserError, match="DATA_PATH='': expected the path of a file of pairs"):
    TsvPairs("").splits()
  with pytest.raises(UserError, match=f"DATA_PATH='{folder}': that is a folder; expected a file"):
    TsvPairs(str(folder)).splits()
  (folder / "x.tsv").touch()
  with pytest.raises(UserError, match=f"TEST_PATH='{folder}': that is a folder; expected a file"):
    TsvPairs(str(folder / "x.tsv"), "test", test=str(folder)).splits()


def test_a_file_of_the_other_kind(tmp_path: pathlib.Path):
  for name in ("a.tsv", "a.jsonl.gz"):
    (tmp_path / name).touch()
  with pytest.raises(
    UserError, match=r"DATA_PATH=.*a\.jsonl\.gz: by its name no TSV file\. Use --gin_file=data/jsonl"
  ):
    TsvPairs(str(tmp_path / "a.jsonl.gz")).splits()
  with pytest.raises(
    UserError, match=r"TEST_PATH=.*a\.tsv: by its name no JSONL file\. Use --gin_file=data/tsv"
  ):
    JsonlPairs(str(tmp_path / "a.jsonl.gz"), test=str(tmp_path / "a.tsv")).splits()
  with pytest.raises(UserError, match=r"COLUMNS is \['query'\]; expected a dict of our names"):
    list(TsvPairs(str(tmp_path / "a.tsv"), columns=["query"]).examples("train"))  # type: ignore


def test_a_changed_file_is_read_again(inputs: TextInputs, tmp_path: pathlib.Path):
  path = tmp_path / "train.tsv"
  path.write_text("red ?\ta\n")
  assert list(load(TsvPairs(str(path)), inputs, cache=tmp_path / "cache").passages.texts) == ["a"]
  path.write_text("red ?\tb\n")
  os.utime(path, ns=(1, 1))  # some file systems keep whole seconds
  assert list(load(TsvPairs(str(path)), inputs, cache=tmp_path / "cache").passages.texts) == ["b"]


def test_mistakes_in_files_come_through_unchanged(
  folder: pathlib.Path, inputs: TextInputs, tmp_path: pathlib.Path
):
  (tmp_path / "bad.tsv").write_text("one\ttwo\nthree\n")
  with pytest.raises(UserError, match=r"bad\.tsv:2: 1 columns, expected 2"):
    load(TsvPairs(str(tmp_path / "bad.tsv")), inputs, cache=tmp_path / "cache")
  (tmp_path / "empty.tsv").write_text("")
  with pytest.raises(UserError, match=r"empty, split train, queries: no rows\. Check the path"):
    load(TsvPairs(str(tmp_path / "empty.tsv")), inputs, cache=tmp_path / "cache")
  with pytest.raises(UserError, match=r"absent\.tsv: no such file"):
    load(TsvPairs(str(tmp_path / "absent.tsv")), inputs, cache=tmp_path / "cache")
  with open(folder / "corpus.jsonl", "a") as file:
    file.write('\n{"_id": "01", "title": "another", "text": "text"}')
  with pytest.raises(
    UserError, match=r"corpus\.jsonl:4: the id '01' comes with another text here than at .*corpus\.jsonl:1"
  ):
    load(BeirFolder(str(folder)), inputs, cache=tmp_path / "cache")


@pytest.fixture
def triples(tmp_path: pathlib.Path) -> pathlib.Path:
  """Pairs with ids and a negative, and a corpus that has one passage more."""
  records = [
    {"question": "red ?", "query_id": 1, "passage_id": "01", "passage": "a", "negative_id": ["2", "1"]},
    {"question": "blue ?", "query_id": 2, "passage_id": "2", "passage": "b"},
  ]
  (tmp_path / "triples.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records))
  (tmp_path / "corpus.tsv").write_text("01\tred a\n1\tred b\n2\tc\n🙂\t\n")
  return tmp_path / "triples.jsonl"


def test_pairs_with_a_corpus_search_all_of_it(
  triples: pathlib.Path, inputs: TextInputs, tmp_path: pathlib.Path
):
  corpus = str(tmp_path / "corpus.tsv")
  source = JsonlPairs(str(triples), columns={"query": "question"}, corpus=corpus)
  data = load(source, inputs, cache=tmp_path / "cache")
  assert list(data.passages.ids) == ["01", "1", "2", "🙂"]
  assert list(data.passages.texts) == ["red a", "red b", "c", ""]
  assert [data.relevance.row(0)[0].tolist(), data.relevance.row(1)[0].tolist()] == [[0], [2]]
  assert data.negatives is not None
  assert sorted(data.negatives.row(0).tolist()) == [1, 2]
  assert [path.name for path in source.files()] == ["triples.jsonl", "corpus.tsv"]


def test_pairs_without_ids_find_their_texts_in_a_corpus_without_ids(
  inputs: TextInputs, tmp_path: pathlib.Path
):
  (tmp_path / "pairs.tsv").write_text("red ?\ta\nblue ?\tc\n")
  (tmp_path / "corpus.tsv").write_text("a\nb\nc\n")
  source = TsvPairs(str(tmp_path / "pairs.tsv"), corpus=str(tmp_path / "corpus.tsv"))
  data = load(source, inputs, cache=tmp_path / "cache")
  assert [data.relevance.row(row)[0].tolist() for row in (0, 1)] == [[0], [2]]
  (tmp_path / "corpus.tsv").write_text("7\ta\n8\tb\n9\tc\n")
  with pytest.raises(
    UserError, match=r"pairs\.tsv has no passage_id, while the passages of .* have ids \('7'\)"
  ):
    load(source, inputs, cache=tmp_path / "cache")


def test_seqio_knows_a_file_source_that_was_read(tmp_path: pathlib.Path):
  (tmp_path / "pairs.tsv").write_text("red ?\ta\n")
  source = TsvPairs(str(tmp_path / "pairs.tsv"))
  assert len(list(source.examples("train"))) == 1
  assert source.task().name in features.registered()
  with pytest.raises(UserError, match=r"tsv:pairs_tsv\..* has no split 'dev'; its splits: train"):
    list(source.examples("dev"))


def test_scifact_counts(data_dir: pathlib.Path, word_piece: WordPiece, tmp_path: pathlib.Path):
  inputs = TextInputs(word_piece, 8, 8)
  test = load(BeirFolder(str(data_dir / "scifact"), split="test"), inputs, cache=tmp_path)
  assert (test.passages.num_rows, test.num_examples, len(test.relevance.grades)) == (5183, 300, 339)
