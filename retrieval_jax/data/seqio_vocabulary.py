"""A seqio Vocabulary over any tokenizer: seqio has none for WordPiece nor for a tokenizer.json."""

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
  import seqio


class Tokenizer(Protocol):
  """What is wrapped: a TokenizerFile or a SentencePieceFile."""

  vocab_size: int

  @property
  def end_id(self) -> int | None: ...

  @property
  def unknown_id(self) -> int | None: ...

  def encode(self, texts: Sequence[str]) -> list[list[int]]:
    """Returns the ids of each text with its special tokens, the end token last."""
    ...

  def pieces(self, text: str) -> list[int]:
    """Returns the ids of a text alone."""
    ...

  def decode(self, ids: Sequence[int]) -> str:
    """Returns the text of ids, padding left out."""
    ...


def seqio_vocabulary(tokenizer: Tokenizer, fingerprint: str) -> "seqio.Vocabulary":
  """Returns `tokenizer` for use in a seqio.Feature (loads TensorFlow).

  As seqio has it, `encode` adds no special token; a Feature's add_eos appends the end token ([SEP] or </s>).
  Two are equal if their fingerprints are.
  """
  return _vocabulary_class()(tokenizer, fingerprint)


@functools.cache
def _vocabulary_class() -> Any:
  """Returns the class, which can be defined only once seqio is loaded."""
  import seqio
  import tensorflow as tf

  class TokenizerVocabulary(seqio.Vocabulary):
    """Ids of a Tokenizer."""

    def __init__(self, tokenizer: Tokenizer, fingerprint: str):
      super().__init__(extra_ids=0)
      self.fingerprint = fingerprint
      self._tokenizer = tokenizer

    @property
    def eos_id(self) -> int | None:
      return self._tokenizer.end_id

    @property
    def unk_id(self) -> int | None:
      return self._tokenizer.unknown_id

    @property
    def _base_vocab_size(self) -> int:
      return self._tokenizer.vocab_size

    def _encode(self, s: str) -> Sequence[int]:
      return self._tokenizer.pieces(s)

    def _decode(self, ids: Sequence[int]) -> str:
      return self._tokenizer.decode(ids)

    def _encode_tf(self, s: Any) -> Any:
      def encode(text: Any) -> np.ndarray:
        return np.array(self._encode(text.numpy().decode("utf-8")), np.int32)

      ids = tf.py_function(encode, [s], tf.int32)
      ids.set_shape([None])
      return ids

    def _decode_tf(self, ids: Any) -> Any:
      return tf.py_function(lambda row: self._decode(row.numpy().tolist()), [ids], tf.string)

    def __eq__(self, other: object) -> bool:
      return isinstance(other, TokenizerVocabulary) and other.fingerprint == self.fingerprint

    def __hash__(self) -> int:
      return hash(self.fingerprint)

  return TokenizerVocabulary
