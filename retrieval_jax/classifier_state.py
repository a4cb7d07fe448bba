"""The classifiers on the mesh: split by rows over all devices, with their optimizer's slots beside them."""

from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array

from retrieval_jax.classifiers import unit_rows
from retrieval_jax.device_mesh import AXES
from retrieval_jax.errors import UserError
from retrieval_jax.partitioning import Partitioner
from retrieval_jax.searchers import SideEmbeddings
from retrieval_jax.sparse_optimizers import SparseOptimizer
from retrieval_jax.train_state import TrainState, abstract_with

NAME: Final = "classifiers"
# Rows are padded to a multiple of this, whatever the mesh, so that a checkpoint fits every one of them.
ROW_MULTIPLE: Final = 768
_BLOCK_ROWS: Final = 65_536  # read at a time


def padded_rows(num_labels: int) -> int:
  """Returns the rows of the array of so many classifiers; those from num_labels on are zeros and never touched."""
  return -(-num_labels // ROW_MULTIPLE) * ROW_MULTIPLE


def by_rows(partitioner: Partitioner) -> NamedSharding:
  """Returns the sharding of the classifiers and their slots: rows over all devices of the mesh, whatever their axis.

  Raises: UserError for a number of devices that does not divide ROW_MULTIPLE.
  """
  devices = partitioner.mesh.devices.size
  if ROW_MULTIPLE % devices:
    divisors = [n for n in range(1, ROW_MULTIPLE + 1) if ROW_MULTIPLE % n == 0]
    near = sorted(sorted(divisors, key=lambda n: abs(n - devices))[:2])
    raise UserError(
      f"classifiers are split over all devices of the mesh {dict(partitioner.mesh.shape)} by rows; expected a divisor of "
      f"{ROW_MULTIPLE}, such as {' or '.join(map(str, near))}, not {devices}."
    )
  return NamedSharding(partitioner.mesh, PartitionSpec(AXES))


def abstract_state(
  num_labels: int, embed_dim: int, optimizer: SparseOptimizer, partitioner: Partitioner
) -> TrainState:
  """Returns the shapes, dtypes and shardings of the state: the target of a restore."""
  weights = jax.ShapeDtypeStruct((padded_rows(num_labels), embed_dim), jnp.float32)
  abstract = jax.eval_shape(lambda weights: _state(weights, optimizer), weights)
  return abstract_with(abstract, state_shardings(abstract, partitioner))


def state_shardings(state: TrainState, partitioner: Partitioner) -> Any:
  """Returns the state's shardings: matrices by rows, the step everywhere."""
  rows = by_rows(partitioner)
  return jax.tree.map(lambda x: rows if x.ndim == 2 else partitioner.replicated, state)


def initial_state(
  passages: SideEmbeddings, optimizer: SparseOptimizer, partitioner: Partitioner
) -> TrainState:
  """Returns the state at step 0: each classifier is its passage's embedding at unit length.

  Each device's rows are read by themselves: host memory is that of one device's piece.
  """
  num_labels, embed_dim = passages.shape

  def piece(index: tuple[slice, ...] | None) -> np.ndarray:
    assert index is not None
    start, stop, _ = index[0].indices(padded_rows(num_labels))
    found = np.zeros((stop - start, embed_dim), np.float32)
    for first in range(start, min(stop, num_labels), _BLOCK_ROWS):
      last = min(first + _BLOCK_ROWS, stop, num_labels)
      found[first - start : last - start] = unit_rows(passages[first:last])
    return found

  shape = (padded_rows(num_labels), embed_dim)
  weights = jax.make_array_from_callback(shape, by_rows(partitioner), piece)
  abstract = jax.eval_shape(lambda weights: _state(weights, optimizer), weights)
  create = jax.jit(
    lambda weights: _state(weights, optimizer),
    out_shardings=state_shardings(abstract, partitioner),
    donate_argnums=0,
  )
  return create(weights)


def bytes_needed(num_labels: int, embed_dim: int, optimizer: SparseOptimizer) -> tuple[int, int]:
  """Returns the bytes of the padded classifiers (float32), and those of a checkpoint: with the optimizer's slots.

  Example: 1,305,265 labels of 768 numbers with Adam are 4.0 GB and 12.0 GB.
  """
  weights = 4 * padded_rows(num_labels) * embed_dim
  return weights, weights * (1 + len(optimizer.slots))


def _state(weights: Array, optimizer: SparseOptimizer) -> TrainState:
  return TrainState(
    step=jnp.zeros((), jnp.int32), params={NAME: weights}, loss_state={}, opt_state=optimizer.init(weights)
  )
