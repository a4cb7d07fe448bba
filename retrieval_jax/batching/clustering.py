"""Clusters of one size, whose rows are alike: what NGAME forms its batches of."""

from typing import NamedTuple

import numpy as np
from jax.sharding import Mesh
from jaxtyping import Float, Int

from retrieval_jax.batching.clustering_refinement import moved, refined
from retrieval_jax.batching.clustering_rows import HostRows, Rows
from retrieval_jax.batching.clustering_sharded_rows import ShardedRows
from retrieval_jax.batching.clustering_tree import chained, tree_order
from retrieval_jax.errors import UserError

_ROUNDS = 4  # of refinement: two more keep 0.01 more of the neighbours together, for a fifth of the time
_SLOW = 128  # rows: clusters of as many take twice the rounds to settle
_SMALLEST_LEAF = 32  # rows: a finer tree costs more than it gains; the refinement sees as many rows at once
_SMALL = 98  # rows: clusters of twice as many are made of ones of about as many
_SAMPLE = 20_000  # rows that statistics look at


class ClusterStatistics(NamedTuple):
  """Of clusters: the sizes, in rows, and the mean cosine of a row to its cluster's normalised mean, of a sample."""

  smallest: int
  mean: float
  largest: int
  cosine: float


def balanced_clusters(
  embeddings: Float[np.ndarray, "e d"], *, num_clusters: int, seed: int, mesh: Mesh | None = None
) -> Int[np.ndarray, "e"]:
  """Returns the cluster of each row, from 0 to num_clusters - 1: rows of a cluster have a high cosine.

  Sizes are e / num_clusters, rounded down or up, for any num_clusters. Clusters of near numbers are often alike.

  Rows are taken at unit length. A tree of k-means puts them into an order in which groups keep their natural sizes; the
  order is cut into clusters; then neighbouring clusters exchange rows, two at a time, in the best way that keeps their
  sizes (clustering_refinement.py). NGAME's own code halves at random points instead, and so needs a power of two.

  The same rows and seed give the same clusters, bit by bit, whatever the threads, devices, mesh and machine: rows and
  centroids are rounded to whole numbers of a byte, whose products and sums are exact in any order. Embeddings that
  differ in their last bits may give other clusters: store clusters, rather than make them again.

  embeddings: of any float type, at any length; also memory-mapped: they are read in blocks and kept at a byte a component.
  mesh: rows are split over all its devices and multiplied there; all else is done by every process alike. Else NumPy
    does it. Collectives: in each round one psum of the clusters' sums (int32) and all-gathers of 16 products a row
    (int32), a million rows at a time, and one of a number a row at each level of the tree. Each process holds 64 bytes a
    row of products.

  Cost: 200,000 rows of 384 into 4,096 clusters take 4 CPU seconds, and 0.2 GB; near linear in rows.

  Raises: UserError for fewer rows than clusters, no cluster, a seed outside 0..2**64-1, embeddings that are no rows, and
    rows that are zero or not finite.

  Source: Dahiya et al., NGAME (WSDM 2023), Algorithm 1, for what it is used for.

  Example: `balanced_clusters(np.eye(4)[[0, 1, 0, 1]], num_clusters=2, seed=0)` is `[0, 1, 0, 1]` or `[1, 0, 1, 0]`.
  """
  shape = np.shape(embeddings)
  if len(shape) != 2:
    raise UserError(
      f"balanced_clusters: got embeddings of shape {shape}; expected rows of components, (rows, dimensions)."
    )
  count = shape[0]
  if not 1 <= num_clusters <= count:
    raise UserError(
      f"balanced_clusters: got {num_clusters} clusters for {count} rows; a cluster has at least one row. Ask for 1 to "
      f"{count} clusters."
    )
  if not 0 <= seed < 2**64:
    raise UserError(f"balanced_clusters: got seed {seed}; expected a whole number from 0 to below 2**64.")
  rows = HostRows.of(embeddings) if mesh is None else ShardedRows(embeddings, mesh)
  rng = np.random.Generator(np.random.Philox(key=np.array([seed, 0], np.uint64)))
  order, sizes = _clustered(rows, num_clusters, rng)
  found = np.empty(count, np.int32)
  found[order] = np.repeat(np.arange(num_clusters, dtype=np.int32), sizes)
  return found


def _clustered(
  rows: Rows, num_clusters: int, rng: np.random.Generator
) -> tuple[Int[np.ndarray, "e"], Int[np.ndarray, "k"]]:
  """Returns the row numbers, sorted by cluster, and the clusters' sizes.

  A large cluster is made of small ones that are alike: a centroid of its own would cut through groups of near rows. Sizes
  of small ones differ by a row, so that a few rows next to the large one's ends may come to its neighbours.
  """
  count = rows.shape[0]
  sizes = np.diff(np.arange(num_clusters + 1) * count // num_clusters)
  size = count // num_clusters
  if num_clusters == 1:
    return np.arange(count), sizes
  if size >= 2 * _SMALL:
    order, small = _clustered(rows, size // _SMALL * num_clusters, rng)
    near, _ = _clustered(HostRows(rows.centroids(order, np.cumsum(small)).numbers), num_clusters, rng)
    return moved(order, small, near), sizes
  order = tree_order(rows, leaf=max(_SMALLEST_LEAF, size), rng=rng)
  if size < _SMALLEST_LEAF:
    order = chained(rows, order)
  return refined(rows, order, sizes, rounds=_ROUNDS if size < _SLOW else 2 * _ROUNDS, rng=rng)


def cluster_statistics(
  embeddings: Float[np.ndarray, "e d"], clusters: Int[np.ndarray, "e"]
) -> ClusterStatistics:
  """Returns the sizes of all clusters and the mean cosine within some, for a log.

  clusters: the cluster of each row, as `balanced_clusters` returns it.

  The cosine is that of the rows of evenly spread clusters, 20,000 rows together at most.

  Example: four equal rows in two clusters have the cosine 1.
  """
  sizes = np.bincount(clusters)
  every = -(-len(clusters) // _SAMPLE)
  chosen = np.zeros(len(sizes), bool)
  chosen[::every] = True
  rows = np.flatnonzero(chosen[clusters])
  rows = rows[:: -(-len(rows) // _SAMPLE)]
  vectors = np.asarray(embeddings[rows], np.float32)
  vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
  order = np.argsort(clusters[rows], kind="stable")
  firsts = np.flatnonzero(np.diff(clusters[rows][order], prepend=-1))
  lengths = np.linalg.norm(np.add.reduceat(vectors[order], firsts, axis=0), axis=1)  # the sums of the cosines
  return ClusterStatistics(
    int(sizes.min()), float(sizes.mean()), int(sizes.max()), float(lengths.sum() / len(rows))
  )
