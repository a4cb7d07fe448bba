"""Fusion models: one score for a pair of query and label out of what both heads say of it and of how rare the label is."""

from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np
from jaxtyping import Bool, Float

from retrieval_jax.errors import UserError


class PairFeatures(NamedTuple):
  """What is known of pairs of a query and a label (a passage), a column each.

  classifier: inner product of the query's embedding with the label's classifier w_l.
  siamese: inner product of the query's embedding with that of the label's text.
  log_inverse_propensity: log of 1 / p_l of the label; 0 for all in a fusion that does not look at it.
  """

  classifier: Float[np.ndarray, "x"]
  siamese: Float[np.ndarray, "x"]
  log_inverse_propensity: Float[np.ndarray, "x"]

  def matrix(self) -> Float[np.ndarray, "x 3"]:
    """Returns the columns side by side, float32."""
    return np.stack(self, axis=1).astype(np.float32, copy=False)

  def where(self, kept: Bool[np.ndarray, "x"]) -> "PairFeatures":
    """Returns the features of the pairs that are marked."""
    return PairFeatures(*(column[kept] for column in self))


class FusionModel(Protocol):
  """A fitted model: a NamedTuple of arrays and numbers, so that it is stored as such."""

  def scores(self, features: PairFeatures) -> Float[np.ndarray, "x"]:
    """Returns float32 scores; within a query the higher is the better label."""
    ...

  def describe(self) -> dict[str, object]:
    """Returns what a person wants to know of it, for a JSON file."""
    ...


# (features, whether each pair is one of a query and its label, how many pairs it stands for) -> the model
Fit = Callable[[PairFeatures, Bool[np.ndarray, "x"], Float[np.ndarray, "x"]], FusionModel]


def check_pairs(
  features: PairFeatures, targets: Bool[np.ndarray, "x"], weights: Float[np.ndarray, "x"]
) -> None:
  """Raises UserError for pairs that nothing can be fitted on: all or none relevant, or a number that is not finite."""
  positives = int(np.count_nonzero(targets))
  if not 0 < positives < len(targets):
    raise UserError(
      f"{positives:,} of {len(targets):,} candidates are labels of their query; expected some, and not all. Search deeper "
      "(FUSION_DEPTH), or look whether classifiers and checkpoint belong together."
    )
  for name, column in (*features._asdict().items(), ("weight", weights)):
    if not np.isfinite(column).all():
      raise UserError(
        f"fusion: the feature {name!r} of {np.count_nonzero(~np.isfinite(column)):,} candidates is not finite. Look at "
        "the training loss: the model or its classifiers have diverged."
      )
