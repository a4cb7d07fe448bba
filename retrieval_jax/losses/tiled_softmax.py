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
from jaxtyping import Array, Bool, Float, Int

from retrieval_jax import sharding
from retrieval_jax.losses import pairs
from retrieval_jax.losses.exchange import Exchange
from retrieval_jax.losses.pairs import Block, Pairs, Passages, Queries
from retrieval_jax.losses.softmax_terms import Columns, Rows, Scored, Softmax, hardness, scored, scores_of
from retrieval_jax.losses.softmax_totals import TermRows, Totals, term_rows
from retrieval_jax.losses.temperature import LearnedTemperature

BACK: Block = "passage_query"


class _Embeddings(NamedTuple):
  """What the loss is differentiated by."""

  query: Float[Array, "q d"]
  passage: Float[Array, "p d"]
  scale: Float[Array, ""]


class _Identities(NamedTuple):
  queries: Queries
  passages: Passages
  weights: Float[Array, "q"]


class _Sums(NamedTuple):
  """Weighted sums over the examples."""

  loss: Float[Array, ""]
  accuracy: Float[Array, ""]
  negatives: Float[Array, ""]


class _BackTerm(NamedTuple):
  """A term with the block passage_query, of all examples: they are columns of the query_passage tile."""

  coefficients: Float[Array, "q"]
  rows: TermRows


class _Work(NamedTuple):
  """What every tile of a device's sweeps reads."""

  spec: Softmax
  columns: Columns
  positive: Float[Array, "q"]  # of all examples
  scale: Float[Array, ""]
  start: Int[Array, ""] | int  # of the device's rows among all

  @property
  def every_query(self) -> bool:
    """Whether the device's rows have a gradient by all queries, or by their own alone."""
    return any("query_query" in term.blocks for term in self.spec.terms)

  def scored(self, block: Block, rows: Rows) -> Scored:
    scores = scores_of(self.spec, block, rows, self.columns)
    return scored(self.spec, block, scores, rows, self.columns)

  def own_logits(self, rows: Rows) -> Float[Array, "q"]:
    return self.scale * (rows.positive - self.spec.options.logit_margin)


class _Tile(NamedTuple):
  """Some rows of a device: examples, weights, and what the first sweep found of them. start: among the device's."""

  start: Int[Array, ""]
  rows: Rows
  weights: Float[Array, "q"]
  found: tuple[TermRows | None, ...]  # of the terms with the block passage_query
  back: Totals | None


def total(
  spec: Softmax, tile: int, columns: Columns, scale: Float[Array, ""], weights: Float[Array, "q"]
) -> tuple[Float[Array, ""], dict[str, Float[Array, ""]]]:
  """Returns what softmax.plain_total returns, `tile` rows at a time; differentiable once, by embeddings and scale.

  Products of a q x p matrix with d-vectors, forward and backward: one way 3 (as the plain form), bidirectional 4
  (plain: 3), with query-query terms 7 (6). Memory: O(tile p) and the gradients. Collectives: see the module.

  spec: its score is scoring.cosine or dot, whose preparation the embeddings of `columns` have been through.
  """
  embeddings = _Embeddings(columns.query, columns.passage, scale)
  identities = _Identities(columns.queries, columns.passages, weights)
  sums = cast(_Sums, _sums(spec, tile, embeddings, identities))
  metrics = {"accuracy": sums.accuracy, "negatives": sums.negatives}
  return sums.loss, {name: jax.lax.stop_gradient(value) for name, value in metrics.items()}


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _sums(spec: Softmax, tile: int, embeddings: _Embeddings, identities: _Identities) -> _Sums:
  return _on_mesh(spec, tile, embeddings, identities, gradient=False)[0]


def _sums_fwd(
  spec: Softmax, tile: int, embeddings: _Embeddings, identities: _Identities
) -> tuple[_Sums, _Embeddings]:
  return _on_mesh(spec, tile, embeddings, identities, gradient=True)


def _sums_bwd(spec: Softmax, tile: int, gradient: _Embeddings, cotangent: _Sums) -> tuple[_Embeddings, None]:
  del spec, tile
  return jax.tree.map(lambda x: cotangent.loss * x, gradient), None


_sums.defvjp(_sums_fwd, _sums_bwd)


