"""In-batch contrastive losses: sampled softmax over the passages of the batch, and SamToNe's same-tower negatives."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from retrieval_jax import scoring
from retrieval_jax.errors import UserError, nearest
from retrieval_jax.losses import pairs
from retrieval_jax.losses.base import Loss, stateless
from retrieval_jax.records import EmbeddedBatch, LossOutput
from retrieval_jax.scoring import Score

SIDES = ("query", "passage", "both")


class _Options(NamedTuple):
  temperature: float
  bidirectional: bool
  query_side: bool  # query-query terms in the query -> passage direction
  passage_side: bool  # passage-passage terms in the passage -> query direction
  score: Score
  mask_false_negatives: bool


class _Block(NamedTuple):
  """Logits [q, x] of one kind of negative, and which of them count."""

  logits: Float[Array, "q x"]
  allowed: Bool[Array, "q x"]

  def masked(self) -> Float[Array, "q x"]:
    # A finite minimum, not -inf: a row without any negative must have a finite gradient.
    return jnp.where(self.allowed, self.logits, jnp.finfo(self.logits.dtype).min)


def _cross_entropy(positive: Float[Array, "q"], negatives: list[_Block]) -> Float[Array, "q"]:
  """Returns -log(e^positive / (e^positive + sum e^negatives)) for each row; 0 for a row without negatives.

  As softplus(logsumexp(negatives) - positive), which keeps its relative precision when the loss is tiny.
  """
  totals = [jax.nn.logsumexp(block.masked(), axis=1) for block in negatives]
  return jax.nn.softplus(functools.reduce(jnp.logaddexp, totals) - positive)


def _compute(batch: EmbeddedBatch, options: _Options) -> LossOutput:
  q = batch.query_rows.shape[0]
  queries, passages = pairs.sides(batch)
  rows = pairs.Pairs(queries, jax.tree.map(lambda x: x[:q], passages))
  query, passage = pairs.without_padding(batch, queries, passages)

  def allowed(block: pairs.Block) -> Bool[Array, "q x"]:
    mask = options.mask_false_negatives
    return pairs.negatives(block, rows, queries, passages, mask_false_negatives=mask)

  def logits(left: Float[Array, "q d"], right: Float[Array, "p d"]) -> Float[Array, "q p"]:
    return options.score(left, right) / options.temperature

  to_passages = logits(query, passage)
  square = to_passages[:, :q]
  # A masked sum, not jnp.diagonal: a gather would bring the whole matrix to every device.
  positive = jnp.sum(jnp.where(jnp.eye(q, dtype=bool), square, 0), axis=1)

  forward = [_Block(to_passages, allowed("query_passage"))]
  if options.query_side:
    forward.append(_Block(logits(query, query), allowed("query_query")))
  per_example = _cross_entropy(positive, forward)
  if options.bidirectional:
    backward = [_Block(square.T, allowed("passage_query"))]
    if options.passage_side:
      backward.append(_Block(logits(passage[:q], passage[:q]), allowed("passage_passage")))
    per_example = (per_example + _cross_entropy(positive, backward)) / 2

  dtype = per_example.dtype
  weights = pairs.mean_weights(batch, queries, dtype)

  def mean(values: Float[Array, "q"]) -> Float[Array, ""]:
    return jnp.sum(weights * values)

  best_negative = jnp.max(forward[0].masked(), axis=1)
  metrics = {
    "accuracy": mean((positive > best_negative).astype(dtype)),
    "negatives": sum(
      (mean(jnp.sum(block.allowed, axis=1, dtype=dtype)) for block in forward), jnp.zeros((), dtype)
    ),
    "temperature": jnp.asarray(options.temperature, dtype),
    "logit_scale": jnp.asarray(1 / options.temperature, dtype),
  }
  return LossOutput(mean(per_example), metrics)


def _make(name: str, options: _Options) -> Loss:
  if not options.temperature > 0:
    raise UserError(
      f"{name}: temperature is {options.temperature}; it must be above 0. A temperature is 1 / scale: scale 100 is "
      "temperature 0.01, scale 20 is 0.05."
    )
  return stateless(functools.partial(_compute, options=options))


def in_batch_softmax(
  *,
  temperature: float = 0.01,
  bidirectional: bool = True,
  score: Score = scoring.cosine,
  mask_false_negatives: bool = True,
) -> Loss:
  """Returns the in-batch sampled softmax, the standard contrastive loss of dual encoders.

  With s the score and t the temperature, the loss of example i is, from query to passage,
    -log( e^(s(q_i,p_i)/t) / (e^(s(q_i,p_i)/t) + sum_j e^(s(q_i,p_j)/t)) )
  where j runs over the other passages of the global batch, the hard negatives of all queries included. With
  bidirectional, the mean (papers: the sum) of this and of the same from passage i to the queries, where hard
  negatives take no part. Then the weighted mean over the examples; 0 if all weights are 0.

  With mask_false_negatives these are no negatives of query i: the passages whose row is among positives[i] or equals
  passage_rows[i], and the passages of queries with i's row; from passage to query the same pairs. Without it every
  other example of the batch is one. Padding (weight 0, and hard negatives of row -1) never is; row -1 equals nothing.

  Scores: [q, p] in float32. Masks: O(q p r) time and O(q p) memory for r known positives per query.
  Metrics (of query to passage): accuracy, the share of queries that score their own passage above all negatives among
  the passages; negatives, their mean number per query; temperature; logit_scale = 1 / temperature.

  Raises: UserError for a temperature that is not above 0, and while tracing when p is no multiple of q.

  Source: SamToNe (Moiseev et al., 2023), section 2, first equation; T5X Retrieval's default loss, which sums the
  directions, is twice this value.

  Example: two queries, unit vectors equal to their passages: cosines 1 and 0, so that
  `in_batch_softmax(temperature=1.0)` is log(1 + e^-1).
  """
  options = _Options(temperature, bidirectional, False, False, score, mask_false_negatives)
  return _make("in_batch_softmax", options)


def samtone(
  *,
  temperature: float = 0.01,
  bidirectional: bool = True,
  side: str = "query",
  score: Score = scoring.cosine,
  mask_false_negatives: bool = True,
) -> Loss:
  """Returns SamToNe: the in-batch softmax with the other queries as further, same-tower negatives.

  In the notation of `in_batch_softmax` the loss of example i from query to passage is
    -log( e^(s(q_i,p_i)/t) / (sum_j e^(s(q_i,p_j)/t) + sum_{j != i} e^(s(q_i,q_j)/t)) ).
  side "query", the paper's main setting, adds the query-query terms to that direction and leaves passage to query
  plain; "passage" adds passage-passage terms to passage to query only; "both" does both. Hard negatives appear only
  as passages of the query to passage direction. There is no weight to tune.

  With mask_false_negatives, query j is no negative of query i (and passage j none of passage i) if their rows are
  equal or the passage of one is a known positive of the other. A repeated query would otherwise push itself away
  with the logit 1 / t. All else (direction mean, padding, metrics) as in `in_batch_softmax`; the metric negatives
  counts the queries too.

  Raises: UserError for an unknown side, for a passage side without bidirectional, and as `in_batch_softmax`.

  Source: SamToNe (Moiseev et al., 2023), section 2, "Same Tower Negatives"; the masks go beyond the paper.

  Example: two queries, unit vectors equal to their passages, one way: cosines 1, 0 and 0, so that
  `samtone(temperature=1.0, bidirectional=False)` is log(1 + 2 e^-1).
  """
  if side not in SIDES:
    raise UserError(f"samtone: unknown side {side!r}{nearest(side, SIDES)}. Known: {', '.join(SIDES)}.")
  if side != "query" and not bidirectional:
    raise UserError(
      f"samtone: side {side!r} adds passage-passage terms to the passage to query direction, which "
      "bidirectional=False leaves out. Set bidirectional=True, or side='query'."
    )
  query_side, passage_side = side != "passage", side != "query"
  options = _Options(temperature, bidirectional, query_side, passage_side, score, mask_false_negatives)
  return _make("samtone", options)
