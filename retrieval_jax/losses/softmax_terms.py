"""What a loss of the softmax family is made of: terms over blocks of scores, and the options that all of them share."""

import math
import numbers
from typing import Final, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from retrieval_jax import scoring
from retrieval_jax.errors import UserError, nearest
from retrieval_jax.losses import pairs
from retrieval_jax.losses.pairs import Block, Pairs, Passages, Queries
from retrieval_jax.losses.temperature import Temperature
from retrieval_jax.scoring import Score

HARDNESS_OF: Final = ("all", "in_batch", "hard")


class Options(NamedTuple):
  """What every loss of the softmax family can do beside its formula; the defaults change nothing.

  logit_margin: subtracted from the positive's score before the temperature (additive margin softmax): the positive
    must win by that much.
  label_smoothing: share e of the target that is spread evenly over all candidates, the positive among them.
  score_margin: a negative whose score exceeds its positive's by more is taken for a false one and left out, as
    Qwen3-Embedding (0.1) does. None: all stay.
  in_batch_negatives: False leaves a query its own hard negatives alone, for data whose labels repeat in a batch
    (classification); one direction only. For some rows alone, of one task among several: EmbeddedBatch.in_batch.
  hardness: strength a of hardness weighting: a negative of score s counts e^(a s) times. hardness_of names which: "all"
    negatives, "in_batch" (all but a query's own hard negatives) or "hard" (those alone). The weight has no gradient.
  rows_per_tile: rows of logits that are held at once, O(rows p) memory instead of O(q p), in the tiled form; None
    chooses by the size of the batch, 0 always takes the plain form.

  Source: Wang et al. 2018 (arXiv 1801.05599) for the margin; Lan et al. 2025 (LLaVE) for hardness.

  Example: `samtone(options=Options(score_margin=0.1))`.
  """

  logit_margin: float = 0.0
  label_smoothing: float = 0.0
  score_margin: float | None = None
  in_batch_negatives: bool = True
  hardness: float = 0.0
  hardness_of: str = "all"
  rows_per_tile: int | None = None


class Term(NamedTuple):
  """weight * mean_i [ log(positives e^pos_i + sum over the blocks' negatives e^logit_ij) - pos_i ].

  positives: how often the positive stands in the denominator.
  """

  weight: float
  blocks: tuple[Block, ...]
  positives: int = 1


class Softmax(NamedTuple):
  """One loss of the family; the first term has the block query_passage, and the metrics are of it."""

  terms: tuple[Term, ...]
  temperature: Temperature
  score: Score
  mask_false_negatives: bool
  options: Options


class Columns(NamedTuple):
  """All candidates of the global batch, their embeddings prepared for the score."""

  queries: Queries
  passages: Passages
  query: Float[Array, "q d"]
  passage: Float[Array, "p d"]

  def of(self, block: Block) -> Float[Array, "x d"]:
    """Returns the embeddings of a block's columns."""
    if block in ("passage_query", "query_query"):
      return self.query
    return self.passage[: self.query.shape[0]] if block == "passage_passage" else self.passage


class Rows(NamedTuple):
  """Some or all examples: identities, prepared embeddings, and the score of each query with its own positive."""

  pairs: Pairs
  query: Float[Array, "q d"]
  passage: Float[Array, "q d"]
  positive: Float[Array, "q"]

  def of(self, block: Block) -> Float[Array, "q d"]:
    """Returns the embeddings of a block's rows."""
    return self.query if block in ("query_passage", "query_query") else self.passage


class Scored(NamedTuple):
  """One block: scores, which of them are negatives, and what is added to their logits (without gradient)."""

  scores: Float[Array, "q x"]
  allowed: Bool[Array, "q x"]
  added: Float[Array, "q x"] | float

  def logits(self, scale: Float[Array, ""]) -> Float[Array, "q x"]:
    """Returns scale * scores + added, the lowest finite number where it is no negative.

    Not -inf: a row without any negative must have a finite gradient.
    """
    return jnp.where(self.allowed, scale * self.scores + self.added, jnp.finfo(self.scores.dtype).min)


