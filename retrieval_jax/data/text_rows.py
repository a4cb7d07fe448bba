"""Rows of (id, text, perhaps title) on disk: written as a stream, read by row number, found by id."""

import pathlib
from array import array

import numpy as np
from jaxtyping import Bool, Int

from retrieval_jax.data.built_folder import reading
from retrieval_jax.data.text_table import Texts, TextTable, TextWriter, hash_text
from retrieval_jax.errors import UserError

ORDER = np.dtype([("hash", np.uint64), ("row", np.int64)])  # sorted by hash: the index of ids


class TextRows:
  """The rows that a RowWriter wrote, memory-mapped.

  Attributes (sequences of strings, read from disk when asked for): ids; texts, as people see them, a title before
  the text; bodies, the texts without titles; titles, or None where no row has one.

  Raises: UserError if a file is damaged.
  """

  def __init__(self, folder: pathlib.Path):
    self.folder = folder
    with reading(folder):
      self.ids = TextTable.open(folder, "ids")
      self.bodies = TextTable.open(folder, "texts")
      self.titles = TextTable.open(folder, "titles") if (folder / "titles.npy").exists() else None
      self.texts = self.bodies if self.titles is None else TitledTexts(self.titles, self.bodies)
      self._order = np.load(folder / "order.npy", mmap_mode="r")

  def __len__(self) -> int:
    return len(self.ids)

  def passages(self, rows: slice) -> list[str] | list[tuple[str, str]]:
    """Returns the texts of consecutive rows, as (title, text) where there are titles."""
    if self.titles is None:
      return self.bodies[rows]
    return list(zip(self.titles[rows], self.bodies[rows], strict=True))

  @property
  def empty(self) -> Bool[np.ndarray, "e"]:
    """Whether each row has neither text nor title."""
    return self.bodies.empty if self.titles is None else self.bodies.empty & self.titles.empty

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


class TitledTexts(Texts):
  """The texts of rows, each behind its title, read from disk when asked for."""

  def __init__(self, titles: TextTable, bodies: TextTable):
    self._titles, self._bodies = titles, bodies

  def __len__(self) -> int:
    return len(self._bodies)

  def text(self, index: int) -> str:
    """Returns one text behind its title."""
    return titled(self._titles[index], self._bodies[index])


def titled(title: str, text: str) -> str:
  """Returns what people see of a passage: "title text"."""
  return f"{title} {text}".strip() if title else text


class RowWriter:
  """Writes rows in the order in which their ids first come; an id that comes again is the same row.

  Memory: 72 bytes an `add` and 4 more; of one that comes again at once (the pairs of one query) the 4 alone.
  """

  def __init__(self, folder: pathlib.Path):
    folder.mkdir()
    self._folder = folder
    self._ids, self._texts, self._titles = (TextWriter(folder, name) for name in ("ids", "texts", "titles"))
    self._any_title = False
    self._last: tuple[str, str, str] | None = None
    self._entries = array("i")  # the number, among those written, of each `add`
    self._count = 0

  def add(self, id: str, text: str, title: str = "") -> None:
    """Appends a row, or repeats an earlier one."""
    if (id, text, title) != self._last:
      self._write(id, text, title)
    self._entries.append(self._count - 1)

  def _write(self, id: str, text: str, title: str) -> None:
    self._ids.add(id)
    self._texts.add(text)
    self._titles.add(title)
    self._any_title |= bool(title)
    self._last = (id, text, title)
    self._count += 1

  def finish(self, where: str) -> Int[np.ndarray, "e"]:
    """Writes the tables; returns the row of each `add`.

    Raises: UserError, beginning with `where`, if there is no row or if an id came with two texts or titles.
    """
    hashes = self._ids.hashes
    if not len(hashes):
      raise UserError(f"{where}: no rows. Check the path, the split's name and any filter of the data.")
    unique, first, inverse = np.unique(hashes, return_index=True, return_inverse=True)
    differs = np.flatnonzero(self._differs(first[inverse]))
    if differs.size:
      later, earlier = int(differs[0]), int(first[inverse[differs[0]]])
      raise UserError(
        f"{where}: the id {self._ids.read(later)!r} comes with two texts: {self._shown(earlier)} and "
        f"{self._shown(later)}. Ids must be unique: correct the text, or give one of them another id."
      )
    by_coming = np.argsort(first)
    self._ids.close(first[by_coming])
    self._texts.close(first[by_coming])
    self._titles.close(first[by_coming])
    if not self._any_title:
      for path in self._folder.glob("titles.*"):
        path.unlink()
    rows = np.empty(len(unique), np.int64)
    rows[by_coming] = np.arange(len(unique))
    order = np.empty(len(unique), ORDER)
    order["hash"], order["row"] = unique, rows
    np.save(self._folder / "order.npy", order)
    return rows[inverse][np.frombuffer(self._entries, np.int32)]

  def _differs(self, first: Int[np.ndarray, "e"]) -> np.ndarray:
    """Returns whether each `add` had another text or title than the add `first` of its id."""
    columns = [self._texts.hashes] + ([self._titles.hashes] if self._any_title else [])
    return np.any([column != column[first] for column in columns], axis=0)

  def _shown(self, index: int) -> str:
    text = titled(self._titles.read(index), self._texts.read(index))
    return repr(text if len(text) <= 80 else text[:80] + "...")
