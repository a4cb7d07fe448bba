"""Readers of folders in the LF layout of extreme classification: texts of points and labels, and who has which."""

import logging
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from retrieval_jax.data.extreme_rows import Row, TextRule, is_json_file, read_rows
from retrieval_jax.data.extreme_sparse import (
  Shape,
  SparseRow,
  check_labels,
  check_value,
  filter_rows,
  sparse_rows,
  sparse_shape,
)
from retrieval_jax.data.lines import ENDINGS, Path, open_bytes
from retrieval_jax.errors import UserError
from retrieval_jax.paths import resolve

PREFIXES = {"train": "trn", "test": "tst"}  # of files, by split
LABELS = ("lbl.json", "Y.txt", "Y.raw.txt", "lbl.raw.txt")
POINTS = ("{}.json", "{}_X.txt", "{}_X.raw.txt", "{}.raw.txt")
FILTERS = {
  "train": ("filter_labels_train.txt", "trn_filter_labels.txt"),
  "test": ("filter_labels_test.txt", "tst_filter_labels.txt", "filter_labels_text.txt"),
}
LOG = logging.getLogger(__name__)


class ExtremeFiles(NamedTuple):
  """The files of a folder. labels: their texts; points, pairs, filters: by split, as far as they are there."""

  labels: pathlib.Path
  points: Mapping[str, pathlib.Path]
  pairs: Mapping[str, pathlib.Path]
  filters: Mapping[str, pathlib.Path]

  def all(self) -> list[pathlib.Path]:
    """Returns every file, the labels first."""
    return [self.labels, *self.points.values(), *self.pairs.values(), *self.filters.values()]


class Point(NamedTuple):
  """A data point and its labels, by their numbers."""

  text: str
  labels: list[int]


def extreme_files(path: Path) -> ExtremeFiles:
  """Returns the files of a folder; each may have .gz or .zst behind its name.

  Labels are lbl.json, Y.txt or lbl.raw.txt; points trn.json, trn_X.txt or trn.raw.txt, and tst.* likewise; who has which
  label, trn_X_Y.txt and tst_X_Y.txt, which JSON files can do without. JSON files go before text files.

  Raises: UserError if there are no labels or no points, text files without their pairs, a file by two names, or the
  files of an old release without texts.
  """
  folder = resolve(path)
  labels = _first(folder, LABELS)
  points = _by_split({split: _first(folder, _named(POINTS, prefix)) for split, prefix in PREFIXES.items()})
  if labels is None or not points:
    raise UserError(f"{folder}: {_missing(folder)}")
  pairs = _by_split({split: _first(folder, (f"{PREFIXES[split]}_X_Y.txt",)) for split in points})
  for split, file in points.items():
    if split not in pairs and not is_json_file(file):
      raise UserError(
        f"{folder}: {file.name} is there without {PREFIXES[split]}_X_Y.txt, which says what labels its points have."
      )
  filters = _by_split({split: _only(folder, FILTERS[split]) for split in points})
  return ExtremeFiles(labels, points, pairs, filters)


def _named(names: Sequence[str], prefix: str) -> list[str]:
  return [name.format(prefix) for name in names]


def _by_split(found: Mapping[str, pathlib.Path | None]) -> dict[str, pathlib.Path]:
  return {split: file for split, file in found.items() if file is not None}


def _all(folder: pathlib.Path, names: Sequence[str]) -> list[pathlib.Path]:
  places = [folder / f"{name}{ending}" for name in names for ending in ENDINGS]
  return [place for place in places if place.is_file()]


def _first(folder: pathlib.Path, names: Sequence[str]) -> pathlib.Path | None:
  """Returns the file of the first name that is there; JSON files go before text files."""
  found = next(filter(None, (_all(folder, [name]) for name in names)), [])
  if len(found) > 1:
    raise UserError(
      f"{folder}: {' and '.join(file.name for file in found)} are the same file twice. Keep one."
    )
  return found[0] if found else None


def _only(folder: pathlib.Path, names: Sequence[str]) -> pathlib.Path | None:
  found = _all(folder, names)
  if len(found) > 1:
    raise UserError(f"{folder}: {' and '.join(file.name for file in found)} are the same filter. Keep one.")
  return found[0] if found else None


def _missing(folder: pathlib.Path) -> str:
  if _all(folder, ("train.txt", "test.txt")):
    return (
      "train.txt and test.txt are of an old release that has features in place of texts. Get the data set with texts (its "
      "name begins with LF-), or make one of your own texts: python scripts/prepare_extreme.py convert --help."
    )
  return (
    "expected the labels, lbl.json or Y.txt, and points, trn.json, or trn_X.txt and trn_X_Y.txt (tst likewise), each "
    "perhaps with .gz or .zst."
  )


