"""T5X's own checkpoint format: a msgpack file `checkpoint` beside one zarr folder for every large array."""

import pathlib
from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np

from retrieval_jax import paths
from retrieval_jax.errors import UserError
from retrieval_jax.interop import t5x_zarr
from retrieval_jax.interop.t5x_leaves import Leaves, Stored, as_bfloat16

INDEX: Final = "checkpoint"
VERSION: Final = 3
BFLOAT16_VERSION: Final = 3  # earlier versions stored bfloat16 as uint16, which zarr knew

# Where T5X's writers said the zarr folders are; they are beside the index, wherever it was copied to.
KVSTORES: Final = ("file", "gfile", "gcs")

# msgpack's extension types in flax's state files.
ARRAY, COMPLEX, SCALAR = 1, 2, 3

# Arrays of more than a gibibyte within the msgpack file are cut into flat pieces under this mark.
PIECES: Final = "__msgpack_chunked_array__"


def leaves(folder: pathlib.Path) -> Leaves:
  """Returns the leaves of the checkpoint in `folder`, its large arrays not read yet.

  Raises: UserError naming the file if it is damaged, unfinished or of another kind.
  """
  path = folder / INDEX
  contents = _unpacked(path)
  if not isinstance(contents, dict) or not isinstance(contents.get("optimizer"), dict):
    raise UserError(
      f"{path}: not a T5X checkpoint: it has no 'optimizer'. Name the folder of a T5X checkpoint."
    )
  version = contents.get("version", 1)
  if not isinstance(version, int) or not 1 <= version <= VERSION:
    raise UserError(f"{path}: T5X checkpoint version {version!r}; versions 1 to {VERSION} can be read.")
  store = t5x_zarr.open_folders(folder)
  by_name: dict[str, np.ndarray | Stored] = {}
  for name, leaf in _flat(contents["optimizer"]):
    if isinstance(leaf, dict) and PIECES in leaf:
      by_name[name] = _joined(leaf, f"{path}: {name}")
    elif isinstance(leaf, dict):
      by_name[name] = _stored(leaf, f"{path}: {name}", from_uint16=version < BFLOAT16_VERSION)
    elif isinstance(leaf, np.ndarray):
      by_name[name] = as_bfloat16(leaf) if version < BFLOAT16_VERSION else leaf
    elif isinstance(leaf, (bool, int, float)):
      by_name[name] = np.asarray(leaf)
    else:
      raise UserError(
        f"{path}: {name} is {type(leaf).__name__}, expected an array. Copy the checkpoint again."
      )
  return Leaves(folder, store, by_name)


def write(folder: pathlib.Path, target: Mapping[str, np.ndarray], *, step: int) -> None:
  """Writes a version-3 checkpoint of the parameters `target` (slash-joined names) into the empty `folder`."""
  import msgpack

  tree: dict[str, Any] = {}
  for name, value in sorted(target.items()):
    *modules, leaf = name.split("/")
    node = tree
    for module in modules:
      node = node.setdefault(module, {})
    node[leaf] = t5x_zarr.write(folder, ".".join(["target", *modules, leaf]), value)
  scalar = np.asarray(step, np.int32)
  packed_step = msgpack.ExtType(ARRAY, msgpack.packb((scalar.shape, scalar.dtype.name, scalar.tobytes())))
  state = {"param_states": {}, "step": packed_step}
  index = {"version": VERSION, "optimizer": {"state": state, "target": tree}}
  with paths.atomic_write(folder / INDEX, "wb") as file:
    file.write(msgpack.packb(index))


def _unpacked(path: pathlib.Path) -> Any:
  import msgpack

  try:
    return msgpack.unpackb(path.read_bytes(), ext_hook=_array, raw=False, strict_map_key=False)
  except (ValueError, TypeError, OSError, msgpack.UnpackException) as error:
    reason = str(error) or type(error).__name__
    raise UserError(
      f"{path}: damaged or not a T5X checkpoint ({reason}). Copy the checkpoint again."
    ) from None


def _array(code: int, data: bytes) -> np.ndarray:
  """Returns the array of msgpack's extension type `code`, packed as (shape, type's name, bytes in C order)."""
  import ml_dtypes
  import msgpack

  if code not in (ARRAY, SCALAR):
    kind = "a complex number" if code == COMPLEX else f"msgpack's extension type {code}"
    raise ValueError(f"it holds {kind}, expected arrays of real numbers")
  shape, dtype, values = msgpack.unpackb(data, raw=True)
  name = dtype.decode() if isinstance(dtype, bytes) else str(dtype)
  numpy_dtype = np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)
  if numpy_dtype.hasobject:
    raise ValueError(f"it holds values of type {name}, expected numbers")
  return np.frombuffer(values, numpy_dtype).reshape(shape)


def _flat(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
  """Yields the leaves of flax's state: arrays, numbers, arrays in pieces, descriptions of zarr arrays; not None."""
  for key, value in tree.items():
    name = f"{prefix}{key}"
    if isinstance(value, dict) and PIECES not in value and not isinstance(value.get("driver"), str):
      yield from _flat(value, f"{name}/")
    elif value is not None:
      yield name, value


def _joined(pieces: Mapping[str, Any], place: str) -> np.ndarray:
  """Returns an array that flax cut into flat pieces."""
  try:
    flat = [pieces["chunks"][str(i)] for i in range(len(pieces["chunks"]))]
    shape = [pieces["shape"][str(i)] for i in range(len(pieces["shape"]))]
    return np.concatenate(flat).reshape(shape)
  except (KeyError, TypeError, ValueError) as error:
    raise UserError(
      f"{place} is an array in pieces, and they are damaged ({error}). Copy the checkpoint again."
    ) from None


def _stored(spec: Mapping[str, Any], place: str, *, from_uint16: bool) -> Stored:
  """Returns the array that T5X's description `spec` of it means, found in a folder beside the index."""
  kvstore = spec.get("kvstore")
  driver = kvstore.get("driver") if isinstance(kvstore, dict) else kvstore
  if spec["driver"] != "zarr" or not isinstance(kvstore, dict) or driver not in KVSTORES:
    raise UserError(
      f"{place} is stored as {spec['driver']!r} in {driver!r}; expected 'zarr' in {' or '.join(map(repr, KVSTORES))}. "
      "Write it again with T5X's own checkpointer."
    )
  path = kvstore.get("path", spec.get("path"))  # before tensorstore 0.1.14 at the top
  name = path.strip("/") if isinstance(path, str) else ""
  if not name or name.startswith("..") or "/" in name:
    raise UserError(
      f"{place} lies at {path!r}; expected the name of a folder beside the file. Copy it again."
    )
  metadata = spec.get("metadata")
  shape = metadata.get("shape") if isinstance(metadata, dict) else None
  return Stored(name, None if shape is None else tuple(shape), from_uint16)
