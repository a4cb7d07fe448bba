"""Fusion: one ranking out of several of the same queries and corpus, by ranks or by weighted scores.

Fused scores are sums in float64, rounded to float32 before they are ordered: sums that differ only by the order of their
terms then tie, and the smaller row comes first.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
from jaxtyping import Float

from retrieval_jax.errors import UserError, nearest
from retrieval_jax.index import order
from retrieval_jax.records import Ranking

NORMALISATIONS: Final = ("min_max", "none")


def reciprocal_rank_fusion(
  rankings: Sequence[Ranking], *, k: int, constant: float = 60.0, weights: Sequence[float] | None = None
) -> Ranking:
  """Returns the k passages with the largest sum over the rankings of weight / (constant + rank), ranks from 1.

  A passage that a ranking does not have adds nothing there. weights: one per ranking; None counts all as 1.

  Time: a sort of all results of a query; memory: 24 bytes for each of them.

  Raises: UserError for no ranking, rankings of different numbers of queries, k < 1, a constant that is negative, and
  weights that do not fit.

  Source: Cormack, Clarke and Buettcher, 2009, section 2 (constant 60).

  Example: rankings [[0, 1]] and [[1, 2]] give rows [[1, 0, 2]] with scores 1/62 + 1/61, 1/61 and 1/62.
  """
  _check(rankings, k)
  if not 0 <= constant < np.inf:
    raise UserError(f"reciprocal_rank_fusion: constant is {constant}; expected at least 0.")
  weights = _weights("reciprocal_rank_fusion", rankings, weights)
  points = [
    np.broadcast_to(weight / (constant + np.arange(1, ranking.rows.shape[1] + 1)), ranking.rows.shape)
    for ranking, weight in zip(rankings, weights, strict=True)
  ]
  return _fused(rankings, points, k)


def weighted_fusion(
  rankings: Sequence[Ranking],
  *,
  k: int,
  weights: Sequence[float] | None = None,
  normalise: str = "min_max",
) -> Ranking:
  """Returns the k passages with the largest weighted sum of their scores, normalised per query and ranking.

  A passage that a ranking does not have adds nothing there. weights: one per ranking; None counts all as 1.

  normalise: "min_max" moves and stretches a query's scores in a ranking so that the best is 1 and the worst found 0 (all
    are 1 where they are equal), since BM25's and cosines are of other kinds; "none" takes them as they are.

  Time: a sort of all results of a query; memory: 24 bytes for each of them.

  Raises: UserError for no ranking, rankings of different numbers of queries, k < 1, weights that do not fit, and a score
  that is not finite.

  Source: Fox and Shaw, 1993 (CombSUM); Lee, 1997, section 3.1 (min-max).

  Example: scores [[4, 2]] of rows [[0, 1]] and [[9, 3]] of [[1, 2]] with weights [0.5, 1] give rows [[1, 0, 2]] with
  scores 1, 0.5 and 0.
  """
  _check(rankings, k)
  if normalise not in NORMALISATIONS:
    raise UserError(
      f"weighted_fusion: normalise is {normalise!r}; expected {' or '.join(map(repr, NORMALISATIONS))}"
      f"{nearest(normalise, NORMALISATIONS) or '.'}"
    )
  weights = _weights("weighted_fusion", rankings, weights)
  for i, ranking in enumerate(rankings):
    if not np.isfinite(ranking.scores[ranking.rows >= 0]).all():
      raise UserError(f"weighted_fusion: ranking {i} has a score that is not finite.")
  points = [
    weight * (_min_max(ranking) if normalise == "min_max" else _found_scores(ranking))
    for ranking, weight in zip(rankings, weights, strict=True)
  ]
  return _fused(rankings, points, k)


def _found_scores(ranking: Ranking) -> Float[np.ndarray, "q k"]:
  """Returns the scores, 0 where nothing was found: a weight of 0 times -inf would be no number."""
  return np.where(ranking.rows >= 0, ranking.scores, 0).astype(np.float64)


def _min_max(ranking: Ranking) -> Float[np.ndarray, "q k"]:
  """Returns the scores moved and stretched to 0 .. 1 per query."""
  found, scores = ranking.rows >= 0, _found_scores(ranking)
  low = np.where(found, scores, np.inf).min(axis=1, keepdims=True)
  high = np.where(found, scores, -np.inf).max(axis=1, keepdims=True)
  differ = high > low  # not where all are equal or none is found
  shares = (scores - np.where(differ, low, 0)) / np.where(differ, high - low, 1)
  return np.where(found, np.where(differ, shares, 1.0), 0.0)


def _fused(rankings: Sequence[Ranking], points: Sequence[Float[np.ndarray, "q k"]], k: int) -> Ranking:
  """Returns the k passages with the largest sums of points over the rankings."""
  rows = np.concatenate([ranking.rows for ranking in rankings], axis=1).astype(np.int64)
  values = np.concatenate(points, axis=1)
  sort = np.argsort(rows, axis=1, kind="stable")
  rows, values = np.take_along_axis(rows, sort, axis=1), np.take_along_axis(values, sort, axis=1)
  first = np.ones(rows.shape, bool)  # of those with one row
  first[:, 1:] = rows[:, 1:] != rows[:, :-1]
  found = rows >= 0
  sums = np.zeros(rows.shape)
  starts = np.flatnonzero(first)
  sums[first] = np.add.reduceat(values.ravel(), starts) if len(starts) else []
  keys = np.where(first & found, order.keys(sums, np.maximum(rows, 0)), order.NOTHING)
  return order.ranking(keys, k)


def _check(rankings: Sequence[Ranking], k: int) -> None:
  if not rankings:
    raise UserError("There is no ranking to fuse.")
  counts = [len(ranking.rows) for ranking in rankings]
  if len(set(counts)) > 1:
    raise UserError(f"The rankings to fuse are of {counts} queries; expected the same queries, in one order.")
  if k < 1:
    raise UserError(f"fusion: k is {k}; it must be at least 1.")


def _weights(name: str, rankings: Sequence[Ranking], weights: Sequence[float] | None) -> Sequence[float]:
  weights = [1.0] * len(rankings) if weights is None else weights
  numbers = isinstance(weights, Sequence) and all(isinstance(weight, int | float) for weight in weights)
  if not numbers or isinstance(weights, str) or not any(weights):
    raise UserError(
      f"{name}: the weights are {weights!r}; expected a list of numbers, not all 0, such as [0.5, 0.5]."
    )
  if len(weights) != len(rankings):
    raise UserError(
      f"{name}: there are {len(weights)} weights for {len(rankings)} rankings; expected one each."
    )
  if not all(0 <= weight < np.inf for weight in weights):
    raise UserError(f"{name}: the weights are {list(weights)}; expected numbers of at least 0.")
  return weights