def _on_mesh(
  spec: Softmax, tile: int, embeddings: _Embeddings, identities: _Identities, *, gradient: bool
) -> tuple[_Sums, _Embeddings]:
  mesh = sharding.data_mesh()
  if mesh is None or mesh.size == 1:
    return _shard(embeddings, identities, spec, tile, Exchange(None), gradient)
  rows, whole = PartitionSpec(mesh.axis), PartitionSpec()
  placed = _Embeddings(rows, rows, whole)  # pyright: ignore[reportArgumentType]  (a tree of specs)
  kernel = functools.partial(_shard, spec=spec, tile=tile, exchange=Exchange(mesh.axis), gradient=gradient)
  return jax.shard_map(kernel, mesh=mesh.mesh, in_specs=(placed, rows), out_specs=(whole, placed))(
    embeddings, identities
  )


def _shard(
  embeddings: _Embeddings,
  identities: _Identities,
  spec: Softmax,
  tile: int,
  exchange: Exchange,
  gradient: bool,
) -> tuple[_Sums, _Embeddings]:
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
  work = _Work(spec, columns, exchange.gather(positive), exchange.varying(embeddings.scale), start)

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
    _BackTerm(*exchange.gather((term.weight * identities.weights, one)))
    for term, one in zip(spec.terms, found, strict=True)
    if one is not None
  ]
  parts = _cut((rows, identities.weights, found, first.get(BACK)), tile)
  count, size = parts[1].shape
  tiles = _Tile(size * jnp.arange(count), *parts)
  sums, by = _second_sweep(work, tiles, back_terms, exchange, mine if gradient else 0)
  if by is None:
    return sums, jax.tree.map(jnp.zeros_like, embeddings)
  query = exchange.scatter(by.query[: work.columns.query.shape[0]]) if work.every_query else by.query[:mine]
  passage = exchange.scatter(by.passage[: work.columns.passage.shape[0]])
  return sums, _Embeddings(query, passage, exchange.sum(by.scale))


def _cut(tree: Any, tile: int) -> Any:
  """Returns the leaves [rows, ...] as [tiles, tile, ...]; the last is filled up with zeros: weight 0, not present."""

  def one(x: Array) -> Array:
    size = min(tile, x.shape[0])
    padded = jnp.pad(x, ((0, -x.shape[0] % size), *([(0, 0)] * (x.ndim - 1))))
    return padded.reshape(-1, size, *x.shape[1:])

  return jax.tree.map(one, tree)


def _back(
  work: _Work, rows: Rows, scores: Float[Array, "q p"]
) -> tuple[Float[Array, "q x"], Bool[Array, "q x"]]:
  """Returns the logits of the block passage_query, transposed, and which are negatives: its columns are the rows'
  queries, its rows all examples' positives."""
  spec, columns = work.spec, work.columns
  positives = pairs.first(columns.passages, columns.query.shape[0])
  related = pairs.relevant if spec.mask_false_negatives else pairs.own
  allowed = ~related(rows.pairs.queries, positives) & rows.pairs.queries.present[:, None]
  if spec.options.score_margin is not None:
    allowed &= ~(scores > work.positive[None, :] + spec.options.score_margin)
  block = Scored(scores, allowed, hardness(spec.options, BACK, scores, rows.pairs, positives))
  return block.logits(work.scale), allowed


def _first_sweep(
  work: _Work, tiles: Rows, exchange: Exchange, take: Callable[[Array], Array]
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
    scores = _dot(rows.query, work.columns.passage[:q].T)
    found = []
    for block in by_row:
      one = work.scored(block, rows)
      found.append(Totals.of_rows(one.logits(work.scale), one.allowed)[0])
    return carry.with_columns(*_back(work, rows, scores)), found

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
  work: _Work, tiles: _Tile, back_terms: list[_BackTerm], exchange: Exchange, mine: int
) -> tuple[_Sums, _Embeddings | None]:
  """Returns the sums over all devices, and this device's part of the gradient by all embeddings (by its own `mine`
  queries unless work.every_query), with what fills up the last tile after it; None for mine 0."""
  spec, scale = work.spec, work.scale
  wanted: dict[Block, None] = {block: None for term in spec.terms for block in term.blocks if block != BACK}

  def sweep(carry: tuple[_Sums, Any], tile: _Tile) -> tuple[tuple[_Sums, Any], None]:
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
    by_logit, by_positive = _by_logits(spec, tile, blocks, terms, totals, exponentials, own)
    if back_terms:
      by_logit["query_passage"] += _by_back_logits(
        work, tile.rows, blocks["query_passage"].scores, back_terms
      )
    return (sums, _by_embeddings(work, tile, blocks, by_logit, by_positive, by)), None

  sums = exchange.varying(_Sums(*[jnp.zeros((), scale.dtype)] * 3))
  nothing = None
  if mine:
    filling = -mine % tiles.weights.shape[1]
    queries = work.columns.query if work.every_query else work.columns.query[:mine]
    query, passage = (
      jnp.pad(jnp.zeros_like(x), ((0, filling), (0, 0))) for x in (queries, work.columns.passage)
    )
    nothing = _Embeddings(query, passage, jnp.zeros_like(scale))
  (sums, by), _ = jax.lax.scan(sweep, (sums, nothing), tiles)
  return exchange.sum(sums), by


