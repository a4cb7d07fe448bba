"""Sparse text files of extreme classification: which labels each point has, a line a point; and pairs to filter."""

import logging
import math
import pathlib
from collections.abc import Iterator
from typing import NamedTuple

from retrieval_jax.data.lines import Line, read_lines
from retrieval_jax.errors import UserError

ONE = frozenset({"1", "1.0", "1.00", "1.00000", "1.000000"})
LOG = logging.getLogger(__name__)


class Shape(NamedTuple):
  """What the first line of a sparse file says: its points and labels."""

  rows: int
  columns: int


class SparseRow(NamedTuple):
  """The labels of one point, as they stand in the file, and where: `path:number`."""

  labels: list[int]
  where: str


def sparse_shape(path: pathlib.Path) -> Shape:
  """Returns the numbers of points and labels in a sparse file's first line.

  Raises: UserError with file and line number if these are not two whole numbers.
  """
  line = next(read_lines(path, empty=True), Line("", f"{path}:1"))
  values = line.text.split()
  if len(values) == 3 and all(map(is_row, values)):
    raise UserError(
      f"{line.where}: three numbers, {line.text!r}, begin an old file of points, features and labels, in which there are "
      "no texts. Get the data set with texts (its name begins with LF-), or make one of your own texts: "
      "python scripts/prepare_extreme.py convert --help."
    )
  if len(values) != 2 or not all(map(is_row, values)):
    raise UserError(
      f"{line.where}: {line.text!r:.80}; expected the numbers of points and labels, such as '134835 131073', and then a "
      "line a point such as '42537:1.0 43834:1.0'."
    )
  return Shape(int(values[0]), int(values[1]))


def sparse_rows(path: pathlib.Path) -> Iterator[SparseRow]:
  """Yields the labels of each point. An empty line is a point without labels; labels stand in any order.

  A value is greater than 0 and counts as 1, whatever it is; a warning counts those that are not 1.

  Raises: UserError with file and line number for what is no `label:value`, a label that is not among the columns or comes
  twice, and with both numbers if the file has not as many rows as its first line says.

  Example: the lines "2 5", "3:1.0 0:1.0" and "" are the rows [3, 0] and [].
  """
  shape = sparse_shape(path)
  lines = read_lines(path, empty=True)
  next(lines)
  count, graded = 0, 0
  for line in lines:
    count += 1
    if count > shape.rows:
      continue
    labels, others = _labels(line, shape.columns)
    graded += others
    yield SparseRow(labels, line.where)
  if count != shape.rows:
    raise UserError(
      f"{path}:1: says {shape.rows} points, but {count} lines follow. An empty line is a point without labels: get the file "
      "anew, or correct its first line."
    )
  if graded:
    LOG.warning("%s: %d values are not 1; a label counts as 1 whatever its value.", path, graded)


def _labels(line: Line, columns: int) -> tuple[list[int], int]:
  """Returns the labels of a line, and how many of them have another value than 1."""
  labels, graded = [], 0
  for token in line.text.split():
    label, colon, value = token.partition(":")
    if not is_row(label) or not colon:
      raise UserError(f"{line.where}: {token!r:.40}; expected label:value, such as 42537:1.0.")
    labels.append(int(label))
    if value not in ONE:
      check_value(value, line.where)
      graded += 1
  check_labels(labels, columns, line.where)
  return labels, graded


def check_value(value: object, where: str) -> None:
  """Raises UserError for a value of a label that is no number greater than 0."""
  try:
    number = float(value)  # pyright: ignore[reportArgumentType]  (what is no number raises)
  except (TypeError, ValueError):
    number = math.nan
  if not 0 < number < math.inf:
    raise UserError(
      f"{where}: the value {value!r:.40} of a label; expected a number greater than 0. Leave out labels that the point has "
      "not."
    )


def check_labels(labels: list[int], columns: int, where: str) -> None:
  """Raises UserError for a label that is not in 0..columns-1, or comes twice."""
  if labels and not 0 <= min(labels) <= max(labels) < columns:
    wrong = next(label for label in labels if not 0 <= label < columns)
    raise UserError(
      f"{where}: the label {wrong}; expected 0..{columns - 1}, for there are {columns} labels. Get the files of one "
      "release."
    )
  if len(set(labels)) < len(labels):
    twice = next(label for place, label in enumerate(labels) if label in labels[:place])
    raise UserError(
      f"{where}: the label {twice} comes twice. A point has a label once: leave out the second."
    )


def filter_rows(path: pathlib.Path, shape: Shape) -> Iterator[tuple[int, int]]:
  """Yields the pairs (point, label) of a filter file: two numbers a line, from 0; the file may be empty.

  Raises: UserError with file and line number for another line, and for a point or label beyond `shape`.

  Example: the line "0 54982".
  """
  for line in read_lines(path):
    values = line.text.split()
    if len(values) != 2 or not all(map(is_row, values)):
      raise UserError(
        f"{line.where}: {line.text!r:.80}; expected the numbers of a point and a label, such as '0 54982'."
      )
    pair = int(values[0]), int(values[1])
    for what, number, size in zip(("point", "label"), pair, shape, strict=True):
      if number >= size:
        raise UserError(
          f"{line.where}: the {what} {number}; expected 0..{size - 1}, for there are {size}. Is the file of another split "
          "or release?"
        )
    yield pair


def is_row(text: str) -> bool:
  """Returns whether a text is a whole number from 0 in ASCII digits, not too long for a row number."""
  return text.isascii() and text.isdigit() and len(text) <= 18
