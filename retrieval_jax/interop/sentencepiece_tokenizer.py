"""A SentencePiece unigram model as a Hugging Face tokenizer.json that gives the same ids."""

import base64
import json
import pathlib
import re
from typing import Any, Final, NamedTuple

from retrieval_jax.errors import UserError

SPACE: Final = "\u2581"  # what SentencePiece writes for a space
UNIGRAM: Final = 1  # TrainerSpec.ModelType; the others are bpe, word and char
EOS: Final = 1
# SentencePiece.Type
NORMAL, UNKNOWN, CONTROL, USER_DEFINED = 1, 2, 3, 4
# Of all code points below U+10000, nmt_nfkc keeps this one, which NFKC does not: a private letter stands in for it.
WIDE_TILDE: Final = "\uff5e"
KEPT_TILDE: Final = "\ue000"
FOREIGN: Final = "\ue001"  # a private letter that no vocabulary has


class SentencePieceModel(NamedTuple):
  """What the .model file holds of interest. pieces: (piece, score, type) by id."""

  pieces: list[tuple[str, float, int]]
  charsmap: bytes
  collapse_spaces: bool
  dummy_prefix: bool
  byte_fallback: bool
  normalizer: str


def read_model(path: pathlib.Path) -> SentencePieceModel:
  """Returns the contents of a SentencePiece model file.

  Raises: UserError if it is none, if its algorithm is not unigram, or if its pad is not 0 and its </s> not 1.
  """
  from google.protobuf.message import DecodeError
  from sentencepiece import sentencepiece_model_pb2

  proto: Any = sentencepiece_model_pb2.ModelProto()  # pyright: ignore[reportAttributeAccessIssue]  (made at import)
  try:
    proto.ParseFromString(path.read_bytes())
  except (DecodeError, OSError) as error:
    raise UserError(f"{path}: not a SentencePiece model ({error}).") from None
  pieces = [(piece.piece, piece.score, piece.type) for piece in proto.pieces]
  trainer, normalizer = proto.trainer_spec, proto.normalizer_spec
  if trainer.model_type != UNIGRAM:
    raise UserError(
      f"{path}: not a unigram model, which is the only kind that T5 has and that can be written here."
    )
  if (trainer.pad_id, trainer.eos_id) != (0, EOS) or len(pieces) <= EOS:
    raise UserError(
      f"{path}: its pad id is {trainer.pad_id} and its end id {trainer.eos_id}; expected 0 and 1, as in T5's models."
    )
  return SentencePieceModel(
    pieces,
    normalizer.precompiled_charsmap,
    normalizer.remove_extra_whitespaces,
    normalizer.add_dummy_prefix,
    trainer.byte_fallback,
    normalizer.name,
  )


