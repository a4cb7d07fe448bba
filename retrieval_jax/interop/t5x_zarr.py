"""The arrays of a T5X checkpoint: zarr version 2, in folders or in Orbax's OCDBT database; whole or an error."""

import itertools
import json
import pathlib
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

import numpy as np

from retrieval_jax.errors import UserError

METADATA: Final = "/.zarray"

# T5X asks for chunks of at most 64 MiB, so that hosts can read parts of an array.
CHUNK_BYTES: Final = 64 * 2**20
COMPRESSOR: Final = {"id": "gzip", "level": 1}

# What tensorstore raises for damaged data (ValueError), files it may not read (OSError) and values that it cannot
# represent (the others).
FAILURES: Final = (ValueError, OSError, RuntimeError, NotImplementedError, OverflowError)


class Store(NamedTuple):
  """Where arrays lie. kvstore: tensorstore's description of the key-value store. keys: all keys in it."""

  folder: pathlib.Path
  kvstore: Mapping[str, Any]
  keys: frozenset[str]

  @property
  def arrays(self) -> list[str]:
    """The names of its arrays."""
    return sorted(key.removesuffix(METADATA) for key in self.keys if key.endswith(METADATA))


def open_folders(folder: pathlib.Path) -> Store:
  """Returns the arrays that are one folder each: <folder>/<name>/{.zarray, 0.0, ...}.

  Raises: UserError if the folder cannot be listed.
  """
  return _listed(folder, _file(folder))


def open_database(folder: pathlib.Path) -> Store:
  """Returns the arrays of Orbax's OCDBT database in `folder`.

  Raises: UserError if it is damaged.
  """
  return _listed(folder, {"driver": "ocdbt", "base": _file(folder)})


def read(store: Store, names: Iterable[str]) -> dict[str, np.ndarray]:
  """Returns the arrays of these names in the types they are stored in (bfloat16 as ml_dtypes' type).

  tensorstore gives zeros for a chunk that is not there. Writers that leave chunks of zeros out give the array a
  fill_value; T5X and Orbax do not, so that there a missing chunk is a lost file, and an error here.

  Raises: UserError naming the file for a missing or damaged array.
  """
  import tensorstore

  context = tensorstore.Context()
  opened, reading, result = {}, {}, {}
  name = ""
  for name in names:
    _check_chunks(store, name)
    spec = {"driver": "zarr", "kvstore": {**store.kvstore, "path": f"{store.kvstore.get('path', '')}{name}/"}}
    opened[name] = tensorstore.open(spec, context=context, open=True, read=True)
  try:
    for name, future in opened.items():
      reading[name] = future.result().read()
    for name, future in reading.items():
      result[name] = np.asarray(future.result())
  except FAILURES as error:
    raise UserError(
      f"{store.folder}/{name}: damaged ({_first_sentence(error)}). Copy the checkpoint again."
    ) from None
  return result


def shape(store: Store, name: str) -> tuple[int, ...]:
  """Returns an array's shape.

  Raises: UserError if it is missing or damaged.
  """
  return tuple(_metadata(store, name)["shape"])


def write(folder: pathlib.Path, name: str, value: np.ndarray) -> dict[str, Any]:
  """Writes <folder>/<name>/ as T5X does and returns the description of it that T5X keeps in its `checkpoint` file.

  Raises: UserError if it cannot be written, as on a full disk.
  """
  import tensorstore

  metadata = {
    "chunks": [_chunk_rows(value), *value.shape[1:]] if value.ndim else [],
    "compressor": COMPRESSOR,
    "shape": list(value.shape),
  }
  spec = {"driver": "zarr", "dtype": value.dtype.name, "metadata": metadata}
  try:
    array = tensorstore.open({**spec, "kvstore": _file(folder / name)}, create=True, open=True).result()
    array.write(value).result()
  except FAILURES as error:
    raise UserError(
      f"{folder / name}: cannot be written ({_first_sentence(error)}). Is the disk full?"
    ) from None
  return {**spec, "kvstore": {"driver": "file", "path": f"{name}/"}}


def _file(folder: pathlib.Path) -> dict[str, Any]:
  return {"driver": "file", "path": f"{folder.absolute()}/"}


def _listed(folder: pathlib.Path, kvstore: Mapping[str, Any]) -> Store:
  import tensorstore

  try:
    keys = tensorstore.KvStore.open(dict(kvstore)).result().list().result()
  except FAILURES as error:
    raise UserError(f"{folder}: damaged ({_first_sentence(error)}). Copy the checkpoint again.") from None
  return Store(folder, kvstore, frozenset(key.decode() for key in keys))


def _metadata(store: Store, name: str) -> dict[str, Any]:
  import tensorstore

  path = f"{store.folder}/{name}{METADATA}"
  if name + METADATA not in store.keys:
    raise UserError(f"{path}: the array is not there. Copy the whole checkpoint again.")
  try:
    text = tensorstore.KvStore.open(dict(store.kvstore)).result().read(name + METADATA).result().value
    metadata = json.loads(text)
    return {
      "shape": [int(size) for size in metadata["shape"]],
      "chunks": [int(size) for size in metadata["chunks"]],
      "fill_value": metadata["fill_value"],
      "separator": str(metadata.get("dimension_separator", ".")),
    }
  except (*FAILURES, KeyError, TypeError) as error:
    raise UserError(
      f"{path}: damaged or not of zarr version 2 ({_first_sentence(error)}). Copy it again."
    ) from None


def _check_chunks(store: Store, name: str) -> None:
  metadata = _metadata(store, name)
  if metadata["fill_value"] is not None:
    return
  if len(metadata["chunks"]) != len(metadata["shape"]) or min(metadata["chunks"], default=1) < 1:
    raise UserError(
      f"{store.folder}/{name}{METADATA}: damaged (its chunks do not fit its shape). Copy it again."
    )
  counts = [-(-size // chunk) for size, chunk in zip(metadata["shape"], metadata["chunks"], strict=True)]
  for index in itertools.product(*map(range, counts)):
    chunk = metadata["separator"].join(map(str, index)) if index else "0"
    if f"{name}/{chunk}" not in store.keys:
      raise UserError(
        f"{store.folder}/{name}/{chunk}: this chunk of the array is not there (of "
        f"{np.prod(counts, dtype=int)}): the checkpoint is incomplete. Copy it again."
      )


def _chunk_rows(value: np.ndarray) -> int:
  """Returns the most rows that divide the first axis evenly within CHUNK_BYTES."""
  rows = max(value.shape[0], 1)
  most = max(1, CHUNK_BYTES * rows // max(value.nbytes, 1))
  return max(size for size in range(1, min(rows, most) + 1) if rows % size == 0)


def _first_sentence(error: BaseException) -> str:
  """Returns tensorstore's message without the description of the store that it ends with."""
  return (
    str(error).partition(" [tensorstore_spec")[0].partition(" [source locations")[0] or type(error).__name__
  )
