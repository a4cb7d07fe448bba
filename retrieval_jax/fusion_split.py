"""The split that a fusion is fitted on: points whose labels neither the training nor the evaluation looks at."""

import dataclasses
import sys
from typing import Any, cast

import jax
import numpy as np

from retrieval_jax.classifiers import LabelClassifiers
from retrieval_jax.data.features import is_corpus
from retrieval_jax.data.pair_table import pair_table
from retrieval_jax.data.task_source import Source
from retrieval_jax.errors import UserError, nearest
from retrieval_jax.fusion_file import ARRAYS, fitted_split
from retrieval_jax.paths import cache_dir


def fitting_source(source: Source, *, split: str = "held_out") -> Source:
  """Returns the source at `split`.

  Raises: UserError for "test", a split that is not there, and what is no source of one task.

  Example: `fitting_source(ExtremeFolder("lf_titles", held_out=0.05))`.
  """
  if not isinstance(source, Source):
    raise UserError(
      f"{type(source).__name__}: expected one task to fit a fusion on; a mixture has no labels of its own."
    )
  if split == "test":
    raise UserError(
      "FUSION_SPLIT=test: a fusion that has seen the labels of the test points makes every result on them worthless. Hold "
      "training points out (--gin.HELD_OUT=0.05 for data/extreme.gin, in the training too), or name another split."
    )
  splits = [name for name in source.splits() if not is_corpus(name)]
  if split not in splits:
    hint = (
      ". Hold training points out with --gin.HELD_OUT=0.05, in the training too, or name another with FUSION_SPLIT."
      if split == "held_out"
      else nearest(split, splits) or ". Correct FUSION_SPLIT."
    )
    raise UserError(f"{source.name} has no split {split!r}; its splits: {', '.join(splits)}{hint}")
  if dataclasses.is_dataclass(source):
    return cast(Source, dataclasses.replace(cast(Any, source), split=split))
  return cast(Any, source)._replace(split=split)


def check_training_points(classifiers: LabelClassifiers, split: str) -> None:
  """Warns on stderr of the split "train", whose labels the heads were trained to give.

  Raises: UserError where such a fusion would replace one that was fitted on other points.
  """
  if split != "train":
    return
  before = fitted_split(classifiers)
  if before not in (None, "train"):
    path = classifiers.folder / ARRAYS
    raise UserError(
      f"FUSION_SPLIT=train: {path} was fitted on the split {before!r}, and one fitted on the points that the classifiers "
      "were trained on would replace it. Leave FUSION_SPLIT out, or delete that file first."
    )
  if jax.process_index() == 0:
    print(
      "warning: FUSION_SPLIT=train: the classifiers were trained to give these very labels, so the fusion learns to trust "
      "them more than other points bear out, and the numbers below are of no use. Fit on points that are held out.",
      file=sys.stderr,
    )


def warn_if_seen(classifiers: LabelClassifiers, training: Source) -> None:
  """Says on stderr if the classifiers were trained on more or fewer points than the split `training` has now, as where the
  points that are held out here were not held out of the training."""
  saved = classifiers.record.get("points")
  if saved is None or classifiers.record.get("split") != training.split:
    return
  now = training_points(training)
  if saved != now:
    print(
      f"warning: the classifiers were trained on {saved:,} points of {training.name}/{training.split}, which has {now:,} "
      "now: they may know the labels of the points that are held out here. Train encoder and classifiers with the same "
      "HELD_OUT as is given here.",
      file=sys.stderr,
    )


def training_points(source: Source) -> int:
  """Returns how many points of the source's split have labels."""
  return int(np.count_nonzero(pair_table(source, cache_dir()).relevance.counts))
