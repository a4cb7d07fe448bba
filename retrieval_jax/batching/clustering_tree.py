"""An order of rows in which near ones stand near each other: the leaves of a tree of k-means, from left to right."""

import numpy as np
from jaxtyping import Float, Int, Int8

from retrieval_jax.batching.clustering_rows import BLOCK, Rows, quantised

_BRANCH_BITS = 6
BRANCHES = 2**_BRANCH_BITS  # children of a node
_SAMPLE = 256  # rows a child that a node's k-means sees
_ITERATIONS = 8
_LINK = 64  # rows of a chain: a divisor of BLOCK
_SPARE_LEVELS = 4  # beyond those of an even tree: what is lopsided still after them remains a large leaf


def tree_order(rows: Rows, *, leaf: int, rng: np.random.Generator) -> Int[np.ndarray, "e"]:
  """Returns the row numbers in the order of a tree whose leaves have about `leaf` rows.

  Groups keep their natural sizes: a node's children are the clusters of k-means. Neighbouring children are alike.

  Cost: O(e * d * BRANCHES) a level, of which there are about log(e / leaf) / log(BRANCHES).
  """
  count = rows.shape[0]
  order = np.arange(count)
  nodes = np.array([[0, count]])
  for _ in range((count // leaf).bit_length() // _BRANCH_BITS + 1 + _SPARE_LEVELS):
    nodes = nodes[(nodes[:, 1] - nodes[:, 0]) > 2 * leaf]
    if not len(nodes):
      break
    nodes = _split(rows, order, nodes, leaf, rng)
  return order


def _split(
  rows: Rows, order: Int[np.ndarray, "e"], nodes: Int[np.ndarray, "n 2"], leaf: int, rng: np.random.Generator
) -> Int[np.ndarray, "_ 2"]:
  """Sorts each node's part of the order by its children; returns where these start and stop."""
  centroids = []
  for start, stop in nodes.tolist():
    children = min(BRANCHES, -(-(stop - start) // leaf))
    sample = spread(stop - start, min(stop - start, _SAMPLE * children), rng)
    found = _kmeans(rows.sample(order[start + sample]), children, rng)
    wide = found.astype(np.float32)
    centroids.append(found[_chain((wide @ wide.T)[None])[0]])
  sizes = nodes[:, 1] - nodes[:, 0]
  ends = np.cumsum(sizes)
  places = np.arange(ends[-1]) + np.repeat(nodes[:, 0] - ends + sizes, sizes)
  child = rows.nearest(order[places], ends, centroids)
  child += np.repeat(np.arange(len(nodes), dtype=np.int32) * BRANCHES, sizes)
  order[places] = order[places[np.argsort(child, kind="stable")]]
  counts = np.bincount(child, minlength=len(nodes) * BRANCHES).reshape(len(nodes), BRANCHES)
  stops = nodes[:, :1] + np.cumsum(counts, axis=1)
  split = (counts > 0) & (counts < sizes[:, None])  # a node that did not split never will: copies of one row
  return np.stack([(stops - counts)[split], stops[split]], axis=1)


def spread(count: int, parts: int, rng: np.random.Generator) -> Int[np.ndarray, "p"]:
  """Returns a random number of each of `parts` even parts of range(count): different ones."""
  edges = np.arange(parts + 1) * count // parts
  return edges[:-1] + (rng.random(parts) * np.diff(edges)).astype(np.int64)


def _kmeans(
  sample: Float[np.ndarray, "r d"], clusters: int, rng: np.random.Generator
) -> Int8[np.ndarray, "k d"]:
  centroids = sample[spread(len(sample), clusters, rng)]
  last = np.full(len(sample), -1)
  for _ in range(_ITERATIONS):
    nearest = (sample @ centroids.T).argmax(axis=1)
    if np.count_nonzero(nearest != last) * 100 <= len(sample):  # hardly any moved
      break
    last = nearest
    order = np.argsort(nearest, kind="stable")
    firsts = np.flatnonzero(np.diff(nearest[order], prepend=-1))
    sums = np.add.reduceat(sample[order], firsts, axis=0)  # below EXACT: a sample has few rows
    centroids[nearest[order[firsts]]] = quantised(sums)  # an empty cluster keeps its centroid
  return centroids.astype(np.int8)


def chained(rows: Rows, order: Int[np.ndarray, "e"]) -> Int[np.ndarray, "e"]:
  """Returns the order with each _LINK rows of it in a chain from near to near: what a leaf is cut into then fits."""
  found, whole = order.copy(), len(order) - len(order) % _LINK
  for start in range(0, whole, BLOCK):
    links = order[start : min(start + BLOCK, whole)].reshape(-1, _LINK)
    found[start : start + links.size] = np.take_along_axis(links, _chain_rows(rows, links), axis=1).reshape(
      -1
    )
  if whole < len(order):
    found[whole:] = order[whole:][_chain_rows(rows, order[None, whole:])[0]]
  return found


def _chain_rows(rows: Rows, links: Int[np.ndarray, "n r"]) -> Int[np.ndarray, "n r"]:
  vectors = rows.sample(links.reshape(-1)).reshape(*links.shape, -1)
  return _chain(vectors @ vectors.transpose(0, 2, 1))


def _chain(similar: Float[np.ndarray, "n k k"]) -> Int[np.ndarray, "n k"]:
  """Returns the numbers from the one farthest from all on, each time the nearest of the others. Overwrites similar."""
  each = np.arange(len(similar))
  chain = [similar.sum(axis=2, dtype=np.float64).argmin(axis=1)]  # sums of products exceed EXACT
  while len(chain) < similar.shape[1]:
    similar[each, :, chain[-1]] = -np.inf
    chain.append(similar[each, chain[-1]].argmax(axis=1))
  return np.stack(chain, axis=1)
