"""Strings and ids on disk: opaque, found by id, one text an id."""

import pathlib

import numpy as np
import pytest

from retrieval_jax.data.text_rows import RowWriter, TextRows
from retrieval_jax.data.text_table import hash_text
from retrieval_jax.errors import UserError

IDS = ["1", "01", "1e3", "-0", "🙂", " a ", "", "x" * 300]


def test_ids_are_opaque_strings(tmp_path: pathlib.Path):
  writer = RowWriter(tmp_path / "rows")
  for id in IDS:
    writer.add(id, f"text of {id}")
  assert writer.finish("toy").tolist() == list(range(8))
  rows = TextRows(tmp_path / "rows")
  assert list(rows.ids) == IDS
  assert rows.texts[4] == "text of 🙂"
  assert [rows.row_of(id) for id in IDS] == list(range(8))
  assert rows.texts[-1] == rows.texts[7]
  assert rows.ids[1:4] == ["01", "1e3", "-0"]
  assert rows.texts.take(np.array([5, 0])) == ["text of  a ", "text of 1"]
  with pytest.raises(UserError, match=r"no row has the id '1\.0' among the 8"):
    rows.row_of("1.0")
  with pytest.raises(IndexError):
    rows.ids[8]


def test_an_id_that_comes_again_is_the_same_row(tmp_path: pathlib.Path):
  writer = RowWriter(tmp_path / "rows")
  for id in ("b", "b", "a", "b", "c", "a"):
    writer.add(id, f"text {id}")
  assert writer.finish("toy").tolist() == [0, 0, 1, 0, 2, 1]
  assert list(TextRows(tmp_path / "rows").ids) == ["b", "a", "c"]


def test_one_id_with_two_texts_shows_both(tmp_path: pathlib.Path):
  writer = RowWriter(tmp_path / "rows")
  for id, text in (("a", "first"), ("b", "other"), ("a", "second" * 30)):
    writer.add(id, text)
  with pytest.raises(
    UserError, match=r"toy: the id 'a' comes with two texts: 'first' and 'secondsec.*\.\.\.'"
  ):
    writer.finish("toy")


def test_titles(tmp_path: pathlib.Path):
  writer = RowWriter(tmp_path / "rows")
  for id, text, title in (("a", "x", "T"), ("a", "x", "T"), ("b", "y", ""), ("c", "", "U")):
    writer.add(id, text, title)
  assert writer.finish("toy").tolist() == [0, 0, 1, 2]
  rows = TextRows(tmp_path / "rows")
  assert list(rows.texts) == ["T x", "y", "U"]
  assert (rows.texts[-1], rows.texts[:2], rows.texts.take([1, 0]), len(rows.texts)) == (
    "U",
    ["T x", "y"],
    ["y", "T x"],
    3,
  )
  assert rows.passages(slice(1, 3)) == [("", "y"), ("U", "")]
  with pytest.raises(IndexError):
    rows.texts[3]


def test_rows_without_titles_have_no_such_file(tmp_path: pathlib.Path):
  writer = RowWriter(tmp_path / "rows")
  writer.add("a", "x")
  writer.finish("toy")
  assert not list(tmp_path.glob("rows/titles*"))
  assert TextRows(tmp_path / "rows").passages(slice(0, 9)) == ["x"]


def test_one_id_with_two_titles_shows_both(tmp_path: pathlib.Path):
  writer = RowWriter(tmp_path / "rows")
  writer.add("a", "x", "T")
  writer.add("a", "x", "U")
  with pytest.raises(UserError, match="toy: the id 'a' comes with two texts: 'T x' and 'U x'"):
    writer.finish("toy")


def test_no_rows(tmp_path: pathlib.Path):
  with pytest.raises(UserError, match=r"toy: no rows\. Check the path"):
    RowWriter(tmp_path / "rows").finish("toy")


def test_empty_texts_and_line_ends_survive(tmp_path: pathlib.Path):
  writer = RowWriter(tmp_path / "rows")
  writer.add("a", "")
  writer.add("b", "")
  assert writer.finish("toy").tolist() == [0, 1]
  assert list(TextRows(tmp_path / "rows").texts) == ["", ""]
  other = RowWriter(tmp_path / "other")
  other.add("a", "x\ny\u2028z\r\0")
  other.finish("toy")
  assert TextRows(tmp_path / "other").texts[0] == "x\ny\u2028z\r\0"


def test_hashes_that_are_not_there_give_minus_one(tmp_path: pathlib.Path):
  writer = RowWriter(tmp_path / "rows")
  writer.add("a", "A")
  writer.add("b", "B")
  writer.finish("toy")
  hashes = np.array([hash_text("b"), 0, 2**64 - 1, hash_text("a")], np.uint64)
  assert TextRows(tmp_path / "rows").rows_of_hashes(hashes).tolist() == [1, -1, -1, 0]
