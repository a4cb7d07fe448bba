"""RowTokens: the tokens of a batch that are read when they are placed, by the process whose rows they are."""

from typing import Protocol

import numpy as np
from jaxtyping import Int


class Store(Protocol):
  """Rows of tokens: a TokenStore, or anything that gathers as it does."""

  @property
  def length(self) -> int: ...

  def gather(self, rows: Int[np.ndarray, "e"]) -> Int[np.ndarray, "e l"]: ...


class RowTokens:
  """Tokens [e, l] of some rows of a store, of which nothing is read before a slice of them is asked for.

  Each of several processes forms the same batch by row numbers, 4 bytes a row, and reads the tokens of its own part alone.

  length: columns; None: the store's. A store that pads its rows to less than that is filled up with 0.

  Example: `RowTokens(store, np.array([7, -1, 3, 5]))[2:4]` is `store.gather([3, 5])`.
  """

  dtype = np.dtype(np.int32)
  ndim = 2

  def __init__(self, store: Store, rows: Int[np.ndarray, "e"], length: int | None = None):
    self._store, self._rows = store, np.asarray(rows)
    self.shape = (len(self._rows), store.length if length is None else length)

  def __getitem__(self, rows: slice) -> Int[np.ndarray, "_ l"]:
    tokens = self._store.gather(self._rows[rows])[:, : self.shape[1]]
    return np.pad(tokens, ((0, 0), (0, self.shape[1] - tokens.shape[1])))
