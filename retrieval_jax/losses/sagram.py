"""The steps of SAGram: Gramians of a cache of every row's last embedding, corrected by the rows of a batch."""

from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from retrieval_jax import scoring, sharding
from retrieval_jax.errors import UserError
from retrieval_jax.losses import sagram_caches as caches
from retrieval_jax.losses.base import DataSizes, replicated
from retrieval_jax.losses.gramian_matrices import Gramians, in_cone, moments
from retrieval_jax.losses.gramian_prior import Prior
from retrieval_jax.losses.gramian_rows import Rows, Side, gramians_of, loss_against, metrics_of, rows_of
from retrieval_jax.losses.gramian_state import Cache, CachedState, CacheSums, PendingSums
from retrieval_jax.losses.sogram import zeros
from retrieval_jax.records import EmbeddedBatch, LossOutput
from retrieval_jax.scoring import Score

Beta = Literal["in_cone", "unbiased"]
Batches = Literal["lagged", "two"]
CacheDtype = Literal["float32", "bfloat16"]


class Options(NamedTuple):
  """What gramian.sagram says. project: make the estimates of "unbiased" positive semi-definite."""

  beta: Beta
  project: bool
  batches: Batches
  cache_dtype: CacheDtype
  score: Score
  prior: Prior | None


class _Read(NamedTuple):
  """A batch's rows beside what the caches have of them."""

  rows: Rows
  query: caches.Entries
  passage: caches.Entries


def initial(options: Options, embed_dim: int, data: DataSizes) -> CachedState:
  """Returns the state before the first step, its caches empty."""
  width = embed_dim + (0 if options.prior is None else options.prior.rank)

  def square() -> Float[Array, "f f"]:
    return jnp.zeros((width, width))

  def sums() -> CacheSums:
    return CacheSums(square(), square(), jnp.zeros(()), jnp.zeros(()))

  dtype = jnp.zeros((), jnp.bfloat16 if options.cache_dtype == "bfloat16" else None).dtype
  return CachedState(
    estimate=zeros(embed_dim, options.prior),
    ready=jnp.zeros(()),
    sums=sums(),
    query=caches.empty(data.num_queries, width, dtype),
    passage=caches.empty(data.num_passages, width, dtype),
    pending=PendingSums(sums(), square(), square(), jnp.zeros(())),
    unit=jnp.asarray(scoring.preparation(options.score) is scoring.l2_normalize),
  )


def state_axes(state: CachedState) -> CachedState:
  """Returns the logical axes: the caches split by rows, everything else whole."""
  split = Cache((sharding.CACHE_ROWS, None), (sharding.CACHE_ROWS,))  # pyright: ignore[reportArgumentType]  (axes, not arrays)
  return replicated(state)._replace(query=split, passage=split)


def before(options: Options, state: CachedState, estimation: EmbeddedBatch | None) -> CachedState:
  """Returns the state with the estimate that the caches and the estimation batch give; the caches stay."""
  if estimation is None:
    raise UserError(
      'sagram: batches is "two" and there was no estimation batch; expected one before each step (Loss.before).'
    )
  read = _read(options, state, estimation)
  query, passage = (_exactly(side) for side in (read.rows.query, read.rows.passage))
  of_query, of_passage = caches.increment(read.query, query), caches.increment(read.passage, passage)
  pending = PendingSums(
    CacheSums(of_query[0], of_passage[0], of_query[1], of_passage[1]),
    _correction(read.rows.weights, read.rows.query, read.query),
    _correction(read.rows.weights, read.rows.passage, read.passage),
    jnp.ones_like(read.rows.total),
  )
  return _estimated(options, state, pending, read.rows.total > 0)


