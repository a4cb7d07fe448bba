"""What arrays a checkpoint holds, as tables of paths and shapes, and in words what differs from those configured."""

from collections.abc import Mapping
from typing import Any

import jax
from jaxtyping import PyTree

# A row of a table: [shape, dtype] of an array, or [] for a part of the tree that has none.
Table = Mapping[str, list]


def parameter_table(params: PyTree) -> dict[str, list]:
  """Returns {path: [shape, dtype]} of a parameter tree: what makes two checkpoints of one architecture."""
  leaves = jax.tree_util.tree_leaves_with_path(params)
  return {_path(path): [list(leaf.shape), str(leaf.dtype)] for path, leaf in leaves}


def structure_table(tree: PyTree) -> dict[str, list]:
  """Returns the table of a tree with the parts that have no arrays too, such as the parameters {} of a loss.

  Example: of `{"squared": {}}` it is `{"squared": []}`, where `parameter_table` has nothing.
  """
  leaves = jax.tree_util.tree_leaves_with_path(tree, is_leaf=_is_empty)
  return {
    _path(path): [] if _is_empty(leaf) else [list(leaf.shape), str(leaf.dtype)] for path, leaf in leaves
  }


def difference(saved: Table, expected: Table, *, limit: int = 6) -> str:
  """Returns a readable list of what differs between two tables, or the empty string."""
  lines = []
  for path in sorted(set(saved) | set(expected)):
    if path not in expected:
      lines.append(f"  {path}: only in the checkpoint {_shape(saved[path])}")
    elif path not in saved:
      lines.append(f"  {path}: only in the model {_shape(expected[path])}")
    elif list(saved[path]) != list(expected[path]):
      lines.append(f"  {path}: checkpoint {_array(saved[path])}, model {_array(expected[path])}")
  if len(lines) > limit:
    lines = [*lines[:limit], f"  ... and {len(lines) - limit} more"]
  return "\n".join(lines)


def other_number_of_rows(saved: Table, expected: Table) -> bool:
  """Returns whether the tables differ, and in nothing but the length of some arrays' first axes."""
  differing = [path for path in {*saved, *expected} if saved.get(path) != expected.get(path)]
  both = [(saved.get(path), expected.get(path)) for path in differing]
  return bool(both) and all(
    a and b and a[0] and b[0] and (a[0][1:], a[1]) == (b[0][1:], b[1]) for a, b in both
  )


def _is_empty(part: Any) -> bool:
  return part is None or (isinstance(part, Mapping | tuple | list) and len(part) == 0)


def _path(path: tuple) -> str:
  return jax.tree_util.keystr(path, simple=True, separator="/")


def _shape(row: list) -> str:
  return str(tuple(row[0])) if row else "(without arrays)"


def _array(row: list) -> str:
  return f"{_shape(row)} {row[1]}" if row else _shape(row)
