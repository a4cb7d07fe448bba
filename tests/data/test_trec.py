"""Qrels and runs: columns, grades, ids, repeated lines."""

import pathlib

import pytest

from retrieval_jax.data.trec import Judgement, RunLine, read_qrels, read_run
from retrieval_jax.errors import UserError


def write(path: pathlib.Path, *lines: str) -> pathlib.Path:
  path.write_bytes("".join(f"{line}\n" for line in lines).encode())
  return path


def test_qrels_of_trec_at_blanks_and_at_tabs(tmp_path: pathlib.Path):
  expected = [Judgement("01", "1e3", 3), Judgement("1", "a\u2028b\xa0c", -1)]
  assert list(read_qrels(write(tmp_path / "x", "01 0 1e3 3", "1  Q0 a\u2028b\xa0c   -1 "))) == expected
  assert list(read_qrels(write(tmp_path / "x", "01\t0\t1e3\t3", "1\t0\ta\u2028b\xa0c\t-1"))) == expected


def test_qrels_of_beir(tmp_path: pathlib.Path):
  path = write(tmp_path / "x", "query-id\tcorpus-id\tscore", " a \t🙂\t1.0", "a\t \t2")
  assert list(read_qrels(path)) == [Judgement(" a ", "🙂", 1), Judgement("a", " ", 2)]


@pytest.mark.parametrize(
  "lines, message",
  [
    (["a b 1"], r":1: 3 columns, expected 3 split by tabs .* or 4 \(query, 0, passage, grade\)"),
    (["a\tb\tc\td\t1"], r":1: 5 columns"),
    (["a 0 b 1", "a\t0\tb 1", "a 0 b"], r":3: 3 columns, expected 4 as in the first line"),
    (["a\tb\t1", "a\t0\tb\t1"], r":2: 4 columns, expected 3 as in the first line"),
    (["a 0 b good"], r":1: relevance 'good'; expected an integer"),
    (["a\tb\t1", "a\tb\t0.5"], r":2: relevance '0\.5'; expected an integer"),
    (["a\tb\t1", "a\tb\t1_0"], r":2: relevance '1_0'; expected an integer"),
    (["a\tb\t1", "a\tb\tnan"], r":2: relevance 'nan'; expected an integer"),
    (["a\tb\t1", "a\tb\t2147483648"], r":2: relevance '2147483648'; expected an integer from -2\*\*31"),
    (["a\tb\t1", "a\tb\t" + "9" * 5000], r":2: relevance '9+'?; expected an integer"),
  ],
)
def test_qrels_mistakes_name_file_and_line(tmp_path: pathlib.Path, lines: list[str], message: str):
  with pytest.raises(UserError, match=message):
    list(read_qrels(write(tmp_path / "x.tsv", *lines)))


def test_run(tmp_path: pathlib.Path):
  path = write(tmp_path / "x.run", "q1 Q0 01 1 2.5e1 bm25", "q1\tQ0\t1\t2\t-0.0\tbm25", "q2 Q0 01 1 3 bm25")
  assert list(read_run(path)) == [
    RunLine("q1", "01", 1, 25.0, "bm25"),
    RunLine("q1", "1", 2, -0.0, "bm25"),
    RunLine("q2", "01", 1, 3.0, "bm25"),
  ]
  assert list(read_run(write(path))) == []


@pytest.mark.parametrize(
  "line, message",
  [
    ("q1 Q0 p 1 2.5", r"x\.run:2: 5 columns, expected 6: query, Q0, passage, rank, score, tag"),
    ("q1 Q0 p one 2.5 t", r"x\.run:2: rank 'one' and score '2\.5'"),
    ("q1 Q0 p 1 nan t", r"x\.run:2: rank '1' and score 'nan'; .* a finite one"),
    ("q1 Q0 p 1 1e999 t", r"x\.run:2: rank '1' and score '1e999'"),
    ("q1 Q0 a 9 1.0 t", r"x\.run:2: the passage 'a' comes twice for the query 'q1', first at .*x\.run:1"),
  ],
)
def test_run_mistakes_name_file_and_line(tmp_path: pathlib.Path, line: str, message: str):
  with pytest.raises(UserError, match=message):
    list(read_run(write(tmp_path / "x.run", "q1 Q0 a 1 3.0 t", line)))