def check_options(name: str, options: Options, blocks: set[Block]) -> None:
  """Raises UserError, naming the loss, for options out of range or that leave a block without negatives."""
  if not isinstance(options, Options):
    raise UserError(f"{name}: options is {options!r}; expected an Options of losses/softmax_terms.py.")
  if not _is_finite(options.label_smoothing) or not 0 <= options.label_smoothing < 1:
    raise UserError(f"{name}: label_smoothing is {options.label_smoothing!r}; expected a share in [0, 1).")
  for field in ("logit_margin", "hardness"):
    value = getattr(options, field)
    if not _is_finite(value):
      raise UserError(f"{name}: {field} is {value!r}; expected a finite number.")
  if options.score_margin is not None and not _is_finite(options.score_margin):
    raise UserError(
      f"{name}: score_margin is {options.score_margin!r}; expected a number, or None to keep all."
    )
  if options.hardness_of not in HARDNESS_OF:
    raise UserError(
      f"{name}: hardness_of is {options.hardness_of!r}{nearest(str(options.hardness_of), HARDNESS_OF) or '.'} "
      f"Known: {', '.join(HARDNESS_OF)}."
    )
  rows = options.rows_per_tile
  if rows is not None and (type(rows) is not int or rows < 0):
    raise UserError(
      f"{name}: rows_per_tile is {rows!r}; expected a whole number of rows, None to choose one by the size "
      "of the batch, or 0 for the plain form."
    )
  if not options.in_batch_negatives and blocks != {"query_passage"}:
    raise UserError(
      f"{name}: in_batch_negatives=False leaves only each query's own hard negatives, so that the other direction and "
      "same-tower terms have none. Use in_batch_softmax with bidirectional=False."
    )
  if not options.in_batch_negatives and options.hardness_of == "in_batch" and options.hardness:
    raise UserError(f"{name}: hardness_of='in_batch' has nothing to weigh with in_batch_negatives=False.")


def _is_finite(value: object) -> bool:
  return isinstance(value, numbers.Real) and math.isfinite(value)


def own_scores(columns: Columns, score: Score) -> Float[Array, "q"]:
  """Returns the score of each query with its own positive."""
  q = columns.query.shape[0]
  if scoring.preparation(score) is not None:
    return jnp.einsum("qd,qd->q", columns.query, columns.passage[:q], precision="highest")
  square = score(columns.query, columns.passage[:q])
  # A masked sum, not jnp.diagonal: a gather would bring the whole matrix to every device.
  return jnp.sum(jnp.where(jnp.eye(q, dtype=bool), square, 0), axis=1)


def scores_of(spec: Softmax, block: Block, rows: Rows, columns: Columns) -> Float[Array, "q x"]:
  """Returns the scores of some examples with the columns of one block."""
  score = spec.score if scoring.preparation(spec.score) is None else scoring.dot
  return score(rows.of(block), columns.of(block))


def scored(spec: Softmax, block: Block, scores: Float[Array, "q x"], rows: Rows, columns: Columns) -> Scored:
  """Returns one block with what the options do to it; scores: those of `scores_of`."""
  options = spec.options
  allowed = pairs.negatives(
    block,
    rows.pairs,
    columns.queries,
    columns.passages,
    mask_false_negatives=spec.mask_false_negatives,
    in_batch=options.in_batch_negatives,
  )
  if options.score_margin is not None:
    # Not <=: a score of NaN stays, so that the loss shows it.
    allowed = allowed & ~(scores > rows.positive[:, None] + options.score_margin)
  return Scored(scores, allowed, hardness(options, block, scores, rows.pairs, columns.passages))


def hardness(
  options: Options, block: Block, scores: Float[Array, "q x"], rows: Pairs, passages: Passages
) -> Float[Array, "q x"] | float:
  """Returns what hardness weighting adds to the logits of a block."""
  if not options.hardness:
    return 0.0
  added = options.hardness * jax.lax.stop_gradient(scores)
  if options.hardness_of == "all":
    return added
  if block != "query_passage":
    return added if options.hardness_of == "in_batch" else 0.0
  return jnp.where(pairs.owned(rows, passages) == (options.hardness_of == "hard"), added, 0)
