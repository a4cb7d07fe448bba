"""Relevance judgements, and what of them a ranking has found."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from retrieval_jax.errors import UserError

BLOCK = 1 << 18  # results looked at together: a few arrays of 2 MB
FEWEST_SLOTS = 1 << 12  # of the filter, bytes
MOST_SLOTS = 1 << 22

Pair = tuple[Sequence[int] | np.ndarray, Sequence[float] | np.ndarray]


class Qrels(NamedTuple):
  """Sparse judgements: query i has judged the passages rows[indptr[i]:indptr[i + 1]], with their grades.

  Grades above 0 are gains; a grade of 0 or below gains nothing, and a negative one costs nothing. A passage that the
  corpus lacks may stand here under any row that no result has: it cannot be found, but it counts as one that should
  have been.
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


class Placed(NamedTuple):
  """Relevant passages in a ranking, by query and rank: the query, the rank from 0 and the grade of each."""

  queries: Int[np.ndarray, "e"]
  ranks: Int[np.ndarray, "e"]
  grades: Float[np.ndarray, "e"]

  def where(self, kept: Bool[np.ndarray, "e"]) -> "Placed":
    return Placed(self.queries[kept], self.ranks[kept], self.grades[kept])

  def before(self, cutoff: int | None) -> "Placed":
    """Returns those of the first `cutoff` ranks; None: all."""
    return self if cutoff is None else self.where(self.ranks < cutoff)

  def sums(self, num_queries: int) -> Float[np.ndarray, "q"]:
    """Returns the sum of the grades of each query."""
    return sum_by_query(self.queries, self.grades, num_queries)

  def discounted(self) -> "Placed":
    """Returns the same with each grade divided by log2(1 + rank), ranks counted from 1."""
    return self._replace(grades=self.grades / np.log2(2 + self.ranks))


class Judged(NamedTuple):
  """What a metric may see of a ranking: the passages of a grade above 0, and where they were found.

  hits: those found, where they were found.
  ideal: all of them, found or not, as the best possible ranking has them.
  relevant: how many there are of each query, found or not.
  judged: whether the query has a judgement of any grade.
  """

  hits: Placed
  ideal: Placed
  relevant: Int[np.ndarray, "q"]
  judged: Bool[np.ndarray, "q"]

  @property
  def num_queries(self) -> int:
    return len(self.relevant)

  def graded_from(self, grade: float) -> "Judged":
    """Returns the same with the passages of at least this grade alone."""
    ideal = self.ideal.where(self.ideal.grades >= grade)  # the best come first: their ranks remain
    relevant = np.bincount(ideal.queries, minlength=self.num_queries)
    return Judged(self.hits.where(self.hits.grades >= grade), ideal, relevant, self.judged)

  def first(self, cutoff: int | None) -> "Judged":
    """Returns the same of the first `cutoff` results; None: of all."""
    return self._replace(hits=self.hits.before(cutoff))


def sum_by_query(
  queries: Int[np.ndarray, "e"], values: Float[np.ndarray, "e"], num_queries: int
) -> Float[np.ndarray, "q"]:
  """Returns the sum of the values of each query."""
  # Of no values bincount makes integers.
  return np.bincount(queries, values, minlength=num_queries).astype(np.float64)


def divided(part: np.ndarray, whole: np.ndarray) -> Float[np.ndarray, "q"]:
  """Returns part / whole, 0 where there is no whole."""
  return np.divide(part, whole, out=np.zeros(len(whole)), where=whole > 0)


def judge(results: Int[np.ndarray, "q k"], qrels: Qrels) -> Judged:
  """Returns the results in the light of the judgements; -1 among the results is no result.

  O(q k log k + e log e) time: the results are sorted to find repeated ones, the judgements where they are not in
  ascending order already. Above its inputs it takes O(e) memory and some arrays of 2 MB.

  Raises: UserError if the numbers of queries differ, a passage comes twice in a query's results or judgements, a
  judged row is negative, or a grade is not finite.
  """
  if not np.issubdtype(results.dtype, np.integer):
    raise UserError(f"The ranking has the type {results.dtype}; expected rows of the corpus, whole numbers.")
  count = len(results)
  if len(qrels.indptr) - 1 != count:
    raise UserError(f"The ranking has {count} queries and the judgements {len(qrels.indptr) - 1}.")
  queries, rows, grades = _in_order(qrels)
  relevant = grades > 0
  queries, rows, grades = queries[relevant], rows[relevant], grades[relevant]
  counts = np.bincount(queries, minlength=count)
  indptr = np.concatenate([[0], np.cumsum(counts)])
  hits = _hits(results, Qrels(indptr, rows, grades))
  ranks = np.arange(len(queries)) - np.repeat(indptr[:-1], counts)
  ideal = Placed(queries, ranks, grades[_order(queries, -grades)])
  return Judged(hits, ideal, counts, np.diff(qrels.indptr) > 0)


