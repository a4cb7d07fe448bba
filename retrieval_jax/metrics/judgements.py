"""Relevance judgements, and how the results of a ranking look in their light."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from retrieval_jax.errors import UserError

Pair = tuple[Sequence[int] | np.ndarray, Sequence[float] | np.ndarray]


class Qrels(NamedTuple):
  """Sparse judgements: query i has judged the passages rows[indptr[i]:indptr[i + 1]], with their grades.

  A grade above 0 is relevant; 0 and below is not. A passage that the corpus lacks may stand here under any row that
  no result has: it cannot be found, but it counts as one that should have been.
  """

  indptr: Int[np.ndarray, "q+1"]
  rows: Int[np.ndarray, "e"]
  grades: Float[np.ndarray, "e"]

  @classmethod
  def of(cls, pairs: Sequence[Pair]) -> "Qrels":
    """Returns the judgements given as one (rows, grades) pair per query."""
    for i, (rows, grades) in enumerate(pairs):
      if len(rows) != len(grades):
        raise UserError(f"Query {i} has {len(rows)} judged passages but {len(grades)} grades.")
    indptr = np.cumsum([0, *(len(rows) for rows, _ in pairs)])
    if not indptr[-1]:
      return cls(indptr, np.zeros(0, np.int64), np.zeros(0))
    rows, grades = (np.concatenate([np.asarray(pair[i]) for pair in pairs]) for i in range(2))
    return cls(indptr, rows.astype(np.int64), grades.astype(np.float64))

  def queries(self) -> Int[np.ndarray, "e"]:
    """Returns the query of each judgement."""
    return np.repeat(np.arange(len(self.indptr) - 1), np.diff(self.indptr))


class Judged(NamedTuple):
  """What a metric may see of a ranking.

  gains: the grade of each result, 0 for what is not relevant, not judged or not there.
  relevant: how many relevant passages each query has, found or not.
  ideal_*: the relevant passages as the best possible ranking has them: query, rank from 0, grade.
  """

  gains: Float[np.ndarray, "q k"]
  relevant: Int[np.ndarray, "q"]
  ideal_queries: Int[np.ndarray, "e"]
  ideal_ranks: Int[np.ndarray, "e"]
  ideal_grades: Float[np.ndarray, "e"]

  @property
  def num_queries(self) -> int:
    return len(self.relevant)


def _first_repeated(queries: Int[np.ndarray, "e"], rows: Int[np.ndarray, "e"]) -> tuple[int, int] | None:
  """Returns a (query, row) that comes twice in arrays sorted by both, or None."""
  repeated = np.flatnonzero((queries[1:] == queries[:-1]) & (rows[1:] == rows[:-1]))
  return (int(queries[repeated[0]]), int(rows[repeated[0]])) if len(repeated) else None


def _check_results(results: Int[np.ndarray, "q k"]) -> None:
  ordered = np.sort(results, axis=1)
  repeated = np.argwhere((ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0))
  if len(repeated):
    query, place = repeated[0]
    raise UserError(
      f"The ranking of query {query} names passage {ordered[query, place]} twice; each result must be another one."
    )


def _grades_of(results: Int[np.ndarray, "q k"], judged: Qrels) -> Float[np.ndarray, "q k"]:
  """Returns the grade of each result by binary search among the relevant passages, sorted by query and row."""
  if not len(judged.rows):
    return np.zeros(results.shape)
  width = 1 + int(max(results.max(initial=0), judged.rows.max()))
  keys = judged.queries() * width + judged.rows
  wanted = np.arange(len(results))[:, None] * width + results
  places = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
  return np.where((keys[places] == wanted) & (results >= 0), judged.grades[places], 0.0)


def judge(results: Int[np.ndarray, "q k"], qrels: Qrels) -> Judged:
  """Returns the results in the light of the judgements; -1 among the results is no result.

  O((q k + e) log e) time, O(q k + e) memory.

  Raises: UserError if the numbers of queries differ, a passage comes twice in a query's results or judgements, a
  judged row is negative, or a grade is not finite.
  """
  results = np.asarray(results, np.int64)
  if len(qrels.indptr) - 1 != len(results):
    raise UserError(f"The ranking has {len(results)} queries and the judgements {len(qrels.indptr) - 1}.")
  _check_results(results)
  queries, rows = qrels.queries(), np.asarray(qrels.rows, np.int64)
  grades = np.asarray(qrels.grades, np.float64)
  if not np.isfinite(grades).all() or rows.min(initial=0) < 0:
    raise UserError("The judgements must have finite grades and passage rows from 0.")
  order = np.lexsort((rows, queries))
  if repeated := _first_repeated(queries[order], rows[order]):
    raise UserError(f"Query {repeated[0]} judges passage {repeated[1]} twice; keep one of the grades.")

  order = order[grades[order] > 0]
  counts = np.bincount(queries[order], minlength=len(results))
  indptr = np.concatenate([[0], np.cumsum(counts)])
  best_first = order[np.lexsort((-grades[order], queries[order]))]
  return Judged(
    gains=_grades_of(results, Qrels(indptr, rows[order], grades[order])),
    relevant=counts,
    ideal_queries=queries[best_first],
    ideal_ranks=np.arange(len(best_first)) - np.repeat(indptr[:-1], counts),
    ideal_grades=grades[best_first],
  )
