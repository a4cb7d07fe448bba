"""MS MARCO's files: ids as text, triples of both kinds, wrong lines."""

import gzip
import pathlib

import pytest

from retrieval_jax.data import features
from retrieval_jax.data.judged_pairs import judged_pairs
from retrieval_jax.data.msmarco import (
  Candidate,
  IdTriple,
  read_collection,
  read_id_triples,
  read_queries,
  read_top1000,
  read_triples,
)
from retrieval_jax.data.text_table import text_id
from retrieval_jax.errors import UserError


def write(path: pathlib.Path, *lines: str) -> pathlib.Path:
  path.write_bytes("".join(f"{line}\n" for line in lines).encode())
  return path


def test_collection_keeps_mojibake_quotes_and_line_separators(tmp_path: pathlib.Path):
  text = 'youâ\x80\x99re "so\u2028 called \x85" '
  path = write(tmp_path / "collection.tsv", f"0\t{text}", "01\t", "0\t" + text)
  assert list(read_collection(path)) == [
    features.passage("0", text),
    features.passage("01", ""),
    features.passage("0", text),
  ]
  (tmp_path / "c.tsv.gz").write_bytes(gzip.compress(path.read_bytes()))
  assert list(read_collection(tmp_path / "c.tsv.gz")) == list(read_collection(path))


def test_an_archive_is_to_be_unpacked(tmp_path: pathlib.Path):
  path = write(tmp_path / "collection.tar.gz", "x")
  with pytest.raises(UserError, match=r"collection\.tar\.gz: an archive, which is not read\. Unpack it"):
    list(read_collection(path))


def test_queries_and_judgements(tmp_path: pathlib.Path):
  queries = read_queries(write(tmp_path / "queries.tsv", "2\twho?", "1\twhich?", "2\twho?"))
  assert queries == {"2": "who?", "1": "which?"}
  expected = [features.pair("1", "which?", "7", "", 1), features.pair("2", "who?", "7", "", 3)]
  for lines in (["1\t0\t7\t1", "2\t0\t7\t3"], ["1 0 7 1", "2 Q0 7 3"]):
    qrels = write(tmp_path / "qrels.tsv", *lines)
    assert list(judged_pairs(queries, qrels, where="dev")) == expected


def test_triples(tmp_path: pathlib.Path):
  (pair,) = read_triples(write(tmp_path / "t.tsv", "q\ta\tb"))
  ids = [text_id("b")]
  assert pair == features.pair(text_id("q"), "q", text_id("a"), "a", negatives=["b"], negative_ids=ids)
  path = write(tmp_path / "ids.tsv", "1\t01\t2", "1\t01\t3")
  assert list(read_id_triples(path)) == [IdTriple("1", "01", "2"), IdTriple("1", "01", "3")]
  assert next(read_top1000(write(tmp_path / "top.tsv", "1\t2\tq\tp"))) == Candidate("1", "2", "q", "p")


@pytest.mark.parametrize(
  "reader, lines, message",
  [
    (read_collection, ["0\ta", "1 b"], r"x\.tsv:2: 1 columns, expected 2 split by tabs: pid, text"),
    (read_collection, ["0\ta\tb"], r"x\.tsv:1: 3 columns, expected 2"),
    (read_collection, ["0\ta", "1\tb", "1\tc"], r"x\.tsv:3: the id '1' comes with another text .*x\.tsv:2"),
    (read_queries, ["1\ta", "1\tb"], r"x\.tsv:2: the qid '1' comes with two texts: 'a' and 'b'"),
    (read_triples, ["q\ta\tb", "q\ta"], r"x\.tsv:2: 2 columns, expected 3 .*: query, positive, negative"),
    (read_id_triples, ["1\t2\t3", "1\t2\t3\t4"], r"x\.tsv:2: 4 columns, expected 3"),
    (read_top1000, ["1\t2\tq"], r"x\.tsv:1: 3 columns, expected 4 .*: qid, pid, query, passage"),
  ],
)
def test_mistakes_name_file_and_line(tmp_path: pathlib.Path, reader, lines: list[str], message: str):
  with pytest.raises(UserError, match=message):
    list(reader(write(tmp_path / "x.tsv", *lines)))
