"""The softmax family in tiles of rows: value and gradient in one sweep, O(tile p) logits at a time instead of O(q p).

Every tile's logits are made, turned into the gradient of the embeddings and forgotten: nothing of size q x p is kept
for a backward pass. The direction from passage to query needs the totals of the columns first, which is one sweep
more. On a mesh each device takes its rows against all columns: one all-gather a side, and one reduce-scatter a side for
the gradient. The one kernel of the losses that needs shard_map; losses/softmax.py has the plain form.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float

from retrieval_jax import sharding
from retrieval_jax.losses.exchange import Exchange
from retrieval_jax.losses.pairs import Block, Pairs, Passages, Queries
from retrieval_jax.losses.softmax_terms import Columns, Rows, Scored, Softmax
from retrieval_jax.losses.softmax_tile import (
  BACK,
  BackTerm,
  Embeddings,
  Tile,
  Work,
  back_logits,
  by_back_logits,
  by_embeddings,
  by_logits,
  product,
)
from retrieval_jax.losses.softmax_totals import Totals, term_rows


class _Identities(NamedTuple):
  queries: Queries
  passages: Passages
  weights: Float[Array, "q"]


class _Sums(NamedTuple):
  """Weighted sums over the examples."""

  loss: Float[Array, ""]
  accuracy: Float[Array, ""]
  negatives: Float[Array, ""]


def total(
  spec: Softmax, tile: int, columns: Columns, scale: Float[Array, ""], weights: Float[Array, "q"]
) -> tuple[Float[Array, ""], dict[str, Float[Array, ""]]]:
  """Returns what softmax.plain_total returns, `tile` rows at a time; differentiable once, by embeddings and scale.

  Products of a q x p matrix with d-vectors, forward and backward: one way 3 (as the plain form), bidirectional 4
  (plain: 3), with query-query terms 7 (6). Memory: O(tile p) and the gradients. Collectives: see the module.

  spec: its score is scoring.cosine or dot, whose preparation the embeddings of `columns` have been through.
  """
  embeddings = Embeddings(columns.query, columns.passage, scale)
  identities = _Identities(columns.queries, columns.passages, weights)
  sums = cast(_Sums, _sums(spec, tile, embeddings, identities))
  metrics = {"accuracy": sums.accuracy, "negatives": sums.negatives}
  return sums.loss, {name: jax.lax.stop_gradient(value) for name, value in metrics.items()}


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _sums(spec: Softmax, tile: int, embeddings: Embeddings, identities: _Identities) -> _Sums:
  return _on_mesh(spec, tile, embeddings, identities, gradient=False)[0]


def _sums_fwd(
  spec: Softmax, tile: int, embeddings: Embeddings, identities: _Identities
) -> tuple[_Sums, Embeddings]:
  return _on_mesh(spec, tile, embeddings, identities, gradient=True)


def _sums_bwd(spec: Softmax, tile: int, gradient: Embeddings, cotangent: _Sums) -> tuple[Embeddings, None]:
  del spec, tile
  return jax.tree.map(lambda x: cotangent.loss * x, gradient), None


_sums.defvjp(_sums_fwd, _sums_bwd)


def _on_mesh(
  spec: Softmax, tile: int, embeddings: Embeddings, identities: _Identities, *, gradient: bool
) -> tuple[_Sums, Embeddings]:
  mesh = sharding.data_mesh()
  if mesh is None or mesh.size == 1:
    return _shard(embeddings, identities, spec, tile, Exchange(None), gradient)
  rows, whole = PartitionSpec(mesh.axes), PartitionSpec()
  placed = Embeddings(rows, rows, whole)  # pyright: ignore[reportArgumentType]  (a tree of specs)
  kernel = functools.partial(_shard, spec=spec, tile=tile, exchange=Exchange(mesh.axes), gradient=gradient)
  return jax.shard_map(kernel, mesh=mesh.mesh, in_specs=(placed, rows), out_specs=(whole, placed))(
    embeddings, identities
  )


def _shard(
  embeddings: Embeddings,
  identities: _Identities,
  spec: Softmax,
  tile: int,
  exchange: Exchange,
  gradient: bool,
) -> tuple[_Sums, Embeddings]:
  """Returns the sums over all examples, and this device's rows of the gradient (zeros without `gradient`)."""
  columns = Columns(
    *exchange.gather((identities.queries, identities.passages, embeddings.query, embeddings.passage))
  )
  mine = embeddings.query.shape[0]
  start = exchange.index() * mine
  take = functools.partial(jax.lax.dynamic_slice_in_dim, start_index=start, slice_size=mine)
  own = take(columns.passage)
  positive = jnp.einsum("qd,qd->q", embeddings.query, own, precision="highest")
  rows = Rows(
    Pairs(identities.queries, jax.tree.map(take, columns.passages)), embeddings.query, own, positive
  )
  work = Work(spec, columns, exchange.gather(positive), exchange.varying(embeddings.scale), start)

  first = _first_sweep(work, _cut(rows, tile), exchange, take)
  found = tuple(
    term_rows(
      term,
      work.own_logits(rows),
      [first[block] for block in term.blocks],
      label_smoothing=spec.options.label_smoothing,
    )
    if BACK in term.blocks
    else None
    for term in spec.terms
  )
  back_terms = [
    BackTerm(*exchange.gather((term.weight * identities.weights, one)))
    for term, one in zip(spec.terms, found, strict=True)
    if one is not None
  ]
  parts = _cut((rows, identities.weights, found, first.get(BACK)), tile)
  count, size = parts[1].shape
  tiles = Tile(size * jnp.arange(count), *parts)
  sums, by = _second_sweep(work, tiles, back_terms, exchange, mine if gradient else 0)
  if by is None:
    return sums, jax.tree.map(jnp.zeros_like, embeddings)
  query = exchange.scatter(by.query[: work.columns.query.shape[0]]) if work.every_query else by.query[:mine]
  passage = exchange.scatter(by.passage[: work.columns.passage.shape[0]])
  return sums, Embeddings(query, passage, exchange.sum(by.scale))


