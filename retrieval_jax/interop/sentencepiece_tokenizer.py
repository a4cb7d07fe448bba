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
UNKNOWN, CONTROL, USER_DEFINED = 2, 3, 4
NFKC: Final = ("nmt_nfkc", "nfkc")  # SentencePiece's names of its tables
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
  unknown = next(i for i, (_, _, kind) in enumerate(model.pieces) if kind == UNKNOWN)
  added = [
    _added(i, piece, special=kind != USER_DEFINED)
    for i, (piece, _, kind) in enumerate(model.pieces)
    if kind in (UNKNOWN, CONTROL, USER_DEFINED)
  ]
  return json.dumps(
    {
      "version": "1.0",
      "truncation": None,
      "padding": None,
      "added_tokens": added,
      "normalizer": _normalizer(model),
      "pre_tokenizer": _pre_tokenizer(model),
      "post_processor": {
        "type": "TemplateProcessing",
        "single": [_part("Sequence", "A", 0), _part("SpecialToken", model.pieces[EOS][0], 0)],
        "pair": [
          _part("Sequence", "A", 0),
          _part("SpecialToken", model.pieces[EOS][0], 0),
          _part("Sequence", "B", 0),
          _part("SpecialToken", model.pieces[EOS][0], 0),
        ],
        "special_tokens": {
          model.pieces[EOS][0]: {"id": model.pieces[EOS][0], "ids": [EOS], "tokens": [model.pieces[EOS][0]]}
        },
      },
      "decoder": {
        "type": "Metaspace", "replacement": SPACE, "prepend_scheme": "always", "split": True,
      },
      "model": {
        "type": "Unigram",
        "unk_id": unknown,
        "vocab": [[piece, score] for piece, score, _ in model.pieces],
        "byte_fallback": model.byte_fallback,
      },
    },
    ensure_ascii=False,
  )  # fmt: skip


def _part(kind: str, name: str, type_id: int) -> dict[str, Any]:
  return {kind: {"id": name, "type_id": type_id}}


def _added(i: int, piece: str, *, special: bool) -> dict[str, Any]:
  return {
    "id": i,
    "content": piece,
    "single_word": False,
    "lstrip": False,
    "rstrip": False,
    "normalized": False,
    "special": special,
  }


def _normalizer(model: SentencePieceModel) -> dict[str, Any] | None:
  steps: list[dict[str, Any]] = []
  if model.charsmap:
    # tokenizers replaces a letter with combining marks by the shortest entry that fits, which loses marks. Composed
    # first, few letters are left that have an entry at all: 265 of 3,000 lines of random marks differed, then 4.
    if model.normalizer in NFKC:
      if model.normalizer == "nmt_nfkc":
        steps += [_replace(WIDE_TILDE, KEPT_TILDE), {"type": "NFKC"}, _replace(KEPT_TILDE, WIDE_TILDE)]
      else:
        steps.append({"type": "NFKC"})
    charsmap = base64.b64encode(model.charsmap).decode("ascii")
    steps.append({"type": "Precompiled", "precompiled_charsmap": charsmap})
  if model.collapse_spaces:
    steps.append({"type": "Replace", "pattern": {"Regex": f"[ {SPACE}]+"}, "content": " "})
    steps.append({"type": "Replace", "pattern": {"Regex": "^ | $"}, "content": ""})
  steps += [_replace(special, _disguise(special, model)) for special in _specials(model)]
  return {"type": "Sequence", "normalizers": steps} if steps else None


def _pre_tokenizer(model: SentencePieceModel) -> dict[str, Any]:
  # "first" goes by the place in the raw text, so it would miss a text whose leading space the normalizer took away;
  # "always" would put a space behind a user-defined piece.
  pieced = any(kind == USER_DEFINED for _, _, kind in model.pieces)
  scheme = ("first" if pieced else "always") if model.dummy_prefix else "never"
  metaspace = {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": scheme, "split": True}
  cuts = [_cut(special, model) for special in _specials(model) if _disguise(special, model) == special]
  pattern = "|".join(cut for cut in cuts if cut)
  if not pattern:
    return metaspace
  split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "MergedWithPrevious", "invert": False}
  return {"type": "Sequence", "pretokenizers": [metaspace, split]}


# In a text, SentencePiece takes "</s>" for four letters; tokenizers' Unigram would find the special token. So its
# letters that occur in no piece are replaced by another such letter; if it has none, it is cut in two where no
# piece goes on.
def _specials(model: SentencePieceModel) -> list[str]:
  return [piece for piece, _, kind in model.pieces if kind in (UNKNOWN, CONTROL)]


def _plain(model: SentencePieceModel) -> list[str]:
  return [piece for piece, _, kind in model.pieces if kind not in (UNKNOWN, CONTROL)]


def _disguise(special: str, model: SentencePieceModel) -> str:
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
