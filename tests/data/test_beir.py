"""BEIR folders: ids that look like numbers, titles, dangling judgements, line numbers."""

import gzip
import json
import logging
import pathlib

import pytest

from retrieval_jax.data import features
from retrieval_jax.data.beir import beir_splits, read_beir_corpus, read_beir_folder
from retrieval_jax.errors import UserError

HARD = "a\u2028b\x85c\rd\x0be\x1cf"


def write(path: pathlib.Path, *lines: str) -> pathlib.Path:
  path.parent.mkdir(exist_ok=True)
  path.write_bytes("".join(f"{line}\n" for line in lines).encode())
  return path


@pytest.fixture
def beir(tmp_path: pathlib.Path) -> pathlib.Path:
  """Ids that look like numbers, every kind of missing title, a judgement of 0, a dangling query."""
  documents = [
    {"_id": "01", "title": "Cats", "text": "purr"},
    {"_id": "1", "title": None, "text": f"null {HARD}"},
    {"_id": "1e3", "title": "", "text": "empty"},
    {"_id": " a ", "text": "absent"},
    {"_id": "🙂", "title": "only a title", "text": ""},
  ]
  write(tmp_path / "corpus.jsonl", *(json.dumps(document, ensure_ascii=False) for document in documents))
  write(tmp_path / "queries.jsonl", '{"_id": "-0", "text": "which?"}', '{"_id": "0", "text": "who?"}')
  head = "query-id\tcorpus-id\tscore"
  write(tmp_path / "qrels/test.tsv", head, "-0\t01\t1", "-0\t1\t2", "0\t🙂\t0")
  return tmp_path


def test_beir_titles_and_ids(beir: pathlib.Path):
  assert list(read_beir_corpus(beir)) == [
    features.passage("01", "purr", title="Cats"),
    features.passage("1", f"null {HARD}"),
    features.passage("1e3", "empty"),
    features.passage(" a ", "absent"),
    features.passage("🙂", "", title="only a title"),
  ]


def test_beir_pairs(beir: pathlib.Path):
  assert list(read_beir_folder(beir, "test")) == [
    features.pair("-0", "which?", "01", "", 1),
    features.pair("-0", "which?", "1", "", 2),
    features.pair("0", "who?", "🙂", "", 0),
  ]


def test_beir_dangling_queries_are_left_out_up_to_1_percent(
  beir: pathlib.Path, caplog: pytest.LogCaptureFixture
):
  write(beir / "qrels/test.tsv", *["0\t01\t1"] * 99, "gone\t01\t1")
  with caplog.at_level(logging.WARNING):
    assert len(list(read_beir_folder(beir, "test"))) == 99
  assert "1 of 100 judgements name queries that the file of queries lacks ('gone')" in caplog.text
  write(beir / "qrels/test.tsv", *["0\t01\t1"] * 98, "gone\t01\t1")
  with pytest.raises(UserError, match=r"1 of 99 judgements name queries .*'gone'.* Above 1%"):
    list(read_beir_folder(beir, "test"))


def test_beir_query_that_comes_twice(beir: pathlib.Path):
  write(beir / "queries.jsonl", *['{"_id": "-0", "text": "which?"}'] * 2, '{"_id": "0", "text": "who?"}')
  assert len(list(read_beir_folder(beir, "test"))) == 3
  write(beir / "queries.jsonl", '{"_id": "0", "text": "which?"}', '{"_id": "0", "text": "who?"}')
  with pytest.raises(
    UserError, match=r"queries\.jsonl:2: the id '0' comes with two texts: 'which\?' and 'who\?'"
  ):
    list(read_beir_folder(beir, "test"))


@pytest.mark.parametrize("head", ["query-id\tcorpus-id\trelevance", "q\tp\tgrade", "query\tpassage\t"])
def test_beir_header_of_any_names(beir: pathlib.Path, head: str):
  write(beir / "qrels/test.tsv", head, "0\t01\t1")
  assert list(read_beir_folder(beir, "test")) == [features.pair("0", "who?", "01", "", 1)]


