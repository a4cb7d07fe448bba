"""Hard negatives of queries, a sparse (CSR) table of row numbers, and how a batch draws some of them."""

import pathlib
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from retrieval_jax.data.known_positives import KnownPositives
from retrieval_jax.data.relevance import group_by_query
from retrieval_jax.data.row_hash import mixed


class HardNegatives(NamedTuple):
  """Query row i has the hard negatives `passage_rows[offsets[i]:offsets[i + 1]]`.

  Their order says nothing: every one is drawn as often. Those of a task stand in the order they were given, those of a
  file (negatives_file.py) ascend.
  """

  offsets: Int[np.ndarray, "q+1"]
  passage_rows: Int[np.ndarray, "e"]

  @classmethod
  def from_pairs(
    cls, query_rows: Int[np.ndarray, "e"], passage_rows: Int[np.ndarray, "e"], num_queries: int
  ) -> "HardNegatives":
    """Returns the table of (query, passage) pairs in any order; a pair given twice counts once, at its first place.

    Example: `HardNegatives.from_pairs([1, 1, 1], [5, 2, 5], num_queries=2).row(1)` is `[5, 2]`.
    """
    queries, passages = np.asarray(query_rows, np.int64), np.asarray(passage_rows, np.int64)
    order = np.lexsort((passages, queries))  # stable: of equal pairs the first given comes first
    first = np.ones(len(order), bool)
    first[1:] = (np.diff(queries[order]) != 0) | (np.diff(passages[order]) != 0)
    kept = np.sort(order[first])
    offsets, by_query = group_by_query(queries[kept], num_queries)
    return cls(offsets, passages[kept][by_query].astype(np.int32))

  @property
  def counts(self) -> Int[np.ndarray, "q"]:
    """How many each query has."""
    return np.diff(self.offsets)

  def row(self, query_row: int) -> Int[np.ndarray, "n"]:
    """Returns the passage rows of one query."""
    return self.passage_rows[self.offsets[query_row] : self.offsets[query_row + 1]]

  def pairs(self) -> tuple[Int[np.ndarray, "e"], Int[np.ndarray, "e"]]:
    """Returns the query rows and the passage rows of all pairs."""
    return np.repeat(np.arange(len(self.offsets) - 1), self.counts), self.passage_rows

  def without(self, known: KnownPositives) -> "HardNegatives":
    """Returns the table without passages that answer their query, or have the text of one that does."""
    queries, passages = self.pairs()
    kept = ~known.has(queries, passages)
    if kept.all():
      return self
    return HardNegatives.from_pairs(queries[kept], passages[kept], len(self.offsets) - 1)

  def draw(
    self,
    query_rows: Int[np.ndarray, "q"],
    *,
    per_query: int,
    seed: int,
    epoch: int | Int[np.ndarray, "q"],
  ) -> Int[np.ndarray, "q n"]:
    """Returns int32 [q, per_query]: different hard negatives of each query, drawn uniformly, -1 where it has fewer.

    A pure function of (seed, epoch, query row): the same in every batch of an epoch, other ones in the next. A query
    row of -1 (padding) has none. O(q n^2) time, whatever the number of candidates (Floyd's sampling: Bentley and
    Floyd 1987, "A sample of brilliance").
    """
    rows = np.asarray(query_rows, np.int64)
    starts = self.offsets[np.maximum(rows, 0)]
    counts = np.where(rows >= 0, self.offsets[np.maximum(rows, 0) + 1] - starts, 0)
    taken = np.minimum(counts, per_query)
    chosen = np.full((len(rows), per_query), -1, np.int64)
    for i in range(per_query):
      # A number from 0 to `last` is drawn; one that was drawn before stands for `last` itself.
      last = counts - taken + i
      drawn = (mixed(rows, seed, epoch, i) % np.maximum(last + 1, 1).astype(np.uint64)).astype(np.int64)
      again = np.any(chosen == drawn[:, None], axis=1)
      chosen[:, i] = np.where(i < taken, np.where(again, last, drawn), -1)
    places = starts[:, None] + np.maximum(chosen, 0)
    found = np.full(chosen.shape, -1, np.int32)
    found[chosen >= 0] = self.passage_rows[places[chosen >= 0]]
    return found

  def save(self, path: pathlib.Path) -> None:
    """Writes the table as one .npz file."""
    np.savez(path, **self._asdict())

  @classmethod
  def read(cls, path: pathlib.Path) -> "HardNegatives":
    """Returns the table that `save` wrote: 4 bytes a hard negative and 8 a query, in memory."""
    with np.load(path) as file:
      return cls(**{name: file[name] for name in cls._fields})
