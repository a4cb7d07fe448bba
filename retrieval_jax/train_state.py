"""What a training run carries from step to step, how it starts, and how it lies on the mesh."""

from collections.abc import Mapping
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Int, PyTree

from retrieval_jax.losses.base import DataSizes, Loss
from retrieval_jax.models.dual_encoder import TowerPair
from retrieval_jax.partitioning import Partitioner
from retrieval_jax.table_updates import TableUpdates


class TrainState(flax.struct.PyTreeNode):
  """step: number of updates done. params: {"model": ..., "loss": ...}. No random key: keys are fold_in(root, step)."""

  step: Int[Array, ""]
  params: Mapping[str, PyTree[Array]]
  loss_state: PyTree[Array]
  opt_state: PyTree[Array]


def initial_state(
  rng: Array,
  model: TowerPair,
  loss: Loss,
  transform: optax.GradientTransformation,
  *,
  data: DataSizes,
  model_params: PyTree[Array] | None = None,
  tables: TableUpdates | None = None,
) -> TrainState:
  """Returns the state at step 0 (pure: works under jit and eval_shape).

  model_params: pretrained parameters to start from; None initialises them from rng.
  tables: what trains the model's tables in the rows of a batch. The optimizer state is then {"dense": that of `transform` on
    everything else, "tables": the tables' slots}.
  """
  model_rng, loss_rng = jax.random.split(rng)
  if model_params is None:
    model_params = model.init(model_rng)
  loss_params, loss_state = loss.init(loss_rng, embed_dim=model.embed_dim, data=data)
  params = {"model": model_params, "loss": loss_params}
  if tables is None:
    opt_state: Any = transform.init(params)
  else:
    opt_state = {"dense": transform.init(tables.split(params)[0]), "tables": tables.init(params)}
  return TrainState(jnp.zeros((), jnp.int32), params, loss_state, opt_state)


def state_shardings(
  abstract: TrainState, model: TowerPair, partitioner: Partitioner, loss: Loss | None = None
) -> TrainState:
  """Returns a TrainState of NamedShardings: parameters by their logical axes, optimizer slots like their parameter, the
  loss's state by its state_axes.

  A slot of another shape than its parameter (Adafactor's row and column factors) and everything else is replicated.
  """
  replicated = partitioner.replicated
  params = {
    "model": partitioner.shardings(abstract.params["model"], model.logical_axes()),
    "loss": jax.tree.map(lambda _: replicated, abstract.params["loss"]),
  }
  by_path = {
    path: (leaf.shape, sharding)
    for (path, leaf), sharding in zip(
      jax.tree_util.tree_leaves_with_path(abstract.params), jax.tree.leaves(params), strict=True
    )
  }

  def slot(path: tuple, leaf: Any) -> Any:
    """The sharding of the parameter whose path ends this slot's, whatever states the optimizer wraps around it."""
    for start in range(len(path)):
      shape, sharding = by_path.get(path[start:], (None, replicated))
      if shape == leaf.shape:
        return sharding
    return replicated

  opt_state = jax.tree_util.tree_map_with_path(slot, abstract.opt_state)
  return TrainState(
    step=replicated,  # pyright: ignore[reportArgumentType]  (a tree of shardings in the shape of the state)
    params=params,
    loss_state=_loss_state_shardings(abstract.loss_state, loss, partitioner),
    opt_state=opt_state,
  )


def _loss_state_shardings(abstract: PyTree, loss: Loss | None, partitioner: Partitioner) -> PyTree:
  if loss is None or loss.state_axes is None:
    return jax.tree.map(lambda _: partitioner.replicated, abstract)
  return partitioner.shardings(abstract, loss.state_axes(abstract))


def abstract_with(abstract: PyTree, shardings: PyTree) -> PyTree[jax.ShapeDtypeStruct]:
  """Returns the ShapeDtypeStructs of `abstract` with these shardings: the target of a restore."""
  return jax.tree.map(lambda a, s: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=s), abstract, shardings)
