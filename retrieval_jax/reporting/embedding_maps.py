"""Maps of embeddings of both towers in the plane: principal components by numpy, t-SNE by scikit-learn where it is installed."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

DIMENSIONS = 50  # that t-SNE starts from: its neighbours are those of so many principal components
PERPLEXITY = 30.0
ITERATIONS = 500


class PlaneMap(NamedTuple):
  """Points of both towers in one plane. share: how much of all variance the plane holds; None for t-SNE, which has no such."""

  queries: Float[np.ndarray, "e 2"]
  passages: Float[np.ndarray, "e 2"]
  share: float | None = None


def principal_map(queries: Float[np.ndarray, "e d"], passages: Float[np.ndarray, "e d"]) -> PlaneMap:
  """Returns the first two principal components of both towers' embeddings together."""
  points, variances = _principal(np.concatenate([queries, passages]), 2)
  total = float(np.sum(variances))
  share = float(np.sum(variances[:2]) / total) if total else 0.0
  return PlaneMap(points[: len(queries)], points[len(queries) :], share)


def neighbour_map(queries: Float[np.ndarray, "e d"], passages: Float[np.ndarray, "e d"]) -> PlaneMap | None:
  """Returns t-SNE of both towers' embeddings together, always the same one; None where scikit-learn is not installed, and for
  fewer than 3 pairs.

  Cost: 0.002 s a pair or so.

  Source: van der Maaten and Hinton (2008), "Visualizing Data using t-SNE".
  """
  count = 2 * len(queries)
  if count < 6:
    return None
  try:
    from sklearn.manifold import TSNE
  except ImportError:
    return None
  both = np.concatenate([queries, passages])
  wide, _ = _principal(both, DIMENSIONS)
  spread = max(float(np.std(wide[:, 0])), 1e-12)
  start = (1e-4 * wide[:, :2] / spread).astype(np.float32)
  perplexity = min(PERPLEXITY, (count - 1) / 3)
  tsne = TSNE(init=start, perplexity=perplexity, max_iter=ITERATIONS, random_state=0)  # pyright: ignore[reportArgumentType]
  points = tsne.fit_transform(wide.astype(np.float32))
  return PlaneMap(points[: len(queries)], points[len(queries) :])


def _principal(
  rows: Float[np.ndarray, "e d"], count: int
) -> tuple[Float[np.ndarray, "e k"], Float[np.ndarray, "m"]]:
  """Returns the first principal components of each row, at least two, and the variances of all."""
  centred = rows.astype(np.float64) - rows.mean(axis=0, dtype=np.float64)
  left, values, _ = np.linalg.svd(centred, full_matrices=False)
  points = (left * values)[:, :count]
  if points.shape[1] < 2:
    points = np.pad(points, ((0, 0), (0, 2 - points.shape[1])))
  return points, values**2
