"""Plain texts of points and labels, and pairs of their ids, written as a folder in the LF layout."""

import contextlib
import os
from array import array
from collections.abc import Iterator
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Int
from tqdm import tqdm

from retrieval_jax.data import features
from retrieval_jax.data.extreme_files import PREFIXES
from retrieval_jax.data.extreme_sparse import Shape
from retrieval_jax.data.extreme_texts import id_of, read_id_pairs, read_texts, same_text, text_of
from retrieval_jax.data.extreme_writer import SplitWriter, free_folder, whole_folder, write_labels
from retrieval_jax.data.lines import Path
from retrieval_jax.data.relevance import group_by_query
from retrieval_jax.data.text_table import hash_text
from retrieval_jax.errors import UserError, nearest
from retrieval_jax.paths import output_dir, resolve
from retrieval_jax.progress import interval

SPLITS = tuple(PREFIXES)  # a split's number is its place: train 0, test 1
SelfPairs = Literal["none", "id", "text"]


class TextFiles(NamedTuple):
  """Files to convert. points, labels: texts (`read_texts`); pairs: who has which label (`read_id_pairs`).

  test_points: the test split's points; None: a share of `points`. test_pairs: theirs; None: `pairs` has them too.
  """

  points: Path
  labels: Path
  pairs: Path
  test_points: Path | None = None
  test_pairs: Path | None = None


class Counts(NamedTuple):
  """What was written: points by split, labels, pairs, pairs that came more than once, filter pairs."""

  train: int
  test: int
  labels: int
  pairs: int
  repeated: int
  filtered: int


def convert(
  files: TextFiles,
  output: Path,
  *,
  test_share: float = 0.0,
  seed: int = 0,
  self_pairs: SelfPairs = "none",
) -> Counts:
  """Writes a folder in the LF layout, whole or not at all: *.json.gz, *_X_Y.txt and perhaps filter files.

  A pair that comes twice is one. Reads the points' texts twice. Memory: 150 bytes a point and label, 16 a pair.

  Args:
    files: what is converted.
    output: a folder that is not there yet, or is empty.
    test_share: without `files.test_points`, the share of points that become test: drawn by a hash of seed and text, so that
      points of one text (upper and lower case alike) are on one side.
    seed: of that draw.
    self_pairs: whether a point's own label, the one with its id or its text, is written as a filter pair.

  Raises: UserError with file and line number for a line that cannot be read, or a pair whose point or label is unknown;
    for no labels, no training points or no pairs, texts in a pipe, and an output that cannot be written.

  Example: `convert(TextFiles("points.tsv", "labels.tsv", "pairs.tsv"), "data/mine-titles", test_share=0.1)`.
  """
  _check(files, output, test_share)
  labels = {id_of(text): row for row, text in enumerate(read_texts(files.labels))}
  if not labels:
    raise UserError(f"{files.labels}: no labels in it.")
  parts = [_Part(path, {}, array("b")) for path in (files.points, files.test_points) if path is not None]
  for number, part in enumerate(parts):
    for row, text in enumerate(read_texts(part.path)):
      part.rows[id_of(text)] = row
      part.splits.append(
        number or int(hash_text(f"{seed}\t{same_text(text_of(text))}") < test_share * 2.0**64)
      )
  splits = np.concatenate([np.array(part.splits, np.int8) for part in parts])
  sizes = [int(np.count_nonzero(splits == split)) for split in range(len(SPLITS))]
  if not sizes[0]:
    raise UserError(
      f"{files.points}: none of its {len(splits)} points is left for training. Give more, or a smaller share."
    )
  pairs = _read_pairs(files, parts, labels)
  own = _own_labels(files.labels, self_pairs)
  with whole_folder(free_folder(output)) as folder, contextlib.ExitStack() as stack:
    write_labels(read_texts(files.labels), folder)
    writers = {
      number: SplitWriter(folder, split, Shape(sizes[number], len(labels)), stack)
      for number, split in enumerate(SPLITS)
      if sizes[number]
    }
    filtered = _write_points(parts, splits, pairs, own, writers)
  return Counts(sizes[0], sizes[1], len(labels), len(pairs.labels), pairs.repeated, filtered)


class _Part(NamedTuple):
  """A file of points: rows by id, and the split's number of each."""

  path: Path
  rows: dict[str, int]
  splits: array


class _Pairs(NamedTuple):
  """Point i, over all files, has labels[offsets[i]:offsets[i + 1]]; `repeated` pairs came again."""

  offsets: Int[np.ndarray, "x+1"]
  labels: Int[np.ndarray, "e"]
  repeated: int


