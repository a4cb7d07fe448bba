"""The propensities of a task in extreme classification: what its passages weigh in the ps metrics, and what of."""

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from retrieval_jax.data.dataset import RetrievalData
from retrieval_jax.metrics.extreme import inverse_propensity


class Propensities(NamedTuple):
  """What the weights are made of.

  a, b: the constants that the task declares. num_points: all training points.
  counts: the training points of each passage row, and of the judged passages that the corpus lacks, 0, behind them.
  """

  a: float
  b: float
  num_points: int
  counts: Int[np.ndarray, "c"]

  @classmethod
  def of(cls, data: RetrievalData) -> "Propensities | None":
    """Returns those of a task that declares its constants and has label counts; None: it does not."""
    if data.label_counts is None or data.info.propensity is None:
      return None
    lost = 0 if data.dangling is None else 1 + int(data.dangling.passage_rows.max(initial=-1))
    return cls(
      *data.info.propensity, data.label_counts.num_points, np.pad(data.label_counts.counts, (0, lost))
    )

  @property
  def weights(self) -> Float[np.ndarray, "c"]:
    """The inverse propensity of each passage."""
    return inverse_propensity(self.counts, self.num_points, self.a, self.b)

  def record(self) -> dict[str, Any]:
    """Returns what one must know to compute the weights again, for metrics.json."""
    return {"a": self.a, "b": self.b, "training_points": self.num_points}