def _by_logits(
  spec: Softmax,
  tile: _Tile,
  blocks: dict[Block, Scored],
  terms: list[TermRows],
  totals: dict[Block, Totals],
  exponentials: dict[Block, Float[Array, "q x"]],
  own: Float[Array, "q"],
) -> tuple[dict[Block, Float[Array, "q x"]], Float[Array, "q"]]:
  """Returns the gradient of the rows' terms by the logits of each block, and by the positives' logits."""
  smoothing = spec.options.label_smoothing
  by_logit: dict[Block, Any] = {}
  by_positive = jnp.zeros_like(own)
  for term, one in zip(spec.terms, terms, strict=True):
    coefficients = term.weight * tile.weights
    if not term.positives:
      coefficients = jnp.where(one.count > 0, coefficients, 0)
    even = smoothing / (1 + one.count)
    share = term.positives * jnp.exp(own - one.log_total) if term.positives else 0.0  # no 0 * inf
    by_positive += coefficients * (share - 1 + smoothing - even)
    for block in term.blocks:
      if block == BACK:
        continue
      factor = coefficients * jnp.exp(totals[block].top - one.log_total)
      part = exponentials[block] * factor[:, None]
      if smoothing:
        part -= jnp.where(blocks[block].allowed, (coefficients * even)[:, None], 0)
      by_logit[block] = by_logit[block] + part if block in by_logit else part
  return by_logit, by_positive


def _by_back_logits(
  work: _Work, rows: Rows, scores: Float[Array, "q p"], back_terms: list[_BackTerm]
) -> Float[Array, "q p"]:
  """Returns the gradient of all examples' terms in the block passage_query by the scores of these queries."""
  q, p = work.columns.query.shape[0], scores.shape[1]
  logits, allowed = _back(work, rows, scores[:, :q])
  gradient = jnp.zeros_like(logits)
  for term in back_terms:
    even = work.spec.options.label_smoothing / (1 + term.rows.count)
    part = jnp.exp(logits - term.rows.log_total[None, :]) - even[None, :]
    gradient += jnp.where(allowed, term.coefficients[None, :] * part, 0)
  return jnp.pad(gradient, ((0, 0), (0, p - q)))


def _by_embeddings(
  work: _Work,
  tile: _Tile,
  blocks: dict[Block, Scored],
  by_logit: dict[Block, Float[Array, "q x"]],
  by_positive: Float[Array, "q"],
  by: _Embeddings,
) -> _Embeddings:
  """Returns the gradient `by` the embeddings with this tile's part added."""
  query, passage, scale = by
  rows = tile.rows
  if isinstance(work.spec.temperature, LearnedTemperature):
    scale += jnp.sum(by_positive * (rows.positive - work.spec.options.logit_margin))
    for block, gradient in by_logit.items():
      scale += jnp.sum(gradient * blocks[block].scores)
  query_rows, passage_rows = by_positive[:, None] * rows.passage, by_positive[:, None] * rows.query
  for block, gradient in by_logit.items():
    to_rows = _dot(gradient, work.columns.of(block))
    to_columns = work.scale * _dot(gradient.T, rows.of(block))
    if block in ("query_passage", "query_query"):
      query_rows += to_rows
    else:
      passage_rows += to_rows
    if block == "query_query":
      query = query.at[: to_columns.shape[0]].add(to_columns)
    else:
      passage = passage.at[: to_columns.shape[0]].add(to_columns)
  start = work.start + tile.start
  query = _add(query, work.scale * query_rows, start if work.every_query else tile.start)
  return _Embeddings(query, _add(passage, work.scale * passage_rows, start), scale)


def _add(
  x: Float[Array, "p d"], rows: Float[Array, "q d"], start: Int[Array, ""] | int
) -> Float[Array, "p d"]:
  """Returns x with `rows` added from row `start` on."""
  here = jax.lax.dynamic_slice_in_dim(x, start, rows.shape[0])
  return jax.lax.dynamic_update_slice_in_dim(x, here + rows, start, 0)


def _dot(a: Float[Array, "a b"], b: Float[Array, "b c"]) -> Float[Array, "a c"]:
  return jnp.dot(a, b, precision="highest")