def count_rows(file: pathlib.Path) -> int:
  """Returns the number of lines of a file of points or labels; decompresses it once."""
  with open_bytes(file) as lines:
    return sum(1 for _ in lines)


def read_labels(files: ExtremeFiles, rule: TextRule) -> Iterator[str]:
  """Yields the labels' texts, in the order of their numbers.

  Raises: UserError with file and line number for a line that cannot be read.
  """
  for text, _, _ in read_rows(files.labels, rule):
    yield text


def read_points(files: ExtremeFiles, split: str, rule: TextRule, *, num_labels: int) -> Iterator[Point]:
  """Yields the points of "train" or "test" with their labels, in the order of the files.

  With trn_X_Y.txt its labels count, which published tools read, also where a JSON file has others under target_ind; a
  warning counts the points that differ. Memory: one point.

  Raises: UserError with file and line number for a line that cannot be read or a label beyond `num_labels`; if points and
  rows of labels are not as many, with both numbers.
  """
  if split not in files.points:
    raise UserError(
      f"{files.labels.parent}: no points of the split {split!r} ({PREFIXES[split]}.json or {PREFIXES[split]}_X.txt); there "
      f"are those of {', '.join(files.points)}."
    )
  file, pairs = files.points[split], files.pairs.get(split)
  texts = read_rows(file, rule)
  if pairs is None:
    for text, record, where in texts:
      yield Point(text, _target(record, num_labels, where))
    return
  shape = sparse_shape(pairs)
  if shape.columns != num_labels:
    raise UserError(
      f"{pairs}:1: says {shape.columns} labels, but {files.labels.name} has {num_labels}. Get the files of one release."
    )
  yield from _joined(texts, sparse_rows(pairs), file, pairs)


def _joined(
  texts: Iterator[Row],
  rows: Iterator[SparseRow],
  file: pathlib.Path,
  pairs: pathlib.Path,
) -> Iterator[Point]:
  count, differing, first = 0, 0, ""
  for text, record, where in texts:
    count += 1
    row = next(rows, None)
    if row is None:
      continue  # to count what follows
    if "target_ind" in record and record["target_ind"] != row.labels and _differ(record, row):
      differing, first = differing + 1, first or where
    yield Point(text, row.labels)
  rest = sum(1 for _ in rows)
  if count != sparse_shape(pairs).rows or rest:
    raise UserError(
      f"{file}: {count} points, but {pairs.name} has {sparse_shape(pairs).rows} rows. Get the files of one release."
    )
  if differing:
    LOG.warning(
      "%s: %d points have other labels under target_ind than in %s, which counts (the first: %s).",
      *(file, differing, pairs.name, first),
    )


def _differ(record: dict[str, Any], row: SparseRow) -> bool:
  target = record["target_ind"]
  return not isinstance(target, list) or sorted(map(str, target)) != sorted(map(str, row.labels))


def _target(record: dict[str, Any], num_labels: int, where: str) -> list[int]:
  """Returns the labels of a JSON object."""
  labels, values = record.get("target_ind"), record.get("target_rel")
  if not (isinstance(labels, list) and all(type(label) is int for label in labels)):
    raise UserError(
      f"{where}: target_ind is {labels!r:.80}; expected the list of the point's labels, or a file *_X_Y.txt beside it."
    )
  check_labels(labels, num_labels, where)
  if values is not None:
    if not isinstance(values, list) or len(values) != len(labels):
      raise UserError(f"{where}: target_rel is {values!r:.80}; expected {len(labels)} values, one a label.")
    for value in values:
      check_value(value, where)
  return labels


def split_shape(files: ExtremeFiles, split: str) -> Shape:
  """Returns the numbers of points of a split and of labels: from the sparse file if there is one, else counted."""
  pairs = files.pairs.get(split)
  points = count_rows(files.points[split]) if pairs is None else sparse_shape(pairs).rows
  return Shape(points, count_rows(files.labels))


def read_filter(files: ExtremeFiles, split: str) -> Iterator[tuple[int, int]]:
  """Yields the pairs (point, label) of a split that are no results; none if there is no filter file or it is empty."""
  file = files.filters.get(split)
  if file is not None and file.stat().st_size:
    yield from filter_rows(file, split_shape(files, split))
