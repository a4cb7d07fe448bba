"""How many training points each label has: what propensities are made of (metrics/extreme.py)."""

import pathlib
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from retrieval_jax.data import features
from retrieval_jax.data.pair_table import PairTable, pair_table
from retrieval_jax.data.task_source import Source
from retrieval_jax.errors import UserError

TRAINING = ("train", "held_out")  # held-out points are training points too


class LabelCounts(NamedTuple):
  """counts: the training points of each corpus row (label); 0 for a label that is in no training point.

  num_points: all training points, those without labels included. Both count train and held_out, never test.
  """

  counts: Int[np.ndarray, "c"]
  num_points: int


def label_counts(source: Source, table: PairTable, *, num_labels: int, cache: pathlib.Path) -> LabelCounts:
  """Returns the counts of a source whose splits search one corpus, whatever its own split is.

  Taken from the tables of the training splits in the cache; a split that is not there yet is read once, as `load` of
  that split would.

  table: that of the source's own split.

  Raises: UserError if the source has no split "train", or no corpus that its splits share.

  Example: two points with the label rows [0, 1] and [1] give `LabelCounts([1, 2], 2)`.
  """
  splits = source.splits()
  training = [split for split in TRAINING if split in splits]
  if "train" not in training or any(
    features.corpus_of(split, splits) != features.CORPUS for split in training
  ):
    raise UserError(
      f"{source.name} declares propensities, which are counted in its split 'train' over the labels of its split "
      f"'corpus'; its splits: {', '.join(splits)}. Add the training points, or declare no propensities."
    )
  counts, num_points = np.zeros(num_labels, np.int64), 0
  for split in training:
    found = table if split == source.split else pair_table(source, cache, split)
    relevance = found.relevance
    counts += np.bincount(relevance.passage_rows[relevance.grades > 0], minlength=num_labels)
    num_points += relevance.num_queries
  return LabelCounts(counts, num_points)