def tokenizer_json(model: SentencePieceModel) -> str:
  """Returns the text of the tokenizer.json: text </s>, normalised and cut as SentencePiece does.

  Its special tokens are not looked for in the text, as SentencePiece does not: use it with split_special_tokens.
  """
  eos = model.pieces[EOS][0]
  ending = {"SpecialToken": {"id": eos, "type_id": 0}}
  first, second = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")
  content = {
    "version": "1.0",
    "truncation": None,
    "padding": None,
    "added_tokens": [_added(i, model.pieces[i][0]) for i in _special_ids(model)],
    "normalizer": {"type": "Sequence", "normalizers": _normalizers(model)},
    "pre_tokenizer": _pre_tokenizer(model),
    "post_processor": {
      "type": "TemplateProcessing",
      "single": [first, ending],
      "pair": [first, ending, second, ending],
      "special_tokens": {eos: {"id": eos, "ids": [EOS], "tokens": [eos]}},
    },
    "decoder": {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": "always", "split": True},
    "model": {
      "type": "Unigram",
      "unk_id": next(i for i, (_, _, kind) in enumerate(model.pieces) if kind == UNKNOWN),
      "vocab": _scored(model),
      "byte_fallback": model.byte_fallback,
    },
  }
  return json.dumps(content, ensure_ascii=False)


def _added(i: int, piece: str) -> dict[str, Any]:
  flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
  return {"id": i, "content": piece, **flags, "special": True}


def _scored(model: SentencePieceModel) -> list[tuple[str, float]]:
  """Returns (piece, score). A user-defined piece beats all ways to spell it: no path of n letters is above n * best."""
  best = max((score for _, score, kind in model.pieces if kind == NORMAL), default=0.0)
  return [
    (piece, len(piece) * best - 0.1 if kind == USER_DEFINED else score) for piece, score, kind in model.pieces
  ]


def _normalizers(model: SentencePieceModel) -> list[dict[str, Any]]:
  steps: list[dict[str, Any]] = []
  if model.charsmap:
    # tokenizers replaces a letter with combining marks by the shortest entry that fits, which loses marks. Composed
    # first, few letters are left that have an entry at all: 17 of 3,000 lines of random marks differed, then 4.
    if model.normalizer.startswith("nmt_nfkc"):
      steps += [_replace(WIDE_TILDE, KEPT_TILDE), {"type": "NFKC"}, _replace(KEPT_TILDE, WIDE_TILDE)]
    elif model.normalizer.startswith("nfkc"):
      steps.append({"type": "NFKC"})
    charsmap = base64.b64encode(model.charsmap).decode("ascii")
    steps.append({"type": "Precompiled", "precompiled_charsmap": charsmap})
  if model.collapse_spaces:
    steps.append({"type": "Replace", "pattern": {"Regex": " +"}, "content": " "})
    steps.append({"type": "Replace", "pattern": {"Regex": r"\A | \z"}, "content": ""})
  steps += [_replace(special, _disguise(special, model)) for special in _specials(model)]
  if model.dummy_prefix:
    steps.append({"type": "Prepend", "prepend": SPACE})
  return [*steps, _replace(" ", SPACE)]


def _pre_tokenizer(model: SentencePieceModel) -> dict[str, Any] | None:
  """Returns the cuts: before each space, if no piece goes on over one (short words are remembered), and in specials."""
  steps = []
  if not any(SPACE in piece[1:] for piece in _plain(model)):
    steps.append(_split({"String": SPACE}, "MergedWithNext"))
  cuts = [_cut(special, model) for special in _specials(model) if _disguise(special, model) == special]
  pattern = "|".join(cut for cut in cuts if cut)
  if pattern:
    steps.append(_split({"Regex": pattern}, "MergedWithPrevious"))
  return {"type": "Sequence", "pretokenizers": steps} if steps else None


def _split(pattern: dict[str, str], behavior: str) -> dict[str, Any]:
  return {"type": "Split", "pattern": pattern, "behavior": behavior, "invert": False}


# In a text, SentencePiece takes "</s>" for four letters; tokenizers' Unigram would find the special token. So its
# letters that occur in no piece are replaced by another such letter; if it has none, it is cut in two where no
# piece goes on.
def _specials(model: SentencePieceModel) -> list[str]:
  return [model.pieces[i][0] for i in _special_ids(model)]


def _special_ids(model: SentencePieceModel) -> list[int]:
  return [i for i, (_, _, kind) in enumerate(model.pieces) if kind in (UNKNOWN, CONTROL)]


def _plain(model: SentencePieceModel) -> list[str]:
  return [piece for piece, _, kind in model.pieces if kind not in (UNKNOWN, CONTROL)]


def _disguise(special: str, model: SentencePieceModel) -> str:
  if model.byte_fallback:  # an unknown letter is spelled by its own bytes
    return special
  known = set("".join(_plain(model)))
  return "".join(letter if letter in known else FOREIGN for letter in special)


def _cut(special: str, model: SentencePieceModel) -> str:
  """Returns a pattern for the letter of `special` after which no piece goes on; "" if there is none."""
  plain = _plain(model)
  for k in range(1, len(special)):
    if not any(special[k - 1 : k + 1] in piece for piece in plain):
      head, letter, rest = special[: k - 1], special[k - 1], special[k:]
      behind = f"(?<={re.escape(head)})" if head else ""
      return f"{behind}{re.escape(letter)}(?={re.escape(rest)})"
  return ""


def _replace(old: str, new: str) -> dict[str, Any]:
  return {"type": "Replace", "pattern": {"String": old}, "content": new}
