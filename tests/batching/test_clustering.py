"""Balanced clusters: sizes, exactness on threads and devices, refusals, and that they beat halving at random points."""

import hashlib
import inspect
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import AxisType

from retrieval_jax.batching import clustering_sharded_rows
from retrieval_jax.batching.clustering import balanced_clusters, cluster_statistics
from retrieval_jax.batching.clustering_refinement import round_robin, tournament
from retrieval_jax.batching.clustering_rows import EXACT, HostRows, quantised
from retrieval_jax.batching.clustering_tree import tree_order
from retrieval_jax.errors import UserError


@pytest.fixture(scope="module")
def rows():
  """20 topics of 250 groups, of sizes by a power law, and noise."""
  rng = np.random.default_rng(0)

  def unit(count):
    vectors = rng.standard_normal((count, 64), dtype=np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

  share = np.arange(1, 251) ** -0.5
  centres = unit(20)[rng.integers(0, 20, 250)] + 0.9 * unit(250)
  return centres[rng.choice(250, 8000, p=share / share.sum())] + 1.1 * unit(8000)


@pytest.fixture(scope="module")
def clusters(rows):
  return balanced_clusters(rows, num_clusters=163, seed=3)


def make_mesh(shape):
  names = ("data", "model")[: len(shape)]
  devices = jax.devices()[: int(np.prod(shape))]
  return jax.make_mesh(shape, names, axis_types=(AxisType.Auto,) * len(shape), devices=devices)


def within(rows, found):
  """The mean cosine of rows to their cluster's centroid."""
  unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
  sums = np.zeros((found.max() + 1, rows.shape[1]))
  np.add.at(sums, found, unit)
  return np.linalg.norm(sums, axis=1).sum() / len(rows)


def halved(rows, count):
  """Clusters as NGAME's own code makes them: two random rows, equal halves, until the mean product gains 1e-4."""
  rng, parts = np.random.default_rng(0), [np.arange(len(rows))]
  unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
  while len(parts) < count:
    parts = [half for part in parts for half in halves(unit, part, rng)]
  found = np.empty(len(rows), int)
  for number, part in enumerate(parts):
    found[part] = number
  return found


def halves(unit, part, rng):
  mine, last = unit[part], -2.0
  centroids = mine[rng.choice(len(mine), 2, replace=False)]
  while True:
    products = mine @ centroids.T
    order = np.argsort(products[:, 1] - products[:, 0], kind="stable")
    two = np.array_split(order, 2)
    mean = (products[two[0], 0].sum() + products[two[1], 1].sum()) / len(mine)
    if mean - last < 1e-4:
      return part[two[0]], part[two[1]]
    last = mean
    centroids = np.stack([mine[half].sum(0) for half in two])
    centroids /= np.linalg.norm(centroids, axis=1, keepdims=True)


@settings(max_examples=25, deadline=None)
@given(count=st.integers(1, 300), share=st.floats(0, 1), dim=st.integers(1, 9), copies=st.integers(1, 20))
def test_sizes_differ_by_one_at_most_and_every_cluster_is_there(count, share, dim, copies):
  num = 1 + int(share * (count - 1))
  rows = np.random.default_rng(count).standard_normal((count, dim))[np.arange(count) // copies]
  found = balanced_clusters(rows, num_clusters=num, seed=0)
  assert found.shape == (count,)
  assert set(np.bincount(found, minlength=num)) <= {count // num, -(-count // num)}
  assert found.max() < num


def test_groups_that_fit_are_found():
  centres = np.eye(12)
  rows = np.repeat(centres, 5, axis=0) + 0.05 * np.random.default_rng(0).standard_normal((60, 12))
  found = balanced_clusters(rows, num_clusters=12, seed=0)
  assert {tuple(np.unique(found[i : i + 5])) for i in range(0, 60, 5)} == {(c,) for c in range(12)}


def test_copies_of_two_rows_come_together():
  found = balanced_clusters(np.eye(4)[[0, 1, 0, 1]], num_clusters=2, seed=0)
  assert found[0] == found[2] != found[1] == found[3]


def test_they_hold_together_more_than_halves_at_random_points(rows):
  ours = balanced_clusters(rows, num_clusters=256, seed=0)
  assert within(rows, ours) > within(rows, halved(rows, 256)) + 0.03


@pytest.mark.parametrize("num", [1, 163, 3000])
def test_smaller_clusters_are_tighter_than_chance(rows, num):
  ours = balanced_clusters(rows, num_clusters=num, seed=0)
  chance = np.random.default_rng(0).permutation(ours)
  assert within(rows, ours) >= within(rows, chance) + (0 if num == 1 else 0.2)


def test_another_process_on_one_thread_gives_the_same(rows, clusters, tmp_path):
  np.save(tmp_path / "rows.npy", rows)
  code = (
    "import sys, numpy as np\n"
    "from retrieval_jax.batching.clustering import balanced_clusters\n"
    "rows = np.load(sys.argv[1])\n"
    "sys.stdout.buffer.write(balanced_clusters(rows, num_clusters=163, seed=3).tobytes())\n"
  )
  one = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
  command = [sys.executable, "-c", code, str(tmp_path / "rows.npy")]
  done = subprocess.run(command, env=os.environ | one, capture_output=True, check=True)
  assert done.stdout == clusters.tobytes()


@pytest.mark.parametrize("shape, num", [((8,), 163), ((2, 2), 163), ((2, 2), 20)])
def test_a_mesh_gives_the_same_as_numpy(rows, shape, num):
  found = balanced_clusters(rows, num_clusters=num, seed=3, mesh=make_mesh(shape))
  np.testing.assert_array_equal(found, balanced_clusters(rows, num_clusters=num, seed=3))


def test_a_mesh_whose_products_come_in_slices(rows, clusters, monkeypatch):
  monkeypatch.setattr(clustering_sharded_rows, "_SLICE", 2048)  # of 4 devices: 4 slices of 512 rows each
  found = balanced_clusters(rows, num_clusters=163, seed=3, mesh=make_mesh((2, 2)))
  np.testing.assert_array_equal(found, clusters)


def test_a_mesh_of_more_devices_than_rows(rows):
  found = balanced_clusters(rows[:5], num_clusters=2, seed=3, mesh=make_mesh((8,)))
  np.testing.assert_array_equal(found, balanced_clusters(rows[:5], num_clusters=2, seed=3))


def test_larger_clusters_keep_more_neighbours_together(rows):
  products = rows[:300] @ (rows / np.linalg.norm(rows, axis=1, keepdims=True)).T
  near = np.argsort(-products, axis=1)[:, 1:11]
  kept = []
  for num in (1333, 163, 40, 10):
    found = balanced_clusters(rows, num_clusters=num, seed=0)
    assert np.ptp(np.bincount(found)) <= 1
    kept.append((found[near] == found[:300, None]).mean())
  assert (np.diff(kept) > 0.05).all()


def test_clusters_are_the_same_on_every_machine():
  i, j = np.mgrid[:500, :16]
  found = balanced_clusters((i * i * 7 + i * j * 13) % 101 - 50.0, num_clusters=30, seed=0)
  assert hashlib.sha256(found.astype("<i4").tobytes()).hexdigest()[:16] == "37efef001ba00682"


def test_the_seed_matters(rows, clusters):
  assert (balanced_clusters(rows, num_clusters=163, seed=4) != clusters).any()


def test_length_of_rows_does_not_matter(rows, clusters):
  lengths = 2.0 ** np.random.default_rng(0).integers(-30, 30, (len(rows), 1))
  found = balanced_clusters(rows * lengths, num_clusters=163, seed=3)
  np.testing.assert_array_equal(found, clusters)


@pytest.mark.parametrize("dtype", [np.float16, jnp.bfloat16, np.float64])
def test_float_types(rows, dtype):
  few = rows[:500].astype(dtype)
  found = balanced_clusters(few, num_clusters=9, seed=0)
  wide = balanced_clusters(few.astype(np.float32), num_clusters=9, seed=0)
  np.testing.assert_array_equal(found, wide)


def test_memory_mapped(rows, clusters, tmp_path):
  np.save(tmp_path / "rows.npy", rows)
  mapped = np.load(tmp_path / "rows.npy", mmap_mode="r")
  np.testing.assert_array_equal(balanced_clusters(mapped, num_clusters=163, seed=3), clusters)


@pytest.mark.parametrize(
  "row, num, seed, words",
  [
    ([1.0, 2.0], 4, 0, "got 4 clusters for 3 rows.*1 to 3"),
    ([1.0, 2.0], 0, 0, "got 0 clusters"),
    ([1.0, 2.0], 2, -1, "seed -1; expected a whole number from 0 to below 2"),
    ([1.0, 2.0], 2, 2**70, r"seed 1180591620717411303424; expected a whole number from 0 to below 2\*\*64"),
    ([1.0, np.nan], 2, 0, "row 2 of the embeddings is not finite"),
    ([np.inf, 1.0], 2, 0, "row 2 of the embeddings is not finite"),
    ([0.0, 0.0], 2, 0, "row 2 of the embeddings is zero: it was never written"),
  ],
)
def test_refusals(row, num, seed, words):
  rows = np.array([[1.0, 0.0], [0.0, 1.0], row])
  with pytest.raises(UserError, match=words):
    balanced_clusters(rows, num_clusters=num, seed=seed)


@pytest.mark.parametrize("shape", [(4,), (), (2, 2, 2)])
def test_rows_are_vectors(shape):
  with pytest.raises(UserError) as found:
    inspect.unwrap(balanced_clusters)(
      np.ones(shape), num_clusters=2, seed=0
    )  # without the tests' check of types
  assert str(found.value) == (
    f"balanced_clusters: got embeddings of shape {shape}; expected rows of components, (rows, dimensions)."
  )


def test_a_mesh_refuses_a_cold_bank_too(rows):
  cold = rows[:500].copy()
  cold[300:] = 0
  with pytest.raises(UserError, match="row 300 of the embeddings is zero"):
    balanced_clusters(cold, num_clusters=9, seed=0, mesh=make_mesh((8,)))


@pytest.mark.parametrize("dim", [1, 384, 1041, 4096])
def test_products_of_quantised_rows_are_exact(dim):
  rows = np.random.default_rng(0).standard_normal((50, dim)).astype(np.float32)
  rows[0] = 1  # all components at their largest
  numbers = quantised(rows).astype(np.int64)
  assert np.abs(numbers @ numbers.T).max() < EXACT
  unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
  lengths = np.linalg.norm(numbers, axis=1)
  cosines = (numbers * unit).sum(axis=1) / lengths
  assert cosines.min() > 0.999


def test_tree_order_keeps_groups_together():
  rng = np.random.default_rng(0)
  group = rng.permutation(np.repeat(np.arange(10), 40))
  rows = HostRows.of(np.eye(10)[group] + 0.1 * rng.standard_normal((400, 10)))
  order = tree_order(rows, leaf=30, rng=rng)
  assert sorted(order) == list(range(400))
  assert (np.diff(group[order]) != 0).sum() <= 12  # 9 for whole groups


def test_everyone_meets_everyone_once():
  rounds = round_robin(6)
  assert rounds.shape == (5, 6)
  for partner in rounds:
    assert (partner[partner] == np.arange(6)).all()
  assert all(sorted(rounds[:, player]) == [p for p in range(6) if p != player] for player in range(6))


def test_tournament_deals_in_the_best_way():
  # Rows 0, 1 are in cluster 0 and 2 to 4 in cluster 1; rows 2 and 0 gain most in cluster 0. The second group agrees.
  products = np.array([[9, 1], [1, 5], [8, 2], [3, 3], [0, 9], [5, 0], [0, 5]], np.int32)
  assert tournament(products, np.array([[2, 3], [1, 1]])).tolist() == [0, 2, 1, 3, 4, 5, 6]


def test_statistics():
  rows = np.array([[2.0, 0.0], [0.0, 1.0], [3.0, 3.0], [1.0, 1.0], [4.0, 4.0]])
  found = cluster_statistics(rows, np.array([0, 0, 1, 1, 1]))
  assert found[:3] == (2, 2.5, 3)
  assert found.cosine == pytest.approx((2 * 0.5**0.5 + 3) / 5)


def test_statistics_of_a_sample():
  rows = np.random.default_rng(0).standard_normal((50_000, 2)).astype(np.float32)
  clusters = (np.arctan2(rows[:, 1], rows[:, 0]) * 20 / np.pi).astype(int) + 20
  assert cluster_statistics(rows, clusters).cosine > 0.99
  assert cluster_statistics(rows, np.zeros(50_000, int)).cosine < 0.1
