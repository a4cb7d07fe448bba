"""How a model wants its text: vocabulary, lengths and prefixes of the two towers."""

import hashlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int

from retrieval_jax.data.vocabularies import Vocabulary
from retrieval_jax.errors import UserError


class TextInputs(NamedTuple):
  """Belongs to the model, not to the task: training, evaluation and search must use the same one.

  Lengths are whole numbers of at least 2 and count the special tokens; another one is a UserError at first use. A prefix is put before every text of its side ("query: "), as it stands.

  Example: `TextInputs(WordPiece(path), query_length=32, passage_length=128).query_tokens(["a b"])`.
  """

  vocabulary: Vocabulary
  query_length: int
  passage_length: int
  query_prefix: str = ""
  passage_prefix: str = ""

  def query_tokens(self, texts: Sequence[str]) -> Int[np.ndarray, "q l"]:
    """Returns the int32 tokens [q, query_length] of query texts, prefix included."""
    return self.query_side.tokens(texts)

  def passage_tokens(self, texts: Sequence[str]) -> Int[np.ndarray, "p m"]:
    """Returns the int32 tokens [p, passage_length] of passage texts, prefix included."""
    return self.passage_side.tokens(texts)

  @property
  def query_side(self) -> "SideInputs":
    """What concerns queries alone: a store of queries depends on nothing else."""
    return SideInputs(self.vocabulary, _checked(self.query_length, "QUERY_LENGTH"), self.query_prefix)

  @property
  def passage_side(self) -> "SideInputs":
    """What concerns passages alone."""
    return SideInputs(self.vocabulary, _checked(self.passage_length, "PASSAGE_LENGTH"), self.passage_prefix)

  @property
  def fingerprint(self) -> str:
    """A hash of all that decides the tokens of either side."""
    return hashlib.sha256(
      f"{self.query_side.fingerprint} {self.passage_side.fingerprint}".encode()
    ).hexdigest()

  def describe(self) -> dict[str, Any]:
    """Returns plain values to print and to log: the vocabulary, its size and fingerprint, lengths, prefixes."""
    return {
      "vocabulary": repr(self.vocabulary),
      "vocab_size": self.vocabulary.vocab_size,
      "vocabulary_fingerprint": self.vocabulary.fingerprint[:16],
      "query_length": self.query_length,
      "passage_length": self.passage_length,
      "query_prefix": self.query_prefix,
      "passage_prefix": self.passage_prefix,
    }


class SideInputs(NamedTuple):
  """The text inputs of one side (query or passage)."""

  vocabulary: Vocabulary
  length: int
  prefix: str = ""

  def tokens(self, texts: Sequence[str]) -> Int[np.ndarray, "e l"]:
    """Returns the int32 tokens [e, length] of `prefix + text`."""
    return self.vocabulary.encode([self.prefix + text for text in texts], length=self.length)

  def ragged(self, texts: Sequence[str]) -> list[Int[np.ndarray, "_"]]:
    """Returns the same tokens without padding, an int32 array a text: what sorting by length before padding needs.

    Example: `pad_rows(side.ragged(texts), length)` equals `side.tokens(texts)` if length is the side's own.
    """
    return self.vocabulary.encode_ragged([self.prefix + text for text in texts], length=self.length)

  @property
  def fingerprint(self) -> str:
    """A hash of vocabulary, length and prefix."""
    return hashlib.sha256(f"{self.vocabulary.fingerprint} {self.length} {self.prefix}".encode()).hexdigest()


def _checked(length: int, macro: str) -> int:
  if not isinstance(length, int | np.integer) or isinstance(length, bool) or length < 2:
    raise UserError(
      f"{macro}={length!r}: expected a whole number of at least 2, the special tokens included."
    )
  return int(length)
