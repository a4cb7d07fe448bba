"""Files made up by hypothesis, with what a reader must find in them, or the line where it must stop."""

import gzip
import json
import pathlib
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import zstandard
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from retrieval_jax.errors import UserError

BOM = b"\xef\xbb\xbf"
# All that other tools take for the end of a line, of a cell, of a text or of a file; "\n" and "\t" are added for JSON.
HARD = "ab \"'\\,;#{}[]<>&%\r\x0b\x0c\x1c\x1d\x1e\x00\x1a\x85\xa0\u2028\u2029\ufeffé漢🙂"
CELL = st.text(HARD, max_size=8) | st.sampled_from(
  ["", " ", "\r", "a\r", "\ufeffb", '"', '""', "0", "01", "1e3", "-0", "null", "NaN", "\ufeff"]
)
TEXT = CELL | st.text(HARD + "\n\t", max_size=8)
HUGE = "huge \u2028" * 50_000
GRADES = {"1": 1, "-1": -1, "0": 0, "2.0": 2, "+3": 3}
NO_GRADES = ("", "yes", "0.5", "1e3", "2147483648", "nan", "٣", "1_0")
FAULTS = ("none", "none", "utf8", "cut")


def fuzz(examples: int) -> Callable[[Any], Any]:
  """The settings of a test that looks at the same `examples` files each time."""
  return settings(
    max_examples=examples,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
  )


class Fault(NamedTuple):
  """A row that cannot be read; `late`: it is found when all rows were yielded."""

  row: int
  late: bool = False


class File(NamedTuple):
  """A file, the line of each of its rows, and the fault in it."""

  path: pathlib.Path
  lines: list[int]
  fault: Fault | None
  cut: bool


def write_file(
  data: st.DataObject, folder: pathlib.Path, name: str, rows: Iterable[bytes], fault: Fault | None
) -> File:
  """Writes rows as lines of one of many forms: with empty lines, BOM, CRLF, compressed, cut short, not UTF-8."""
  rows, ending = list(rows), data.draw(st.sampled_from([b"\n", b"\r\n"]))
  kind = data.draw(st.sampled_from(FAULTS)) if fault is None else "none"
  if kind == "utf8" and rows:
    fault = Fault(data.draw(st.integers(0, len(rows) - 1)))
    place = data.draw(st.integers(0, len(rows[fault.row])))
    rows[fault.row] = rows[fault.row][:place] + b"\xff" + rows[fault.row][place:]
  lines: list[bytes] = []
  numbers = []
  for row in rows:
    lines += [b""] * data.draw(st.sampled_from([0, 0, 0, 1, 2]))
    if not lines and ending == b"\n" and row.endswith(b"\r"):
      lines.append(b"")  # else the file would be one of Windows
    lines.append(row)
    numbers.append(len(lines))
  body = b"".join(line + ending for line in lines)
  if data.draw(st.booleans()):
    body = body.removesuffix(ending)
  if body.startswith(BOM) or data.draw(st.booleans()):
    body = BOM + body
  suffix = data.draw(st.sampled_from(["", ".gz", ".zst"]))
  packed = {"": bytes, ".gz": gzip.compress, ".zst": zstandard.ZstdCompressor().compress}[suffix](body)
  cut = kind == "cut" and suffix != ""
  if cut:
    packed = packed[: data.draw(st.integers(1, len(packed) - 1))]
  path = folder / (name + suffix)
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_bytes(packed)
  return File(path, numbers, fault, cut)


def check(read: Callable[[], Iterable[Any]], file: File, expected: list[Any], *, headers: int = 0) -> None:
  """Asserts that every row is read right and in its place, or refused with file and line after those before it.

  expected: what the rows after the first `headers` are.
  """
  found, error = [], None
  try:
    for row in read():
      found.append(row)
  except UserError as refused:
    error = str(refused)
  if file.cut:
    assert error is not None
    assert str(file.path) in error
    assert "cannot be read" in error
    assert found == expected[: len(found)]
  elif file.fault is None:
    assert error is None, error
    assert found == expected
  else:
    assert error is not None, f"line {file.lines[file.fault.row]} was taken"
    assert error.startswith(f"{file.path}:{file.lines[file.fault.row]}: "), error
    before = expected if file.fault.late else expected[: max(file.fault.row - headers, 0)]
    assert found == before


def json_row(data: st.DataObject, record: Any) -> bytes:
  """Returns a record as a line of JSON, with or without escapes for what is not ASCII."""
  return json.dumps(record, ensure_ascii=data.draw(st.booleans())).encode()


def unique_ids(count: int) -> st.SearchStrategy[list[str]]:
  """Ids that are easily confused."""
  return st.lists(CELL, min_size=count, max_size=count, unique=True)


def fresh(home: pathlib.Path) -> pathlib.Path:
  """Returns a folder that no other example uses."""
  return home / str(sum(1 for _ in home.iterdir()))


def tsv(values: list[str]) -> bytes:
  return "\t".join(values).encode()


def fault_in(data: st.DataObject, count: int, first: int = 0) -> Fault | None:
  """Returns the row of a fault in a part of the files."""
  if count > first and data.draw(st.integers(0, 2)) == 0:
    return Fault(data.draw(st.integers(first, count - 1)))
  return None


def spoil(data: st.DataObject, values: list[str]) -> list[str]:
  """Returns the cells with one too many or one missing."""
  place = data.draw(st.integers(0, len(values) - 1))
  if data.draw(st.booleans()):
    return [*values, "extra"]
  fewer = values[:place] + values[place + 1 :]
  return ["lonely"] if fewer == [""] else fewer  # an empty line is none
