"""JoinedStore: the token stores of several tasks as one, its rows one task's after the other's."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Int

from retrieval_jax.data.built_folder import short_hash
from retrieval_jax.data.text_table import Texts, hash_text
from retrieval_jax.data.token_store import TokenStore
from retrieval_jax.errors import UserError

LARGEST = 2**31 - 1  # rows are int32 in a batch


class JoinedStore(TokenStore):
  """Several stores of one length, read as one. A store that is given twice is one: its rows are the same rows.

  Attributes: those of TokenStore, and offsets, the first row of each given store. Equal texts of different stores are
  different identities: nobody compares them.

  Raises: UserError for more than 2**31 - 1 rows.

  Example: `JoinedStore([a, b]).gather([a.num_rows])` is `b.gather([0])`.
  """

  def __init__(self, stores: Sequence[TokenStore]):
    self._stores = list({store.fingerprint: store for store in stores}.values())
    self._starts = np.cumsum([0, *(store.num_rows for store in self._stores)])
    place = {store.fingerprint: int(start) for store, start in zip(self._stores, self._starts, strict=False)}
    self.offsets = [place[store.fingerprint] for store in stores]
    self.num_rows, self.length = int(self._starts[-1]), stores[0].length
    if self.num_rows > LARGEST:
      raise UserError(f"the tasks have {self.num_rows:,} rows together; at most {LARGEST:,} can be numbered.")
    parts = list(zip(self._stores, self._starts.tolist(), strict=False))
    self.identity = np.concatenate([store.identity + np.int32(start) for store, start in parts])
    self.lengths = np.concatenate([store.lengths for store in self._stores])
    self.fingerprint = short_hash({"stores": [store.fingerprint for store in self._stores]})
    self.ids = _JoinedTexts([store.ids for store in self._stores])
    self.texts = _JoinedTexts([store.texts for store in self._stores])

  def gather(self, rows: Sequence[int] | Int[np.ndarray, "e"]) -> Int[np.ndarray, "e l"]:
    """Returns the int32 tokens [e, length] of the given rows; row -1 (padding) gives zeros.

    Raises: IndexError for a row outside [-1, num_rows).
    """
    wanted = np.asarray(rows, np.int64)
    if wanted.size and not (wanted.min() >= -1 and wanted.max() < self.num_rows):
      raise IndexError(f"rows {wanted.min()}..{wanted.max()}; expected -1 or 0..{self.num_rows - 1}.")
    tokens = np.zeros((len(wanted), self.length), np.int32)
    for store, start in zip(self._stores, self._starts.tolist(), strict=False):
      here = (wanted >= start) & (wanted < start + store.num_rows)
      if here.any():
        tokens[here] = store.gather(wanted[here] - start)
    return tokens

  @property
  def empty(self) -> Bool[np.ndarray, "e"]:
    """Whether each row is a text without a character."""
    return np.concatenate([store.empty for store in self._stores])

  def row_of(self, id: str) -> int:
    """Returns the row with this id.

    Raises: UserError if no row has it, or rows of several stores do.
    """
    hashes = np.array([hash_text(id)], np.uint64)
    holders = [place for place, store in enumerate(self._stores) if store.rows_of_hashes(hashes)[0] >= 0]
    if len(holders) != 1:
      raise UserError(f"{len(holders)} of the joined tasks have the id {id!r}; expected one.")
    return int(self._starts[holders[0]]) + self._stores[holders[0]].row_of(id)

  def rows_of_hashes(self, hashes: np.ndarray) -> Int[np.ndarray, "e"]:
    """Returns int64 [e]: the row whose id has each hash, -1 where there is none; of several the first store's."""
    found = np.full(len(hashes), -1, np.int64)
    for store, start in zip(self._stores, self._starts.tolist(), strict=False):
      rows = store.rows_of_hashes(hashes)
      found = np.where((found < 0) & (rows >= 0), rows + start, found)
    return found


class _JoinedTexts(Texts):
  """The strings of several sequences, one after the other."""

  def __init__(self, parts: Sequence[Sequence[str]]):
    self._parts = parts
    self._starts = np.cumsum([0, *map(len, parts)])

  def __len__(self) -> int:
    return int(self._starts[-1])

  def text(self, index: int) -> str:
    if not -len(self) <= index < len(self):
      raise IndexError(f"row {index} of {len(self)}.")
    row = index % len(self)
    part = int(np.searchsorted(self._starts, row, side="right")) - 1
    return self._parts[part][row - int(self._starts[part])]
