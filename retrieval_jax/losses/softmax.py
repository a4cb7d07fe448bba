"""The softmax family in its plain form: whole matrices of logits, differentiated by JAX."""

import functools
from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from retrieval_jax import scoring, sharding
from retrieval_jax.errors import UserError
from retrieval_jax.losses import pairs, temperature, tiled_softmax
from retrieval_jax.losses.base import Loss, parametric
from retrieval_jax.losses.pairs import Block
from retrieval_jax.losses.softmax_terms import (
  Columns,
  Rows,
  Softmax,
  check_options,
  own_scores,
  scored,
  scores_of,
)
from retrieval_jax.losses.softmax_totals import Totals, term_rows
from retrieval_jax.records import EmbeddedBatch, LossOutput

# A matrix of float32 logits of this many elements a device (16 MiB) is not worth cutting up.
PLAIN_UP_TO = 2**22
TILE_ELEMENTS = 2**23


def softmax_loss(name: str, spec: Softmax) -> Loss:
  """Returns the Loss of a specification; `name` stands in messages."""
  spec = spec._replace(temperature=temperature.checked(name, spec.temperature))
  check_options(name, spec.options, {block for term in spec.terms for block in term.blocks})
  if spec.options.rows_per_tile and scoring.preparation(spec.score) is None:
    raise UserError(
      f"{name}: rows_per_tile needs scoring.cosine or scoring.dot as the score; leave it out with a score of your own."
    )

  initial = functools.partial(temperature.initial_params, spec.temperature)
  return parametric(initial, functools.partial(_compute, spec=spec))


def _compute(params: Mapping[str, Array], batch: EmbeddedBatch, spec: Softmax) -> LossOutput:
  queries, passages = pairs.sides(batch)
  prepare = scoring.preparation(spec.score) or scoring.upcast
  query, passage = map(prepare, pairs.without_padding(batch, queries, passages))
  columns = Columns(queries, passages, query, passage)
  weights = pairs.mean_weights(batch, queries, query.dtype)
  scale = temperature.scale(spec.temperature, params).astype(query.dtype)
  tile = _rows_per_tile(spec, columns)
  if tile:
    loss, metrics = tiled_softmax.total(spec, tile, columns, scale, weights)
  else:
    loss, metrics = plain_total(spec, columns, scale, weights)
  shown = {"temperature": 1 / scale, "logit_scale": scale}
  return LossOutput(loss, metrics | {name: jax.lax.stop_gradient(value) for name, value in shown.items()})


def _rows_per_tile(spec: Softmax, columns: Columns) -> int:
  """Returns how many rows of logits to hold at once; 0: all, in the plain form.

  On several devices the tiled form is taken at any size: XLA would gather the queries of the plain one twice, forward
  and backward.
  """
  if spec.options.rows_per_tile is not None:
    return spec.options.rows_per_tile
  if scoring.preparation(spec.score) is None:
    return 0
  mesh, width = sharding.data_mesh(), columns.passage.shape[0]
  split = mesh is not None and mesh.size > 1
  if not split and columns.query.shape[0] * width <= PLAIN_UP_TO:
    return 0
  return min(max(TILE_ELEMENTS // width, 64), 512)


def plain_total(
  spec: Softmax, columns: Columns, scale: Float[Array, ""], weights: Float[Array, "q"]
) -> tuple[Float[Array, ""], dict[str, Float[Array, ""]]]:
  """Returns the loss and the metrics accuracy and negatives. weights: of the examples, which sum to 1 or are all 0."""
  q = columns.query.shape[0]
  positive = own_scores(columns, spec.score)
  rows = Rows(
    pairs.Pairs(columns.queries, pairs.first(columns.passages, q)),
    columns.query,
    columns.passage[:q],
    positive,
  )
  wanted: list[Block] = list(dict.fromkeys(block for term in spec.terms for block in term.blocks))
  to_passages = scores_of(spec, "query_passage", rows, columns)

  def scores(block: Block) -> Float[Array, "q x"]:
    if block == "passage_query":
      return to_passages[:, :q].T  # the same products: half the work of making them again
    return to_passages if block == "query_passage" else scores_of(spec, block, rows, columns)

  blocks = {block: scored(spec, block, scores(block), rows, columns) for block in wanted}
  own_logits = scale * (positive - spec.options.logit_margin)

  def mean(values: Float[Array, "q"]) -> Float[Array, ""]:
    return jnp.sum(weights * values)

  totals = {block: Totals.of_rows(one.logits(scale), one.allowed)[0] for block, one in blocks.items()}
  terms = [
    term_rows(
      term, own_logits, [totals[b] for b in term.blocks], label_smoothing=spec.options.label_smoothing
    )
    for term in spec.terms
  ]
  loss = functools.reduce(
    jnp.add, [term.weight * mean(one.loss) for term, one in zip(spec.terms, terms, strict=True)]
  )
  metrics = {
    "accuracy": mean((scale * positive > totals["query_passage"].top).astype(positive.dtype)),
    "negatives": mean(terms[0].count),
  }
  return loss, {name: jax.lax.stop_gradient(value) for name, value in metrics.items()}
