"""SomeRows: chosen rows of a store, to be encoded in their order."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from retrieval_jax.encoding import Rows


class SomeRows(NamedTuple):
  """Some rows of a store, as the encoder reads them (encoding.Rows); row i of it is the store's rows[i].

  Example: `encoder.queries(SomeRows(data.queries, data.examples))`.
  """

  store: Rows
  rows: Int[np.ndarray, "e"]

  @property
  def lengths(self) -> Int[np.ndarray, "e"]:
    return self.store.lengths[self.rows]

  @property
  def length(self) -> int:
    return self.store.length

  def gather(self, rows: Int[np.ndarray, "n"]) -> Int[np.ndarray, "n l"]:
    rows = np.asarray(rows)
    return self.store.gather(np.where(rows < 0, -1, self.rows[np.maximum(rows, 0)]))

  def name(self, row: int) -> str:
    return self.store.name(int(self.rows[row]))
