"""t-SNE in numpy, for the few hundred points of a figure: points that are neighbours stay neighbours in the plane."""

from typing import Final

import numpy as np
from jaxtyping import Float

EXAGGERATION: Final = 12.0  # of the neighbours' attraction, in the first half of the iterations
SEARCHES: Final = 40  # bisections of a point's width: it is then known to 1e-9 of its range
TINY: Final = 1e-12


def tsne(
  x: Float[np.ndarray, "e d"],
  start: Float[np.ndarray, "e 2"],
  *,
  perplexity: float = 30.0,
  iterations: int = 500,
) -> Float[np.ndarray, "e 2"]:
  """Returns places in the plane, where to minimise the Kullback-Leibler divergence of P from Q: p_ij is high for rows of x that are
  near each other, q_ij is proportional to 1 / (1 + |y_i - y_j|^2).

  start: where the points begin, such as their principal components; it is scaled to be small. perplexity: about how many neighbours
  a point has; at most a third of the points. The result is a function of the arguments: nothing is drawn at random.

  Cost: every pair of points in every iteration: 500 points and 500 iterations take 2 s on one core, and a few MB.

  Source: van der Maaten and Hinton (2008), "Visualizing Data using t-SNE", algorithm 1, with the gains of Jacobs (1988) that
  it names, and exaggeration for the first half.

  Example: `tsne(x, x[:, :2])`.
  """
  count = len(x)
  p = joint_probabilities(x, min(perplexity, (count - 1) / 3)).astype(np.float32)
  y = (1e-4 * start / max(float(np.std(start[:, 0])), TINY)).astype(np.float32)
  rate = max(count / EXAGGERATION / 4, 50.0)
  step, gains = np.zeros_like(y), np.ones_like(y)
  for iteration in range(iterations):
    early = iteration < iterations // 2
    slope = _gradient(y, EXAGGERATION * p if early else p)
    gains = np.maximum(np.where(slope * step < 0, gains + 0.2, gains * 0.8), 0.01)
    step = (0.5 if early else 0.8) * step - rate * gains * slope
    y = y + step
    y -= y.mean(axis=0)
  return y


def joint_probabilities(x: Float[np.ndarray, "e d"], perplexity: float) -> Float[np.ndarray, "e e"]:
  """Returns p_ij = (p_j|i + p_i|j) / 2e, where p_j|i falls with exp(-|x_i - x_j|^2 / 2 s_i^2), and s_i is such that p_.|i has the
  perplexity: 2 to the power of its entropy in bits. All sum to 1; the diagonal is 0."""
  distances = _squared_distances(np.asarray(x, np.float64))
  np.fill_diagonal(distances, np.inf)
  nearest = distances.min(axis=1, keepdims=True)
  spread = np.maximum(np.median(distances, axis=1, keepdims=True) - nearest, TINY)
  low, high = np.full_like(spread, -30.0), np.full_like(spread, 30.0)
  conditional = np.zeros_like(distances)
  for _ in range(SEARCHES):
    middle = (low + high) / 2
    weights = np.exp(-(distances - nearest) * np.exp(middle) / spread)
    conditional = weights / weights.sum(axis=1, keepdims=True)
    entropy = -np.sum(conditional * np.log(np.maximum(conditional, TINY)), axis=1, keepdims=True)
    wide = entropy > np.log(perplexity)
    low, high = np.where(wide, middle, low), np.where(wide, high, middle)
  return (conditional + conditional.T) / (2 * len(x))


def divergence(p: Float[np.ndarray, "e e"], y: Float[np.ndarray, "e 2"]) -> float:
  """Returns the Kullback-Leibler divergence that `tsne` minimises."""
  q = 1 / (1 + _squared_distances(np.asarray(y, np.float64)))
  np.fill_diagonal(q, 0)
  q /= q.sum()
  return float(np.sum(p * np.log(np.maximum(p, TINY) / np.maximum(q, TINY))))


def _gradient(y: Float[np.ndarray, "e 2"], p: Float[np.ndarray, "e e"]) -> Float[np.ndarray, "e 2"]:
  """Returns 4 sum_j (p_ij - q_ij) (y_i - y_j) / (1 + |y_i - y_j|^2)."""
  near = 1 / (1 + _squared_distances(y))
  np.fill_diagonal(near, 0)
  pull = (p - near / near.sum()) * near
  return 4 * (pull.sum(axis=1, keepdims=True) * y - pull @ y)


def _squared_distances(x: Float[np.ndarray, "e d"]) -> Float[np.ndarray, "e e"]:
  squares = np.sum(x**2, axis=1)
  return np.maximum(squares[:, None] + squares[None, :] - 2 * (x @ x.T), 0)