def _in_order(
  qrels: Qrels,
) -> tuple[Int[np.ndarray, "e"], Int[np.ndarray, "e"], Float[np.ndarray, "e"]]:
  """Returns the query, row and grade of each judgement, checked, by query and ascending row."""
  rows, grades = np.asarray(qrels.rows, np.int64), np.asarray(qrels.grades, np.float64)
  sizes = np.diff(qrels.indptr)
  if qrels.indptr[0] != 0 or sizes.min(initial=0) < 0 or not sizes.sum() == len(rows) == len(grades):
    raise UserError(
      f"The judgements' indptr ends at {qrels.indptr[-1]}, with {len(rows)} rows and {len(grades)} grades; it must "
      "rise from 0 to their number."
    )
  if not np.isfinite(grades).all() or rows.min(initial=0) < 0:
    raise UserError("The judgements must have finite grades and passage rows from 0.")
  queries = qrels.queries()
  order = _order(queries, rows)
  rows, grades = rows[order], grades[order]
  repeated = np.flatnonzero((queries[1:] == queries[:-1]) & (rows[1:] == rows[:-1]))
  if len(repeated):
    query, row = queries[repeated[0]], rows[repeated[0]]
    raise UserError(f"Query {query} judges passage {row} twice; keep one of the grades.")
  return queries, rows, grades


def _order(queries: Int[np.ndarray, "e"], values: np.ndarray) -> slice | Int[np.ndarray, "e"]:
  """Returns the index that sorts by query and value; queries ascend already. No work if the values do too."""
  if np.all((values[1:] >= values[:-1]) | (queries[1:] != queries[:-1])):
    return slice(None)
  return np.lexsort((values, queries))


def _hits(results: Int[np.ndarray, "q k"], relevant: Qrels) -> Placed:
  step = max(1, BLOCK // max(1, results.shape[1]))
  found = [Placed(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0))]
  for start in range(0, len(results), step):
    block = np.asarray(results[start : start + step], np.int64)
    _check_results(block, start)
    indptr = relevant.indptr[start : start + step + 1]
    part = slice(indptr[0], indptr[-1])
    hits = _hits_of_block(block, Qrels(indptr - indptr[0], relevant.rows[part], relevant.grades[part]))
    found.append(hits._replace(queries=hits.queries + start))
  return Placed(*(np.concatenate(parts) for parts in zip(*found, strict=True)))


def _check_results(block: Int[np.ndarray, "q k"], start: int) -> None:
  small = block.max(initial=0) <= np.iinfo(np.int32).max
  ordered = np.sort(block.astype(np.int32) if small else block, axis=1)  # half the bytes: twice as fast
  repeated = ordered[:, 1:] == ordered[:, :-1]
  repeated &= ordered[:, 1:] >= 0
  if repeated.any():
    query, place = np.argwhere(repeated)[0]
    raise UserError(
      f"The ranking of query {start + query} names passage {ordered[query, place]} twice; each result must be "
      "another one."
    )


def _hits_of_block(block: Int[np.ndarray, "q k"], relevant: Qrels) -> Placed:
  """Returns the relevant results; query 0 is the first of the block.

  A (query, row) is one key. Nearly all results are not relevant, and a table of bytes, looked up under the last bits
  of the key, says so of most of them; binary search decides on the rest. Searching for all of them takes ten times as
  long.
  """
  width = 1 + int(block.max(initial=0))
  findable = relevant.rows < width
  keys = (relevant.queries() * width + relevant.rows)[findable]
  if not len(keys):
    return Placed(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0))
  wanted = np.arange(len(block))[:, None] * width + block
  slots = int(np.clip(1 << (16 * len(keys)).bit_length(), FEWEST_SLOTS, MOST_SLOTS))
  maybe = np.zeros(slots, bool)
  maybe[keys & (slots - 1)] = True
  places = np.flatnonzero(maybe[wanted & (slots - 1)] & (block >= 0))
  nearest = np.minimum(np.searchsorted(keys, wanted.ravel()[places]), len(keys) - 1)
  right = keys[nearest] == wanted.ravel()[places]
  queries, ranks = np.divmod(places[right], block.shape[1])
  return Placed(queries, ranks, relevant.grades[findable][nearest[right]])
