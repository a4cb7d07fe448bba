"""Which points an encoder was trained on, by its checkpoint: whether it may know those that are held out now."""

import pathlib
import sys
from collections.abc import Callable
from typing import Any

import jax

from retrieval_jax.checkpoints import PREFIX, Checkpoints
from retrieval_jax.searchers import DenseSearcher


def warn_if_encoder_saw(dense: DenseSearcher, task: str, split: str, points: Callable[[], int]) -> None:
  """Says on stderr if the encoder was trained on more points of the split than it has now, as where points that are held
  out here were not held out of its training. Says nothing where it cannot be told: of pretrained weights, of a training on
  another task, and of a checkpoint that does not note its points.

  points: gives the number of points with labels that the split has now; asked only if there is something to compare.
  """
  path = pathlib.Path(dense.checkpoint)
  if path.name != f"{PREFIX}_{dense.step}" or not path.is_dir():
    return
  with Checkpoints(path.parent, read_only=True) as checkpoints:
    saved: dict[str, Any] = checkpoints.manifest(dense.step)
  seen = saved.get("points")
  if seen is None or (saved.get("task"), saved.get("split")) != (task, split):
    return
  now = points()
  if seen > now and jax.process_index() == 0:
    print(
      f"warning: the encoder {path} was trained on other data than the training split of this configuration: on {seen:,} "
      f"points of {task}/{split}, which has {now:,} now. It may have seen the points that are held out here; what is fitted "
      "or measured on them looks better than it is. Train the encoder with the same HELD_OUT as is given here.",
      file=sys.stderr,
    )
