"""model-info.txt, as T5X writes it: every variable with its shape, logical axes, partition and bytes per device."""

import math
import pathlib
from collections.abc import Iterator
from typing import Any

import jax

from retrieval_jax.models.dual_encoder import TowerPair
from retrieval_jax.partitioning import Partitioner
from retrieval_jax.paths import atomic_write
from retrieval_jax.train_state import TrainState

_ROW = "{:<70} {:<18} {:<28} {:<28} {:>14}"


def write_model_info(
  path: pathlib.Path, model: TowerPair, state: TrainState, partitioner: Partitioner
) -> None:
  """Writes one line a variable of the state and the totals of each part. Nothing is read or allocated.

  state: arrays, or ShapeDtypeStructs with shardings. Parameters of the model come first, by the names that FROZEN takes; then
  what the loss learns and keeps, and the optimizer's slots, which lie as their parameters do.

  Example: `write_model_info(folder / "model-info.txt", model, state, partitioner())`.
  """
  axes = dict(_flat(model.logical_axes(), is_leaf=lambda x: isinstance(x, tuple)))
  parts: dict[str, Any] = {
    "parameters": state.params["model"],
    "parameters of the loss": state.params["loss"],
    "state of the loss": state.loss_state,
    "optimizer": state.opt_state,
  }
  lines, totals = [_ROW.format("variable", "shape", "logical axes", "partition", "bytes/device")], []
  for part, tree in parts.items():
    values = list(_flat(tree))
    if not values:
      continue
    lines.append(f"{part}:")
    for name, leaf in values:
      own = axes.get(name, "") if part == "parameters" else ""
      spec = tuple(leaf.sharding.spec)
      lines.append(_ROW.format(name, str(leaf.shape), str(own), str(spec), f"{_bytes(leaf):,}"))
    count = sum(math.prod(leaf.shape) for _, leaf in values)
    totals.append(f"{part}: {count:,} numbers, {sum(_bytes(leaf) for _, leaf in values):,} bytes a device")
  mesh = f"mesh {dict(partitioner.mesh.shape)} of {partitioner.mesh.devices.size} devices"
  with atomic_write(path) as file:
    file.write("\n".join([*lines, *totals, mesh]) + "\n")


def _bytes(leaf: Any) -> int:
  return math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize


def _flat(tree: Any, is_leaf: Any = None) -> Iterator[tuple[str, Any]]:
  for path, leaf in jax.tree_util.tree_leaves_with_path(tree, is_leaf=is_leaf):
    yield jax.tree_util.keystr(path, simple=True, separator="/"), leaf