def test_beir_gzipped_reads_alike(beir: pathlib.Path, tmp_path_factory: pytest.TempPathFactory):
  zipped = tmp_path_factory.mktemp("zipped")
  (zipped / "qrels").mkdir()
  for name in ("corpus.jsonl", "queries.jsonl", "qrels/test.tsv"):
    (zipped / f"{name}.gz").write_bytes(gzip.compress((beir / name).read_bytes()))
  assert beir_splits(zipped) == ["test"]
  assert list(read_beir_corpus(zipped)) == list(read_beir_corpus(beir))
  assert list(read_beir_folder(zipped, "test")) == list(read_beir_folder(beir, "test"))


@pytest.mark.parametrize(
  "name, line, message",
  [
    ("corpus.jsonl", '{"_id": "1"', r"corpus\.jsonl:1: expected a JSON object with _id and text"),
    ("corpus.jsonl", '{"_id": "1"}', r"corpus\.jsonl:1: expected .* 'text' is not in it"),
    ("corpus.jsonl", '{"_id": 1, "text": "x"}', r"corpus\.jsonl:1: _id and text must be strings; _id is 1"),
    ("corpus.jsonl", '{"_id": "1", "text": "x", "title": 3}', r"corpus\.jsonl:1: title is 3; expected text"),
    ("corpus.jsonl", "[" * 100_000, r"corpus\.jsonl:1: expected a JSON object .*RecursionError"),
    ("qrels/test.tsv", "-0\t01", r"qrels/test\.tsv:1: 2 columns, expected 3 split by tabs .* or 4"),
    ("qrels/test.tsv", "-0\t01\t-2147483649", r"qrels/test\.tsv:1: relevance '-2147483649'; .* 2\*\*31"),
    ("qrels/test.tsv", "-0\t01\t0.5", r"qrels/test\.tsv:1: relevance '0.5'; expected an integer"),
  ],
)
def test_beir_mistakes_name_file_and_line(beir: pathlib.Path, name: str, line: str, message: str):
  write(beir / name, line)
  with pytest.raises(UserError, match=message):
    list(read_beir_corpus(beir) if name == "corpus.jsonl" else read_beir_folder(beir, "test"))


def test_beir_passage_that_comes_twice(beir: pathlib.Path):
  lines = [
    '{"_id": "a", "text": "x"}',
    '{"_id": "b", "text": "y"}',
    '{"_id": "a", "text": "x ", "title": null}',
  ]
  write(beir / "corpus.jsonl", *lines)
  assert [passage["passage_id"] for passage in read_beir_corpus(beir)] == ["a", "b", "a"]
  write(beir / "corpus.jsonl", *lines, '{"_id": "b", "text": "other"}')
  with pytest.raises(UserError, match=r"jsonl:4: the id 'b' comes with another text here than at .*jsonl:2"):
    list(read_beir_corpus(beir))


def test_beir_judgements_in_the_form_of_trec(beir: pathlib.Path):
  expected = [features.pair("-0", "which?", "01", "", 1), features.pair("0", "who?", "1", "", 2)]
  for lines in (
    ["-0\t0\t01\t1", "0\t0\t1\t2"],
    ["-0 0 01 1", "0 0 1 2"],
    ["q\tp\tscore", "-0\t01\t1.0", "0\t1\t2."],
  ):
    write(beir / "qrels/test.tsv", *lines)
    assert list(read_beir_folder(beir, "test")) == expected


def test_a_folder_that_is_not_beir(tmp_path: pathlib.Path):
  with pytest.raises(UserError, match=r"no qrels/<split>\.tsv in it"):
    beir_splits(tmp_path)
  with pytest.raises(UserError, match=r"neither corpus\.jsonl nor corpus\.jsonl\.gz"):
    list(read_beir_corpus(tmp_path))