def _cut(tree: Any, tile: int) -> Any:
  """Returns the leaves [rows, ...] as [tiles, tile, ...]; the last is filled up with zeros: weight 0, not present."""

  def one(x: Array) -> Array:
    size = min(tile, x.shape[0])
    padded = jnp.pad(x, ((0, -x.shape[0] % size), *([(0, 0)] * (x.ndim - 1))))
    return padded.reshape(-1, size, *x.shape[1:])

  return jax.tree.map(one, tree)


def _first_sweep(
  work: Work, tiles: Rows, exchange: Exchange, take: Callable[[Array], Array]
) -> dict[Block, Totals]:
  """Returns, for this device's examples, the totals of all blocks of the terms that have the block passage_query."""
  wanted: dict[Block, None] = {
    block: None for term in work.spec.terms if BACK in term.blocks for block in term.blocks
  }
  if not wanted:
    return {}
  by_row: list[Block] = [block for block in wanted if block != BACK]
  q = work.columns.query.shape[0]

  def sweep(carry: Totals, rows: Rows) -> tuple[Totals, list[Totals]]:
    scores = product(rows.query, work.columns.passage[:q].T)
    found = []
    for block in by_row:
      one = work.scored(block, rows)
      found.append(Totals.of_rows(one.logits(work.scale), one.allowed)[0])
    return carry.with_columns(*back_logits(work, rows, scores)), found

  start = exchange.varying(Totals.none(q, work.scale.dtype))
  columns, rows = jax.lax.scan(sweep, start, tiles)
  top = exchange.max(columns.top)
  total, count, sum_ = exchange.sum((columns.total * jnp.exp(columns.top - top), columns.count, columns.sum))
  found: dict[Block, Totals] = {BACK: jax.tree.map(take, exchange.varying(Totals(top, total, count, sum_)))}
  mine = take(top).shape[0]
  for block, one in zip(by_row, rows, strict=True):
    found[block] = jax.tree.map(lambda x: x.reshape(-1)[:mine], one)
  return found


def _second_sweep(
  work: Work, tiles: Tile, back_terms: list[BackTerm], exchange: Exchange, mine: int
) -> tuple[_Sums, Embeddings | None]:
  """Returns the sums over all devices, and this device's part of the gradient by all embeddings (by its own `mine`
  queries unless work.every_query), with what fills up the last tile after it; None for mine 0."""
  spec, scale = work.spec, work.scale
  wanted: dict[Block, None] = {block: None for term in spec.terms for block in term.blocks if block != BACK}

  def sweep(carry: tuple[_Sums, Any], tile: Tile) -> tuple[tuple[_Sums, Any], None]:
    sums, by = carry
    blocks: dict[Block, Scored] = {block: work.scored(block, tile.rows) for block in wanted}
    totals: dict[Block, Totals] = {} if tile.back is None else {BACK: tile.back}
    exponentials: dict[Block, Float[Array, "q x"]] = {}
    for block, one in blocks.items():
      totals[block], exponentials[block] = Totals.of_rows(one.logits(scale), one.allowed)
    own, smoothing = work.own_logits(tile.rows), spec.options.label_smoothing
    terms = [
      term_rows(term, own, [totals[block] for block in term.blocks], label_smoothing=smoothing)
      if found is None
      else found
      for term, found in zip(spec.terms, tile.found, strict=True)
    ]
    losses = [term.weight * one.loss for term, one in zip(spec.terms, terms, strict=True)]
    wins = scale * tile.rows.positive > totals["query_passage"].top
    sums = jax.tree.map(
      lambda so_far, values: so_far + jnp.sum(tile.weights * values),
      sums,
      _Sums(functools.reduce(jnp.add, losses), wins, terms[0].count),
    )
    if not mine:
      return (sums, by), None
    by_logit, by_positive = by_logits(spec, tile, blocks, terms, totals, exponentials, own)
    if back_terms:
      by_logit["query_passage"] += by_back_logits(work, tile.rows, blocks["query_passage"].scores, back_terms)
    return (sums, by_embeddings(work, tile, blocks, by_logit, by_positive, by)), None

  sums = exchange.varying(_Sums(*[jnp.zeros((), scale.dtype)] * 3))
  nothing = None
  if mine:
    filling = -mine % tiles.weights.shape[1]
    queries = work.columns.query if work.every_query else work.columns.query[:mine]
    query, passage = (
      jnp.pad(jnp.zeros_like(x), ((0, filling), (0, 0))) for x in (queries, work.columns.passage)
    )
    nothing = Embeddings(query, passage, jnp.zeros_like(scale))
  (sums, by), _ = jax.lax.scan(sweep, (sums, nothing), tiles)
  return exchange.sum(sums), by
