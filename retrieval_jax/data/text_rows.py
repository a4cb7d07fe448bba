"""Rows of (id, text) on disk: written as a stream, read by row number, found by id."""

import pathlib

import numpy as np
from jaxtyping import Int

from retrieval_jax.data.built_folder import reading
from retrieval_jax.data.text_table import TextTable, TextWriter, hash_text
from retrieval_jax.errors import UserError

ORDER = np.dtype([("hash", np.uint64), ("row", np.int64)])  # sorted by hash: the index of ids


class TextRows:
  """The rows that a RowWriter wrote, memory-mapped.

  Attributes: ids, texts (sequences of strings, read from disk when asked for).

  Raises: UserError if a file is damaged.
  """

  def __init__(self, folder: pathlib.Path):
    self.folder = folder
    with reading(folder):
      self.ids = TextTable.open(folder, "ids")
      self.texts = TextTable.open(folder, "texts")
      self._order = np.load(folder / "order.npy", mmap_mode="r")

  def __len__(self) -> int:
    return len(self.ids)

  def row_of(self, id: str) -> int:
    """Returns the row with this id, by a binary search on disk.

    Raises: UserError if no row has it.
    """
    row = int(self.rows_of_hashes(np.array([hash_text(id)], np.uint64))[0])
    if row < 0 or self.ids[row] != id:
      raise UserError(f"no row has the id {id!r} among the {len(self)} of {self.folder}.")
    return row

  def rows_of_hashes(self, hashes: np.ndarray) -> Int[np.ndarray, "e"]:
    """Returns int64 [e]: the row whose id has each uint64 hash, -1 where there is none."""
    places = np.minimum(np.searchsorted(self._order["hash"], hashes), len(self) - 1)
    return np.where(self._order["hash"][places] == hashes, self._order["row"][places], -1)


class RowWriter:
  """Writes rows in the order in which their ids first come; an id that comes again is the same row.

  Memory: 48 bytes an `add`. Text that comes again at once (the pairs of one query) is written once.
  """

  def __init__(self, folder: pathlib.Path):
    folder.mkdir()
    self._folder = folder
    self._ids, self._texts = TextWriter(folder, "ids"), TextWriter(folder, "texts")
    self._last: tuple[str, str] | None = None

  def add(self, id: str, text: str) -> None:
    """Appends a row, or repeats an earlier one."""
    if (id, text) == self._last:
      self._ids.repeat()
      self._texts.repeat()
      return
    self._ids.add(id)
    self._texts.add(text)
    self._last = (id, text)

  def finish(self, where: str) -> Int[np.ndarray, "e"]:
    """Writes the tables; returns the row of each `add`.

    Raises: UserError, beginning with `where`, if there is no row or if an id came with two texts.
    """
    hashes, text_hashes = self._ids.hashes, self._texts.hashes
    if not len(hashes):
      raise UserError(f"{where}: no rows. Check the path, the split's name and any filter of the data.")
    unique, first, inverse = np.unique(hashes, return_index=True, return_inverse=True)
    differs = np.flatnonzero(text_hashes != text_hashes[first][inverse])
    if differs.size:
      later, earlier = int(differs[0]), int(first[inverse[differs[0]]])
      raise UserError(
        f"{where}: the id {self._ids.read(later)!r} comes with two texts: {_short(self._texts.read(earlier))} and "
        f"{_short(self._texts.read(later))}. Ids must be unique: correct the text, or give one of them another id."
      )
    by_coming = np.argsort(first)
    self._ids.close(first[by_coming])
    self._texts.close(first[by_coming])
    rows = np.empty(len(unique), np.int64)
    rows[by_coming] = np.arange(len(unique))
    order = np.empty(len(unique), ORDER)
    order["hash"], order["row"] = unique, rows
    np.save(self._folder / "order.npy", order)
    return rows[inverse]


def _short(text: str) -> str:
  return repr(text if len(text) <= 80 else text[:80] + "...")
