"""Better clusters of the same sizes: neighbouring clusters exchange rows, two at a time, in a tournament."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int, Int8

from retrieval_jax.batching.clustering_rows import Centroids, HostRows, Rows, chunks, unit_length
from retrieval_jax.batching.clustering_tree import chained, tree_order

GROUP = 16  # clusters that play against each other: each row is compared with all their centroids
_LEAF = 4 * GROUP  # of the tree of centroids
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

  A round is a step of k-means that keeps the sizes. Clusters meet in groups of GROUP that stand together in the order.
  Every second round shifts the groups by half of one, and between these a tree of the centroids orders them anew.
  """
  clusters = len(sizes)
  group = min(GROUP, clusters + clusters % 2)
  for number in range(rounds):
    found = rows.centroids(order, np.cumsum(sizes))
    if number and clusters > group:
      seats = _seats(found.numbers, number, rng)
      order, sizes = moved(order, sizes, seats), sizes[seats]
      found = Centroids(found.numbers[seats], found.lengths[seats])
    by_group = _Grouped(_grouped(found.numbers, group), _grouped(found.lengths, group))
    order = _round(rows, order, _grouped(sizes, group), by_group)
  return order, sizes


def _seats(centroids: Int8[np.ndarray, "k d"], number: int, rng: np.random.Generator) -> Int[np.ndarray, "k"]:
  """Returns the clusters in the order in which they form the groups of a round."""
  if number % 2:
    return np.roll(np.arange(len(centroids)), GROUP // 2)  # the halves of neighbouring groups
  near = HostRows(centroids)
  return chained(near, tree_order(near, leaf=_LEAF, rng=rng))


class _Grouped(NamedTuple):
  """Centroids by group."""

  numbers: Int8[np.ndarray, "g m d"]
  lengths: Float[np.ndarray, "g m"]


def _grouped(values: np.ndarray, group: int) -> np.ndarray:
  """Returns the values in rows of `group`, the last of which zeros fill: clusters that hold nothing."""
  fill = np.zeros((-len(values) % group, *values.shape[1:]), values.dtype)
  return np.concatenate([values, fill]).reshape(-1, group, *values.shape[1:])


def moved(
  order: Int[np.ndarray, "e"], sizes: Int[np.ndarray, "k"], seats: Int[np.ndarray, "k"]
) -> Int[np.ndarray, "e"]:
  """Returns the order with the clusters in the order `seats`."""
  starts, new = (np.cumsum(sizes) - sizes)[seats], sizes[seats]
  return order[np.arange(len(order)) + np.repeat(starts - np.cumsum(new) + new, new)]


def _round(
  rows: Rows, order: Int[np.ndarray, "e"], sizes: Int[np.ndarray, "g m"], centroids: _Grouped
) -> Int[np.ndarray, "e"]:
  """Returns the order after one tournament within each group."""
  found = np.empty_like(order)
  ends = sizes.sum(axis=1).cumsum()
  own = unit_length(rows.shape[1]) ** 3 / np.maximum(centroids.lengths, 1)
  for first, last in chunks(ends, rows.at_once):
    start = ends[first - 1] if first else 0
    mine = order[start : ends[last - 1]]
    products = rows.products(mine, ends[first:last] - start, centroids.numbers[first:last])
    for one, other in chunks(ends[first:last] - start, _CHUNK):
      low, high = ends[first + one - 1] if first + one else 0, ends[first + other - 1]
      some, part = slice(first + one, first + other), products[low - start : high - start]
      _leave_out(part, sizes[some], own[some])
      found[low:high] = order[low:high][tournament(part, sizes[some])]
  return found


def _leave_out(
  products: Int[np.ndarray, "r m"], sizes: Int[np.ndarray, "g m"], own: Float[np.ndarray, "g m"]
) -> None:
  """Takes a row's own part out of the centroid of its cluster, in its product with it: as if it were not there yet.

  Without, a row of a small cluster is near its centroid because it is a sixth of it, and never moves.

  own: a row's product with its own part of the centroid. The rows come sorted by cluster.
  """
  counts = sizes.reshape(-1)
  places = np.arange(len(products)), np.repeat(np.tile(np.arange(sizes.shape[1]), len(sizes)), counts)
  others = np.where(counts > 1, counts / np.maximum(counts - 1, 1), 0)  # their mean is over one less
  left = (products[places] - np.repeat(own.reshape(-1), counts)) * np.repeat(others, counts)
  products[places] = np.rint(left)


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
    loss = flat[places * players + high] - flat[places * players + low]  # of a row dealt to the lower one
    key = (((base + low) << _GAIN_BITS) + loss + 2 ** (_GAIN_BITS - 1) << bits) + places
    key.sort()
    pairs = np.unique(low_of)
    seats = np.stack([pairs, partner[pairs]], axis=1).reshape(-1)
    within[key & ((1 << bits) - 1)] = np.repeat(np.tile(seats, len(sizes)), sizes[:, seats].reshape(-1))
  return np.argsort(base + within, kind="stable")
