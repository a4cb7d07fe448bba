"""One tile of the tiled softmax: what it is made of, and the gradient of its rows' terms."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from retrieval_jax.losses import pairs
from retrieval_jax.losses.pairs import Block
from retrieval_jax.losses.softmax_terms import Columns, Rows, Scored, Softmax, hardness, scored, scores_of
from retrieval_jax.losses.softmax_totals import TermRows, Totals
from retrieval_jax.losses.temperature import LearnedTemperature

BACK: Block = "passage_query"


class Embeddings(NamedTuple):
  """What the loss is differentiated by."""

  query: Float[Array, "q d"]
  passage: Float[Array, "p d"]
  scale: Float[Array, ""]


class BackTerm(NamedTuple):
  """A term with the block passage_query, of all examples: they are columns of the query_passage tile."""

  coefficients: Float[Array, "q"]
  rows: TermRows


class Work(NamedTuple):
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
    """Returns a block of some rows against all columns."""
    scores = scores_of(self.spec, block, rows, self.columns)
    return scored(self.spec, block, scores, rows, self.columns)

  def own_logits(self, rows: Rows) -> Float[Array, "q"]:
    """Returns the logits of the positives."""
    return self.scale * (rows.positive - self.spec.options.logit_margin)


class Tile(NamedTuple):
  """Some rows of a device: examples, weights, and what the first sweep found of them. start: among the device's."""

  start: Int[Array, ""]
  rows: Rows
  weights: Float[Array, "q"]
  found: tuple[TermRows | None, ...]  # of the terms with the block passage_query
  back: Totals | None


def back_logits(
  work: Work, rows: Rows, scores: Float[Array, "q p"]
) -> tuple[Float[Array, "q x"], Bool[Array, "q x"]]:
  """Returns the logits of the block passage_query, transposed, and which are negatives: its columns are the rows'
  queries, its rows all examples' positives."""
  spec, columns = work.spec, work.columns
  positives = pairs.first(columns.passages, columns.query.shape[0])
  related = pairs.relevant if spec.mask_false_negatives else pairs.own
  allowed = ~related(rows.pairs.queries, positives) & rows.pairs.queries.present[:, None]
  allowed &= pairs.together(rows.pairs.queries, positives)
  if spec.options.score_margin is not None:
    allowed &= ~(scores > work.positive[None, :] + spec.options.score_margin)
  block = Scored(scores, allowed, hardness(spec.options, BACK, scores, rows.pairs, positives))
  return block.logits(work.scale), allowed


def by_logits(
  spec: Softmax,
  tile: Tile,
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


def by_back_logits(
  work: Work, rows: Rows, scores: Float[Array, "q p"], back_terms: list[BackTerm]
) -> Float[Array, "q p"]:
  """Returns the gradient of all examples' terms in the block passage_query by the scores of these queries."""
  q, p = work.columns.query.shape[0], scores.shape[1]
  logits, allowed = back_logits(work, rows, scores[:, :q])
  gradient = jnp.zeros_like(logits)
  for term in back_terms:
    even = work.spec.options.label_smoothing / (1 + term.rows.count)
    part = jnp.exp(logits - term.rows.log_total[None, :]) - even[None, :]
    gradient += jnp.where(allowed, term.coefficients[None, :] * part, 0)
  return jnp.pad(gradient, ((0, 0), (0, p - q)))


def by_embeddings(
  work: Work,
  tile: Tile,
  blocks: dict[Block, Scored],
  by_logit: dict[Block, Float[Array, "q x"]],
  by_positive: Float[Array, "q"],
  by: Embeddings,
) -> Embeddings:
  """Returns the gradient `by` the embeddings with this tile's part added."""
  query, passage, scale = by
  rows = tile.rows
  if isinstance(work.spec.temperature, LearnedTemperature):
    scale += jnp.sum(by_positive * (rows.positive - work.spec.options.logit_margin))
    for block, gradient in by_logit.items():
      scale += jnp.sum(gradient * blocks[block].scores)
  query_rows, passage_rows = by_positive[:, None] * rows.passage, by_positive[:, None] * rows.query
  for block, gradient in by_logit.items():
    to_rows = product(gradient, work.columns.of(block))
    to_columns = work.scale * product(gradient.T, rows.of(block))
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
  return Embeddings(query, _add(passage, work.scale * passage_rows, start), scale)


def _add(
  x: Float[Array, "p d"], rows: Float[Array, "q d"], start: Int[Array, ""] | int
) -> Float[Array, "p d"]:
  """Returns x with `rows` added from row `start` on."""
  here = jax.lax.dynamic_slice_in_dim(x, start, rows.shape[0])
  return jax.lax.dynamic_update_slice_in_dim(x, here + rows, start, 0)


def product(a: Float[Array, "a b"], b: Float[Array, "b c"]) -> Float[Array, "a c"]:
  """Returns a @ b in full float32, on TPUs too."""
  return jnp.dot(a, b, precision="highest")
