"""Distillation: the scores of a teacher (teacher_scores of the batch) as targets, by KL divergence or by margins."""

import functools
import math
from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from retrieval_jax import scoring
from retrieval_jax.errors import UserError
from retrieval_jax.losses import pairs
from retrieval_jax.losses.base import Loss, parametric, stateless
from retrieval_jax.losses.temperature import Temperature, checked, initial_params, scale
from retrieval_jax.records import EmbeddedBatch, LossOutput
from retrieval_jax.scoring import Score

REQUIRES = frozenset({"teacher_scores"})


class _Scored(NamedTuple):
  """Both sides' scores of all pairs; where `scored` is False, teacher is 0 and student means nothing."""

  student: Float[Array, "q p"]
  teacher: Float[Array, "q p"]
  scored: Bool[Array, "q p"]
  copies: Float[Array, "p"]  # how many columns of the batch hold this passage
  queries: pairs.Queries
  passages: pairs.Passages
  weights: Float[Array, "q"]  # of a mean over the queries


def _scored(batch: EmbeddedBatch, score: Score) -> _Scored:
  queries, passages = pairs.sides(batch)
  query, passage = pairs.without_padding(batch, queries, passages)
  student = score(jnp.asarray(query), jnp.asarray(passage))
  teacher = jnp.asarray(batch.teacher_scores, student.dtype)
  scored = jnp.isfinite(teacher) & queries.present[:, None] & pairs.visible(queries, passages)
  return _Scored(
    student,
    jnp.where(scored, teacher, 0),
    scored,
    pairs.copies(passages, query.shape[0]).astype(student.dtype),
    queries,
    passages,
    pairs.mean_weights(batch, queries, student.dtype),
  )


def _output(per_query: Float[Array, "q"], counted: Bool[Array, "q p"], table: _Scored) -> LossOutput:
  """Returns the weighted mean; `counted` are the candidates that the metrics count."""
  dtype = per_query.dtype
  candidates = jnp.sum(counted, axis=1, dtype=dtype)
  return LossOutput(
    jnp.sum(table.weights * per_query),
    {
      "scored": jnp.sum(table.weights * candidates),
      "distilled": jnp.sum(table.weights * (candidates > 0).astype(dtype)),
    },
  )


def _log_softmax(
  logits: Float[Array, "q p"], allowed: Bool[Array, "q p"], copies: Float[Array, "p"]
) -> Float[Array, "q p"]:
  # A finite minimum, not -inf: a row without any candidate must have a finite gradient.
  shared = logits - jnp.log(copies)[None, :]
  return jax.nn.log_softmax(jnp.where(allowed, shared, jnp.finfo(logits.dtype).min), axis=1)


def distillation_kl(
  *, temperature: Temperature = 0.05, teacher_temperature: float = 1.0, score: Score = scoring.cosine
) -> Loss:
  """Returns the KL divergence from the teacher's distribution over a query's candidates to the student's.

  The candidates C_i of query i are all passages of the batch that the teacher scored for it, whoever's positive or hard
  negative they are. With T the teacher's scores, u its temperature, s the student's score and t its temperature,
    P_i = softmax of T_ij / u over j in C_i,   S_i = softmax of s(q_i,p_j) / t over j in C_i
    loss of query i = sum over j in C_i of P_ij (log P_ij - log S_ij),
  0 when both agree: the teacher's entropy is subtracted, which changes no gradient. A query with fewer than two
  candidates contributes 0. Then the weighted mean over all queries, those that contribute 0 included. There is no
  factor t u to make up for temperatures; weigh the loss instead.

  A passage that stands in m columns of the batch counts once: each copy has 1/m of its mass, in both distributions.
  Known positives are not masked: the teacher says how good each candidate is.

  temperature: the student's, a number or `temperature.learned(...)`.
  teacher_temperature: in the teacher's own units; 1 for the logits of a cross-encoder.

  Memory: a few arrays [q, p] in float32. Metrics: scored, the mean number of candidates of a query; distilled, the
  share of queries that contribute; temperature; logit_scale = 1 / temperature.

  Raises: UserError for a temperature that is not above 0, and while tracing when p is no multiple of q.

  Source: knowledge distillation (Hinton et al., 2015), section 2; over a query's passages as in RocketQAv2 (Ren et
  al., 2021), equations 5 to 7.

  Example: two candidates with teacher scores log(3) and 0 and equal student scores: the loss is
  3/4 log(3/2) + 1/4 log(1/2) with teacher_temperature=1.0.
  """
  student = checked("distillation_kl", temperature)
  if not 0 < teacher_temperature < math.inf:
    raise UserError(
      f"distillation_kl: teacher_temperature is {teacher_temperature}; it must be above 0. The teacher's scores are "
      "divided by it: 1 for the logits of a cross-encoder."
    )

  def compute(params: Mapping[str, Array], batch: EmbeddedBatch) -> LossOutput:
    table = _scored(batch, score)
    logit_scale = scale(student, params).astype(table.student.dtype)
    # Distinct candidates: sums of 1/m are whole up to rounding, so 1.5 is nobody's number.
    enough = jnp.sum(table.scored / table.copies[None, :], axis=1) > 1.5
    allowed = table.scored & enough[:, None]
    target = _log_softmax(table.teacher / teacher_temperature, allowed, table.copies)
    predicted = _log_softmax(table.student * logit_scale, allowed, table.copies)
    divergence = jnp.sum(jnp.where(allowed, jnp.exp(target) * (target - predicted), 0), axis=1)
    output = _output(divergence, allowed, table)
    metrics = {**output.metrics, "temperature": 1 / logit_scale, "logit_scale": logit_scale}
    return LossOutput(output.loss, metrics)

  return parametric(functools.partial(initial_params, student), compute, requires=REQUIRES)


