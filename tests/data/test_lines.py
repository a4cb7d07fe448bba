"""Lines of files: where they end, compressed files whole and damaged, JSON objects."""

import gzip
import pathlib

import pytest
import zstandard

from retrieval_jax.data import lines
from retrieval_jax.data.lines import found_file, json_lines, read_lines, stem
from retrieval_jax.errors import UserError

HARD = "a\u2028b\x85c\rd\x0be\x1cf"
ROWS = b"query one\tpassage\n" * 5000
PACKED = {".gz": gzip.compress(ROWS), ".zst": zstandard.ZstdCompressor().compress(ROWS)}


def write(path: pathlib.Path, *rows: str) -> pathlib.Path:
  path.write_bytes("".join(f"{row}\n" for row in rows).encode())
  return path


def test_lines_end_at_newline_bytes_only(tmp_path: pathlib.Path):
  path = write(tmp_path / "x.txt", HARD, "", "last")
  assert [line.text for line in read_lines(path)] == [HARD, "last"]
  assert [line.where for line in read_lines(path)] == [f"{path}:1", f"{path}:3"]


def test_lines_of_windows_and_with_a_byte_order_mark(tmp_path: pathlib.Path):
  path = tmp_path / "x.txt"
  path.write_bytes(b"\xef\xbb\xbfone\r\ntwo\rthree\r\n\r\nfour\nfive")
  assert [line.text for line in read_lines(path)] == ["one", "two\rthree", "four", "five"]
  path.write_bytes(b"one\ntwo\r\n")
  assert [line.text for line in read_lines(path)] == ["one", "two\r"]


def test_bad_utf8_names_the_line(tmp_path: pathlib.Path):
  path = tmp_path / "x.txt"
  path.write_bytes(b"good\nb\xffd\n")
  with pytest.raises(UserError, match=r"x\.txt:2: not UTF-8"):
    list(read_lines(path))


@pytest.mark.parametrize("ending", [".gz", ".zst"])
def test_compressed_files_of_several_parts(tmp_path: pathlib.Path, ending: str):
  path = tmp_path / f"x.tsv{ending}"
  path.write_bytes(PACKED[ending] * 2)
  read = list(read_lines(path))
  assert len(read) == 10_000
  assert read[-1] == ("query one\tpassage", f"{path}:10000")
  path.write_bytes(b"")
  assert list(read_lines(path)) == []


@pytest.mark.parametrize("ending", [".gz", ".zst"])
def test_compressed_files_that_were_cut_short(tmp_path: pathlib.Path, ending: str):
  path = tmp_path / f"x.tsv{ending}"
  for data in (PACKED[ending][:-1], PACKED[ending][:20], PACKED[ending] + PACKED[ending][:-9]):
    path.write_bytes(data)
    with pytest.raises(UserError, match=r"x\.tsv\.(gz|zst):\d+: cannot be read \(.*(ended|ends) "):
      list(read_lines(path))


@pytest.mark.parametrize("ending", [".gz", ".zst"])
def test_a_name_that_promises_another_kind_of_file(tmp_path: pathlib.Path, ending: str):
  path = tmp_path / f"x.tsv{ending}"
  path.write_bytes(b"query\tpassage\n")
  with pytest.raises(UserError, match=r"x\.tsv\.(gz|zst):1: cannot be read"):
    list(read_lines(path))


def test_a_line_beyond_the_bound(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
  monkeypatch.setattr(lines, "LONGEST", 2**20)
  path = write(tmp_path / "x.txt", "short", "x" * (2**20 - 1))
  assert [len(line.text) for line in read_lines(path)] == [5, 2**20 - 1]
  write(path, "short", "x" * 2**20)
  with pytest.raises(UserError, match=r"x\.txt:2: a line of more than 1 MiB\. Lines must end with"):
    list(read_lines(path))


def test_json_lines_keep_what_looks_like_line_ends(tmp_path: pathlib.Path):
  path = write(tmp_path / "x.jsonl", '{"text": "a\u2028b", "n": 1}', "", '{"text": "\\n"}\r')
  assert list(json_lines(path, ("text",))) == [
    ({"text": "a\u2028b", "n": 1}, f"{path}:1"),
    ({"text": "\n"}, f"{path}:3"),
  ]


@pytest.mark.parametrize(
  "row, message",
  [
    ('{"_id": "1"', r":2: expected a JSON object with _id and text; JSONDecodeError"),
    ('["_id"]', r":2: expected a JSON object with _id and text; got list"),
    ('{"_id": "1", "body": "x"}', r":2: .*'text' is not in it \(\['_id', 'body'\]\)"),
    ('{"_id": "1", "text": null}', r":2: _id and text must be strings; text is None"),
    ("[" * 100_000, r":2: expected .*RecursionError"),
  ],
)
def test_json_lines_that_are_no_such_object(tmp_path: pathlib.Path, row: str, message: str):
  with pytest.raises(UserError, match=message):
    list(json_lines(write(tmp_path / "x.jsonl", '{"_id": "0", "text": ""}', row), ("_id", "text")))


def test_found_file_and_stem(tmp_path: pathlib.Path):
  (tmp_path / "a.tsv.zst").touch()
  assert found_file(tmp_path, "a.tsv") == tmp_path / "a.tsv.zst"
  (tmp_path / "a.tsv").touch()
  assert found_file(tmp_path, "a.tsv") == tmp_path / "a.tsv"
  with pytest.raises(UserError, match=r"neither b\.tsv nor b\.tsv\.gz nor b\.tsv\.zst is in it"):
    found_file(tmp_path, "b.tsv")
  assert [stem(name) for name in ("x/held.out.tsv", "pairs.jsonl.gz", "p.zst")] == ["held.out", "pairs", "p"]


def test_empty_lines_are_lines_where_rows_are_counted(tmp_path: pathlib.Path):
  path = write(tmp_path / "x.txt", "a", "", "b", "")
  assert [tuple(line) for line in read_lines(path, empty=True)] == [
    ("a", f"{path}:1"),
    ("", f"{path}:2"),
    ("b", f"{path}:3"),
    ("", f"{path}:4"),
  ]


def test_another_encoding(tmp_path: pathlib.Path):
  path = tmp_path / "x.txt"
  path.write_bytes("caf\xe9\n".encode("latin-1"))
  assert [line.text for line in read_lines(path, encoding="latin-1")] == ["caf\xe9"]
  with pytest.raises(UserError, match=r"x\.txt:1: not UTF-8 .*Convert the file to UTF-8"):
    list(read_lines(path))
  with pytest.raises(UserError, match=r"x\.txt:1: not ASCII "):
    list(read_lines(path, encoding="ascii"))
