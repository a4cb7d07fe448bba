"""Maps of embeddings of both towers in the plane: principal components, and t-SNE."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from retrieval_jax.reporting.neighbour_embedding import tsne

DIMENSIONS = 50  # that t-SNE starts from: its neighbours are those of so many principal components


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


def neighbour_map(queries: Float[np.ndarray, "e d"], passages: Float[np.ndarray, "e d"]) -> PlaneMap:
  """Returns t-SNE of both towers' embeddings together, always the same one. There are at least 3 pairs."""
  wide, _ = _principal(np.concatenate([queries, passages]), DIMENSIONS)
  points = tsne(wide, wide[:, :2])
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
