"""The k largest inner products on devices: each takes a part of the corpus, chunk by chunk, in one compiled shape."""

import functools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float, Int

from retrieval_jax import scoring
from retrieval_jax.index.base import Embeddings, check_finite
from retrieval_jax.records import AnyArray, Ranking

CHUNK_ROWS, QUERY_ROWS = 50_000, 256

_AXIS = "device"  # of the mesh, and of every array below whose first axis is one slice per device
_SLICED, _WHOLE = PartitionSpec(_AXIS), PartitionSpec()


class _Best(NamedTuple):
  """The best rows so far of a block of queries, best first; row -1 with score -inf where there are none yet."""

  scores: Float[AnyArray, "devices q k"]
  rows: Int[AnyArray, "devices q k"]


class _Chunk(NamedTuple):
  """One piece of the corpus per device. Rows from `stop` on are padding."""

  embeddings: Float[AnyArray, "devices rows d"]
  start: Int[AnyArray, "devices"]  # the corpus row of the first
  stop: Int[AnyArray, "devices"]


def _top(scores: Float[Array, "q x"], rows: Int[Array, "q x"], k: int) -> tuple[Array, Array]:
  """Returns the k best columns. top_k takes the first of equal ones, and callers order equal ones by row."""
  best, places = jax.lax.top_k(scores, k)
  return best, jnp.take_along_axis(rows, places, axis=1)


def _merge_slice(best: _Best, queries: Float[Array, "q d"], chunk: _Chunk) -> _Best:
  """Returns the best of `best` and the chunk, on one device. The chunk's rows come after all rows of `best`."""
  k, size = best.rows.shape[-1], chunk.embeddings.shape[1]
  rows = chunk.start + jnp.arange(size, dtype=jnp.int32)
  real = rows < chunk.stop
  scores = scoring.dot(queries, chunk.embeddings[0])
  scores = jnp.where(scores == 0, 0.0, scores)  # top_k would put 0 above -0
  scores = jnp.where(real[None, :], scores, -jnp.inf)
  rows = jnp.broadcast_to(jnp.where(real, rows, -1)[None, :], scores.shape)
  found_scores, found_rows = _top(scores, rows, min(k, size))
  merged = _top(
    jnp.concatenate([best.scores[0], found_scores], axis=1),
    jnp.concatenate([best.rows[0], found_rows], axis=1),
    k,
  )
  return _Best(merged[0][None], merged[1][None])


@functools.partial(jax.jit, static_argnames="mesh")
def _merge(mesh: Mesh, best: _Best, queries: Float[Array, "q d"], chunk: _Chunk) -> _Best:
  sliced = jax.shard_map(
    _merge_slice, mesh=mesh, in_specs=(_SLICED, _WHOLE, _SLICED), out_specs=_SLICED, check_vma=True
  )
  return sliced(best, queries, chunk)


@jax.jit
def _join(best: _Best) -> tuple[Float[Array, "q k"], Int[Array, "q k"]]:
  """Returns the best over all devices. Device d has smaller rows than device d + 1, so ties stay in row order."""
  _, q, k = best.rows.shape
  scores, rows = (jnp.moveaxis(x, 0, 1).reshape(q, -1) for x in best)
  return _top(scores, rows, k)


def _chunks(corpus: Embeddings, devices: int, chunk_rows: int) -> Iterator[_Chunk]:
  """Yields the pieces of the corpus, all of one shape, in host memory.

  Device d has a contiguous part of the corpus, and goes through it in order.
  """
  count, width = corpus.shape
  part = -(-count // devices)
  size = min(chunk_rows, part)
  firsts = np.minimum(np.arange(devices) * part, count)
  lasts = np.minimum(firsts + part, count)
  for offset in range(0, part, size):
    start, stop = firsts + offset, np.minimum(firsts + offset + size, lasts)
    # A fresh buffer each time: the device may still read the last one.
    embeddings = np.zeros((devices, size, width), np.float32)
    for d in range(devices):
      if start[d] < stop[d]:
        embeddings[d, : stop[d] - start[d]] = corpus[start[d] : stop[d]]
        check_finite("passage", embeddings[d], int(start[d]))
    yield _Chunk(embeddings, start.astype(np.int32), stop.astype(np.int32))


def search(
  corpus: Embeddings,
  queries: Float[np.ndarray, "q d"],
  *,
  k: int,
  chunk_rows: int,
  query_rows: int,
  devices: Sequence[jax.Device],  # pyright: ignore[reportInvalidTypeForm]  (jax assigns the class)
) -> Ranking:
  """Returns the k passages with the largest inner products; `exact.search_exact` says more."""
  mesh = Mesh(np.array(devices), (_AXIS,), axis_types=(AxisType.Auto,))
  sliced, whole = NamedSharding(mesh, _SLICED), NamedSharding(mesh, _WHOLE)

  # At least two: XLA:CPU's product with a single vector gives equal passages scores that differ in the last bit.
  block = max(2, min(query_rows, len(queries)))
  padded = np.pad(queries, ((0, -len(queries) % block), (0, 0)))
  blocks = [jax.device_put(rows, whole) for rows in np.split(padded, len(padded) // block)]
  shape = (len(devices), block, k)
  nothing = jax.device_put(_Best(np.full(shape, -np.inf, np.float32), np.full(shape, -1, np.int32)), sliced)
  best = [nothing] * len(blocks)
  for host_chunk in _chunks(corpus, len(devices), chunk_rows):
    jax.block_until_ready(best)  # or the host would read ahead without bound
    chunk = jax.device_put(host_chunk, sliced)
    best = [_merge(mesh, b, q, chunk) for b, q in zip(best, blocks, strict=True)]

  scores, rows = (
    np.concatenate([np.asarray(x) for x in parts])[: len(queries)]
    for parts in zip(*[_join(b) for b in best], strict=True)
  )
  return Ranking(rows, scores)
