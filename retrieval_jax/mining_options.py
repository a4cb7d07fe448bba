"""MiningOptions: which of the passages found for a query become its hard negatives."""

import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from retrieval_jax.data.row_hash import mixed
from retrieval_jax.errors import UserError

# The rules that leave a passage out, in the order in which they are asked; each passage counts for the first.
RULES = (
  "positive",
  "identical",
  "filtered",
  "equal_text",
  "max_score",
  "min_score",
  "absolute_margin",
  "relative_margin",
)


class MiningOptions(NamedTuple):
  """Ranks are counted from 1 among what is no positive and not the query itself; scores are the searcher's.

  per_query: hard negatives of each query, as far as there are so many candidates.
  first_rank, last_rank: the candidates. The first ranks of a good searcher are often answers that nobody judged.
  absolute_margin: a candidate scores at most the positive's score less this.
  relative_margin: a candidate scores at most the positive's score less this share of its size: with 0.05, 95% of a
    positive score. Where a query has several positives both take the lowest-scoring one.
  min_score, max_score: a candidate scores from the one to the other, both included.
  sample: draw uniformly among the candidates, a function of seed, query and passage alone, instead of taking the first.

  Example: `MiningOptions(per_query=8, first_rank=10, last_rank=200, relative_margin=0.05, sample=True)`.
  """

  per_query: int = 8
  first_rank: int = 1
  last_rank: int = 100
  absolute_margin: float | None = None
  relative_margin: float | None = None
  min_score: float | None = None
  max_score: float | None = None
  sample: bool = False
  seed: int = 0

  @property
  def has_margin(self) -> bool:
    """Returns whether the scores of positives play a part."""
    return self.absolute_margin is not None or self.relative_margin is not None

  def check(self) -> None:
    """Raises UserError for numbers that cannot be, with the macro that sets them."""
    for name, value, least in (
      ("NEGATIVES_PER_QUERY", self.per_query, 1),
      ("FIRST_RANK", self.first_rank, 1),
      ("LAST_RANK", self.last_rank, 1),
      ("MINING_SEED", self.seed, 0),
    ):
      if type(value) is not int or value < least:
        raise UserError(f"{name}={value!r}: expected a whole number of at least {least}.")
    if self.last_rank < self.first_rank + self.per_query - 1:
      raise UserError(
        f"LAST_RANK={self.last_rank}: ranks {self.first_rank} to {self.last_rank} have room for fewer than "
        f"NEGATIVES_PER_QUERY={self.per_query}. Raise LAST_RANK to at least {self.first_rank + self.per_query - 1}."
      )
    for name, value in (
      ("ABSOLUTE_MARGIN", self.absolute_margin),
      ("RELATIVE_MARGIN", self.relative_margin),
      ("MIN_SCORE", self.min_score),
      ("MAX_SCORE", self.max_score),
    ):
      if value is not None and (isinstance(value, bool) or not math.isfinite(value)):
        raise UserError(f"{name}={value!r}: expected a finite number, or None.")
    if self.min_score is not None and self.max_score is not None and self.min_score > self.max_score:
      raise UserError(
        f"MIN_SCORE={self.min_score} is above MAX_SCORE={self.max_score}: no score lies between."
      )

  def by_score(
    self, scores: Float[np.ndarray, "q k"], positive_scores: Float[np.ndarray, "q"]
  ) -> dict[str, Bool[np.ndarray, "q k"]]:
    """Returns for each rule about scores that is set, by its name, which results it leaves out."""
    positive = positive_scores[:, None]
    left_out = {}
    if self.max_score is not None:
      left_out["max_score"] = scores > self.max_score
    if self.min_score is not None:
      left_out["min_score"] = scores < self.min_score
    if self.absolute_margin is not None:
      left_out["absolute_margin"] = scores > positive - self.absolute_margin
    if self.relative_margin is not None:
      left_out["relative_margin"] = scores > positive - self.relative_margin * np.abs(positive)
    return left_out

  def choose(
    self, candidates: Bool[np.ndarray, "q k"], pair_numbers: Int[np.ndarray, "q k"]
  ) -> Bool[np.ndarray, "q k"]:
    """Returns which candidates are taken: at most per_query of each row, the first ones, or with `sample` those
    with the smallest hashes of (seed, pair)."""
    if not self.sample:
      return candidates & (np.cumsum(candidates, axis=1) <= self.per_query)
    drawn = mixed(pair_numbers.reshape(-1), self.seed).reshape(candidates.shape)
    drawn = np.where(candidates, drawn, np.iinfo(np.uint64).max)
    first = np.argsort(drawn, axis=1, kind="stable")[:, : self.per_query]
    taken = np.zeros(candidates.shape, bool)
    np.put_along_axis(taken, first, True, axis=1)
    return taken & candidates
