"""Triplet margin losses: the hinge on the hardest in-batch negatives, with NGAME's weighting and same-tower negatives."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from retrieval_jax import scoring, sharding
from retrieval_jax.errors import UserError, nearest
from retrieval_jax.losses import pairs
from retrieval_jax.losses.base import Loss, stateless
from retrieval_jax.records import EmbeddedBatch, LossOutput
from retrieval_jax.scoring import Score

# none: every hinge counts alike. softmax: by the scores of the violating negatives alone (DEXA). softmax_zero_logit:
# the same, but a negative that does not violate takes part with logit 0 (NGAME's published code).
WEIGHTINGS = ("none", "softmax", "softmax_zero_logit")
SAME_TOWER = ("none", "query", "passage", "both")


class Candidates(NamedTuple):
  """Scores of the candidate negatives of each row, and which of them exist."""

  scores: Float[Array, "q x"]
  present: Bool[Array, "q x"]


class _Options(NamedTuple):
  margin: float
  hardest: int
  weighting: str
  weighting_temperature: float
  query_side: bool
  passage_side: bool
  bidirectional: bool
  score: Score
  mask_false_negatives: bool


def hardest(candidates: Candidates, k: int) -> Candidates:
  """Returns the k highest-scored candidates of each row, best first; all, as they are, where k reaches the columns.

  Absent candidates come last and stay absent: a masked positive can never slip in where a row has fewer than k.
  Of equal scores the smaller column comes first and receives the gradient. Time on several devices: k passes over
  the scores.
  """
  scores, present = candidates
  if k >= scores.shape[1]:
    return candidates
  ranked = jax.lax.stop_gradient(jnp.where(present, scores, jnp.finfo(scores.dtype).min))
  mesh = sharding.data_mesh()
  if mesh is not None and mesh.size == 1:
    columns = jax.lax.top_k(ranked, k)[1]
  else:
    columns = _highest_columns(ranked, k)
  return Candidates(*(jnp.take_along_axis(x, columns, axis=1) for x in candidates))


def _highest_columns(scores: Float[Array, "q x"], k: int) -> Int[Array, "q k"]:
  """Returns what lax.top_k would, which XLA cannot split over devices: it would bring the whole matrix to each."""
  column = jnp.arange(scores.shape[1])[None, :]

  def next_best(last: tuple[Array, Array], _: None) -> tuple[tuple[Array, Array], Array]:
    value, at = (x[:, None] for x in last)
    # Not >=, instead of <: NaN then comes first and reaches the loss, as it must.
    below = ~(scores >= value) | ((scores == value) & (column > at))
    best = jnp.argmax(jnp.where(below, scores, -jnp.inf), axis=1)
    return (jnp.take_along_axis(scores, best[:, None], axis=1)[:, 0], best), best

  q = scores.shape[0]
  _, columns = jax.lax.scan(next_best, (jnp.full(q, jnp.inf, scores.dtype), jnp.full(q, -1)), length=k)
  return columns.T


def hardest_triplets(
  positive: Float[Array, "q"],
  candidates: Candidates,
  *,
  k: int,
  margin: float,
  weighting: str = "none",
  weighting_temperature: float = 0.1,
) -> Float[Array, "q"]:
  """Returns the triplet loss of each row: with h_n = max(0, s_n - positive + margin) over the k hardest candidates,

    (1 / k) sum_n h_n                                          for weighting "none",
    (1 / k) sum_n h_n softmax_n(s_n / weighting_temperature)   for the other two: the softmax runs over the candidates
                                                               with h_n > 0 ("softmax"), or over all k with the logit
                                                               0 for those with h_n = 0 ("softmax_zero_logit").
  The gradient flows through the softmax too.

  Absent candidates are zero terms and the divisor stays k, so that the mean over the rows is the mean over B k of the
  official code, every triplet of a batch weighs 1 / (B k), and rows of padding change nothing. The official code
  instead takes masked positives as negatives where a row has fewer than k, and fails where k exceeds the columns.

  Source: NGAME (Dahiya et al., 2023), equation 1 and its published code; "softmax" is DEXA's (Dahiya et al., 2023).

  Example: positive .5, candidates .4 and .1, margin .3, k 2: (.2 + 0) / 2 = .1, for "softmax" too: the one violator
  has the weight 1.
  """
  scores, present = hardest(candidates, k)
  hinge = jnp.where(present, jax.nn.relu(scores - positive[:, None] + margin), 0)
  if weighting != "none":
    taking_part = present if weighting == "softmax_zero_logit" else hinge > 0
    logits = jnp.where(hinge > 0, scores / weighting_temperature, 0)
    hinge = hinge * jax.nn.softmax(jnp.where(taking_part, logits, jnp.finfo(logits.dtype).min), axis=1)
  return jnp.sum(hinge, axis=1) / k


def _compute(batch: EmbeddedBatch, options: _Options) -> LossOutput:
  q = batch.query_rows.shape[0]
  queries, passages = pairs.sides(batch)
  rows = pairs.Pairs(queries, pairs.first(passages, q))
  query, passage = pairs.without_padding(batch, queries, passages)
  to_passages = options.score(query, passage)
  square = to_passages[:, :q]
  # A masked sum, not jnp.diagonal: a gather would bring the whole matrix to every device.
  positive = jnp.sum(jnp.where(jnp.eye(q, dtype=bool), square, 0), axis=1)

  def block(name: pairs.Block, scores: Float[Array, "q x"]) -> Candidates:
    mask = options.mask_false_negatives
    return Candidates(scores, pairs.negatives(name, rows, queries, passages, mask_false_negatives=mask))

  def direction(blocks: list[Candidates]) -> Float[Array, "q"]:
    # The hardest of each block first: joining the whole blocks would copy [q, p].
    best = [hardest(each, options.hardest) for each in blocks]
    return hardest_triplets(
      positive,
      Candidates(*(jnp.concatenate(parts, axis=1) for parts in zip(*best, strict=True))),
      k=options.hardest,
      margin=options.margin,
      weighting=options.weighting,
      weighting_temperature=options.weighting_temperature,
    )

  forward = [block("query_passage", to_passages)]
  if options.query_side:
    forward.append(block("query_query", options.score(query, query)))
  per_example = direction(forward)
  if options.bidirectional:
    backward = [block("passage_query", square.T)]
    if options.passage_side:
      backward.append(block("passage_passage", options.score(passage[:q], passage[:q])))
    per_example = (per_example + direction(backward)) / 2

  dtype = per_example.dtype
  weights = pairs.mean_weights(batch, queries, dtype)

  def mean(values: Float[Array, "q"]) -> Float[Array, ""]:
    return jnp.sum(weights * values)

  # Of query to passage, against the passages alone.
  scores, present = forward[0]
  above = (scores >= positive[:, None]) & present
  violates = (scores > positive[:, None] - options.margin) & present
  metrics = {
    "accuracy": mean(1 - jnp.any(above, axis=1).astype(dtype)),
    "violations": mean(jnp.sum(violates, axis=1, dtype=dtype)),
    "negatives": sum(
      (mean(jnp.sum(each.present, axis=1, dtype=dtype)) for each in forward), jnp.zeros((), dtype)
    ),
  }
  return LossOutput(mean(per_example), metrics)


def _check(options: _Options, same_tower: str) -> None:
  for name, value, known in (
    ("weighting", options.weighting, WEIGHTINGS),
    ("same_tower", same_tower, SAME_TOWER),
  ):
    if value not in known:
      raise UserError(
        f"triplet: unknown {name} {value!r}{nearest(value, known) or '.'} Known: {', '.join(known)}."
      )
  if options.hardest < 1:
    raise UserError(f"triplet: hardest is {options.hardest}; expected 1 or more negatives per query.")
  if not options.margin >= 0:
    raise UserError(f"triplet: margin is {options.margin}; expected 0 or more, in units of the score.")
  if not options.weighting_temperature > 0:
    raise UserError(
      f"triplet: weighting_temperature is {options.weighting_temperature}; it must be above 0 (NGAME: 0.1)."
    )
  if options.passage_side and not options.bidirectional:
    raise UserError(
      f"triplet: same_tower {same_tower!r} adds passage-passage terms to the passage to query direction, which "
      "bidirectional=False leaves out. Set bidirectional=True, or same_tower='query'."
    )


def triplet(
  *,
  margin: float = 0.3,
  hardest: int = 1,
  weighting: str = "none",
  weighting_temperature: float = 0.1,
  same_tower: str = "none",
  bidirectional: bool = False,
  score: Score = scoring.cosine,
  mask_false_negatives: bool = True,
) -> Loss:
  """Returns the triplet margin loss on the `hardest` hardest negatives of each query in the batch.

  The loss of query i is `hardest_triplets` of s(q_i, p_i) and the s(q_i, p_j) of the other passages of the global
  batch, all hard negatives included; then the weighted mean over the queries, 0 if all weights are 0. Each query's
  terms are divided by k = hardest whatever the number of violations and of negatives: the scale of the gradient
  falls with k and with the progress of training.

  bidirectional: the mean of this and of the same from passage i to the queries, where hard negatives take no part.
  same_tower: "query" lets the other queries compete for the k places from query to passage, "passage" the other
    positives from passage to query, "both" both: SamToNe's same-tower negatives in a triplet loss.
  weighting, weighting_temperature: see `hardest_triplets`.
  mask_false_negatives: known positives of query i are never its negatives, in any column; without it only the own
    passage is spared.

  Scores: [q, p] in float32; O(q p r) time, O(q p) memory. Metrics, from query to passage: accuracy, the share of
  queries that score their own passage above all negatives among the passages; violations, the mean number of
  passages within the margin, hardest or not; negatives, the mean number of candidates per query.

  Raises: UserError for options outside their range, and while tracing when p is no multiple of q.

  Source: NGAME (Dahiya et al., 2023), equation 1 (its code: margin .3, hardest 10, "softmax_zero_logit" at
  temperature .1); same-tower negatives as SamToNe (Moiseev et al., 2023) proposes for its future work.

  Example: two queries, unit vectors equal to their passages: cosines 1 and 0, so that `triplet(margin=1.2)` is .2.
  """
  options = _Options(
    margin=margin,
    hardest=hardest,
    weighting=weighting,
    weighting_temperature=weighting_temperature,
    query_side=same_tower in ("query", "both"),
    passage_side=same_tower in ("passage", "both"),
    bidirectional=bidirectional,
    score=score,
    mask_false_negatives=mask_false_negatives,
  )
  _check(options, same_tower)
  return stateless(functools.partial(_compute, options=options))
