"""Batches of label classifiers: some data points, and the union of all their labels padded to one of a few sizes."""

from typing import Final, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from retrieval_jax.classifiers import unit_rows
from retrieval_jax.data.dataset import RetrievalData
from retrieval_jax.data.relevance import Relevance
from retrieval_jax.data.row_hash import mixed
from retrieval_jax.records import AnyArray
from retrieval_jax.searchers import SideEmbeddings

SMALLEST: Final = 8


class UnionBatch(NamedTuple):
  """q data points and u columns: every label that is a positive of any of them, or a drawn hard negative, once.

  A column number of u stands for no column. A padding point has weight 0, zeros for its embedding, and no column.
  """

  points: Float[AnyArray, "q d"]  # the cached embeddings
  labels: Int[AnyArray, "u"]  # rows of the classifiers, ascending; beyond their last row: padding
  own: Int[AnyArray, "q"]  # column of one of the point's positives, another one in each epoch
  positives: Int[AnyArray, "q r"]  # columns of all positives of each point
  filtered: Int[AnyArray, "q f"]  # columns that are no results of the point: neither positive nor negative
  weights: Float[AnyArray, "q"]


def bucket(count: int) -> int:
  """Returns the smallest of 8, 12, 16, 24, 32, 48, 64, ... (2^k and 3 * 2^(k-1)) that is at least `count`.

  At most a third of the columns of a batch is padding, and unions of a to b labels have at most 2 log2(b / a) + 2 sizes,
  each of which compiles one program.

  Example: `[bucket(n) for n in (1, 8, 9, 100)]` is `[8, 8, 12, 128]`.
  """
  size = SMALLEST
  while size < count:
    size = size * 3 // 2 if size & (size - 1) == 0 else size * 4 // 3
  return size


def rows_of_examples(data: RetrievalData, examples: Int[np.ndarray, "q"]) -> Int[np.ndarray, "q"]:
  """Returns the rows of data.queries of the examples, -1 for padding."""
  return np.where(examples >= 0, data.examples[np.maximum(examples, 0)], -1)


class LabelUnions(NamedTuple):
  """Makes the UnionBatch of chosen examples; a pure function of them, the epoch and the seed.

  points: the embeddings of every row of data.queries. num_rows: rows of the classifiers' array, at least one for each
  passage. hard_negatives: how many of data.negatives are drawn for each point and join the union; there they are
  negatives of all points that do not have them for a label. Pairs of data.filtered are neither.
  Labels of equal text are labels of their own: only their classifiers can tell them apart.
  """

  data: RetrievalData
  points: SideEmbeddings
  num_rows: int
  seed: int
  hard_negatives: int = 0

  def batch(self, examples: Int[np.ndarray, "q"], epochs: Int[np.ndarray, "q"]) -> UnionBatch:
    """Returns the batch (numpy) of the given examples, -1 for padding.

    Example: points 0 and 1 with the labels {4, 9} and {4} have the columns 4, 9 and 6 of padding.
    """
    rows = rows_of_examples(self.data, examples)
    positives = self.data.relevance.positives(rows)
    union = self._union(rows, positives, epochs)
    size = bucket(len(union))
    # Different numbers, so that a scatter may take all of them for unique.
    padding = self.num_rows + np.arange(size - len(union), dtype=np.int32)
    counts = np.maximum(np.count_nonzero(positives >= 0, axis=1), 1).astype(np.uint64)
    choice = (mixed(rows, self.seed, epochs) % counts).astype(np.int64)
    columns = _columns(union, positives, size)
    return UnionBatch(
      points=self._points(rows),
      labels=np.concatenate([union, padding]),
      own=np.take_along_axis(columns, choice[:, None], axis=1)[:, 0],
      positives=columns,
      filtered=_columns(union, _rows_of(self.data.filtered, rows), size),
      weights=(rows >= 0).astype(np.float32),
    )

  def examples(self) -> Float[np.ndarray, "e d"]:
    """Returns the embeddings of all examples at unit length, in memory."""
    return unit_rows(self.points[self.data.examples])

  def _union(
    self, rows: Int[np.ndarray, "q"], positives: Int[np.ndarray, "q r"], epochs: Int[np.ndarray, "q"]
  ) -> Int[np.ndarray, "l"]:
    """Returns the positives and drawn hard negatives of the points, each once, ascending."""
    found = positives.reshape(-1)
    if self.hard_negatives and self.data.negatives is not None:
      drawn = self.data.negatives.draw(rows, per_query=self.hard_negatives, seed=self.seed, epoch=epochs)
      found = np.concatenate([found, drawn.reshape(-1)])
    return np.unique(found[found >= 0]).astype(np.int32)

  def _points(self, rows: Int[np.ndarray, "q"]) -> Float[np.ndarray, "q d"]:
    found = np.array(self.points[np.maximum(rows, 0)], np.float32)
    found[rows < 0] = 0
    return found


def _rows_of(table: Relevance | None, rows: Int[np.ndarray, "q"]) -> Int[np.ndarray, "q f"]:
  return np.zeros((len(rows), 0), np.int32) if table is None else table.positives(rows)


def _columns(
  union: Int[np.ndarray, "l"], labels: Int[np.ndarray, "q r"], size: int
) -> Int[np.ndarray, "q r"]:
  """Returns the place of each label in the union (ascending); `size` for -1 and for what is not in it."""
  found = np.full(labels.shape, size, np.int32)
  if not len(union):
    return found
  given = labels >= 0
  places = np.minimum(np.searchsorted(union, labels[given]), len(union) - 1)
  found[given] = np.where(union[places] == labels[given], places, size)
  return found
