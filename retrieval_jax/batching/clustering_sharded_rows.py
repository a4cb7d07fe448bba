"""Rows over the devices of a mesh: each one multiplies its own, and the host gets whole numbers."""

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float, Int, Int8

from retrieval_jax.batching.clustering_rows import BLOCK, Centroids, centroids_of, checked, quantised
from retrieval_jax.errors import UserError

_DEVICE_BLOCK = 512  # rows whose groups' centroids a device gathers at a time: 512 * m * d bytes
_SLICE = (
  2**20
)  # rows of all devices whose products come to the host at a time: 4 * m bytes each, on every device
_MOST_IN_CLUSTER = 2**31 // 127  # rows whose components add up in an int32


class _Programs(NamedTuple):
  """Compiled for a mesh; `rows` and `owners` are split over all its axes, the rest is whole on every device."""

  sums: Callable[..., Array]  # (rows, owners, clusters) -> int32 sums of each cluster's rows
  products: Callable[
    ..., Array
  ]  # (rows, owners, centroids, start, step) -> int32 products with the owner's centroids
  nearest: Callable[..., Array]  # (rows, owners, centroids, counts) -> the number of the nearest of them


def _blocks(rows: Array) -> Array:
  size = min(_DEVICE_BLOCK, len(rows))
  return rows.reshape(len(rows) // size, size, *rows.shape[1:])


def _products(rows: Int8[Array, "r d"], owners: Int[Array, "r"], centroids: Int8[Array, "g m d"]) -> Array:
  return jnp.einsum("rd,rmd->rm", rows, centroids[owners], preferred_element_type=jnp.int32)


def _mapped(function: Callable[..., Array], rows: Array, owners: Array) -> Array:
  found = jax.lax.map(lambda block: function(*block), (_blocks(rows), _blocks(owners)))
  return found.reshape(-1, *found.shape[2:])


@functools.lru_cache(maxsize=4)
def _programs(mesh: Mesh) -> _Programs:
  """Collectives: `sums` has one psum of clusters * d int32; the others one all-gather, of their result."""
  split, whole = PartitionSpec(mesh.axis_names), PartitionSpec()
  replicated = NamedSharding(mesh, whole)

  def sums(rows: Array, owners: Array, clusters: int) -> Array:
    def local(rows: Array, owners: Array) -> Array:
      def add(total: Array, block: tuple[Array, Array]) -> tuple[Array, None]:
        return total.at[block[1]].add(block[0].astype(jnp.int32), mode="drop"), None

      zeros = jax.lax.pcast(jnp.zeros((clusters, rows.shape[1]), jnp.int32), mesh.axis_names, to="varying")
      total, _ = jax.lax.scan(add, zeros, (_blocks(rows), _blocks(owners)))
      return jax.lax.psum(total, mesh.axis_names)

    return jax.shard_map(local, mesh=mesh, in_specs=(split, split), out_specs=whole)(rows, owners)

  def products(rows: Array, owners: Array, centroids: Array, start: Array, step: int) -> Array:
    def local(rows: Array, owners: Array, centroids: Array, start: Array) -> Array:
      some = [jax.lax.dynamic_slice_in_dim(values, start, step) for values in (rows, owners)]
      return _mapped(lambda r, o: _products(r, o, centroids), *some)

    return jax.shard_map(local, mesh=mesh, in_specs=(split, split, whole, whole), out_specs=split)(
      rows, owners, centroids, start
    )

  def nearest(rows: Array, owners: Array, centroids: Array, counts: Array) -> Array:
    def local(rows: Array, owners: Array, centroids: Array, counts: Array) -> Array:
      def one(rows: Array, owners: Array) -> Array:
        real = jnp.arange(centroids.shape[1])[None, :] < counts[owners][:, None]
        scores = jnp.where(real, _products(rows, owners, centroids), jnp.iinfo(jnp.int32).min)
        return jnp.argmax(scores, axis=1).astype(jnp.int32)

      return _mapped(one, rows, owners)

    return jax.shard_map(local, mesh=mesh, in_specs=(split, split, whole, whole), out_specs=split)(
      rows, owners, centroids, counts
    )

  return _Programs(
    jax.jit(sums, static_argnums=2, out_shardings=replicated),
    jax.jit(products, static_argnums=4, out_shardings=replicated),
    jax.jit(nearest, out_shardings=replicated),
  )


class ShardedRows:
  """Rows over all devices of a mesh: e * d / devices bytes on each, and the centroids whole, a byte a component.

  A device also holds the sums while clusters' centroids are made (4 * clusters * d bytes). It gathers the products, which
  go to the host, of _SLICE rows at a time.
  """

  def __init__(self, embeddings: Float[np.ndarray, "e d"], mesh: Mesh):
    count, dim = embeddings.shape
    self.shape, self.at_once = (count, dim), count
    self._embeddings, self._mesh, self._run = embeddings, mesh, _programs(mesh)
    each = -(-count // mesh.size)
    block = min(_DEVICE_BLOCK, each)
    slices = -(-each // max(block, _SLICE // mesh.size))
    self._step = -(-each // (slices * block)) * block  # whole blocks
    each = self._step * slices
    self._padded = each * mesh.size

    def numbers(index: tuple[slice, ...] | None) -> np.ndarray:
      start, stop, _ = (index or (slice(None),))[0].indices(self._padded)
      found = np.zeros((stop - start, dim), np.int8)
      for low in range(start, min(stop, count), BLOCK):
        block = checked(embeddings, low, min(low + BLOCK, stop, count))
        found[low - start : low - start + len(block)] = block
      return found

    self._split = NamedSharding(mesh, PartitionSpec(mesh.axis_names))
    self._rows = jax.make_array_from_callback((self._padded, dim), self._split, numbers)

  def sample(self, rows: Int[np.ndarray, "r"]) -> Float[np.ndarray, "r d"]:
    return quantised(np.asarray(self._embeddings[rows])).astype(np.float32)

  def centroids(self, order: Int[np.ndarray, "r"], ends: Int[np.ndarray, "g"]) -> Centroids:
    largest = int(np.diff(ends, prepend=0).max())
    if largest > _MOST_IN_CLUSTER:
      raise UserError(
        f"balanced_clusters: a cluster of {largest:,} rows is too large for a mesh, whose sums hold {_MOST_IN_CLUSTER:,}. "
        "Ask for more clusters, or leave out the mesh."
      )
    sums = _host(self._run.sums(self._rows, self._owners(order, ends, outside=len(ends)), len(ends)))
    parts = [centroids_of(sums[i : i + BLOCK].astype(np.float64)) for i in range(0, len(sums), BLOCK)]
    return Centroids(*map(np.concatenate, zip(*parts, strict=True)))

  def products(
    self, order: Int[np.ndarray, "r"], ends: Int[np.ndarray, "g"], centroids: Int8[np.ndarray, "g m d"]
  ) -> Int[np.ndarray, "r m"]:
    owners, whole = self._owners(order, ends), self._whole(centroids)
    found = np.empty((self._mesh.size, self._padded // self._mesh.size, centroids.shape[1]), np.int32)
    for start in range(0, found.shape[1], self._step):
      part = _host(self._run.products(self._rows, owners, whole, np.int32(start), self._step))
      found[:, start : start + self._step] = part.reshape(len(found), self._step, -1)
    return found.reshape(self._padded, -1)[order]

  def nearest(
    self,
    order: Int[np.ndarray, "r"],
    ends: Int[np.ndarray, "g"],
    centroids: Sequence[Int8[np.ndarray, "_ d"]],
  ) -> Int[np.ndarray, "r"]:
    counts = np.array([len(one) for one in centroids], np.int32)
    nodes = 1 << (len(counts) - 1).bit_length()  # few shapes: each one is compiled
    padded = np.zeros((nodes, 1 << int(counts.max() - 1).bit_length(), self.shape[1]), np.int8)
    for node, one in enumerate(centroids):
      padded[node, : len(one)] = one
    counts = np.pad(counts, (0, nodes - len(counts)))
    owners = self._owners(order, ends)
    found = self._run.nearest(self._rows, owners, self._whole(padded), self._whole(counts))
    return _host(found)[order]

  def _owners(
    self, order: Int[np.ndarray, "r"], ends: Int[np.ndarray, "g"], outside: int = 0
  ) -> Int[Array, "_"]:
    """Returns the group of each row where it lies, and `outside` for those that are in none."""
    owners = np.full(self._padded, outside, np.int32)
    owners[order] = np.repeat(np.arange(len(ends), dtype=np.int32), np.diff(ends, prepend=0))
    return jax.make_array_from_callback(owners.shape, self._split, lambda index: owners[index])

  def _whole(self, values: np.ndarray) -> Array:
    sharding = NamedSharding(self._mesh, PartitionSpec())
    return jax.make_array_from_callback(values.shape, sharding, lambda index: values[index])


def _host(values: Array) -> np.ndarray:
  return np.asarray(values.addressable_data(0))
