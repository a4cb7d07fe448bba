"""Pointwise losses: the score of each query with its own passage against a target, without in-batch negatives."""

import functools
import math
from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from retrieval_jax import scoring
from retrieval_jax.errors import UserError
from retrieval_jax.losses import bias as biases
from retrieval_jax.losses import pairs
from retrieval_jax.losses import temperature as temperatures
from retrieval_jax.losses.base import Loss, parametric, stateless
from retrieval_jax.losses.bias import Bias
from retrieval_jax.losses.temperature import Temperature
from retrieval_jax.records import EmbeddedBatch, LossOutput
from retrieval_jax.scoring import Score

REQUIRES = frozenset({"targets"})


class _Pairs(NamedTuple):
  """Each query with its own passage; 0 for padding."""

  scores: Float[Array, "q"]
  targets: Float[Array, "q"]
  weights: Float[Array, "q"]  # of a mean over the queries


def _own_pairs(batch: EmbeddedBatch, score: Score, target_scale: float) -> _Pairs:
  queries, passages = pairs.sides(batch)
  query, passage = pairs.without_padding(batch, queries, passages)
  # Pair by pair: the matrix [q, p] is not needed.
  scores = jax.vmap(lambda q, p: score(q[None, :], p[None, :])[0, 0])(query, passage[: query.shape[0]])
  targets = jnp.where(queries.present, jnp.asarray(batch.targets, scores.dtype), 0) / target_scale
  return _Pairs(scores, targets, pairs.mean_weights(batch, queries, scores.dtype))


def _check_scale(name: str, target_scale: float) -> None:
  if not 0 < target_scale < math.inf:
    raise UserError(
      f"{name}: target_scale is {target_scale}; expected a number above 0, such as the highest grade."
    )


def _squared_error(batch: EmbeddedBatch, *, score: Score, target_scale: float) -> LossOutput:
  scores, targets, weights = _own_pairs(batch, score, target_scale)
  metrics = {"score": jnp.sum(weights * scores), "target": jnp.sum(weights * targets)}
  return LossOutput(jnp.sum(weights * (scores - targets) ** 2), metrics)


def squared_error(*, target_scale: float = 1.0, score: Score = scoring.cosine) -> Loss:
  """Returns the squared error of the scores: for query i, its own passage and its target,

    (s(q_i,p_i) - target_i / target_scale)^2,
  then the weighted mean over the queries; 0 if all weights are 0. Only these pairs count: hard negatives and the
  passages of other queries take no part. target_scale brings the targets to the range of the score: 5 makes grades up
  to 5 cosines up to 1.

  Reads the targets of the batch. O(q d) time and memory. Metrics: score and target, their means.

  Raises: UserError for a target_scale that is not above 0, and while tracing when p is no multiple of q.

  Source: the regression objective of Sentence-BERT (Reimers and Gurevych, 2019), section 3.

  Example: equal unit vectors and the target .5: (1 - .5)^2.
  """
  _check_scale("squared_error", target_scale)
  return stateless(
    functools.partial(_squared_error, score=score, target_scale=target_scale), requires=REQUIRES
  )


def binary_cross_entropy(
  *,
  target_scale: float = 1.0,
  temperature: Temperature = 0.1,
  bias: Bias = 0.0,
  score: Score = scoring.cosine,
) -> Loss:
  """Returns the cross-entropy of a yes-or-no answer: for query i and its own passage, with y_i its target divided by
  target_scale, s the score, t the temperature, b the bias and P_i = sigmoid(s(q_i,p_i) / t + b),

    -y_i log P_i - (1 - y_i) log(1 - P_i),
  then the weighted mean over the queries; 0 if all weights are 0. Only these pairs count: hard negatives and the
  passages of other queries take no part.

  y_i must lie in [0, 1]: outside, the loss has no minimum. The training program refuses data with others
  (Loss.target_range); in batches of your own the metric targets_outside, their share, must be 0.

  temperature, bias: numbers, or learned: `temperature.learned(...)`, `bias.learned(...)`.

  Reads the targets of the batch. O(q d) time and memory. Metrics: probability and target, their means;
  targets_outside; temperature; logit_scale = 1 / temperature; bias.

  Raises: UserError for a target_scale or temperature that is not above 0, a bias that is not finite, and while
  tracing when p is no multiple of q.

  Source: logistic regression on the score; on pairs with soft labels as in LEVER (Buvanesh et al., 2024).

  Example: orthogonal vectors and any target, bias 0: log 2.
  """
  name = "binary_cross_entropy"
  _check_scale(name, target_scale)
  temperature, bias = temperatures.checked(name, temperature), biases.checked(name, bias)

  def initial() -> Mapping[str, Array]:
    return temperatures.initial_params(temperature) | biases.initial_params(bias)

  def compute(params: Mapping[str, Array], batch: EmbeddedBatch) -> LossOutput:
    scores, targets, weights = _own_pairs(batch, score, target_scale)
    scale = temperatures.scale(temperature, params).astype(scores.dtype)
    added = biases.value(bias, params).astype(scores.dtype)
    logits = scale * scores + added
    # Both halves through softplus: softplus(x) - y x would lose all digits of a small loss.
    losses = targets * jax.nn.softplus(-logits) + (1 - targets) * jax.nn.softplus(logits)
    outside = ((targets < 0) | (targets > 1)).astype(scores.dtype)
    metrics = {
      "probability": jnp.sum(weights * jax.nn.sigmoid(logits)),
      "target": jnp.sum(weights * targets),
      "targets_outside": jnp.sum(weights * outside),
      "temperature": 1 / scale,
      "logit_scale": scale,
      "bias": added,
    }
    return LossOutput(jnp.sum(weights * losses), metrics)

  return parametric(initial, compute, requires=REQUIRES, target_range=(0.0, target_scale))
