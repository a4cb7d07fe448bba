"""A seqio Vocabulary over a Hugging Face tokenizer: seqio has none for WordPiece."""

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
  import seqio
  import tokenizers


def seqio_word_piece(tokenizer: "tokenizers.Tokenizer", fingerprint: str) -> "seqio.Vocabulary":
  """Returns `tokenizer` for use in a seqio.Feature (loads TensorFlow).

  As seqio has it, `encode` adds no special token; [SEP] is the end token that a Feature's add_eos appends.
  Two are equal if their fingerprints are.
  """
  return _vocabulary_class()(tokenizer, fingerprint)


@functools.cache
def _vocabulary_class() -> Any:
  """Returns the class, which can be defined only once seqio is loaded."""
  import seqio
  import tensorflow as tf

  class WordPieceVocabulary(seqio.Vocabulary):
    """Ids of a tokenizer.json."""

    def __init__(self, tokenizer: "tokenizers.Tokenizer", fingerprint: str):
      super().__init__(extra_ids=0)
      self.fingerprint = fingerprint
      self._tokenizer = tokenizer

    @property
    def eos_id(self) -> int | None:
      return self._tokenizer.token_to_id("[SEP]")

    @property
    def unk_id(self) -> int | None:
      return self._tokenizer.token_to_id("[UNK]")

    @property
    def _base_vocab_size(self) -> int:
      return self._tokenizer.get_vocab_size()

    def _encode(self, s: str) -> Sequence[int]:
      return self._tokenizer.encode(s, add_special_tokens=False).ids

    def _decode(self, ids: Sequence[int]) -> str:
      return self._tokenizer.decode([int(i) for i in ids], skip_special_tokens=True)

    def _encode_tf(self, s: Any) -> Any:
      def encode(text: Any) -> np.ndarray:
        return np.array(self._encode(text.numpy().decode("utf-8")), np.int32)

      ids = tf.py_function(encode, [s], tf.int32)
      ids.set_shape([None])
      return ids

    def _decode_tf(self, ids: Any) -> Any:
      return tf.py_function(lambda row: self._decode(row.numpy().tolist()), [ids], tf.string)

    def __eq__(self, other: object) -> bool:
      return isinstance(other, WordPieceVocabulary) and other.fingerprint == self.fingerprint

    def __hash__(self) -> int:
      return hash(self.fingerprint)

  return WordPieceVocabulary
