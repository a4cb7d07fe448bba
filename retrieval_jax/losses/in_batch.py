"""In-batch contrastive losses: sampled softmax over the passages of the batch, SamToNe's same-tower negatives, PAIR."""

from collections.abc import Sequence

from retrieval_jax import scoring
from retrieval_jax.errors import UserError, nearest
from retrieval_jax.losses import softmax
from retrieval_jax.losses.base import Loss
from retrieval_jax.losses.pairs import Block
from retrieval_jax.losses.softmax_terms import Options, Softmax, Term
from retrieval_jax.losses.temperature import Temperature
from retrieval_jax.scoring import Score

SIDES = ("query", "passage", "both")
# The one-denominator loss joins these; hard negatives stand in the first and the last.
JOINT_BLOCKS: dict[str, Block] = {
  "query_passage": "query_passage",
  "passage_query": "passage_query",
  "query_query": "query_query",
  "passage_passage": "passage_candidate",
}
DEFAULTS = Options()


def in_batch_softmax(
  *,
  temperature: Temperature = 0.01,
  bidirectional: bool = True,
  score: Score = scoring.cosine,
  mask_false_negatives: bool = True,
  options: Options = DEFAULTS,
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
  terms = _directions(bidirectional)
  return softmax.softmax_loss(
    "in_batch_softmax", Softmax(terms, temperature, score, mask_false_negatives, options)
  )


def samtone(
  *,
  temperature: Temperature = 0.01,
  bidirectional: bool = True,
  side: str = "query",
  score: Score = scoring.cosine,
  mask_false_negatives: bool = True,
  options: Options = DEFAULTS,
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
    raise UserError(f"samtone: unknown side {side!r}{nearest(side, SIDES) or '.'} Known: {', '.join(SIDES)}.")
  if side != "query" and not bidirectional:
    raise UserError(
      f"samtone: side {side!r} adds passage-passage terms to the passage to query direction, which "
      "bidirectional=False leaves out. Set bidirectional=True, or side='query'."
    )
  terms = _directions(bidirectional, query_side=side != "passage", passage_side=side != "query")
  return softmax.softmax_loss("samtone", Softmax(terms, temperature, score, mask_false_negatives, options))


def pair(
  *,
  alpha: float = 0.1,
  positive_in_denominator: bool = True,
  temperature: Temperature = 0.01,
  bidirectional: bool = True,
  score: Score = scoring.cosine,
  mask_false_negatives: bool = True,
  options: Options = DEFAULTS,
) -> Loss:
  """Returns PAIR's loss: (1 - alpha) times `in_batch_softmax` plus alpha times the passage-centric loss
    -log( e^(s(q_i,p_i)/t) / (e^(s(q_i,p_i)/t) + sum_{j != i} e^(s(p_i,p_j)/t)) ),
  in the notation of `in_batch_softmax`; j runs over the other queries' passages without hard negatives, masked as
  SamToNe's passage side is. Without positive_in_denominator the passage-centric loss lacks its first summand, as the
  SamToNe paper prints it; it may then be negative, and is 0 for a row without negatives.

  PAIR trains in two stages, this loss first and then the plain one: configs/losses/pair_two_stage.gin.

  Raises: UserError for an alpha outside [0, 1], and as `in_batch_softmax`.

  Source: PAIR (Ren et al., 2021), equations 3 to 5, alpha 0.1; SamToNe (Moiseev et al., 2023), section 3.

  Example: `pair(alpha=0.0)` is `in_batch_softmax()`.
  """
  if not 0 <= alpha <= 1:
    raise UserError(f"pair: alpha is {alpha}; expected the share of the passage-centric loss, in [0, 1].")
  plain = tuple(term._replace(weight=(1 - alpha) * term.weight) for term in _directions(bidirectional))
  centric = Term(alpha, ("passage_passage",), int(positive_in_denominator))
  return softmax.softmax_loss(
    "pair", Softmax((*plain, centric), temperature, score, mask_false_negatives, options)
  )


def joint_softmax(
  *,
  blocks: Sequence[str] = tuple(JOINT_BLOCKS),
  temperature: Temperature = 0.01,
  score: Score = scoring.cosine,
  mask_false_negatives: bool = True,
  options: Options = DEFAULTS,
) -> Loss:
  """Returns the softmax with one denominator for all blocks of scores, GTE's improved contrastive loss by default:
    -log( e^(s(q_i,p_i)/t) / (sum_j e^(s(q_i,p_j)/t) + sum_j e^(s(q_j,p_i)/t)
                              + sum_{j != i} e^(s(q_i,q_j)/t) + sum_{j != i} e^(s(p_i,p_j)/t)) ).
  blocks names the sums that take part, query_passage among them: query_passage, passage_query, query_query,
  passage_passage. As the formula has it, the positive stands in both of the first two, so the loss of a batch without
  negatives is log 2 with both of them. Hard negatives are columns of the first sum and of the last (there not those
  of the row's own query). All else as in `in_batch_softmax`, the first block's metrics included.

  Raises: UserError for an unknown block, one named twice, or without query_passage; and as `in_batch_softmax`.

  Source: GTE (Li et al., 2023, arXiv 2308.03281), equation 2.

  Example: `joint_softmax(blocks=("query_passage",))` is `in_batch_softmax(bidirectional=False)`.
  """
  if isinstance(blocks, str) or len(set(blocks)) < len(blocks) or "query_passage" not in blocks:
    raise UserError(
      f"joint_softmax: blocks is {blocks!r}; expected a list of different blocks, query_passage among them, of "
      f"{', '.join(JOINT_BLOCKS)}."
    )
  for block in blocks:
    if block not in JOINT_BLOCKS:
      raise UserError(
        f"joint_softmax: unknown block {block!r}{nearest(block, JOINT_BLOCKS) or '.'} Known: {', '.join(JOINT_BLOCKS)}."
      )
  ordered: tuple[Block, ...] = tuple(JOINT_BLOCKS[block] for block in JOINT_BLOCKS if block in blocks)
  term = Term(1.0, ordered, 1 + ("passage_query" in blocks))
  return softmax.softmax_loss(
    "joint_softmax", Softmax((term,), temperature, score, mask_false_negatives, options)
  )


def _directions(
  bidirectional: bool, *, query_side: bool = False, passage_side: bool = False
) -> tuple[Term, ...]:
  """Returns the terms of one or both directions; query_side, passage_side: whether they have same-tower negatives."""
  weight = 0.5 if bidirectional else 1.0
  forward = Term(weight, ("query_passage", "query_query") if query_side else ("query_passage",))
  backward = Term(weight, ("passage_query", "passage_passage") if passage_side else ("passage_query",))
  return (forward, backward) if bidirectional else (forward,)
