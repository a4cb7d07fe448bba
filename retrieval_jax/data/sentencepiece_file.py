"""A SentencePiece model file with T5's sentinels and, if asked, with the special tokens written in a text."""

import re
from collections.abc import Sequence
from typing import Any

from retrieval_jax.errors import UserError

PAD = 0
EOS = 1


class SentencePieceFile:
  """Pieces and ids of a SentencePiece model, each text ending with </s>. It has no state.

  Attributes: vocab_size (with the sentinels), end_id, unknown_id.

  Args:
    extra_ids: sentinels after the model's own pieces: <extra_id_0> is the last id. As in seqio they are pieces that
      begin a word ("a <extra_id_0> b").
    special_tokens: read </s>, <unk> and the sentinels anywhere in a text as what they name, as Hugging Face does.
      <pad> stays text: its id 0 inside a row would be taken for padding.

  Raises: UserError if `data` is no SentencePiece model, or if pad is not 0 or </s> not 1.
  """

  def __init__(self, data: bytes, path: str, *, extra_ids: int, special_tokens: bool):
    import sentencepiece

    self._model: Any = sentencepiece.SentencePieceProcessor()
    try:
      self._model.LoadFromSerializedProto(data)
      if extra_ids:
        self._model.LoadFromSerializedProto(_with_sentinels(data, extra_ids))
    except (RuntimeError, OSError) as error:
      raise UserError(f"{path}: not a SentencePiece model ({error}).") from error
    if (self._model.pad_id(), self._model.eos_id()) != (PAD, EOS):
      raise UserError(
        f"{path}: its pad id is {self._model.pad_id()} and its end id {self._model.eos_id()}; expected 0 and 1, "
        "as in T5's models. Train one with retrieval_jax.data.vocabularies.train_sentencepiece."
      )
    self.vocab_size: int = self._model.vocab_size()
    self.end_id, self.unknown_id = EOS, self._model.unk_id()
    self._named: dict[str, int] = {}
    if special_tokens:
      self._named = {self._model.IdToPiece(id): id for id in (self.end_id, self.unknown_id)}
      self._named |= {f"<extra_id_{i}>": self.vocab_size - 1 - i for i in range(extra_ids)}
    self._names = re.compile(f"({'|'.join(map(re.escape, self._named))})")

  def encode(self, texts: Sequence[str]) -> list[list[int]]:
    """Returns the ids of each text, </s> at its end."""
    if not self._named:
      return [[*ids, EOS] for ids in self._model.EncodeAsIds(list(texts))]
    # Odd places are special tokens; each text between two of them begins a word of its own, as at Hugging Face.
    parts = [self._names.split(text) for text in texts]
    plain = iter(self._model.EncodeAsIds([part for row in parts for part in row[::2]]))
    return [
      [id for place, part in enumerate(row) for id in ((self._named[part],) if place % 2 else next(plain))]
      + [EOS]
      for row in parts
    ]

  def pieces(self, text: str) -> list[int]:
    """Returns the ids of a text alone."""
    return self.encode([text])[0][:-1]

  def decode(self, ids: Sequence[int]) -> str:
    """Returns the text of ids up to the first </s>, padding left out."""
    plain = [int(i) for i in ids if i != PAD]
    return self._model.DecodeIds(plain[: plain.index(EOS)] if EOS in plain else plain)


def _with_sentinels(data: bytes, extra_ids: int) -> bytes:
  """Returns the model with the pieces ▁<extra_id_{extra_ids - 1}> ... ▁<extra_id_0> behind its own."""
  from sentencepiece import sentencepiece_model_pb2

  model = sentencepiece_model_pb2.ModelProto.FromString(data)  # pyright: ignore[reportAttributeAccessIssue]  (made at import)
  for i in reversed(range(extra_ids)):
    piece = model.pieces.add()
    piece.piece, piece.score, piece.type = f"▁<extra_id_{i}>", 0.0, piece.USER_DEFINED
  return model.SerializeToString()
