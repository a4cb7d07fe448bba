"""Strings on disk: one UTF-8 blob and an offset table, memory-mapped; and how to write them as a stream."""

import hashlib
import os
import pathlib
import weakref
from array import array
from collections.abc import Iterator, Sequence
from typing import overload

import numpy as np
from jaxtyping import Bool, Int


class Texts(Sequence[str]):
  """A read-only sequence of strings, each made when it is asked for: what it is takes `__len__` and `text`."""

  def text(self, index: int) -> str:
    """Returns one string."""
    raise NotImplementedError

  @overload
  def __getitem__(self, index: int) -> str: ...
  @overload
  def __getitem__(self, index: slice) -> list[str]: ...
  def __getitem__(self, index):
    if isinstance(index, slice):
      return self.take(range(*index.indices(len(self))))
    return self.text(index)

  def take(self, rows: Sequence[int] | Int[np.ndarray, "e"]) -> list[str]:
    """Returns the strings of the given rows."""
    return [self.text(int(row)) for row in rows]

  def __iter__(self) -> Iterator[str]:
    return (self.text(row) for row in range(len(self)))


class TextTable(Texts):
  """A read-only sequence of strings that stay on disk until asked for: opaque, of any length, in any script.

  Example: `table[3]`, `len(table)`, `table[2:5]` (a list), `table.take([7, 1])` (a list).
  """

  def __init__(self, spans: Int[np.ndarray, "e 2"], blob: int):
    self._spans = spans
    self._blob = (
      blob  # a file descriptor: pages of a mapped blob would count as memory until the process ends
    )
    weakref.finalize(self, os.close, blob)

  @classmethod
  def open(cls, folder: pathlib.Path, name: str) -> "TextTable":
    """Opens `<folder>/<name>.utf8` and maps its offsets, `<name>.npy`, into memory; reads nothing yet."""
    spans = np.load(folder / f"{name}.npy", mmap_mode="r")
    return cls(spans, os.open(folder / f"{name}.utf8", os.O_RDONLY))

  def __len__(self) -> int:
    return len(self._spans)

  @property
  def empty(self) -> Bool[np.ndarray, "e"]:
    """Whether each string is empty; reads the offsets, 16 bytes a string."""
    return self._spans[:, 0] == self._spans[:, 1]

  def text(self, index: int) -> str:
    """Returns one string, read from disk."""
    start, end = self._spans[index].tolist()
    data = os.pread(self._blob, end - start, start)
    while len(data) < end - start:  # the kernel gives 2 GiB at most
      more = os.pread(self._blob, end - start - len(data), start + len(data))
      if not more:
        raise OSError(f"a file of texts ends at byte {start + len(data)}, before byte {end}")
      data += more
    return data.decode("utf-8")


class TextWriter:
  """Appends strings to a blob; the offset table is written at the end, for any choice and order of them.

  Memory: 24 bytes a string (its span and a 64-bit hash, by which equal strings are recognised).
  """

  def __init__(self, folder: pathlib.Path, name: str):
    self._folder, self._name = folder, name
    self._file = open(folder / f"{name}.utf8", "wb")  # noqa: SIM115  (closed by `close`)
    weakref.finalize(self, self._file.close)  # and when a build fails midway
    self._starts, self._ends, self._hashes = array("q"), array("q"), array("Q")
    self._end = 0

  def add(self, text: str) -> None:
    """Appends one string. Unpaired surrogates, which UTF-8 cannot hold, become question marks."""
    data = text.encode("utf-8", errors="replace")
    self._file.write(data)
    self._starts.append(self._end)
    self._end += len(data)
    self._ends.append(self._end)
    self._hashes.append(hash64(data))

  @property
  def hashes(self) -> np.ndarray:
    """The uint64 hash of every string added so far."""
    return np.array(self._hashes, np.uint64)

  def read(self, index: int) -> str:
    """Returns one of the strings added so far; not after `close`."""
    self._file.flush()
    with open(self._folder / f"{self._name}.utf8", "rb") as file:
      file.seek(self._starts[index])
      return file.read(self._ends[index] - self._starts[index]).decode("utf-8")

  def close(self, rows: Int[np.ndarray, "e"]) -> None:
    """Ends the blob and writes the offset table of the chosen rows."""
    self._file.close()
    spans = np.stack([np.array(self._starts, np.int64)[rows], np.array(self._ends, np.int64)[rows]], axis=-1)
    np.save(self._folder / f"{self._name}.npy", spans)


def hash64(data: bytes) -> int:
  """Returns a 64-bit hash: at ten million strings the odds of one collision are 1 : 370,000."""
  return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")


def hash_text(text: str) -> int:
  """Returns the hash that TextWriter gives this string."""
  return hash64(text.encode("utf-8", errors="replace"))


def text_id(text: str) -> str:
  """Returns an id for a text that has none: 32 hexadecimal digits of its hash, so that equal texts have one id."""
  return hashlib.blake2b(text.encode("utf-8", errors="replace"), digest_size=16).hexdigest()
