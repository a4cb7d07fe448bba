"""Checkpoints that T5X writes through Orbax, its default since 2024: an item `state`, usually an OCDBT database."""

import json
import pathlib
import re
from collections.abc import Mapping
from typing import Any, Final

from retrieval_jax.errors import UserError
from retrieval_jax.interop import t5x_zarr
from retrieval_jax.interop.t5x_leaves import Leaves, Stored

ITEM: Final = "state"
DATABASE: Final = "manifest.ocdbt"
TREE: Final = "_METADATA"
CHECKPOINT: Final = "_CHECKPOINT_METADATA"
COMMITTED: Final = "commit_success.txt"
UNFINISHED: Final = re.compile(r".*\.orbax-checkpoint-tmp.*")


def is_item(folder: pathlib.Path) -> bool:
  """Returns whether the folder is the item itself: parameters and optimizer state as Orbax writes a tree."""
  return (folder / DATABASE).is_file() or (folder / TREE).is_file()


def is_checkpoint(folder: pathlib.Path) -> bool:
  """Returns whether the folder is a step of Orbax's checkpoint manager, finished or not."""
  children = [child.name for child in folder.iterdir()]
  return CHECKPOINT in children or ITEM in children or any(UNFINISHED.fullmatch(name) for name in children)


def leaves(checkpoint: pathlib.Path) -> Leaves:
  """Returns the leaves of a checkpoint, or of its item `state`, their arrays not read yet.

  Raises: UserError naming the file if it is damaged or unfinished.
  """
  folder = checkpoint
  if not is_item(checkpoint):
    _check_finished(checkpoint)
    folder = checkpoint / ITEM
    if not is_item(folder):
      raise UserError(f"{folder / DATABASE}: no such file: the checkpoint is incomplete. Copy it again.")
  tree = _tree(folder / TREE)
  if tree.get("use_zarr3"):
    raise UserError(f"{folder}: arrays of zarr version 3, expected version 2. Save it with use_zarr3=False.")
  database = (folder / DATABASE).is_file()
  if tree.get("use_ocdbt") and not database:
    raise UserError(f"{folder / DATABASE}: no such file: the checkpoint is incomplete. Copy it again.")
  store = t5x_zarr.open_database(folder) if database else t5x_zarr.open_folders(folder)
  names = _names(tree, folder / TREE) or {name.replace(".", "/"): name for name in store.arrays}
  return Leaves(checkpoint, store, {name: Stored(key) for name, key in names.items()})


def _check_finished(checkpoint: pathlib.Path) -> None:
  """Raises UserError for a checkpoint whose writing began and did not end.

  On a local disk a rename ends it; elsewhere commit_success.txt does, first in the items and then beside them.
  """
  for child in checkpoint.iterdir():
    if UNFINISHED.fullmatch(child.name):
      raise UserError(f"{child}: the checkpoint was not finished. Use an earlier one.")
  metadata = checkpoint / CHECKPOINT
  if not metadata.is_file():
    return  # no checkpoint manager wrote it, but its item alone was saved here
  if not _json(metadata).get("commit_timestamp_nsecs"):
    raise UserError(
      f"{metadata}: it has no commit time: the checkpoint was not finished. Use an earlier one."
    )
  outer, inner = checkpoint / COMMITTED, checkpoint / ITEM / COMMITTED
  if outer.exists() != inner.exists():
    raise UserError(
      f"{inner if outer.exists() else outer}: no such file: the checkpoint was not finished, or not copied whole. "
      "Copy it again, or use an earlier one."
    )


def _json(path: pathlib.Path) -> dict[str, Any]:
  try:
    result = json.loads(path.read_text(encoding="utf-8"))
  except (ValueError, OSError, RecursionError) as error:
    raise UserError(f"{path}: damaged, expected JSON ({error}). Copy the checkpoint again.") from None
  if not isinstance(result, dict):
    raise UserError(f"{path}: damaged, expected a JSON object. Copy the checkpoint again.")
  return result


def _tree(path: pathlib.Path) -> dict[str, Any]:
  """Returns Orbax's description of the tree; {} where an older Orbax wrote none."""
  return _json(path) if path.exists() else {}


def _names(tree: Mapping[str, Any], path: pathlib.Path) -> dict[str, str]:
  """Returns a leaf's name -> its key in the store; {} if the tree is not described. Empty subtrees are no leaves."""
  try:
    result = {}
    for leaf in tree.get("tree_metadata", {}).values():
      keys = [str(part["key"]) for part in leaf["key_metadata"]]
      if not leaf["value_metadata"].get("skip_deserialize", False):
        result["/".join(keys)] = ".".join(keys)
    return result
  except (KeyError, TypeError, AttributeError) as error:
    raise UserError(
      f"{path}: damaged ({type(error).__name__}: {error}). Copy the checkpoint again."
    ) from None
