"""Numbers over steps: out of the training log, and thinned to as many points as a figure shows."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

MOST = 300  # points of a curve


class Series(NamedTuple):
  """Values at ascending steps. group: so many values stand behind each point, which is their mean."""

  steps: Float[np.ndarray, "e"]
  values: Float[np.ndarray, "e"]
  group: int = 1


def all_series(log: Sequence[Mapping[str, Any]]) -> dict[str, Series]:
  """Returns every number of the log over its steps, in the order in which they first come.

  A resumed training writes steps again that it had reached before: what stands earlier in the file at those steps and after
  them is gone with the checkpoint that was not there. What was not finite (null) is left out.

  Example: `all_series([{"step": 1, "time": 0.0, "loss": 2.0}])["loss"].values` is `[2]`.
  """
  found: dict[str, list[tuple[int, float]]] = {}
  for record in log:
    for name, value in record.items():
      if name in ("step", "time") or isinstance(value, bool) or not isinstance(value, int | float):
        continue
      points = found.setdefault(name, [])
      while points and points[-1][0] >= record["step"]:
        points.pop()
      points.append((record["step"], float(value)))
  arrays = {name: np.array(points, np.float64) for name, points in found.items()}
  return {name: Series(array[:, 0], array[:, 1]) for name, array in arrays.items()}


def thinned(series: Series, most: int = MOST) -> Series:
  """Returns a series of at most `most` points: means of neighbours, equally many behind each but the last."""
  group = -(-len(series.steps) // most)
  if group <= 1:
    return series
  starts = np.arange(0, len(series.steps), group)
  sizes = np.diff(np.append(starts, len(series.steps)))
  steps, values = (np.add.reduceat(part, starts) / sizes for part in series[:2])
  return Series(steps, values, group)
