"""Readers of TSV pairs and BEIR folders: hard bytes, line numbers, dangling judgements."""

import gzip
import json
import logging
import pathlib

import pytest

from retrieval_jax.data import features
from retrieval_jax.data.readers import (
  beir_splits,
  read_beir_corpus,
  read_beir_folder,
  read_lines,
  read_tsv_pairs,
  text_id,
)
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


def test_lines_end_at_newline_bytes_only(tmp_path: pathlib.Path):
  path = write(tmp_path / "x.txt", HARD, "", "last")
  assert [line.text for line in read_lines(path)] == [HARD, "last"]
  assert [line.where for line in read_lines(path)] == [f"{path}:1", f"{path}:3"]


def test_lines_of_windows_and_with_a_byte_order_mark(tmp_path: pathlib.Path):
  path = tmp_path / "x.txt"
  path.write_bytes(b"\xef\xbb\xbfone\r\ntwo\rthree\r\nfour")
  assert [line.text for line in read_lines(path)] == ["one", "two\rthree", "four"]


def test_bad_utf8_names_the_line(tmp_path: pathlib.Path):
  path = tmp_path / "x.txt"
  path.write_bytes(b"good\nb\xffd\n")
  with pytest.raises(UserError, match=r"x\.txt:2: not UTF-8"):
    list(read_lines(path))


def test_damaged_gzip_is_a_user_error(tmp_path: pathlib.Path):
  path = tmp_path / "x.tsv.gz"
  path.write_bytes(gzip.compress(b"query one\tpassage\n" * 5000)[:-20])
  with pytest.raises(UserError, match=r"x\.tsv\.gz:\d+: cannot be read"):
    list(read_lines(path))


def test_tsv_without_a_header_gives_equal_texts_one_id(tmp_path: pathlib.Path):
  pairs = list(read_tsv_pairs(write(tmp_path / "x.tsv", f"q\t{HARD}", "q\tother")))
  assert pairs == [
    features.pair(text_id("q"), "q", text_id(HARD), HARD),
    features.pair(text_id("q"), "q", text_id("other"), "other"),
  ]


def test_tsv_with_a_header_in_any_order(tmp_path: pathlib.Path):
  path = write(tmp_path / "x.tsv", "passage_id\tpassage\trelevance\tquery\tquery_id", "01\tp\t-1\tq\t 7 ")
  assert list(read_tsv_pairs(path)) == [features.pair(" 7 ", "q", "01", "p", -1)]


def test_tsv_with_titles(tmp_path: pathlib.Path):
  path = write(tmp_path / "x.tsv", "query\tpassage\ttitle", "q\tp\t t ", "q\tp\t", "q\tp\tu")
  pairs = list(read_tsv_pairs(path))
  assert [pair.get("title") for pair in pairs] == ["t", None, "u"]
  assert len({pair["passage_id"] for pair in pairs}) == 3
  assert pairs[1] == features.pair(text_id("q"), "q", text_id("p"), "p")
  assert len(list(read_tsv_pairs(write(tmp_path / "y.tsv", "title\ta query may be this word")))) == 1


@pytest.mark.parametrize(
  "lines, message",
  [
    (["q\tp", "only one"], r"x\.tsv:2: 1 columns, expected 2 \(query, passage\)"),
    (["q\tp\textra"], r"x\.tsv:1: 3 columns, expected 2"),
    (["query\tpassage\trelevance", "q\tp\tyes"], r"x\.tsv:2: relevance 'yes'; expected an integer"),
    (["query\tpassage\trelevance", "q\tp\t2147483648"], r"x\.tsv:2: relevance '2147483648'; .* 2\*\*31"),
    (["Query\tPassage"], r"x\.tsv:1: .*'Query'.* Column names: query, passage, query_id, passage_id, relev"),
    (["query \tpassage"], r"x\.tsv:1: .*'query '.* Column names: query, passage"),
    (["query\tanswer"], r"x\.tsv:1: .*'answer'.* Column names: query, passage"),
    (["query\tpassage\tscore"], r"x\.tsv:1: the header .*'score'.* must name each of query, passage, "),
  ],
)
def test_tsv_mistakes_name_file_and_line(tmp_path: pathlib.Path, lines: list[str], message: str):
  with pytest.raises(UserError, match=message):
    list(read_tsv_pairs(write(tmp_path / "x.tsv", *lines)))


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
  assert "1 of 100 judgements name queries that queries.jsonl lacks ('gone')" in caplog.text
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
    ("corpus.jsonl", '{"_id": "1"}', r"corpus\.jsonl:1: .*KeyError: 'text'"),
    ("corpus.jsonl", '{"_id": 1, "text": "x"}', r"corpus\.jsonl:1: _id and text must be strings; got 1"),
    ("qrels/test.tsv", "-0\t01", r"qrels/test\.tsv:1: 2 columns, expected 3"),
    ("qrels/test.tsv", "-0\t01\t-2147483649", r"qrels/test\.tsv:1: relevance '-2147483649'; .* 2\*\*31"),
    ("qrels/test.tsv", "-0\t01\t0.5", r"qrels/test\.tsv:1: relevance '0.5'; expected an integer"),
  ],
)
def test_beir_mistakes_name_file_and_line(beir: pathlib.Path, name: str, line: str, message: str):
  write(beir / name, line)
  with pytest.raises(UserError, match=message):
    list(read_beir_corpus(beir) if name == "corpus.jsonl" else read_beir_folder(beir, "test"))


def test_a_folder_that_is_not_beir(tmp_path: pathlib.Path):
  with pytest.raises(UserError, match=r"no qrels/<split>\.tsv in it"):
    beir_splits(tmp_path)
  with pytest.raises(UserError, match=r"neither corpus\.jsonl nor corpus\.jsonl\.gz"):
    list(read_beir_corpus(tmp_path))
