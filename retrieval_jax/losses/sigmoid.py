"""The sigmoid loss of SigLIP: every pair of the batch is a yes-or-no question of its own, without a softmax."""

import functools
from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from retrieval_jax import scoring
from retrieval_jax.errors import UserError, nearest
from retrieval_jax.losses import bias as biases
from retrieval_jax.losses import pairs
from retrieval_jax.losses import temperature as temperatures
from retrieval_jax.losses.base import Loss, parametric
from retrieval_jax.losses.bias import Bias
from retrieval_jax.losses.temperature import Temperature
from retrieval_jax.records import EmbeddedBatch, LossOutput
from retrieval_jax.scoring import Score

# What a passage is that is known to answer the query but is not its own of this batch.
KNOWN_POSITIVES = ("masked", "positive", "negative")
TEMPERATURE = temperatures.learned(initial=0.1)
BIAS = biases.learned(initial=-10.0)


class _Options(NamedTuple):
  temperature: Temperature
  bias: Bias
  known_positives: str
  score: Score


def _compute(params: Mapping[str, Array], batch: EmbeddedBatch, options: _Options) -> LossOutput:
  queries, passages = pairs.sides(batch)
  query, passage = pairs.without_padding(batch, queries, passages)
  scores = options.score(query, passage)
  dtype = scores.dtype
  scale = temperatures.scale(options.temperature, params).astype(dtype)
  bias = biases.value(options.bias, params).astype(dtype)
  logits = scale * scores + bias

  own = pairs.own(queries, passages)
  related = own if options.known_positives == "negative" else pairs.relevant(queries, passages)
  positive = related if options.known_positives == "positive" else own
  visible = pairs.visible(queries, passages)
  negative = ~related & visible
  # log sigmoid through softplus: stable, and with its relative precision, on both sides.
  loss = jax.nn.softplus(jnp.where(positive, -logits, logits))
  per_query = jnp.sum(jnp.where((positive & visible) | negative, loss, 0), axis=1)

  weights = pairs.mean_weights(batch, queries, dtype)

  def mean(values: Float[Array, "q"]) -> Float[Array, ""]:
    return jnp.sum(weights * values)

  own_score = jnp.sum(jnp.where(own, scores, 0), axis=1)
  above = jnp.any(negative & (scores >= own_score[:, None]), axis=1)
  metrics = {
    "accuracy": mean(1 - above.astype(dtype)),
    "negatives": mean(jnp.sum(negative, axis=1, dtype=dtype)),
    "temperature": 1 / scale,
    "logit_scale": scale,
    "bias": bias,
  }
  return LossOutput(mean(per_query), metrics)


def sigmoid(
  *,
  temperature: Temperature = TEMPERATURE,
  bias: Bias = BIAS,
  known_positives: str = "masked",
  score: Score = scoring.cosine,
) -> Loss:
  """Returns the sigmoid loss on all pairs of the batch.

  With s the score, t the temperature and b the bias, the loss of query i is
    -sum_j log sigmoid( z_ij (s(q_i,p_j) / t + b) )
  with z_ij = 1 for the query's own passage and -1 for all others of the global batch, the hard negatives of all
  queries included. Then the weighted mean over the queries (the paper's sum over pairs divided by B); 0 if all
  weights are 0. The sum over j is no mean: the loss grows with the number of passages.

  temperature, bias: numbers, or learned: `temperature.learned(...)`, `bias.learned(...)`. The parameters are
    log_scale and bias. By default both are learned, from 1 / 10 and -10 as in the paper.
  known_positives: what the other passages are that are known to answer query i. "masked": in no pair; "positive":
    z_ij = 1, for data with several positives per query; "negative": the paper's loss, blind to them.

  Scores: [q, p] in float32. Metrics: accuracy, the share of queries that score their own passage above all their
  negatives; negatives, their mean number per query; temperature; logit_scale = 1 / temperature; bias.

  Raises: UserError for a temperature that is not above 0, a bias that is not finite, an unknown known_positives, and
  while tracing when p is no multiple of q.

  Source: SigLIP (Zhai et al., 2023), section 3.2 and algorithm 1; bounds of the temperature and masks go beyond it.

  Example: two queries, unit vectors equal to their passages: cosines 1 and 0, so that
  `sigmoid(temperature=1.0, bias=0.0)` is log(1 + e^-1) + log(2).
  """
  if known_positives not in KNOWN_POSITIVES:
    raise UserError(
      f"sigmoid: unknown known_positives {known_positives!r}{nearest(known_positives, KNOWN_POSITIVES) or '.'} "
      f"Known: {', '.join(KNOWN_POSITIVES)}."
    )
  options = _Options(
    temperatures.checked("sigmoid", temperature), biases.checked("sigmoid", bias), known_positives, score
  )

  def initial() -> Mapping[str, Array]:
    return temperatures.initial_params(options.temperature) | biases.initial_params(options.bias)

  return parametric(initial, functools.partial(_compute, options=options))
