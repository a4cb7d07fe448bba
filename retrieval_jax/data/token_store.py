"""TokenStore: texts tokenised once, memory-mapped, fetched by row number."""

import hashlib
import pathlib
from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Int, UInt
from tqdm import tqdm

from retrieval_jax.data.built_folder import built_folder, reading, short_hash
from retrieval_jax.data.text_inputs import SideInputs
from retrieval_jax.data.text_rows import TextRows

FORMAT_VERSION = 3
CHUNK = 4096  # texts tokenised at once: enough for the tokenizer's threads, about 10 MB


class TokenStore:
  """Rows of tokens with their ids and texts, all memory-mapped: opening one of any size costs milliseconds.

  Attributes:
    num_rows: the number of rows.
    length: tokens a row, padding and end token included.
    lengths: int32 [num_rows], the tokens of each row up to its last one that is not padding.
    identity: int32 [num_rows], the first row with the same tokens. Rows with equal texts are one identity: one
      must not be the other's negative.
    ids, texts: sequences of strings, read from disk when asked for. Texts are as people see them: a title and a
      space before the text, without the model's prefix and template.
    fingerprint: a hash of the texts' source and of all that decides the tokens.
  """

  def __init__(self, texts: TextRows, folder: pathlib.Path):
    self._rows = texts
    self.folder = folder
    self.ids, self.texts = texts.ids, texts.texts
    self.fingerprint = folder.name
    with reading(folder):
      self._tokens = np.load(folder / "tokens.npy", mmap_mode="r")
      self.num_rows, self.length = self._tokens.shape
      self.lengths = np.load(folder / "lengths.npy", mmap_mode="r")
      self.identity = np.load(folder / "identity.npy", mmap_mode="r")

  def __len__(self) -> int:
    return self.num_rows

  def gather(self, rows: Sequence[int] | Int[np.ndarray, "e"]) -> Int[np.ndarray, "e l"]:
    """Returns the int32 tokens [e, length] of the given rows; row -1 (padding) gives zeros.

    Raises: IndexError for a row outside [-1, num_rows).
    """
    wanted = np.asarray(rows, np.int64)
    if wanted.size and not (wanted.min() >= -1 and wanted.max() < self.num_rows):
      raise IndexError(f"rows {wanted.min()}..{wanted.max()}; expected -1 or 0..{self.num_rows - 1}.")
    tokens = self._tokens[np.maximum(wanted, 0)].astype(np.int32)
    tokens[wanted < 0] = 0
    return tokens

  def name(self, row: int) -> str:
    """Returns what to call a row in a message: its id."""
    return repr(self.ids[row])

  @property
  def empty(self) -> Bool[np.ndarray, "e"]:
    """Whether each row is a text without a character; it has the tokens of its prefix and the special ones."""
    return self._rows.empty

  def row_of(self, id: str) -> int:
    """Returns the row with this id, by a binary search on disk.

    Raises: UserError if no row has it.
    """
    return self._rows.row_of(id)

  def rows_of_hashes(self, hashes: np.ndarray) -> Int[np.ndarray, "e"]:
    """Returns int64 [e]: the row whose id has each hash (text_table.hash_text), -1 where there is none."""
    return self._rows.rows_of_hashes(hashes)


def token_store(
  texts: pathlib.Path, inputs: SideInputs, *, source: str, name: str, cache: pathlib.Path
) -> TokenStore:
  """Returns the store of the text rows in a folder, tokenised at the first call.

  The store's folder is cache/tokens/<fingerprint>: another source, vocabulary, length, prefix or (where there
  are titles) template is another store.
  Tokens take 2 bytes each where the vocabulary has at most 65,536 entries, else 4.

  Args:
    texts: a folder of text rows (text_rows.py).
    inputs: vocabulary, length, prefix and template of this side.
    source: the fingerprint of the texts.
    name: for the progress bar, such as "pydocs passages".
    cache: the folder of derived data.
  """
  rows = TextRows(texts)
  definition = {
    "format": FORMAT_VERSION,
    "source": source,
    "vocabulary": inputs.vocabulary.fingerprint,
    "length": inputs.length,
    "prefix": inputs.prefix,
    "template": None if rows.titles is None else inputs.template,
  }
  folder = built_folder(
    cache / "tokens" / short_hash(definition),
    definition=definition,
    build=lambda folder: _tokenise(rows, folder, inputs, name),
  )
  return TokenStore(rows, folder)


def _tokenise(rows: TextRows, folder: pathlib.Path, inputs: SideInputs, name: str) -> None:
  """Writes tokens, lengths and identities, chunk by chunk; memory is one chunk and 28 bytes a row."""
  dtype = np.uint16 if inputs.vocabulary.vocab_size <= 2**16 else np.int32
  shape = (len(rows), inputs.length)
  block = np.empty((CHUNK, inputs.length), dtype)
  lengths = np.zeros(len(rows), np.int32)
  digests = np.zeros((len(rows), 2), np.uint64)
  # Written as a plain file: the pages of a mapped one would count as memory until the kernel writes them.
  with (
    open(folder / "tokens.npy", "wb") as file,
    tqdm(total=len(rows), desc=f"tokenise {name}", unit=" texts", mininterval=1.0) as bar,
  ):
    header = {"descr": np.lib.format.dtype_to_descr(np.dtype(dtype)), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_2_0(file, header)
    for start in range(0, len(rows), CHUNK):
      chunk = inputs.tokens(rows.passages(slice(start, start + CHUNK)))
      span = slice(start, start + len(chunk))
      block[: len(chunk)] = chunk
      file.write(block[: len(chunk)].data)
      lengths[span] = row_lengths(chunk)
      digests[span] = [_digest(row) for row in chunk]
      bar.update(len(chunk))
  np.save(folder / "lengths.npy", lengths)
  np.save(folder / "identity.npy", first_equal(digests))


def row_lengths(tokens: Int[np.ndarray, "e l"]) -> Int[np.ndarray, "e"]:
  """Returns int32 [e]: each row's last place that is not 0, plus 1; 0 for a row of zeros.

  A vocabulary of somebody's own that puts zeros inside a row loses no token by it.

  Example: `row_lengths(np.array([[7, 0, 7, 0], [0, 0, 0, 0]]))` is `[3, 0]`.
  """
  places = np.arange(1, tokens.shape[1] + 1, dtype=np.int32)
  return np.max(np.where(tokens != 0, places[None, :], 0), axis=1, initial=0).astype(np.int32)


def _digest(row: Int[np.ndarray, "l"]) -> np.ndarray:
  return np.frombuffer(hashlib.blake2b(row.tobytes(), digest_size=16).digest(), np.uint64)


def first_equal(keys: Int[np.ndarray, "e 2"] | UInt[np.ndarray, "e 2"]) -> Int[np.ndarray, "e"]:
  """Returns int32 [e]: for every row the first row with the same two keys.

  Example: `first_equal(np.array([[1, 5], [2, 5], [1, 5]]))` is `[0, 1, 0]`.
  """
  order = np.lexsort((keys[:, 1], keys[:, 0]))  # stable: rows with equal keys stay in their order
  ranked = keys[order]
  leads = np.ones(len(keys), bool)
  leads[1:] = np.any(ranked[1:] != ranked[:-1], axis=1)
  firsts = np.zeros(len(keys), np.int32)
  firsts[order] = order[leads][np.cumsum(leads) - 1]
  return firsts
