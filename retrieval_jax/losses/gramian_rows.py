"""What one batch says of the gravity: its rows, their own Gramians, and the loss against Gramians from elsewhere."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from retrieval_jax import scoring
from retrieval_jax.errors import UserError
from retrieval_jax.losses import gramian_prior, pairs
from retrieval_jax.losses.gramian_matrices import (
  Gramians,
  effective_rank,
  gravity,
  moments,
  relative_distance,
  trace_ratio,
)
from retrieval_jax.losses.gramian_prior import Factors, Prior
from retrieval_jax.records import AnyArray, EmbeddedBatch
from retrieval_jax.scoring import Score


class Side(NamedTuple):
  """One side of the examples; zeros, and row -1, where one takes no part."""

  embeddings: Float[Array, "q d"]  # unit vectors if the score is the cosine
  rows: Int[Array, "q"]
  mass: Float[Array, "q"]  # records.Marginals
  share: Float[Array, "q"]
  factors: Float[Array, "q f"] | None  # of the prior


class Rows(NamedTuple):
  """The examples of a batch that take part: those of a weight above 0 which share negatives with others."""

  query: Side
  passage: Side
  weights: Float[Array, "q"]  # sum to 1, or all 0
  total: Float[Array, ""]  # the sum of the examples' weights before that


def rows_of(name: str, batch: EmbeddedBatch, score: Score, prior: Prior | None) -> Rows:
  """Returns the rows of the queries and of their own passages; hard negatives take no part in a gravity.

  name: of the loss, for messages. Raises: UserError for a batch without marginals.
  """
  if batch.marginals is None:
    raise UserError(
      f"{name}: the batch has no marginals; expected Marginals (records.py): masses of 1 where the gravity follows the data."
    )
  prepare = scoring.preparation(score)
  assert prepare is not None  # checked when the loss is made
  queries, passages = pairs.sides(batch)
  q = batch.query_rows.shape[0]
  present = queries.present if queries.in_batch is None else queries.present & queries.in_batch
  factors = (None, None) if prior is None else prior.factors(batch)

  def side(
    embeddings: AnyArray, rows: AnyArray, mass: AnyArray, share: AnyArray, factors: AnyArray | None
  ) -> Side:
    embeddings = prepare(jnp.where(present[:, None], embeddings, 0))
    dtype = embeddings.dtype
    if factors is not None:
      factors = jax.lax.stop_gradient(jnp.where(present[:, None], factors, 0)).astype(dtype)
    return Side(
      embeddings,
      jnp.where(present, rows, -1),
      jnp.where(present, mass, 0).astype(dtype),
      jnp.where(present, share, 0).astype(dtype),
      factors,
    )

  m = batch.marginals
  query = side(batch.query, queries.rows, m.query_mass, m.query_share, factors[0])
  passage = side(batch.passage[:q], passages.rows[:q], m.passage_mass, m.passage_share, factors[1])
  weights = jnp.where(present, jnp.asarray(batch.weights), 0).astype(query.embeddings.dtype)
  total = jnp.sum(weights)
  return Rows(query, passage, weights / jnp.where(total > 0, total, 1), total)


def gramians_of(rows: Rows) -> Gramians:
  """Returns the estimate of the Gramians by these rows alone, without a gradient."""
  query, passage = jax.lax.stop_gradient((rows.query, rows.passage))
  of_query, of_passage = rows.weights * query.mass, rows.weights * passage.mass
  return Gramians(
    moments(query.embeddings, query.embeddings, of_query),
    moments(passage.embeddings, passage.embeddings, of_passage),
    None if query.factors is None else moments(query.embeddings, query.factors, of_query),
    None if passage.factors is None else moments(passage.embeddings, passage.factors, of_passage),
  )


def loss_against(rows: Rows, estimate: Gramians) -> Float[Array, ""]:
  """Returns the estimate of the gravity by these rows against given Gramians, whose gradient is that of

    sum_i w_i (m_i <u_i, G_passage u_i> + n_i <v_i, G_query v_i> - 2 m_i <u_i, H_passage a_i> - 2 n_i <v_i, H_query b_i>)
  with the masses m, n and the Gramians constant. This sum is twice <G, G> - 2 <H, H>, and its gradient the gravity's, since
  each side's Gramian depends on the embeddings too; so the value is half the sum, plus the prior's constant, which the
  batch estimates. 0 for rows of padding alone.

  Source: Krichene et al. (2019), equations 8 and 16.
  """
  estimate = jax.lax.stop_gradient(estimate)

  def half(side: Side, gramian: Array, cross: Array | None) -> Float[Array, ""]:
    u = side.embeddings
    each = jnp.sum(u * jnp.einsum("qd,de->qe", u, gramian, precision="highest"), axis=1)
    if cross is not None and side.factors is not None:
      drawn = jnp.einsum("qf,df->qd", side.factors, cross, precision="highest")
      each = each - 2 * jnp.sum(u * drawn, axis=1)
    return jnp.sum(rows.weights * side.mass * each)

  total = half(rows.query, estimate.passage, estimate.cross_passage) + half(
    rows.passage, estimate.query, estimate.cross_query
  )
  value = jax.lax.stop_gradient(total) / 2 + prior_constant(rows)
  return value + (total - jax.lax.stop_gradient(total))


def prior_constant(rows: Rows) -> Float[Array, ""]:
  """Returns the mean of p_ij^2 by these rows; 0 without a prior."""
  if rows.query.factors is None or rows.passage.factors is None:
    return jnp.zeros((), rows.weights.dtype)
  factors: Factors = rows.query.factors, rows.passage.factors
  return gramian_prior.mean_square(factors, rows.weights * rows.query.mass, rows.weights * rows.passage.mass)


def metrics_of(rows: Rows, own: Gramians, estimate: Gramians) -> dict[str, Float[Array, ""]]:
  """Returns what tells how good the estimate is, in O(d^2):

  gravity, of the estimate alone; and of each side
  effective_rank_<side>, tr(G)^2 / |G|_F^2 of the estimate: near 1 means that the embeddings fold onto a line;
  estimate_distance_<side>, |G - G_B|_F / |G_B|_F to the batch's own Gramian G_B, which is noisy itself:
  sampling_level_<side>, sqrt(effective rank / number of examples), is about that distance where the estimate is exact and
    the batch alone errs. A distance that stays far above means that the estimate lags or oscillates;
  trace_ratio_<side>, tr G_B / tr G: above 1 the embeddings grow faster than the estimate follows.
  """
  metrics = {"gravity": gravity(estimate, prior_constant(rows))}
  sides = (
    ("query", rows.query, own.query, estimate.query),
    ("passage", rows.passage, own.passage, estimate.passage),
  )
  for name, side, of_batch, estimated in sides:
    factors = rows.weights * side.mass
    squares = jnp.sum(factors**2)
    number = jnp.sum(factors) ** 2 / jnp.where(squares > 0, squares, 1)
    rank = effective_rank(estimated)
    metrics |= {
      f"effective_rank_{name}": rank,
      f"estimate_distance_{name}": relative_distance(estimated, of_batch),
      f"sampling_level_{name}": jnp.sqrt(rank / jnp.where(number > 0, number, 1)) * (number > 0),
      f"trace_ratio_{name}": trace_ratio(of_batch, estimated),
    }
  return metrics
