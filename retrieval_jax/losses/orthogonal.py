"""The global orthogonal regularizer: embeddings of different texts spread over the sphere as random ones do."""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from retrieval_jax import scoring
from retrieval_jax.errors import UserError
from retrieval_jax.losses import pairs
from retrieval_jax.losses.base import Loss, stateless
from retrieval_jax.records import EmbeddedBatch, LossOutput


class _Moments(NamedTuple):
  """Mean cosine and mean squared cosine over the pairs of one tower."""

  first: Float[Array, ""]
  second: Float[Array, ""]


class _Options(NamedTuple):
  mean_weight: float
  second_moment_weight: float
  mask_false_negatives: bool


def orthogonal(
  *, mean_weight: float = 1.0, second_moment_weight: float = 1.0, mask_false_negatives: bool = True
) -> Loss:
  """Returns the global orthogonal regularizer, an addition to a contrastive loss in a `weighted_sum`.

  Of one tower with unit vectors x_i in d dimensions, over the ordered pairs i != j of the batch,
    mean_weight M1^2 + second_moment_weight max(0, M2 - 1/d),  M1 = mean x_i.x_j,  M2 = mean (x_i.x_j)^2;
  the loss is the mean of this over the queries and over the passages (the positives; hard negatives are chosen to be
  near something, so they tell nothing of the spread). Vectors drawn evenly from the sphere have M1 = 0, M2 = 1/d.
  A pair counts with the product of its examples' weights.

  With mask_false_negatives, a pair is left out if its rows are equal or the passage of one is a known positive of the
  other: those belong together. Without pairs a tower gives 0.

  Scores: two matrices [q, q] in float32. Metrics: query_mean_cosine, query_second_moment, and the same of passage.

  Raises: UserError for weights that are negative, not finite or both 0.

  Source: "Learning Spread-out Local Feature Descriptors" (Zhang et al., 2017), the global orthogonal regularization,
  taken within each tower; EmbeddingGemma (2025) trains with the second moment alone.

  Example: four unit vectors of which two are equal, in 4 dimensions and otherwise orthogonal, on both sides: M1 =
  M2 = 2/12, so `orthogonal(mask_false_negatives=False)` is 1/36.
  """
  weights = (mean_weight, second_moment_weight)
  if not all(math.isfinite(w) and w >= 0 for w in weights) or not any(weights):
    raise UserError(
      f"orthogonal: mean_weight is {mean_weight}, second_moment_weight is {second_moment_weight}; expected finite "
      "numbers of at least 0, one of them above."
    )
  options = _Options(mean_weight, second_moment_weight, mask_false_negatives)
  return stateless(functools.partial(_compute, options=options))


def _compute(batch: EmbeddedBatch, options: _Options) -> LossOutput:
  q = batch.query_rows.shape[0]
  queries, passages = pairs.sides(batch)
  rows = pairs.Pairs(queries, pairs.first(passages, q))
  query, passage = pairs.without_padding(batch, queries, passages)

  def moments(block: pairs.Block, embeddings: Float[Array, "q d"]) -> _Moments:
    cosines = scoring.cosine(embeddings, embeddings)
    mask = options.mask_false_negatives
    allowed = pairs.negatives(block, rows, queries, passages, mask_false_negatives=mask)
    weights = pairs.mean_weights(batch, queries, cosines.dtype)
    weights = jnp.where(allowed, weights[:, None] * weights[None, :], 0)
    total = jnp.sum(weights)
    weights = weights / jnp.where(total > 0, total, 1)
    return _Moments(jnp.sum(weights * cosines), jnp.sum(weights * cosines**2))

  def penalty(tower: _Moments) -> Float[Array, ""]:
    excess = jax.nn.relu(tower.second - 1 / query.shape[1])
    return options.mean_weight * tower.first**2 + options.second_moment_weight * excess

  of_queries, of_passages = moments("query_query", query), moments("passage_passage", passage[:q])
  metrics = {
    "query_mean_cosine": of_queries.first,
    "query_second_moment": of_queries.second,
    "passage_mean_cosine": of_passages.first,
    "passage_second_moment": of_passages.second,
  }
  return LossOutput((penalty(of_queries) + penalty(of_passages)) / 2, metrics)
