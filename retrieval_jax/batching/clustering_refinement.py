"""Better clusters of the same sizes: neighbouring clusters exchange rows, two at a time, in a tournament."""

import numpy as np
from jaxtyping import Int, Int8

from retrieval_jax.batching.clustering_rows import HostRows, Rows, chunks
from retrieval_jax.batching.clustering_tree import tree_order

GROUP = 16  # clusters that play against each other: each row is compared with all their centroids
_CHUNK = 2**16  # rows of a tournament: a few MB, which stay in the cache
_GAIN_BITS = 26  # the difference of two products, of less than EXACT = 2^24 each, and its sign


def refined(
  rows: Rows,
  order: Int[np.ndarray, "e"],
  sizes: Int[np.ndarray, "k"],
  *,
  rounds: int,
  rng: np.random.Generator,
) -> tuple[Int[np.ndarray, "e"], Int[np.ndarray, "k"]]:
  """Returns (order, sizes) of better clusters: the same sizes, in another order.

  order: row numbers, the first sizes[0] of them the first cluster's, and so on.

  A round is a step of k-means that keeps the sizes. Clusters meet in groups of GROUP: at first those that stand
  together in the order, then those whose centroids do in a new tree of them.
  """
  clusters = len(sizes)
  group = min(GROUP, clusters + clusters % 2)
  for number in range(rounds):
    centroids = rows.centroids(order, np.cumsum(sizes))
    if number and clusters > group:
      seats = np.roll(tree_order(HostRows(centroids), leaf=GROUP, rng=rng), rng.integers(group))
      order, sizes, centroids = _moved(order, sizes, seats), sizes[seats], centroids[seats]
    order = _round(rows, order, _grouped(sizes, group), _grouped(centroids, group))
  return order, sizes


def _grouped(values: np.ndarray, group: int) -> np.ndarray:
  """Returns the values in rows of `group`, the last of which zeros fill: clusters that hold nothing."""
  fill = np.zeros((-len(values) % group, *values.shape[1:]), values.dtype)
  return np.concatenate([values, fill]).reshape(-1, group, *values.shape[1:])


def _moved(
  order: Int[np.ndarray, "e"], sizes: Int[np.ndarray, "k"], seats: Int[np.ndarray, "k"]
) -> Int[np.ndarray, "e"]:
  """Returns the order with the clusters in the order `seats`."""
  starts, moved = (np.cumsum(sizes) - sizes)[seats], sizes[seats]
  return order[np.arange(len(order)) + np.repeat(starts - np.cumsum(moved) + moved, moved)]


def _round(
  rows: Rows, order: Int[np.ndarray, "e"], sizes: Int[np.ndarray, "g m"], centroids: Int8[np.ndarray, "g m d"]
) -> Int[np.ndarray, "e"]:
  """Returns the order after one tournament within each group."""
  found = np.empty_like(order)
  ends = sizes.sum(axis=1).cumsum()
  for first, last in chunks(ends, rows.at_once):
    start = ends[first - 1] if first else 0
    mine = order[start : ends[last - 1]]
    products = rows.products(mine, ends[first:last] - start, centroids[first:last])
    for one, other in chunks(ends[first:last] - start, _CHUNK):
      low, high = ends[first + one - 1] if first + one else 0, ends[first + other - 1]
      played = tournament(products[low - start : high - start], sizes[first + one : first + other])
      found[low:high] = order[low:high][played]
  return found


def round_robin(players: int) -> Int[np.ndarray, "r m"]:
  """Returns, for each of players - 1 rounds, whom each player meets; everyone meets everyone. players: even."""
  seats = list(range(players))
  rounds = np.empty((players - 1, players), np.int64)
  for partner in rounds:
    partner[seats] = seats[::-1]
    seats = [seats[0], seats[-1], *seats[1:-1]]
  return rounds


def tournament(products: Int[np.ndarray, "r m"], sizes: Int[np.ndarray, "g m"]) -> Int[np.ndarray, "r"]:
  """Returns the rows, sorted by the clusters they are in after each of a group's m clusters has met each other one.

  Two clusters that meet put their rows together and deal them anew, in the best way that keeps their sizes: sorted by
  how much more a row's product is with one centroid than with the other. No meeting lowers the sum of products.

  products: with the centroids of the clusters of the row's group. The rows come sorted by cluster.
  """
  count, players = products.shape
  bits = max(1, (count - 1).bit_length())
  flat, places = products.reshape(-1), np.arange(count)
  within = np.repeat(np.tile(np.arange(players), len(sizes)), sizes.reshape(-1))
  base = np.repeat(np.arange(len(sizes)) * players, sizes.sum(axis=1))
  for partner in round_robin(players):
    low_of, high_of = np.minimum(np.arange(players), partner), np.maximum(np.arange(players), partner)
    low, high = low_of[within], high_of[within]
    loss = (
      flat[places * players + high] - flat[places * players + low]
    )  # of what remains in the lower cluster
    key = (((base + low) << _GAIN_BITS) + loss + 2 ** (_GAIN_BITS - 1) << bits) + places
    key.sort()
    pairs = np.unique(low_of)
    seats = np.stack([pairs, partner[pairs]], axis=1).reshape(-1)
    within[key & ((1 << bits) - 1)] = np.repeat(np.tile(seats, len(sizes)), sizes[:, seats].reshape(-1))
  return np.argsort(base + within, kind="stable")
