"""The decoupled softmax: each positive of a query competes with its negatives alone, not with its other positives."""

import functools
from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from retrieval_jax import scoring
from retrieval_jax.losses import pairs
from retrieval_jax.losses import temperature as temperatures
from retrieval_jax.losses.base import Loss, parametric
from retrieval_jax.losses.temperature import Temperature
from retrieval_jax.records import EmbeddedBatch, LossOutput
from retrieval_jax.scoring import Score


def decoupled_terms(
  logits: Float[Array, "q p"],
  relevant: Bool[Array, "q p"],
  present: Bool[Array, "q p"],
  copies: Float[Array, "p"],
) -> Float[Array, "q"]:
  """Returns for each row i the mean over its relevant columns j of

    -log( e^l_ij / (e^l_ij + sum_n e^l_in) )   over the columns n that are present and not relevant,
  where each column counts 1 / copies in the mean and in the sum; 0 for a row without relevant columns.

  As softplus(logsumexp(negatives) - l_ij), in O(q p) memory, with its relative precision when the loss is tiny.

  Example: logits log 3 and log 2 (relevant) and 0: (log(1 + 1/3) + log(1 + 1/2)) / 2.
  """
  shared = logits - jnp.log(copies)[None, :]
  # A finite minimum, not -inf: a row without any negative must have a finite gradient.
  negative = jnp.where(~relevant & present, shared, jnp.finfo(logits.dtype).min)
  each = jax.nn.softplus(jax.nn.logsumexp(negative, axis=1)[:, None] - logits)
  weights = jnp.where(relevant & present, 1 / copies[None, :], 0)
  total = jnp.sum(weights, axis=1)
  return jnp.sum(weights * each, axis=1) / jnp.where(total > 0, total, 1)


def _compute(
  params: Mapping[str, Array],
  batch: EmbeddedBatch,
  *,
  temperature: Temperature,
  bidirectional: bool,
  score: Score,
) -> LossOutput:
  q = batch.query_rows.shape[0]
  queries, passages = pairs.sides(batch)
  query, passage = pairs.without_padding(batch, queries, passages)
  scores = score(query, passage)
  dtype = scores.dtype
  scale = temperatures.scale(temperature, params).astype(dtype)
  logits = scale * scores
  relevant, visible = pairs.relevant(queries, passages), pairs.visible(queries, passages)

  copies = pairs.copies(passages, q).astype(dtype)
  per_query = decoupled_terms(logits, relevant, visible, copies)
  if bidirectional:
    copies = pairs.copies(queries, q).astype(dtype)
    # A query is seen by the passages that it sees, if it is there.
    seen = (visible[:, :q] & queries.present[:, None]).T
    backward = decoupled_terms(logits[:, :q].T, relevant[:, :q].T, seen, copies)
    per_query = (per_query + backward) / 2

  weights = pairs.mean_weights(batch, queries, dtype)

  def mean_count(mask: Bool[Array, "q p"]) -> Float[Array, ""]:
    return jnp.sum(weights * jnp.sum(mask & visible, axis=1, dtype=dtype))

  own = jnp.sum(jnp.where(pairs.own(queries, passages), scores, 0), axis=1)
  above = jnp.any(~relevant & visible & (scores >= own[:, None]), axis=1)
  metrics = {
    "accuracy": jnp.sum(weights * (1 - above.astype(dtype))),
    "positives": mean_count(relevant),
    "negatives": mean_count(~relevant),
    "temperature": 1 / scale,
    "logit_scale": scale,
  }
  return LossOutput(jnp.sum(weights * per_query), metrics)


def decoupled_softmax(
  *, temperature: Temperature = 0.05, bidirectional: bool = False, score: Score = scoring.cosine
) -> Loss:
  """Returns the decoupled softmax, the in-batch softmax of data with several positives per query.

  With s the score, t the temperature, P_i the passages of the global batch that are known to answer query i (its own
  and those of other queries) and N_i all others, the hard negatives of all queries included, the loss of query i is
    the mean over j in P_i of -log( e^(s(q_i,p_j)/t) / (e^(s(q_i,p_j)/t) + sum_{n in N_i} e^(s(q_i,p_n)/t)) ).
  Then the weighted mean over the queries; 0 if all weights are 0. With one positive per query it is the in-batch
  softmax. With bidirectional, the mean of this and of the same from passage i to the queries, where hard negatives
  take no part.

  A passage that stands in m columns of the batch counts once: each copy has 1 / m of its place, among the positives
  and in the sum. (The in-batch softmax counts each copy of a negative.)

  temperature: a number or `temperature.learned(...)`.

  Memory: a few arrays [q, p] in float32. Metrics, from query to passage: accuracy, the share of queries that score
  their own passage above all negatives; positives and negatives, their mean numbers of columns per query;
  temperature; logit_scale = 1 / temperature.

  Raises: UserError for a temperature that is not above 0, and while tracing when p is no multiple of q.

  Source: DEXML (Gupta et al., 2024), the decoupled softmax; its labels are here the passages of the batch.

  Example: two queries, unit vectors equal to their passages: cosines 1 and 0, so that
  `decoupled_softmax(temperature=1.0)` is log(1 + e^-1).
  """
  temperature = temperatures.checked("decoupled_softmax", temperature)

  compute = functools.partial(_compute, temperature=temperature, bidirectional=bidirectional, score=score)
  return parametric(functools.partial(temperatures.initial_params, temperature), compute)