def margin_mse(*, score: Score = scoring.dot, score_scale: float = 1.0) -> Loss:
  """Returns MarginMSE: the student's margins between a positive and its negatives are to be the teacher's.

  With N_i the negatives of query i that the teacher scored, if it scored the query's own positive p_i too, s the
  student's score, T the teacher's and a the score_scale,
    loss of query i = mean over j in N_i of ( a (s(q_i,p_i) - s(q_i,p_j)) - (T_ii - T_ij) )^2.
  Negatives are all passages of the batch but those known to answer the query. A query without a scored positive and
  negative contributes 0. Then the weighted mean over all queries, those included. A passage that stands in m columns
  of the batch counts once: each copy has 1/m of its weight.

  score_scale: what brings the student's scores to the teacher's units. 1 for inner products of embeddings that are
  not normalised (the paper); normalised ones, whose scores differ by at most 2, need about 20 to reach the margins of
  a cross-encoder's logits.

  Memory: a few arrays [q, p] in float32. Metrics: scored, the mean number of scored negatives of a query; distilled,
  the share of queries that contribute.

  Raises: UserError for a score_scale that is not above 0, and while tracing when p is no multiple of q.

  Source: Hofstätter et al. (2020), "Improving Efficient Neural Ranking Models with Cross-Architecture Knowledge
  Distillation", section 3.1; the paper has one negative a query.

  Example: student scores 3 and 1, teacher scores 5 and 2: `margin_mse()` is ((3 - 1) - (5 - 2))^2 = 1.
  """
  if not 0 < score_scale < math.inf:
    raise UserError(
      f"margin_mse: score_scale is {score_scale}; it must be above 0. The student's scores are multiplied by it: 1 "
      "for plain inner products, about 20 for normalised embeddings."
    )

  def compute(batch: EmbeddedBatch) -> LossOutput:
    table = _scored(batch, score)
    own = pairs.own(table.queries, table.passages)
    negative = ~pairs.relevant(table.queries, table.passages)
    answered = jnp.any(own & table.scored, axis=1)
    allowed = negative & table.scored & answered[:, None]

    def margins(scores: Float[Array, "q p"]) -> Float[Array, "q p"]:
      # A masked sum, not jnp.diagonal: a gather would bring the whole matrix to every device.
      return jnp.sum(jnp.where(own, scores, 0), axis=1)[:, None] - scores

    difference = jnp.where(allowed, score_scale * margins(table.student) - margins(table.teacher), 0)
    shares = jnp.where(allowed, 1 / table.copies[None, :], 0)
    total = jnp.sum(shares, axis=1)
    per_query = jnp.sum(shares * difference**2, axis=1) / jnp.where(total > 0, total, 1)
    return _output(per_query, allowed, table)

  return stateless(compute, requires=REQUIRES)
