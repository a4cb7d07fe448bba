"""The leaves of a T5X checkpoint before their arrays are read."""

import pathlib
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

from retrieval_jax.errors import UserError
from retrieval_jax.interop import t5x_zarr


class Stored(NamedTuple):
  """An array in the checkpoint's store. shape: if known beside the store.

  from_uint16: whether 16-bit integers in it are the bits of bfloat16 numbers.
  """

  name: str
  shape: tuple[int, ...] | None = None
  from_uint16: bool = False


class Leaves(NamedTuple):
  """All leaves of a checkpoint by their slash-joined names, "target/encoder/..." and "state/..."."""

  folder: pathlib.Path
  store: t5x_zarr.Store
  by_name: Mapping[str, np.ndarray | Stored]

  def read(self, names: Iterable[str]) -> dict[str, np.ndarray]:
    """Returns the arrays of these leaves.

    Raises: UserError naming the file for a missing or damaged array.
    """
    wanted = {name: self.by_name[name] for name in names}
    arrays = t5x_zarr.read(self.store, [leaf.name for leaf in wanted.values() if isinstance(leaf, Stored)])
    return {
      name: self._decoded(leaf, arrays[leaf.name]) if isinstance(leaf, Stored) else leaf
      for name, leaf in wanted.items()
    }

  def shape(self, name: str) -> tuple[int, ...]:
    """Returns a leaf's shape without its values.

    Raises: UserError if the array is missing or damaged.
    """
    leaf = self.by_name[name]
    if isinstance(leaf, Stored) and leaf.shape is None:
      return t5x_zarr.shape(self.store, leaf.name)
    return leaf.shape or ()

  def _decoded(self, leaf: Stored, value: np.ndarray) -> np.ndarray:
    if leaf.shape is not None and leaf.shape != value.shape:
      raise UserError(
        f"{self.folder / leaf.name}: shape {value.shape}, expected {leaf.shape} as the file 'checkpoint' beside it "
        "says: parts of two checkpoints were mixed. Copy the checkpoint again."
      )
    return as_bfloat16(value) if leaf.from_uint16 else value


def as_bfloat16(value: np.ndarray) -> np.ndarray:
  """Returns uint16 values as the bfloat16 numbers of the same bits; others as they are."""
  import ml_dtypes

  return value.view(ml_dtypes.bfloat16) if value.dtype == np.uint16 else value
