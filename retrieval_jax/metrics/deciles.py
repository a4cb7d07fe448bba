"""Deciles of labels from head to tail: which part of a metric comes from common passages and which from rare ones."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from retrieval_jax.errors import UserError
from retrieval_jax.metrics.judgements import Qrels, judge

GROUPS = 10
CUTOFFS = (1, 5)


class Decile(NamedTuple):
  """One of ten groups of passages (labels), and what was found of it.

  labels: how many passages it has. unseen: how many of them no training point has.
  most, least: the training points of its most and its least frequent passage.
  pairs: the relevant (query, passage) pairs of the split that is evaluated; share: of all such pairs.
  values: "p@K" -> what the decile contributes to P@K: the deciles sum to P@K. "recall@K" -> the share of its pairs that
    are among the first K results of their query; 0 if it has no pair.
  """

  labels: int
  unseen: int
  most: int
  least: int
  pairs: int
  share: float
  values: Mapping[str, float]


def groups_of(counts: Int[np.ndarray, "c"]) -> Int[np.ndarray, "c"]:
  """Returns the decile of each passage, 0 for the head.

  The passages are ordered by falling training frequency, equal ones by their row, and cut into ten groups of equally
  many passages: sizes differ by at most 1, the larger ones first. Fewer than ten passages are a group each.

  Example: `groups_of(np.array([3, 9]))` is `[1, 0]`.
  """
  order = np.argsort(-counts, kind="stable")
  groups = np.empty(len(counts), np.int64)
  for number, part in enumerate(np.array_split(order, min(GROUPS, max(1, len(counts))))):
    groups[part] = number
  return groups


def decile_values(
  rows: Int[np.ndarray, "q k"],
  *,
  qrels: Qrels,
  counts: Int[np.ndarray, "c"],
  relevant_from: float = 1,
  cutoffs: Sequence[int] = CUTOFFS,
) -> list[Decile]:
  """Returns the deciles, the head first.

  rows, qrels, relevant_from: as `evaluate_ranking` takes them. counts: how many training points each passage has.

  Raises: UserError for no passages, judgements of passages without a count, and for what `judge` refuses.

  Source: Dahiya et al. (2023), "NGAME", speak of a decile-wise analysis, in an appendix that is not public: the rule of
  `groups_of` is ours.

  Example: of `decile_values(...)` the sum of `values["p@5"]` is the P@5 of the ranking.
  """
  if not len(counts) or qrels.rows.max(initial=0) >= len(counts):
    raise UserError(
      f"deciles: {len(counts)} training counts, and judgements up to row {qrels.rows.max(initial=0)}; expected one count "
      "a passage."
    )
  groups = groups_of(counts)
  total = int(groups.max()) + 1
  # A relevant passage has its decile, from 1, in place of its grade.
  marks = np.where(qrels.grades >= relevant_from, 1.0 + groups[qrels.rows], 0.0)
  judged = judge(rows, qrels._replace(grades=marks))
  num_judged = max(1, int(judged.judged.sum()))

  def per_group(grades: np.ndarray) -> np.ndarray:
    return np.bincount(grades.astype(np.int64) - 1, minlength=total)

  pairs = per_group(judged.ideal.grades)
  found = {cutoff: per_group(judged.hits.before(cutoff).grades) for cutoff in cutoffs}
  deciles = []
  for number in range(total):
    own = counts[groups == number]
    values = {f"p@{cutoff}": float(hits[number] / (cutoff * num_judged)) for cutoff, hits in found.items()}
    values |= {
      f"recall@{cutoff}": float(hits[number] / max(1, pairs[number])) for cutoff, hits in found.items()
    }
    share = float(pairs[number] / max(1, pairs.sum()))
    sizes = (len(own), int(np.sum(own == 0)), int(own.max()), int(own.min()), int(pairs[number]))
    deciles.append(Decile(*sizes, share, values))
  return deciles