def apply(
  options: Options, state: CachedState, batch: EmbeddedBatch, *, train: bool
) -> tuple[LossOutput, CachedState]:
  """Returns the loss of one microbatch, and the state with its rows in the caches."""
  rows = rows_of("sagram", batch, options.score, options.prior)
  own = gramians_of(rows)
  # Without any estimate the batch's own: a step without repulsion would let the embeddings fold.
  estimate = jax.tree.map(lambda mine, x: jnp.where(state.ready > 0, x, mine), own, state.estimate)
  metrics = {
    **metrics_of(rows, own, estimate),
    "cached_share_query": state.sums.query_share,
    "cached_share_passage": state.sums.passage_share,
  }
  output = LossOutput(loss_against(rows, estimate), metrics)
  return output, (_refreshed(state, jax.lax.stop_gradient(rows)) if train else state)


def after(options: Options, state: CachedState) -> CachedState:
  """Returns the state with the step's increments in its sums, and for "lagged" the estimate of the next step."""
  pending = state.pending
  if options.batches == "lagged":
    state = _estimated(options, state, pending, pending.weight > 0)
  return state._replace(
    sums=jax.tree.map(_add, state.sums, pending.increments), pending=jax.tree.map(jnp.zeros_like, pending)
  )


def _refreshed(state: CachedState, rows: Rows) -> CachedState:
  def side(cache: Cache, side: Side, estimate: Array) -> tuple[Cache, tuple[Array, Array], Array]:
    # The estimate of "two" has read the old cache. A square is never negative.
    hold = estimate[0, 0] == -jnp.inf
    old, new = caches.read(cache, side.rows), caches.refresh_of(cache, side)
    correction = rows.total * _correction(rows.weights, side, old)
    return caches.written(cache, side.rows, old, new, hold), caches.increment(old, new), correction

  query, of_query, correct_query = side(state.query, rows.query, state.estimate.query)
  passage, of_passage, correct_passage = side(state.passage, rows.passage, state.estimate.passage)
  added = PendingSums(
    CacheSums(of_query[0], of_passage[0], of_query[1], of_passage[1]),
    correct_query,
    correct_passage,
    rows.total,
  )
  return state._replace(query=query, passage=passage, pending=jax.tree.map(_add, state.pending, added))


def _read(options: Options, state: CachedState, batch: EmbeddedBatch) -> _Read:
  rows = jax.lax.stop_gradient(rows_of("sagram", batch, options.score, options.prior))
  return _Read(rows, caches.read(state.query, rows.query.rows), caches.read(state.passage, rows.passage.rows))


def _exactly(side: Side) -> caches.Refresh:
  """Returns the entries that the rows would get in a cache that does not round."""
  return caches.Refresh(caches.first_of_each(side.rows), caches.extended(side), side.share)


def _correction(weights: Float[Array, "q"], side: Side, old: caches.Entries) -> Float[Array, "f f"]:
  """Returns sum_i w_i m_i (z_i z_i^T - old z_i old z_i^T), repeats counted as often as they are drawn."""
  values, factors = caches.extended(side), weights * side.mass
  return moments(values, values, factors) - moments(old.rows, old.rows, factors)


def _estimated(options: Options, state: CachedState, pending: PendingSums, some: Any) -> CachedState:
  """Returns the state with the estimate by its sums and the rows pending; as it was unless `some` are."""
  embed_dim = state.estimate.query.shape[0]
  if options.beta == "in_cone":
    sums = caches.over_seen(jax.tree.map(jnp.add, state.sums, pending.increments))
    estimate = caches.gramians_in(sums, embed_dim)
  else:
    weight = jnp.where(pending.weight > 0, pending.weight, 1)
    sums = state.sums._replace(
      query=state.sums.query + pending.query / weight, passage=state.sums.passage + pending.passage / weight
    )
    estimate = caches.gramians_in(sums, embed_dim)
    if options.project:
      estimate = estimate._replace(query=in_cone(estimate.query), passage=in_cone(estimate.passage))
  choose = lambda new, old: jnp.where(some, new, old).astype(old.dtype)  # noqa: E731
  estimate = Gramians(*jax.tree.map(choose, tuple(estimate), tuple(state.estimate)))
  return state._replace(estimate=estimate, ready=choose(jnp.ones_like(state.ready), state.ready))


def _add(total: Array, x: Array) -> Array:
  return (total + x).astype(total.dtype)
