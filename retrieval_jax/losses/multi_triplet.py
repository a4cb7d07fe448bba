"""The triplet loss of several positives: the hardest positives of a query against its hardest negatives."""

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from retrieval_jax import scoring
from retrieval_jax.errors import UserError
from retrieval_jax.losses import pairs
from retrieval_jax.losses.base import Loss, stateless
from retrieval_jax.losses.triplet import Candidates, hardest
from retrieval_jax.records import EmbeddedBatch, LossOutput
from retrieval_jax.scoring import Score


class _Options(NamedTuple):
  margin: float
  num_positives: int
  num_negatives: int
  score: Score


def multi_triplets(
  scores: Float[Array, "q p"],
  relevant: Bool[Array, "q p"],
  present: Bool[Array, "q p"],
  *,
  margin: float = 0.2,
  num_positives: int = 3,
  num_negatives: int = 5,
) -> Float[Array, "q"]:
  """Returns the loss of each row over its a = num_positives lowest-scored relevant columns and its b = num_negatives
  highest-scored other columns:

    h_mn = max(0, s_n - s_m + margin)
    (1 / (a b)) sum_m sum_n h_mn softmax_n(h_mn)   with the softmax over the n with h_mn > 0.

  The gradient flows through the softmax too. Columns that are not present are neither positive nor negative; the
  scores there must be numbers. A row with fewer positives or negatives contributes the terms it has and the divisor
  stays a b, as in the official code, so the mean over the rows is its mean over B a b. Unlike there, the positives are
  the relevant columns also when the number of columns happens to be the number of rows (the official code then takes
  the diagonal).

  Source: NGAME (Dahiya et al., 2023): the loss of the classifiers (module M2) in its published code, where the columns
  are the union of all labels of the batch.

  Raises: UserError, while tracing, for options outside their range; `multi_triplet_columns` does so before.

  Example: scores .5 (relevant) and .4, margin .2, 1 positive, 1 negative: .1.
  """
  _check(margin, num_positives, num_negatives)
  positive = hardest(Candidates(-scores, relevant & present), num_positives)
  negative = hardest(Candidates(scores, ~relevant & present), num_negatives)
  both = positive.present[:, :, None] & negative.present[:, None, :]
  hinge = jax.nn.relu(negative.scores[:, None, :] + positive.scores[:, :, None] + margin)
  hinge = jnp.where(both, hinge, 0)
  # A finite minimum, not -inf: a row without any violation must have a finite gradient.
  weight = jax.nn.softmax(jnp.where(hinge > 0, hinge, jnp.finfo(hinge.dtype).min), axis=2)
  return jnp.sum(hinge * weight, axis=(1, 2)) / (num_positives * num_negatives)


def multi_triplet_columns(
  *, margin: float = 0.2, num_positives: int = 3, num_negatives: int = 5
) -> Callable[[Float[Array, "q p"], Bool[Array, "q p"], Bool[Array, "q p"]], Float[Array, "q"]]:
  """Returns `multi_triplets` with these options: the loss of (scores, relevant, present) of classifiers.

  Raises: UserError for options outside their range.

  Example: `multi_triplet_columns(margin=0.1)`.
  """
  _check(margin, num_positives, num_negatives)
  return functools.partial(
    multi_triplets, margin=margin, num_positives=num_positives, num_negatives=num_negatives
  )


def _check(margin: float, num_positives: int, num_negatives: int) -> None:
  if not 0 <= margin < math.inf:
    raise UserError(f"multi_triplet: margin is {margin}; expected 0 or more, in units of the score (MARGIN).")
  for name, value in (("num_positives", num_positives), ("num_negatives", num_negatives)):
    if type(value) is not int or value < 1:
      macro = name.replace("num", "hardest").upper()
      raise UserError(
        f"multi_triplet: {name} is {value!r}; expected 1 or more per query, a whole number ({macro})."
      )


def _compute(batch: EmbeddedBatch, options: _Options) -> LossOutput:
  queries, passages = pairs.sides(batch)
  query, passage = pairs.without_padding(batch, queries, passages)
  scores = options.score(query, passage)
  relevant, visible = pairs.relevant(queries, passages), pairs.visible(queries, passages)
  per_query = multi_triplets(
    scores,
    relevant,
    visible,
    margin=options.margin,
    num_positives=options.num_positives,
    num_negatives=options.num_negatives,
  )
  dtype = per_query.dtype
  weights = pairs.mean_weights(batch, queries, dtype)

  def mean_count(mask: Bool[Array, "q p"]) -> Float[Array, ""]:
    return jnp.sum(weights * jnp.sum(mask & visible, axis=1, dtype=dtype))

  metrics = {"positives": mean_count(relevant), "negatives": mean_count(~relevant)}
  return LossOutput(jnp.sum(weights * per_query), metrics)


def multi_triplet(
  *,
  margin: float = 0.2,
  num_positives: int = 3,
  num_negatives: int = 5,
  score: Score = scoring.cosine,
) -> Loss:
  """Returns the triplet loss of each query's hardest positives in the batch against its hardest negatives.

  The loss of query i is `multi_triplets` over the passages of the global batch, all hard negatives included. Its
  positives are its own passage and every other one of the batch that is known to answer it; all others are its
  negatives. Then the weighted mean over the queries, 0 if all weights are 0. A passage that stands in the batch more
  than once is as many columns and can fill as many places; a batcher without repeated passages avoids that.

  Scores: [q, p] in float32; O(q p) memory. Metrics: positives and negatives, their mean numbers per query.

  Raises: UserError for options outside their range, and while tracing when p is no multiple of q.

  Source: NGAME (Dahiya et al., 2023), the loss of module M2 in its published code, here on the batch's passages.

  Example: two queries, unit vectors equal to their passages: cosines 1 and 0, so that
  `multi_triplet(margin=1.2, num_positives=1, num_negatives=1)` is .2.
  """
  _check(margin, num_positives, num_negatives)
  options = _Options(margin, num_positives, num_negatives, score)
  return stateless(functools.partial(_compute, options=options))
