"""The geometry of embeddings: how near the two sides of a pair are, how evenly embeddings fill the sphere, how many dimensions
they use, and whether the two towers share one region."""

from collections.abc import Iterator

import numpy as np
from jaxtyping import Float

from retrieval_jax.errors import UserError

BLOCK = 1024  # rows at once: 8 MB of cosines


def alignment(query: Float[np.ndarray, "q d"], passage: Float[np.ndarray, "p d"]) -> float:
  """Returns the mean of |q_i - p_i|^2 over the pairs, both normalised: 0 where they agree, 4 where they are opposite.

  It is 2 - 2 times the mean cosine of the pairs. Lower is better, as long as `uniformity` does not rise.

  Raises: UserError for no rows, other shapes, numbers that are not finite, and a row of zeros.

  Source: Wang and Isola (2020), "Understanding Contrastive Representation Learning through Alignment and Uniformity on
  the Hypersphere", equation 6 with alpha = 2.

  Example: `alignment(np.array([[1.0, 0]]), np.array([[0, 2.0]]))` is 2.
  """
  if query.shape != passage.shape:
    raise UserError(
      f"alignment: queries {query.shape} and passages {passage.shape}; expected one passage a query."
    )
  return float(np.mean(np.sum((_normalised(query, 1) - _normalised(passage, 1)) ** 2, axis=1)))


def uniformity(x: Float[np.ndarray, "e d"], t: float = 2.0) -> float:
  """Returns log of the mean over the pairs i < j of exp(-t |x_i - x_j|^2), rows normalised: 0 if all are one point.

  Lower is better: the points lie further apart. Points spread over a sphere of many dimensions come near -2 t, the
  value of orthogonal rows. O(e^2 d) time; memory is that of 1024 x 1024 cosines, never that of all pairs.

  Raises: UserError for fewer than 2 rows, a t that is not above 0, numbers that are not finite, and a row of zeros.

  Source: Wang and Isola (2020), equation 8.

  Example: `uniformity(np.eye(3))` is -4: all squared distances are 2.
  """
  if not 0 < t < np.inf:
    raise UserError(f"uniformity: t is {t}; it must be above 0.")
  rows = _normalised(x, 2)
  total = sum(float(np.sum(np.exp(-t * np.maximum(2 - 2 * block, 0)))) for block in _cosines(rows))
  return float(np.log(total / _num_pairs(len(rows))))


def mean_cosine(x: Float[np.ndarray, "e d"]) -> float:
  """Returns the mean cosine over the pairs i < j: near 0 for spread embeddings, near 1 for those that collapsed.

  O(e d): with rows of length 1 it is (|sum of the rows|^2 - e) / (e (e - 1)).

  Raises: UserError for fewer than 2 rows, numbers that are not finite, and a row of zeros.

  Example: `mean_cosine(np.array([[1.0, 0], [0, 1.0], [1.0, 0]]))` is 1/3.
  """
  rows = _normalised(x, 2)
  count = len(rows)
  return float((np.sum(np.sum(rows, axis=0) ** 2) - count) / (count * (count - 1)))


def effective_rank(x: Float[np.ndarray, "e d"]) -> float:
  """Returns exp of the entropy of the singular values, divided by their sum: how many dimensions the rows use.

  It is r for r equal singular values and no others, at most min(e, d). The rows are taken as they are, neither centred nor
  normalised; what the log calls gramian/effective_rank_* is another number, tr(G)^2 / |G|^2. O(e d min(e, d)) time.

  Raises: UserError for no rows, numbers that are not finite, and rows that are all zeros.

  Source: Roy and Vetterli (2007), "The effective rank: a measure of effective dimensionality", definition 1.

  Example: `effective_rank(np.eye(3))` is 3.
  """
  rows = np.asarray(x, np.float64)
  if not rows.size or not np.isfinite(rows).all() or not rows.any():
    raise UserError(f"effective_rank: embeddings {rows.shape}; expected finite rows that are not all zeros.")
  values = np.linalg.svd(rows, compute_uv=False)
  shares = values[values > 0] / values.sum()
  return float(np.exp(-np.sum(shares * np.log(shares))))


def tower_ratios(
  query: Float[np.ndarray, "q d"], passage: Float[np.ndarray, "p d"]
) -> Float[np.ndarray, "pairs"]:
  """Returns cos(q_i, q_j) / cos(q_i, p_j) of every i and j that differ: near 1 where both towers share one region.

  passage: row j belongs to query j. Pairs with a cosine of 0 below are left out: they have no ratio; those near 0 have a large
  one, so take quantiles of the ratios and no mean. O(q^2 d) time and some arrays of q^2 numbers.

  Raises: UserError for other shapes, fewer than 2 rows, numbers that are not finite, and a row of zeros.

  Source: Moiseev et al. (2023), "SamToNe", section 4.2 and Figure 6, which takes i and j at random.

  Example: `tower_ratios(q, q)` is all ones.
  """
  if query.shape != passage.shape:
    raise UserError(
      f"tower_ratios: queries {query.shape} and passages {passage.shape}; expected one passage a query."
    )
  queries, passages = _normalised(query, 2), _normalised(passage, 2)
  same, cross = queries @ queries.T, queries @ passages.T
  kept = ~np.eye(len(queries), dtype=bool) & (cross != 0)
  return same[kept] / cross[kept]


def _normalised(x: Float[np.ndarray, "e d"], fewest: int) -> Float[np.ndarray, "e d"]:
  """Returns the rows divided by their lengths, in float64."""
  if len(x) < fewest:
    raise UserError(f"{len(x)} embeddings; expected at least {fewest}.")
  rows = np.asarray(x, np.float64)
  norms = np.sqrt(np.sum(rows**2, axis=1))
  bad = ~np.isfinite(norms) | (norms == 0)
  if bad.any():
    row = int(np.argmax(bad))
    raise UserError(
      f"{np.count_nonzero(bad)} of {len(rows)} embeddings are zero or not finite, the first is row {row}: they have "
      "no direction."
    )
  return rows / norms[:, None]


def _cosines(rows: Float[np.ndarray, "e d"]) -> Iterator[Float[np.ndarray, "pairs"]]:
  """Yields the cosines of all pairs i < j, a block of at most BLOCK^2 at a time."""
  for start in range(0, len(rows), BLOCK):
    block = rows[start : start + BLOCK]
    yield (block @ block.T)[np.triu_indices(len(block), k=1)]
    for other in range(start + BLOCK, len(rows), BLOCK):
      yield (block @ rows[other : other + BLOCK].T).ravel()


def _num_pairs(count: int) -> int:
  return count * (count - 1) // 2
