"""The tasks of a mixture: which examples are of which, how often they come up, and who may be whose negative."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int


class TaskPart(NamedTuple):
  """One task of a mixture. Its examples follow those of the task before it.

  rate: its share of the training's examples, in the unit of the other tasks' rates.
  in_batch_negatives: False: its queries have their own hard negatives alone, and its examples are negatives to nobody.
  """

  name: str
  num_examples: int
  rate: float
  in_batch_negatives: bool = True


def in_batch_rows(parts: Sequence[TaskPart], indices: Int[np.ndarray, "q"]) -> Bool[np.ndarray, "q"] | None:
  """Returns which examples take part in in-batch negatives, None if all tasks' do; padding (index -1) is True.

  Example: with 5 examples of a task without in-batch negatives before those of another, [3, 5, -1] is
  `[False, True, True]`.
  """
  if all(part.in_batch_negatives for part in parts):
    return None
  ends = np.cumsum([part.num_examples for part in parts])
  switches = np.array([part.in_batch_negatives for part in parts])
  return np.where(indices < 0, True, switches[np.searchsorted(ends, np.maximum(indices, 0), side="right")])
