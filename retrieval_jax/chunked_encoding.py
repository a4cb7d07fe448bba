"""Encoding a side of the batch in chunks: the embeddings and gradients of the whole in the activation memory of a chunk."""

from typing import Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, PyTree

from retrieval_jax import sharding
from retrieval_jax.records import Tokens


@runtime_checkable
class Encode(Protocol):
  """One side of a model in training: TowerPair.encode_queries or encode_passages."""

  def __call__(
    self, params: PyTree[Array], tokens: Tokens, *, dropout_rng: Array | None = None
  ) -> Float[Array, "b d"]: ...


def spread(params: PyTree[Array]) -> PyTree[Array]:
  """Returns the parameters as `encode_in_chunks` takes them: a copy of its own for every data shard.

  Each array gets a first axis of data shards, split over the data axis: nothing moves and nothing is stored twice. A
  gradient with respect to the copies stays on its shard, so loops over chunks and microbatches add up without
  communication; the transpose of `spread` then sums over the shards once. Left to XLA, the partitioner puts that sum
  into the loop's body, once a chunk and side (jax 0.10.2). Without a data mesh (sharding.data_mesh) it is the identity, and
  under FSDP, where no device could hold a copy of its own.

  Example: `copies, pull = jax.vjp(spread, params)`; `pull(gradient_of_copies)[0]` is the parameters' gradient.
  """
  mesh = _split_mesh()
  if mesh is None or mesh.splits_parameters:
    return params
  rows = PartitionSpec(mesh.axes)

  def copy(params: PyTree[Array]) -> PyTree[Array]:
    return jax.tree.map(lambda x: jax.lax.pcast(x, mesh.axes, to="varying")[None], params)

  return jax.shard_map(
    copy, mesh=mesh.mesh, in_specs=PartitionSpec(), out_specs=rows, axis_names={*mesh.axes}
  )(params)


def encode_in_chunks(
  encode: Encode, copies: PyTree[Array], tokens: Tokens, *, chunks: int, rng: Array
) -> Float[Array, "b d"]:
  """Returns encode(params, tokens) computed `chunks` pieces at a time, with activations kept for none of them.

  lax.map over jax.checkpoint(encode): the backward pass encodes each chunk again and goes back through it with that
  chunk's rows of the embeddings' gradient, which is GradCache (Gao et al. 2021, arXiv 2101.06983, section 3). A loss of
  the embeddings so has the gradient of the whole batch, whatever the loss.
  Cost: one more forward pass; memory: activations of b / chunks rows and the embeddings.

  copies: spread(params). Under a data mesh every shard cuts its own rows, so that each chunk occupies all devices and no
  row moves; shard and chunk numbers are then counted through. One dropout key a piece: fold_in(rng, shard * chunks +
  chunk). Masks so depend on the number of chunks and shards; without dropout nothing does but rounding.
  chunks that do not divide a shard's rows: the last piece is filled with repeated rows, which are cut off again and
  take no part in any gradient. More chunks than rows are one a row. One chunk is encoded without a loop or checkpoint.

  Example: `encode_in_chunks(model.encode_queries, spread(params), tokens, chunks=4, rng=jax.random.key(0))`.
  """
  mesh = _split_mesh()
  if mesh is None:
    return _encode_shard(encode, copies, tokens, chunks, rng)
  if mesh.splits_parameters:
    return _encode_all_shards(encode, copies, tokens, chunks, rng, mesh.size)
  rows = PartitionSpec(mesh.axes)

  def shard(copies: PyTree[Array], tokens: Tokens, rng: Array) -> Float[Array, "b d"]:
    own = jax.tree.map(lambda x: x[0], copies)
    return _encode_shard(encode, own, tokens, chunks, rng, jax.lax.axis_index(mesh.axes))

  # The model axis, if any, stays with XLA.
  return jax.shard_map(
    shard, mesh=mesh.mesh, in_specs=(rows, rows, PartitionSpec()), out_specs=rows, axis_names={*mesh.axes}
  )(copies, tokens, rng)


def _encode_shard(
  encode: Encode, params: PyTree[Array], tokens: Tokens, chunks: int, rng: Array, shard: Array | int = 0
) -> Float[Array, "b d"]:
  rows = jax.tree.leaves(tokens)[0].shape[0]
  size = -(-rows // min(chunks, rows))
  count = -(-rows // size)
  numbers = shard * chunks + jnp.arange(count)
  if count == 1:
    return encode(params, tokens, dropout_rng=jax.random.fold_in(rng, numbers[0]))

  def piece(chunk: tuple[Array, Tokens]) -> Float[Array, "b d"]:
    number, tokens = chunk
    return encode(params, tokens, dropout_rng=jax.random.fold_in(rng, number))

  def cut(x: Array) -> Array:
    filled = jnp.concatenate([x, x[: count * size - rows]])
    return filled.reshape(count, size, *x.shape[1:])

  # The loop keeps XLA from merging the two forward passes, so the checkpoint needs no barriers.
  embeddings = jax.lax.map(jax.checkpoint(piece, prevent_cse=False), (numbers, jax.tree.map(cut, tokens)))
  return embeddings.reshape(count * size, -1)[:rows]


def _encode_all_shards(
  encode: Encode, params: PyTree[Array], tokens: Tokens, chunks: int, rng: Array, shards: int
) -> Float[Array, "b d"]:
  """The same with parameters that are split over the shards: XLA gathers each layer in each chunk, and scatters its gradient.

  Chunk j has the j-th part of every shard's rows, so that no row moves.
  """
  rows = jax.tree.leaves(tokens)[0].shape[0] // shards
  size = -(-rows // min(chunks, rows))
  count = -(-rows // size)

  def cut(x: Array) -> Array:
    own = x.reshape(shards, rows, *x.shape[1:])
    filled = jnp.concatenate([own, own[:, : count * size - rows]], axis=1)
    parts = filled.reshape(shards, count, size, *x.shape[1:]).swapaxes(0, 1)
    return sharding.constrain(
      parts.reshape(count, shards * size, *x.shape[1:]), (None, sharding.BATCH, *[None] * (x.ndim - 1))
    )

  def piece(chunk: tuple[Array, Tokens]) -> Float[Array, "b d"]:
    number, tokens = chunk
    return encode(params, tokens, dropout_rng=jax.random.fold_in(rng, number))

  if count == 1:
    return piece((jnp.zeros((), jnp.int32), tokens))
  embeddings = jax.lax.map(
    jax.checkpoint(piece, prevent_cse=False), (jnp.arange(count), jax.tree.map(cut, tokens))
  )
  d = embeddings.shape[-1]
  by_shard = embeddings.reshape(count, shards, size, d).swapaxes(0, 1).reshape(shards, count * size, d)
  return sharding.constrain(by_shard[:, :rows].reshape(shards * rows, d), (sharding.BATCH, None))


def _split_mesh() -> sharding.DataMesh | None:
  """The mesh, where it splits the batch at all."""
  mesh = sharding.data_mesh()
  return None if mesh is None or mesh.size == 1 else mesh
