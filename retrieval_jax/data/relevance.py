"""Which passages answer which query, with grades: a sparse (CSR) table of row numbers."""

import pathlib
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from retrieval_jax.errors import UserError


class Relevance(NamedTuple):
  """Query row i has the passages `passage_rows[offsets[i]:offsets[i + 1]]`, in ascending order, with their grades.

  grade > 0 is a positive. Grades <= 0 are judgements too: metrics read them, training never takes them as
  positives (nor as known negatives).
  """

  offsets: Int[np.ndarray, "q+1"]
  passage_rows: Int[np.ndarray, "e"]
  grades: Int[np.ndarray, "e"]
  width: int  # the most positives that any query has

  @classmethod
  def from_pairs(
    cls,
    query_rows: Int[np.ndarray, "e"],
    passage_rows: Int[np.ndarray, "e"],
    grades: Int[np.ndarray, "e"],
    num_queries: int,
  ) -> "Relevance":
    """Returns the table of (query, passage, grade) triples in any order. A pair given twice keeps its highest grade.

    Raises: UserError if a query row is not in [0, num_queries) or a passage row is negative.

    Example: `Relevance.from_pairs([0, 0], [5, 2], [1, 1], num_queries=2).row(0)` is `([2, 5], [1, 1])`.
    """
    queries = np.asarray(query_rows, np.int64)
    passages = np.asarray(passage_rows, np.int64)
    values = np.asarray(grades, np.int32)
    if queries.size and (queries.min() < 0 or queries.max() >= num_queries or passages.min() < 0):
      raise UserError(
        f"relevance: query rows {queries.min()}..{queries.max()} and passage rows from {passages.min()}; "
        f"expected query rows within 0..{num_queries - 1} and no negative passage row."
      )
    order = np.lexsort((-values, passages, queries))
    queries, passages, values = queries[order], passages[order], values[order]
    first = np.ones(len(queries), bool)
    first[1:] = (queries[1:] != queries[:-1]) | (passages[1:] != passages[:-1])
    queries, passages, values = queries[first], passages[first], values[first]
    offsets = np.zeros(num_queries + 1, np.int64)
    np.cumsum(np.bincount(queries, minlength=num_queries), out=offsets[1:])
    positive = np.bincount(queries[values > 0], minlength=num_queries)
    return cls(offsets, passages.astype(np.int32), values, int(positive.max(initial=0)))

  @property
  def num_queries(self) -> int:
    """The number of query rows, with or without passages."""
    return len(self.offsets) - 1

  def row(self, query_row: int) -> tuple[Int[np.ndarray, "r"], Int[np.ndarray, "r"]]:
    """Returns the passage rows that were judged for one query, ascending, and their grades."""
    span = slice(self.offsets[query_row], self.offsets[query_row + 1])
    return self.passage_rows[span], self.grades[span]

  def positive_counts(self) -> Int[np.ndarray, "q"]:
    """Returns the number of positives of every query row."""
    ends = np.concatenate([[0], np.cumsum(self.grades > 0)])
    return ends[self.offsets[1:]] - ends[self.offsets[:-1]]

  def positives(self, query_rows: Int[np.ndarray, "q"]) -> Int[np.ndarray, "q r"]:
    """Returns int32 [q, width]: the positive passage rows of each query, ascending, padded with -1.

    A query row of -1 gives a row of -1. O(q * judged passages per query).
    """
    found = np.full((len(query_rows), self.width), -1, np.int32)
    for i, query_row in enumerate(query_rows):
      if query_row >= 0:
        rows, grades = self.row(int(query_row))
        rows = rows[grades > 0]
        found[i, : len(rows)] = rows
    return found

  def save(self, path: pathlib.Path) -> None:
    """Writes the table as one .npz file."""
    np.savez(path, **self._asdict())

  @classmethod
  def read(cls, path: pathlib.Path) -> "Relevance":
    """Returns the table that `save` wrote."""
    with np.load(path) as file:
      return cls(file["offsets"], file["passage_rows"], file["grades"], int(file["width"]))
