"""SAGram's caches: the last embedding of every row, read and refreshed by row number, and the sums kept over them."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from retrieval_jax.errors import UserError
from retrieval_jax.losses.gramian_matrices import Gramians, moments, relative_distance
from retrieval_jax.losses.gramian_rows import Side
from retrieval_jax.losses.gramian_state import Cache, CachedState, CacheSums, State, mapped, states
from retrieval_jax.records import AnyArray
from retrieval_jax.scoring import upcast

# Row counts are filled up to a multiple of this, which the usual numbers of devices divide: a checkpoint fits all of them.
MULTIPLE = 512


class Entries(NamedTuple):
  """What a cache holds of some rows, in float32; zeros for a row that is not seen yet, or -1."""

  rows: Float[Array, "q f"]
  share: Float[Array, "q"]


class Refresh(NamedTuple):
  """New entries of some rows. keep: which of them to write; of one row's several only one."""

  keep: Bool[Array, "q"]
  rows: Float[Array, "q f"]
  share: Float[Array, "q"]


def empty(num_rows: int, width: int, dtype: jnp.dtype) -> Cache:
  """Returns a cache of `num_rows` rows of `width` numbers, none seen."""
  size = -(-max(num_rows, 1) // MULTIPLE) * MULTIPLE
  return Cache(jnp.zeros((size, width), dtype), jnp.zeros((size,)))


def extended(side: Side) -> Float[Array, "q f"]:
  """Returns the rows as a cache holds them: the embedding, then the factors of the prior. Their second moments hold the
  Gramian and the cross-Gramian at once."""
  return side.embeddings if side.factors is None else jnp.concatenate([side.embeddings, side.factors], axis=1)


def read(cache: Cache, rows: Int[Array, "q"]) -> Entries:
  """Returns the entries of these rows. A row that the cache has no place for gives NaN, which the loss then shows."""
  index = jnp.where(rows < 0, cache.share.shape[0], rows)
  found = upcast(cache.rows.at[index].get(mode="fill", fill_value=jnp.nan))
  share = cache.share.at[index].get(mode="fill", fill_value=jnp.nan)
  absent = rows < 0
  return Entries(jnp.where(absent[:, None], 0, found), jnp.where(absent, 0, share))


def refresh_of(cache: Cache, side: Side) -> Refresh:
  """Returns the entries that the rows of a batch get: the first of a row's several embeddings, rounded as the cache rounds
  them; rows with numbers that are not finite get none, so that the cache stays sound."""
  values = extended(side)
  finite = jnp.all(jnp.isfinite(values), axis=1)
  stored = upcast(jnp.where(finite[:, None], values, 0).astype(cache.rows.dtype))
  return Refresh(first_of_each(side.rows) & finite, stored.astype(values.dtype), side.share)


def written(cache: Cache, rows: Int[Array, "q"], old: Entries, new: Refresh, hold: Bool[Array, ""]) -> Cache:
  """Returns the cache with the new entries.

  hold: never true, of something that must be computed before. The choice of the old entries, which never happens, makes the
  write depend on the reads: XLA would otherwise be free to write first, and copy the whole cache to read the old one.
  """
  index = jnp.where(new.keep, rows, cache.share.shape[0])
  never = (old.share < 0) | hold
  values = jnp.where(never[:, None], old.rows, new.rows).astype(cache.rows.dtype)
  share = jnp.where(never, old.share, new.share).astype(cache.share.dtype)
  return Cache(cache.rows.at[index].set(values, mode="drop"), cache.share.at[index].set(share, mode="drop"))


def increment(old: Entries, new: Refresh) -> tuple[Float[Array, "f f"], Float[Array, ""]]:
  """Returns what the refresh adds to the sum of share z z^T over the cache, and to the sum of the shares."""
  after = jnp.where(new.keep, new.share, 0)
  before = jnp.where(new.keep, old.share, 0)
  return moments(new.rows, new.rows, after) - moments(old.rows, old.rows, before), jnp.sum(after - before)


def first_of_each(rows: Int[Array, "q"]) -> Bool[Array, "q"]:
  """Returns which entries are the first of their row number; none of -1. O(q log q)."""
  order = jnp.argsort(rows, stable=True)
  ordered = rows[order]
  first = jnp.concatenate([jnp.ones(1, bool), ordered[1:] != ordered[:-1]])
  return jnp.zeros(rows.shape[0], bool).at[order].set(first) & (rows >= 0)


def sums_of(query: Cache, passage: Cache) -> CacheSums:
  """Returns the sums over whole caches: O(rows f^2)."""

  def one(cache: Cache) -> Float[Array, "f f"]:
    rows = upcast(cache.rows)
    return moments(rows, rows, cache.share.astype(rows.dtype)).astype(jnp.zeros(()).dtype)

  return CacheSums(one(query), one(passage), jnp.sum(query.share), jnp.sum(passage.share))


def gramians_in(sums: CacheSums, embed_dim: int) -> Gramians:
  """Returns the Gramians of extended rows: the blocks of their second moments."""
  d, width = embed_dim, sums.query.shape[0]
  if width == d:
    return Gramians(sums.query, sums.passage)
  return Gramians(sums.query[:d, :d], sums.passage[:d, :d], sums.query[:d, d:], sums.passage[:d, d:])


def filled(
  state: CachedState,
  query: Float[AnyArray, "n f"],
  passage: Float[AnyArray, "m f"],
  query_share: Float[AnyArray, "n"],
  passage_share: Float[AnyArray, "m"],
) -> CachedState:
  """Returns the state with caches of given embeddings, in the order of the rows: a start, or a restart, without the time that
  it takes to see every row. In a weighted_sum: `gramian_state.mapped(loss_state, lambda name, state: filled(state, ...))`.

  query, passage: as the loss sees them: unit vectors for scoring.cosine, and the factors of a prior after them.
  query_share, passage_share: records.Marginals, in which the shares of a side sum to 1.

  Raises: UserError for more rows than the caches have, or rows of another length.
  """

  def one(side: str, cache: Cache, rows: AnyArray, share: AnyArray) -> Cache:
    size, width = cache.rows.shape
    if rows.shape[0] > size or rows.shape[1] != width:
      raise UserError(
        f"sagram: {side} has rows of shape {tuple(rows.shape)}; expected at most {size}, of {width} numbers."
      )
    n = rows.shape[0]
    return Cache(
      cache.rows.at[:n].set(jnp.asarray(rows).astype(cache.rows.dtype)),
      cache.share.at[:n].set(jnp.asarray(share, cache.share.dtype)),
    )

  of_query = one("query", state.query, query, query_share)
  of_passage = one("passage", state.passage, passage, passage_share)
  sums = sums_of(of_query, of_passage)
  estimate = gramians_in(over_seen(sums), state.estimate.query.shape[0])
  return state._replace(
    query=of_query, passage=of_passage, sums=sums, estimate=estimate, ready=jnp.ones_like(state.ready)
  )


def over_seen(sums: CacheSums) -> CacheSums:
  """Returns the sums divided by the shares of the rows seen: as if the others were like them."""

  def safe(share: Float[Array, ""]) -> Float[Array, ""]:
    return jnp.where(share > 0, share, 1)

  return sums._replace(
    query=sums.query / safe(sums.query_share), passage=sums.passage / safe(sums.passage_share)
  )


def rebuilt(loss_state: PyTree) -> PyTree:
  """Returns the state of a loss with the sums of every sagram made anew of its caches, free of the rounding that the steps
  add up (about 6e-6 in 20,000). Call it between steps. O(rows d^2)."""

  def one(name: str, state: State) -> State:
    del name
    if not isinstance(state, CachedState):
      return state
    return state._replace(sums=sums_of(state.query, state.passage))

  return mapped(loss_state, one)


def drift(loss_state: PyTree) -> dict[str, Float[Array, ""]]:
  """Returns by how much the sums of every sagram, by its name, are off those of its caches: the larger |S - S'| / |S'| of its
  two sides. O(rows d^2)."""
  found = {}
  for name, state in states(loss_state).items():
    if isinstance(state, CachedState):
      exact = sums_of(state.query, state.passage)
      found[name] = jnp.maximum(
        relative_distance(state.sums.query, exact.query), relative_distance(state.sums.passage, exact.passage)
      )
  return found
