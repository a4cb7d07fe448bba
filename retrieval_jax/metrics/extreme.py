"""Propensity-scored metrics of extreme classification: a passage that is rarely labelled gains more when it is found."""

import numpy as np
from jaxtyping import Float, Int

from retrieval_jax.errors import UserError
from retrieval_jax.metrics.judgements import Judged, divided


def inverse_propensity(
  counts: Int[np.ndarray, "c"], num_points: int, a: float = 0.55, b: float = 1.5
) -> Float[np.ndarray, "c"]:
  """Returns the weight of each passage (label), at least 1: one over the probability that a label that holds is noted.

  1 + C (counts + b)^-a with C = (ln num_points - 1) (b + 1)^a. A label of no training point has the largest, 1 + C b^-a.

  counts: how many training points each label has; those of the test split would reward what is rare there by chance.
  num_points: all training points, those without labels included.
  a, b: constants of the data set: (0.6, 2.6) for the Amazon sets, (0.5, 0.4) for the Wikipedia-500K and WikiTitles-500K
    sets, (0.55, 1.5) for others. Numbers made with other constants do not compare.

  Raises: UserError for counts outside 0 .. num_points, fewer than 3 points, where C is not above 0, and constants that
    are not above 0 or whose weights are too large for a number.

  Source: Jain, Prabhu and Varma (2016), "Extreme Multi-label Loss Functions for Recommendation, Tagging, Ranking & Other
  Missing Label Applications", its model of propensities.

  Example: `inverse_propensity(np.array([0, 9]), 1000)` is about `[8.82, 3.68]`.
  """
  if num_points < 3:
    raise UserError(f"inverse_propensity: {num_points} training points; expected at least 3.")
  if not (0 < a < np.inf and 0 < b < np.inf):
    raise UserError(f"inverse_propensity: a={a}, b={b}; both must be above 0, as in (0.55, 1.5).")
  if counts.size and not (counts.min() >= 0 and counts.max() <= num_points):
    raise UserError(
      f"inverse_propensity: counts from {counts.min()} to {counts.max()} with {num_points} training points; a label has "
      "0 to all of them."
    )
  with np.errstate(over="ignore", under="ignore", invalid="ignore"):
    c = (np.log(num_points) - 1) * np.float64(b + 1) ** a
    weights = 1 + c * (counts + b) ** -a
  if not np.isfinite(weights).all():
    raise UserError(
      f"inverse_propensity: a={a}, b={b}: the weights overflow; give constants as in (0.55, 1.5)."
    )
  return weights


def ps_precision(judged: Judged, cutoff: int | None) -> Float[np.ndarray, "q"]:
  """Sum of the weights of the relevant results, divided by the mean over the queries of the best such sum.

  pyxclib: psprecision.

  Source: Jain, Prabhu and Varma (2016), divided by the best attainable value as the XC repository's tool does.
  """
  best = judged.ideal.before(cutoff)
  return _of_mean(judged.hits.sums(judged.num_queries), best.sums(judged.num_queries), judged)


def ps_ndcg(judged: Judged, cutoff: int | None) -> Float[np.ndarray, "q"]:
  """Sum of weight / log2(1 + rank) over the relevant results, per query in units of what weights of 1 would attain,
  divided by the mean over the queries of the best such value.

  pyxclib: psndcg.

  Source: Jain, Prabhu and Varma (2016), divided by the best attainable value as the XC repository's tool does.
  """
  best, count = judged.ideal.before(cutoff), judged.num_queries
  unit = best._replace(grades=np.ones(len(best.grades))).discounted().sums(count)
  found, most = judged.hits.discounted().sums(count), best.discounted().sums(count)
  return _of_mean(divided(found, unit), divided(most, unit), judged)


def ps_recall(judged: Judged, cutoff: int | None) -> Float[np.ndarray, "q"]:
  """Sum of the weights of the relevant results per relevant passage, divided by the mean over the queries of the best
  such value.

  pyxclib: psrecall.

  Source: Jain, Prabhu and Varma (2016), divided by the best attainable value as the XC repository's tool does.
  """
  best, count = judged.ideal.before(cutoff), judged.num_queries
  found, most = (divided(placed.sums(count), judged.relevant) for placed in (judged.hits, best))
  return _of_mean(found, most, judged)


def _of_mean(
  found: Float[np.ndarray, "q"], best: Float[np.ndarray, "q"], judged: Judged
) -> Float[np.ndarray, "q"]:
  """Returns each query's value divided by the mean of the best ones over the judged queries.

  The mean of these is the ratio of the two means, which is reported, and not the mean of the queries' ratios.
  """
  return found / np.mean(best[judged.judged])
