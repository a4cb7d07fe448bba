"""model-info.txt, as T5X writes it: every parameter with its shape, logical axes, partition and bytes per device."""

import math
import pathlib

import jax

from retrieval_jax.models.dual_encoder import TowerPair
from retrieval_jax.partitioning import Partitioner
from retrieval_jax.paths import atomic_write


def write_model_info(path: pathlib.Path, model: TowerPair, partitioner: Partitioner) -> int:
  """Writes one line a parameter and the totals; returns the number of parameters. Nothing is allocated."""
  abstract = jax.eval_shape(model.init, jax.random.key(0))
  axes = dict(_flat(model.logical_axes(), is_leaf=lambda x: isinstance(x, tuple)))
  shardings = dict(_flat(partitioner.shardings(abstract, model.logical_axes())))
  lines, count, total_bytes = [], 0, 0
  for name, leaf in _flat(abstract):
    per_device = math.prod(shardings[name].shard_shape(leaf.shape)) * leaf.dtype.itemsize
    size = math.prod(leaf.shape)
    lines.append(
      f"{name:<70} {leaf.shape!s:<18} {axes[name]!s:<28} {tuple(shardings[name].spec)!s:<28} {per_device:>12,}"
    )
    count, total_bytes = count + size, total_bytes + per_device
  header = f"{'parameter':<70} {'shape':<18} {'logical axes':<28} {'partition':<28} {'bytes/device':>12}"
  footer = f"{count:,} parameters, {total_bytes:,} bytes of parameters per device, mesh {dict(partitioner.mesh.shape)}"
  with atomic_write(path) as file:
    file.write("\n".join([header, *lines, footer]) + "\n")
  return count


def _flat(tree, is_leaf=None):
  leaves = jax.tree_util.tree_leaves_with_path(tree, is_leaf=is_leaf)
  return [(jax.tree_util.keystr(path, simple=True, separator="/"), leaf) for path, leaf in leaves]
