"""Embeddings on disk, written: shard by shard, each whole or not there; a manifest says what they are of."""

import contextlib
import fcntl
import json
import os
import pathlib
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from jaxtyping import Float

from retrieval_jax.embeddings import (
  MANIFEST,
  Layout,
  ids_path,
  layout_of,
  map_shard,
  open_embeddings,
  read_record,
  shard_path,
)
from retrieval_jax.errors import UserError
from retrieval_jax.paths import atomic_write

FORMAT: Final = 2  # 1 was one embeddings.npy a folder
_NAMES: Final = r"\d{5,}\.npy|\d{5,}\.ids\.jsonl|embeddings\.npy|ids\.jsonl|manifest\.json"
OURS: Final = re.compile(_NAMES)
HALF_WRITTEN: Final = re.compile(rf"\.({_NAMES})\..+")  # the temporary files of atomic_write


class Manifest(NamedTuple):
  """What a folder holds. Two folders hold the same if `of` and the layout agree; into how many shards it is cut, and
  `note`, do not count.

  of: all that decides the embeddings: parameters, model, texts, activation dtype.
  note: where they come from, for people.
  """

  of: Mapping[str, Any]
  layout: Layout
  note: Mapping[str, Any]

  @property
  def identity(self) -> dict[str, Any]:
    """What must agree, as it stands in manifest.json."""
    rows, embed_dim, _, dtype = self.layout
    identity = {"format": FORMAT, **self.of, "embedding_dtype": dtype, "rows": rows, "embed_dim": embed_dim}
    return json.loads(json.dumps(identity))

  def record(self) -> dict[str, Any]:
    """Returns the contents of manifest.json."""
    return {**self.note, **self.identity, "rows_per_shard": self.layout.rows_per_shard}

  def differences(self, record: Mapping[str, Any]) -> list[str]:
    """Returns in words where the record of a manifest.json is of something else."""
    return [
      f"{name} was {record.get(name)!r}, is {value!r}"
      for name, value in self.identity.items()
      if record.get(name) != value
    ]


class ShardWriter(NamedTuple):
  """A folder of this process's own until the `writing` block ends. layout: the folder's, whose shards may be of another
  size than was asked for.
  """

  folder: pathlib.Path
  layout: Layout

  def missing(self) -> list[int]:
    """Returns the numbers of the shards that are still to be written; a damaged one is named on stderr and among them."""
    found = []
    for number in range(self.layout.num_shards):
      path = shard_path(self.folder, number)
      if not path.exists() or not ids_path(self.folder, number).exists():
        found.append(number)
        continue
      try:
        map_shard(path, self.layout, number)
      except UserError as error:
        print(f"{error} It is encoded again.", file=sys.stderr)
        found.append(number)
    return found

  def write(self, number: int, embeddings: Float[np.ndarray, "_ d"], ids: Sequence[str]) -> None:
    """Writes a shard: first its ids, then its embeddings, each to a temporary file that is synced (3 fsync calls in all)
    and renamed. A process that is killed at any time leaves whole shards, and files that the next one removes.

    Raises: UserError when the disk is full or refuses.
    """
    span = self.layout.span(number)
    expected = (len(span), self.layout.embed_dim)
    assert embeddings.shape == expected, f"shard {number}: {embeddings.shape}, expected {expected}"
    assert len(ids) == len(span), f"shard {number}: {len(ids)} ids, expected {len(span)}"
    with _explaining_disk(self.folder):
      with atomic_write(ids_path(self.folder, number)) as file:
        file.writelines(json.dumps(identifier, ensure_ascii=False) + "\n" for identifier in ids)
      with atomic_write(shard_path(self.folder, number), "wb") as file:
        np.save(file, embeddings.astype(self.layout.dtype, copy=False))
      _sync(self.folder)


@contextlib.contextmanager
def writing(folder: pathlib.Path, manifest: Manifest) -> Iterator[ShardWriter]:
  """Yields the writer of a folder, alone: another process that asks for the same folder waits until this one is done
  (where the file system has locks, which go with their process however it ends).

  Shards of the same embeddings are kept, in their own size. Those of others are removed first, which is said on stderr
  with what differs; files with other names than ours are left alone.

  Raises: UserError for a layout that cannot be, and where the disk refuses.
  """
  manifest.layout.check()
  with _explaining_disk(folder):
    folder.mkdir(parents=True, exist_ok=True)
  with _turn(folder) as alone:
    record = read_record(folder)
    with _explaining_disk(folder):
      if record is None or manifest.differences(record):
        if record is not None:
          differences = "; ".join(manifest.differences(record))
          print(f"{folder}: embeddings of something else are replaced ({differences})", file=sys.stderr)
        (folder / MANIFEST).unlink(missing_ok=True)  # first: without it the shards mean nothing
        _remove(folder, OURS)
        record = manifest.record()
        with atomic_write(folder / MANIFEST) as file:
          json.dump(record, file, indent=2, ensure_ascii=False)
          file.write("\n")
        _sync(folder)
      if alone:
        _remove(folder, HALF_WRITTEN)
    yield ShardWriter(folder, layout_of(record))


def is_complete(folder: pathlib.Path, manifest: Manifest) -> bool:
  """Returns whether the folder holds all of these embeddings, undamaged. Writes and locks nothing; under 1 ms a shard."""
  record = read_record(folder)
  if record is None or manifest.differences(record):
    return False
  try:
    open_embeddings(folder)
  except UserError:
    return False
  return True


def _remove(folder: pathlib.Path, names: re.Pattern[str]) -> None:
  for path in folder.iterdir():
    if names.fullmatch(path.name) and path.is_file():
      path.unlink()


def _sync(folder: pathlib.Path) -> None:
  """Makes renames in the folder last through a loss of power."""
  handle = os.open(folder, os.O_RDONLY)
  try:
    os.fsync(handle)
  finally:
    os.close(handle)


@contextlib.contextmanager
def _turn(folder: pathlib.Path) -> Iterator[bool]:
  """Holds a lock beside the folder and yields True; yields False where the file system knows no locks."""
  with _explaining_disk(folder):
    file = open(folder.parent / f".{folder.name}.lock", "w")  # noqa: SIM115  (closed by the next line)
  with file:
    try:
      fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
      print(
        f"{folder}: another process is encoding into it; waiting for its end", file=sys.stderr, flush=True
      )
      fcntl.flock(file, fcntl.LOCK_EX)
    except OSError:
      yield False
      return
    yield True


@contextlib.contextmanager
def _explaining_disk(folder: pathlib.Path) -> Iterator[None]:
  try:
    yield
  except OSError as error:
    raise UserError(
      f"cannot write embeddings to {folder}: {error}. Make room there or correct the rights; finished shards are kept, "
      "and the same command goes on from them."
    ) from error
