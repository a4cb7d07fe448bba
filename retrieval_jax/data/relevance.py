"""Which passages answer which query, with grades: a sparse (CSR) table of row numbers."""

import pathlib
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int

from retrieval_jax.errors import UserError


class Relevance(NamedTuple):
  """Query row i was judged with `passage_rows[offsets[i]:offsets[i + 1]]` and `grades` at the same places.

  grade > 0 is a positive; a query's `counts[i]` positives come first, each part in ascending row order. Grades <= 0
  are judgements too: metrics read them, training takes them neither for positives nor for known negatives.
  """

  offsets: Int[np.ndarray, "q+1"]
  passage_rows: Int[np.ndarray, "e"]
  grades: Int[np.ndarray, "e"]
  counts: Int[np.ndarray, "q"]
  width: int  # the most positives that any query has

  @classmethod
  def from_pairs(
    cls,
    query_rows: Int[np.ndarray, "e"],
    passage_rows: Int[np.ndarray, "e"],
    grades: Int[np.ndarray, "e"],
    num_queries: int,
  ) -> "Relevance":
    """Returns the table of (query, passage, grade) triples in any order; a pair given twice keeps its highest grade.

    Raises: UserError if a query row is not in [0, num_queries) or a passage row is negative.

    Example: `Relevance.from_pairs([0, 0], [5, 2], [1, 1], num_queries=2).row(0)` is `([2, 5], [1, 1])`.
    """
    queries = np.asarray(query_rows, np.int64)
    passages = np.asarray(passage_rows, np.int64)
    values = np.asarray(grades, np.int32)
    if queries.size and (queries.min() < 0 or queries.max() >= num_queries or passages.min() < 0):
      raise UserError(
        f"relevance: query rows {queries.min()}..{queries.max()}, passage rows from {passages.min()}; expected "
        f"query rows in 0..{num_queries - 1} and passage rows from 0."
      )
    order = np.lexsort((-values, passages, queries))
    queries, passages, values = queries[order], passages[order], values[order]
    first = np.ones(len(queries), bool)
    first[1:] = (queries[1:] != queries[:-1]) | (passages[1:] != passages[:-1])
    if not first.all():
      queries, passages, values = queries[first], passages[first], values[first]
    positive = values > 0
    if not positive.all():
      order = np.lexsort((passages, ~positive, queries))
      passages, values = passages[order], values[order]  # each stays with its query
    counts = np.bincount(queries[positive], minlength=num_queries).astype(np.int32)
    return cls(
      _offsets(queries, num_queries), passages.astype(np.int32), values, counts, int(counts.max(initial=0))
    )

  @property
  def num_queries(self) -> int:
    """The number of query rows, judged or not."""
    return len(self.counts)

  def row(self, query_row: int) -> tuple[Int[np.ndarray, "r"], Int[np.ndarray, "r"]]:
    """Returns the passage rows judged for one query, positives first, and their grades."""
    span = slice(self.offsets[query_row], self.offsets[query_row + 1])
    return self.passage_rows[span], self.grades[span]

  def positives(self, query_rows: Int[np.ndarray, "q"]) -> Int[np.ndarray, "q r"]:
    """Returns int32 [q, width]: the positive passage rows of each query, ascending, padded with -1.

    A query row of -1 (padding) gives a row of -1.
    """
    rows = np.asarray(query_rows, np.int64)
    known = np.maximum(rows, 0)
    places = np.arange(self.width)[None, :]
    real = (places < self.counts[known][:, None]) & (rows >= 0)[:, None]
    found = np.full(real.shape, -1, np.int32)
    found[real] = self.passage_rows[(self.offsets[known][:, None] + places)[real]]
    return found

  def has(
    self, query_rows: Int[np.ndarray, "e"], passage_rows: Int[np.ndarray, "e"]
  ) -> Bool[np.ndarray, "e"]:
    """Returns whether each passage row is a positive of the query row at its place. O((e + q) log e) time.

    Example: `relevance.has(np.array([0]), np.array([5]))` is `[True]` if row 5 answers query 0.
    """
    positive = self.grades > 0
    owners = np.repeat(np.arange(self.num_queries), np.diff(self.offsets))[positive]
    width = 1 + max(int(self.passage_rows.max(initial=0)), int(np.max(passage_rows, initial=0)))
    keys = owners * width + self.passage_rows[positive]  # ascending, as a query's positives are
    wanted = np.asarray(query_rows, np.int64) * width + np.asarray(passage_rows, np.int64)
    if not keys.size:
      return np.zeros(len(wanted), bool)
    return keys[np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)] == wanted

  def save(self, path: pathlib.Path) -> None:
    """Writes the table as one .npz file."""
    np.savez(path, **self._asdict())

  @classmethod
  def read(cls, path: pathlib.Path) -> "Relevance":
    """Returns the table that `save` wrote: 8 bytes a judgement and 12 a query, in memory."""
    with np.load(path) as file:
      columns = {name: file[name] for name in cls._fields}
    return cls(**columns)._replace(width=int(columns["width"]))


def group_by_query(
  query_rows: Int[np.ndarray, "e"], num_queries: int
) -> tuple[Int[np.ndarray, "q+1"], Int[np.ndarray, "e"]]:
  """Returns (offsets, order): `order[offsets[i]:offsets[i + 1]]` are the places of query i, in the order they come."""
  return _offsets(query_rows, num_queries), np.argsort(query_rows, kind="stable")


def _offsets(query_rows: Int[np.ndarray, "e"], num_queries: int) -> Int[np.ndarray, "q+1"]:
  """Returns where each query's places begin when all are sorted by query."""
  offsets = np.zeros(num_queries + 1, np.int64)
  np.cumsum(np.bincount(query_rows, minlength=num_queries), out=offsets[1:])
  return offsets
