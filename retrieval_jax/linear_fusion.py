"""Linear fusion: logistic regression on the features of a pair, so that the sigmoid of a score is a probability."""

from typing import Final, NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from retrieval_jax.errors import UserError
from retrieval_jax.fusion_model import PairFeatures, check_pairs

RIDGE: Final = (
  1e-6  # on squared weights per standard deviation: finite weights where a feature tells all pairs apart
)
MAX_ITERATIONS: Final = 500


class LinearFusion(NamedTuple):
  """score = weights . features + bias, the log-odds that the label is the query's.

  weights: of the features as they are, not standardised, in the order of PairFeatures. One may be negative: a classifier
    begins as its label's embedding, so classifier - siamese is what it has learnt, and more of that may rank better.
  """

  weights: Float[np.ndarray, "3"]
  bias: float

  def scores(self, features: PairFeatures) -> Float[np.ndarray, "x"]:
    """Returns the log-odds, float32; added up in float64.

    Example: weights (2, 1, 0) and bias -1 give the pair with classifier 0.5 and siamese 0.25 the score 0.25.
    """
    total = np.full(len(features.classifier), self.bias, np.float64)
    for weight, column in zip(self.weights, features, strict=True):
      total += float(weight) * column
    return total.astype(np.float32)

  def describe(self) -> dict[str, object]:
    """Returns the weight of each feature by its name, and the bias."""
    names = PairFeatures._fields
    return {
      **{name: float(value) for name, value in zip(names, self.weights, strict=True)},
      "bias": float(self.bias),
    }


def fit_linear(
  features: PairFeatures, targets: Bool[np.ndarray, "x"], weights: Float[np.ndarray, "x"]
) -> LinearFusion:
  """Returns the logistic regression of targets on features: the least mean of the weighted log-loss.

  weights: how many pairs each stands for. A feature that is equal everywhere gets the weight 0.

  Time: some tens of passes over the pairs. Memory: about 40 bytes a pair beside the features.

  Raises: UserError for pairs that nothing can be fitted on, and if the minimum is not found.

  Source: Cox, 1958 (logistic regression); the minimiser is scipy's L-BFGS.

  Example: `fit_linear(features, targets, np.ones(len(targets)))`.
  """
  from scipy import optimize

  check_pairs(features, targets, weights)
  shares = np.asarray(weights, np.float64) / np.sum(weights, dtype=np.float64)
  means, deviations, columns = [], [], []
  for column in features:
    mean = shares @ column
    deviation = np.sqrt(shares @ (column - mean) ** 2)
    varies = deviation > 1e-6 * max(abs(mean), 1e-6)  # less is the rounding of float32
    means.append(mean)
    deviations.append(deviation if varies else np.inf)
    columns.append(((column - mean) / deviation if varies else np.zeros(len(column))).astype(np.float32))
  signs = np.where(targets, 1.0, -1.0)

  def loss(parameters: Float[np.ndarray, "4"]) -> tuple[float, Float[np.ndarray, "4"]]:
    slopes, bias = parameters[:-1], parameters[-1]
    margins = np.full(len(signs), bias)
    for slope, column in zip(slopes, columns, strict=True):
      margins += slope * column
    margins *= signs
    value = shares @ np.logaddexp(0, -margins) + 0.5 * RIDGE * slopes @ slopes
    pull = -shares * signs * _sigmoid(-margins)  # of the loss by each log-odds
    gradient = np.array([*(pull @ column for column in columns), pull.sum()])
    gradient[:-1] += RIDGE * slopes
    return float(value), gradient

  positive = float(shares @ targets)
  start = np.array([0.0] * len(columns) + [np.log(positive / (1 - positive))])
  found = optimize.minimize(
    loss,
    start,
    jac=True,
    method="L-BFGS-B",
    options={"maxiter": MAX_ITERATIONS, "ftol": 1e-13, "gtol": 1e-9},
  )
  if not found.success or not np.isfinite(found.x).all():
    raise UserError(f"fit_linear: no minimum was found ({found.message}). Fit fusion/tree.gin instead.")
  slopes = found.x[:-1] / np.array(deviations)
  return LinearFusion(slopes, float(found.x[-1] - slopes @ np.array(means)))


def _sigmoid(x: Float[np.ndarray, "x"]) -> Float[np.ndarray, "x"]:
  return 0.5 * (1 + np.tanh(0.5 * x))
