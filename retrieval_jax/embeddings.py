"""Embeddings on disk, read: shards of one folder, memory-mapped, as if they were one array."""

import json
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from retrieval_jax.errors import UserError, nearest

MANIFEST: Final = "manifest.json"
DTYPES: Final = ("float32", "float16")
ROWS_PER_SHARD: Final = 131_072  # 200 MB of 384 float32 numbers a row; what a killed process loses at most


class Layout(NamedTuple):
  """How rows lie in shards: shard s has rows s * rows_per_shard and on; the last one may have fewer.

  dtype: "float32", or "float16" in half the room: 11 bits of each number, so that scores of normalised embeddings move
  by less than 0.001.

  Example: `[Layout(10, 384, 4).span(shard) for shard in range(3)]` is `[range(0, 4), range(4, 8), range(8, 10)]`.
  """

  rows: int
  embed_dim: int
  rows_per_shard: int = ROWS_PER_SHARD
  dtype: str = "float32"

  @property
  def num_shards(self) -> int:
    return -(-self.rows // self.rows_per_shard)

  def span(self, number: int) -> range:
    """Returns the rows of a shard."""
    start = number * self.rows_per_shard
    return range(start, min(start + self.rows_per_shard, self.rows))

  def check(self) -> None:
    """Raises UserError, naming the macro, for a rows_per_shard or dtype that cannot be."""
    if type(self.rows_per_shard) is not int or self.rows_per_shard < 1:
      raise UserError(f"ROWS_PER_SHARD={self.rows_per_shard!r}: expected a whole number of at least 1.")
    if self.dtype not in DTYPES:
      raise UserError(
        f"EMBEDDING_DTYPE={self.dtype!r}: expected {' or '.join(map(repr, DTYPES))}"
        f"{nearest(str(self.dtype), DTYPES) or '.'}"
      )


class ShardedEmbeddings:
  """Embeddings in several arrays, usually memory-mapped, read as if they were one: `[row]`, `[rows]`, `[a:b]`.

  Nothing is read before it is asked for. A slice within one shard is a view of it, any other selection a new array, as
  large as what was asked for; only `numpy.asarray` of several shards reads all of them into memory.

  Attributes:
    shards: the arrays, [_, d] each and of one dtype.
    shape, dtype, ndim: as of one array [c, d].

  Example: `ShardedEmbeddings([np.eye(2), np.zeros((1, 2))])[1:3]` is `[[0, 1], [0, 0]]`.
  """

  def __init__(self, shards: Sequence[np.ndarray]):
    self.shards = tuple(shards)
    self._starts = np.cumsum([0, *(len(shard) for shard in self.shards)])
    self.shape = (int(self._starts[-1]), self.shards[0].shape[1])
    self.dtype = self.shards[0].dtype
    self.ndim = 2

  def __len__(self) -> int:
    return self.shape[0]

  def __getitem__(self, index):
    """Returns a row [d], the rows of a slice [_, d], or those of an array of row numbers [..., d].

    Raises: IndexError for a row that is not there, and for any other kind of index.
    """
    if isinstance(index, slice):
      start, stop, step = index.indices(len(self))
      if step == 1:
        return self._between(start, stop)
      index = np.arange(start, stop, step)
    rows = np.asarray(index)
    if rows.size == 0:
      rows = rows.astype(np.int64)
    if not np.issubdtype(rows.dtype, np.integer):
      raise IndexError(f"embeddings are read by row number, slice or array of row numbers, not by {index!r}")
    rows = np.where(rows < 0, rows + len(self), rows)
    if rows.size and not (rows.min() >= 0 and rows.max() < len(self)):
      raise IndexError(f"rows {rows.min()}..{rows.max()}; there are {len(self)}")
    return self._gather(rows)

  def _between(self, start: int, stop: int) -> np.ndarray:
    """Returns consecutive rows: a view where one shard has them all."""
    parts = [
      shard[max(start - first, 0) : stop - first]
      for shard, first in zip(self.shards, self._starts[:-1].tolist(), strict=True)
      if start < first + len(shard) and first < stop
    ]
    if not parts:
      return np.zeros((0, self.shape[1]), self.dtype)
    return parts[0] if len(parts) == 1 else np.concatenate(parts)

  def _gather(self, rows: np.ndarray) -> np.ndarray:
    found = np.empty((*rows.shape, self.shape[1]), self.dtype)
    owners = np.searchsorted(self._starts, rows, side="right") - 1
    for number in np.unique(owners):
      here = owners == number
      found[here] = self.shards[number][rows[here] - self._starts[number]]
    return found

  def __iter__(self) -> Iterator[np.ndarray]:
    return (row for shard in self.shards for row in shard)

  def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
    """Returns all rows as one array: a view of a single shard, else a copy in memory."""
    one = len(self.shards) == 1 and (dtype is None or dtype == self.dtype)
    if copy is False and not one:
      raise ValueError(f"{len(self.shards)} shards of {self.dtype} are no single array without a copy")
    whole = self.shards[0] if len(self.shards) == 1 else np.concatenate(self.shards)
    return np.array(whole, dtype, copy=None if not copy else True)

  def __repr__(self) -> str:
    return f"ShardedEmbeddings({self.shape[0]} x {self.shape[1]} {self.dtype}, {len(self.shards)} shards)"


def open_embeddings(folder: pathlib.Path) -> ShardedEmbeddings:
  """Returns the embeddings of a folder, memory-mapped. Opening takes under 1 ms a shard, whatever its size.

  Raises: UserError for a folder without a manifest, with a missing shard, or with a damaged one, naming the file.

  Example: `open_embeddings(pathlib.Path("/tmp/run/encode/scifact/step_0/passages"))[:10]`.
  """
  record = read_record(folder)
  if record is None:
    raise UserError(f"{folder / MANIFEST} is missing or no manifest of embeddings: encode into this folder.")
  layout = layout_of(record)
  shards = []
  for number in range(layout.num_shards):
    for path in (shard_path(folder, number), ids_path(folder, number)):
      if not path.exists():
        raise UserError(
          f"{path} is missing, one of {layout.num_shards} shards: the encoding was interrupted. Encode again; shards that "
          "are there are kept."
        )
    shards.append(map_shard(shard_path(folder, number), layout, number))
  return ShardedEmbeddings(shards or [np.zeros((0, layout.embed_dim), layout.dtype)])


def shard_path(folder: pathlib.Path, number: int) -> pathlib.Path:
  """Returns the file of a shard's embeddings, such as 00000.npy: numpy.load reads it."""
  return folder / f"{number:05d}.npy"


def ids_path(folder: pathlib.Path, number: int) -> pathlib.Path:
  """Returns the file of a shard's ids, such as 00000.ids.jsonl: row i's id as a JSON string on line i."""
  return folder / f"{number:05d}.ids.jsonl"


def map_shard(path: pathlib.Path, layout: Layout, number: int) -> np.ndarray:
  """Returns a shard's file, memory-mapped.

  Raises: UserError, naming the file, if it is shorter than it says, or of another shape or dtype than the layout's.
  """
  expected = (len(layout.span(number)), layout.embed_dim)
  try:
    shard = np.load(path, mmap_mode="r")
  except (OSError, ValueError, EOFError) as error:
    raise UserError(f"{path} is damaged ({error}): delete it and encode again.") from error
  if shard.shape != expected or shard.dtype != layout.dtype:
    raise UserError(
      f"{path} is damaged: it has {shard.dtype} {shard.shape}, its manifest says {layout.dtype} {expected}. Delete it and "
      "encode again."
    )
  return shard


def read_record(folder: pathlib.Path) -> dict[str, Any] | None:
  """Returns the contents of manifest.json; None where there is none, or it is damaged or of an older format."""
  try:
    record = json.loads((folder / MANIFEST).read_bytes())
    layout = layout_of(record)
    layout.check()
  except (OSError, ValueError, KeyError, TypeError):  # UserError is a ValueError
    return None
  return record if type(layout.rows) is int and type(layout.embed_dim) is int else None


def layout_of(record: Mapping[str, Any]) -> Layout:
  """Returns the layout that a manifest.json tells. Raises: KeyError or TypeError if it is no such record."""
  return Layout(*(record[name] for name in ("rows", "embed_dim", "rows_per_shard", "embedding_dtype")))
