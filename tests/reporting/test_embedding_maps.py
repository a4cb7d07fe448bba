"""Maps: principal components by hand, and t-SNE against what it minimises and against scikit-learn."""

import numpy as np
import pytest

from retrieval_jax.reporting.embedding_maps import neighbour_map, principal_map
from retrieval_jax.reporting.neighbour_embedding import divergence, joint_probabilities, tsne


def test_principal_components_by_hand():
  # Centred rows are (+-3, 0, 0) and (0, +-1, 0): variances 18 and 2 of 20.
  queries = np.array([[4.0, 1, 1], [-2, 1, 1]], np.float16)
  passages = np.array([[1.0, 2, 1], [1, 0, 1]], np.float16)
  found = principal_map(queries, passages)
  assert found.share == pytest.approx(1)
  assert np.abs(found.queries) == pytest.approx(np.array([[3, 0], [3, 0]]), abs=1e-9)
  assert np.abs(found.passages) == pytest.approx(np.array([[0, 1], [0, 1]]), abs=1e-9)
  assert found.queries[0, 0] == -found.queries[1, 0]


def test_points_that_are_one_and_embeddings_of_one_dimension():
  same = principal_map(np.ones((3, 4)), np.ones((3, 4)))
  assert same.share == 0
  assert np.abs(same.queries).max() < 1e-9
  flat = principal_map(np.array([[1.0], [2.0]]), np.array([[3.0], [4.0]]))
  assert flat.queries.shape == flat.passages.shape == (2, 2)
  assert flat.share == pytest.approx(1)


def test_probabilities_have_the_perplexity_that_was_asked_for():
  """Of points at equal distances everyone is everyone's neighbour alike; of two far groups only one's own group."""
  equal = joint_probabilities(np.eye(4), 2.5)
  assert equal == pytest.approx((1 - np.eye(4)) / 12)
  groups = np.repeat([[0.0, 0], [100, 0]], 10, axis=0) + np.random.default_rng(0).normal(size=(20, 2))
  p = joint_probabilities(groups, 5)
  assert p.sum() == pytest.approx(1)
  assert np.array_equal(p, p.T)
  assert p[:10, 10:].max() < 1e-12


def test_tsne_is_as_good_as_scikit_learns_and_keeps_clusters_apart():
  manifold = pytest.importorskip("sklearn.manifold")
  rng = np.random.default_rng(0)
  x = np.repeat(np.eye(3, 8), 20, axis=0) * 6 + rng.normal(size=(60, 8))
  y = tsne(x, x[:, :2], perplexity=10)
  assert np.array_equal(y, tsne(x, x[:, :2], perplexity=10))
  start = (1e-4 * x[:, :2] / x[:, 0].std()).astype(np.float32)
  theirs = manifold.TSNE(init=start, perplexity=10, max_iter=500, method="exact").fit_transform(x)
  p = joint_probabilities(x, 10)
  assert divergence(p, y) < 1.2 * divergence(p, theirs)
  assert divergence(p, y) < 0.5 * divergence(p, x[:, :2])
  centres = y.reshape(3, 20, 2).mean(axis=1)
  nearest = np.argmin(np.linalg.norm(y[:, None] - centres, axis=2), axis=1)
  assert nearest.tolist() == [0] * 20 + [1] * 20 + [2] * 20


def test_a_map_of_three_pairs_is_finite():
  rows = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float16)
  found = neighbour_map(rows, rows)
  assert found.queries.shape == found.passages.shape == (3, 2)
  assert np.isfinite(found.queries).all()
  assert found.share is None
