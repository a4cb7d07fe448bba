"""The order in which trec_eval takes results, whatever the order they are given in."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float, Int

from retrieval_jax.errors import UserError
from retrieval_jax.records import Ranking


def trec_order(ranking: Ranking, ids: Sequence[str]) -> Ranking:
  """Returns the ranking in trec_eval's order: float32 scores descending, equal ones by passage id DESCENDING.

  Use it before `evaluate_ranking` to get the values that trec_eval and pytrec_eval give of the same results: they
  forget the ranks. Our own searches order equal scores by ascending row instead, and hold what trec_eval rounds apart:
  it reads scores as float32, where 16777217 and 16777216 are equal.

  ids: the id of each row of the corpus. They are compared by code point, which is the order of their UTF-8 bytes; the
    ids "9" and "10" are in this order, descending. Only those of results with equal scores are read.

  Scores stay as they were given; empty places (row -1) come last. O(q k log k) time, O(q k) memory.

  Raises: UserError for a score that is not a number, and a row that `ids` lacks.

  Example: rows [[0, 1, 2]], scores all 1.0 and ids "a", "b", "c" become rows [[2, 1, 0]].
  """
  rows, scores = np.asarray(ranking.rows), np.asarray(ranking.scores)
  if rows.shape != scores.shape:
    raise UserError(f"The ranking has rows {rows.shape} and scores {scores.shape}; expected one score a row.")
  if rows.max(initial=-1) >= len(ids):
    raise UserError(f"The ranking names row {rows.max()}, and there are {len(ids)} ids.")
  empty = rows < 0
  if np.isnan(scores[~empty]).any():
    query = int(np.argmax(np.any(np.isnan(scores) & ~empty, axis=1)))
    raise UserError(f"The ranking of query {query} has a score that is not a number.")
  with np.errstate(over="ignore"):  # beyond float32 is infinite there too
    keys = np.where(
      empty, np.inf, -scores.astype(np.float32)
    )  # empty places after a score of -infinity: below
  order = np.lexsort((keys, empty), axis=1)
  rows, scores, keys = (np.take_along_axis(x, order, axis=1) for x in (rows, scores, keys))
  if len(tied := np.flatnonzero(np.any(_tied(keys, rows), axis=1))):
    order = np.lexsort((_places(rows[tied], keys[tied], ids), keys[tied], rows[tied] < 0), axis=1)
    rows[tied] = np.take_along_axis(rows[tied], order, axis=1)
    scores[tied] = np.take_along_axis(scores[tied], order, axis=1)
  return Ranking(rows, scores)


def trec_order_of_ids(ids: Sequence[str], scores: Sequence[float]) -> list[str]:
  """Returns the ids of one query's results in the same order: what `rows_of_ids` takes of a run file.

  Raises: UserError for other numbers of ids and scores, and a score that is not a number.

  Example: `trec_order_of_ids(["a", "b", "c"], [1.0, 1.0, 2.0])` is `["c", "b", "a"]`.
  """
  if len(ids) != len(scores):
    raise UserError(f"{len(ids)} results have {len(scores)} scores; expected one each.")
  with np.errstate(over="ignore"):
    keys = np.asarray(scores, np.float64).astype(np.float32)
  if np.isnan(keys).any():
    raise UserError(f"The score of result {ids[int(np.argmax(np.isnan(keys)))]!r} is not a number.")
  return [name for _, name in sorted(zip(keys.tolist(), ids, strict=True), reverse=True)]


def _tied(keys: Float[np.ndarray, "q k"], rows: Int[np.ndarray, "q k"]) -> Bool[np.ndarray, "q k"]:
  """Returns which results have the score of a neighbour."""
  tied = np.zeros(keys.shape, bool)
  same = (keys[:, 1:] == keys[:, :-1]) & (rows[:, 1:] >= 0)
  tied[:, 1:] |= same
  tied[:, :-1] |= same
  return tied


def _places(
  rows: Int[np.ndarray, "q k"], keys: Float[np.ndarray, "q k"], ids: Sequence[str]
) -> Int[np.ndarray, "q k"]:
  """Returns the place of each tied result's id among all tied ids, the last id first; 0 for the others."""
  tied = _tied(keys, rows)
  unique, inverse = np.unique(rows[tied], return_inverse=True)
  names = [str(ids[row]) for row in unique.tolist()]
  places = np.empty(len(names), np.int64)
  places[sorted(range(len(names)), key=lambda i: names[i], reverse=True)] = np.arange(len(names))
  found = np.zeros(rows.shape, np.int64)
  found[tied] = places[inverse]
  return found