class _OwnLabels(NamedTuple):
  """The labels that a point itself is, by what they share with it."""

  by: SelfPairs
  rows: dict[str, list[int]]

  def key(self, text: features.Example) -> str:
    """Returns what a point and a label of it share."""
    return id_of(text) if self.by == "id" else same_text(text_of(text))

  def of(self, point: features.Example) -> list[int]:
    """Returns the rows of the labels that a point is; an empty text is none."""
    key = self.key(point)
    return self.rows.get(key, []) if key or self.by == "id" else []


def _check(files: TextFiles, output: Path, test_share: float) -> None:
  if not 0 <= test_share < 1:
    raise UserError(f"test_share={test_share!r}: expected a share of the points, from 0 to below 1.")
  if files.test_points is not None and test_share:
    raise UserError(f"both test points ({files.test_points}) and a share of {test_share}: give one of them.")
  if files.test_pairs is not None and files.test_points is None:
    raise UserError(f"test pairs ({files.test_pairs}) without test points: give both.")
  free_folder(output)
  output_dir(os.fspath(output), "output")
  for path in (files.points, files.labels, files.test_points):
    if path is not None and not resolve(path).is_file():
      raise UserError(f"{path}: no regular file. Texts are read twice: write them into a file first.")


def _read_pairs(files: TextFiles, parts: list[_Part], labels: dict[str, int]) -> _Pairs:
  first = [0, len(parts[0].rows)]
  owners, found = array("q"), array("q")
  sources = [(files.pairs, [0] if files.test_pairs is not None else range(len(parts)))]
  if files.test_pairs is not None:
    sources.append((files.test_pairs, [1]))
  elif len(parts) == 2 and (both := parts[0].rows.keys() & parts[1].rows.keys()):
    raise UserError(
      f"{files.points} and {files.test_points} share {len(both)} ids ({min(both)!r}): pairs do not say which one they mean. "
      "Give test pairs, or other ids."
    )
  for path, places in sources:
    pairs, before = _known(path, {place: parts[place].rows for place in places}, labels), len(owners)
    for place, row, label in tqdm(pairs, desc=f"read {path}", unit=" pairs", mininterval=interval()):
      owners.append(first[place] + row)
      found.append(label)
    if len(owners) == before and any(parts[place].rows for place in places):
      raise UserError(f"{path}: no pairs in it; expected lines of a point's id, a tab and a label's id.")
  width = max(len(labels), 1)
  numbers = np.unique(np.array(owners, np.int64) * width + np.array(found, np.int64))
  offsets, _ = group_by_query(numbers // width, sum(len(part.rows) for part in parts))
  return _Pairs(offsets, numbers % width, len(owners) - len(numbers))


def _known(
  path: Path, points: dict[int, dict[str, int]], labels: dict[str, int]
) -> Iterator[tuple[int, int, int]]:
  """Yields the number of the file of points, and the rows of point and label, of each pair."""
  for point, label, where in read_id_pairs(path):
    place = next((place for place, rows in points.items() if point in rows), None)
    if place is None:
      near = nearest(point, _some(next(iter(points.values()))))
      raise UserError(f"{where}: no point has the id {point!r}{near or '.'} Point ids come first.")
    if label not in labels:
      near = nearest(label, _some(labels))
      raise UserError(f"{where}: no label has the id {label!r}{near or '.'} Label ids come second.")
    yield place, points[place][point], labels[label]


def _some(rows: dict[str, int]) -> list[str]:
  return [id for id, _ in zip(rows, range(1000), strict=False)]


def _own_labels(path: Path, self_pairs: SelfPairs) -> _OwnLabels:
  own = _OwnLabels(self_pairs, {})
  if self_pairs != "none":
    for row, label in enumerate(read_texts(path)):
      own.rows.setdefault(own.key(label), []).append(row)
  return own


def _write_points(
  parts: list[_Part],
  splits: Int[np.ndarray, "x"],
  pairs: _Pairs,
  own: _OwnLabels,
  writers: dict[int, SplitWriter],
) -> int:
  """Writes every point into its split; returns the number of filter pairs."""
  filtered, number = 0, 0
  for part in parts:
    for text in tqdm(
      read_texts(part.path), desc=f"write {part.path}", unit=" points", mininterval=interval()
    ):
      labels = pairs.labels[pairs.offsets[number] : pairs.offsets[number + 1]].tolist()
      mine = own.of(text)
      writers[int(splits[number])].add(text, labels, mine)
      filtered += len(mine)
      number += 1
  return filtered
