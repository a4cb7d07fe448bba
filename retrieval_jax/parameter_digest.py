"""A hash of a model's parameters: what tells the embeddings of one checkpoint from those of another."""

import functools
import hashlib
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array, PyTree


def parameter_digest(params: PyTree[Array]) -> str:
  """Returns a hash that tells two states of one model apart for the price of reading them once on the device.

  Each value is hashed with its place and the hashes are summed as whole numbers, so that the order of summation, and with
  it the number of devices, does not matter.
  """
  return hashlib.sha256(b"".join(np.asarray(x).tobytes() for x in _sums(params))).hexdigest()[:16]


def _sums(params: PyTree[Array]) -> list[Array]:
  leaves = jax.tree.leaves(params)
  placed = [x.sharding for x in leaves if isinstance(x, jax.Array)]
  mesh = placed[0].mesh if placed and isinstance(placed[0], NamedSharding) else None
  return _jitted(None if mesh is None else NamedSharding(mesh, PartitionSpec()))(leaves)


@functools.lru_cache(maxsize=8)
def _jitted(whole: NamedSharding | None) -> Callable:
  """One a mesh, whose sums every process can read."""
  return jax.jit(lambda leaves: [_bit_sums(x) for x in leaves], out_shardings=whole)


def _bit_sums(x: Array) -> Array:
  """Returns two sums of hashes, modulo 2^32."""
  bits = jax.lax.bitcast_convert_type(x.astype(jnp.float32), jnp.uint32)
  place = jnp.zeros(x.shape, jnp.uint32)
  for axis, size in enumerate(x.shape):
    place = place * jnp.uint32(size % 2**32) + jax.lax.broadcasted_iota(jnp.uint32, x.shape, axis)
  return jnp.stack(
    [jnp.sum(_mixed(bits ^ _mixed(place + jnp.uint32(salt))), dtype=jnp.uint32) for salt in (1, 2)]
  )


def _mixed(x: Array) -> Array:
  """Returns uint32 hashes of uint32 numbers, one to one. Source: the finalizer of MurmurHash3 (Appleby, 2011)."""
  x = (x ^ (x >> 16)) * jnp.uint32(0x85EBCA6B)
  x = (x ^ (x >> 13)) * jnp.uint32(0xC2B2AE35)
  return x ^ (x >> 16)
