"""The tokenizer files of a Hugging Face folder: which vocabulary they hold, and files that give our ids."""

import json
import pathlib
import shutil
from typing import Any, Final

from retrieval_jax.errors import UserError
from retrieval_jax.interop import sentencepiece_tokenizer
from retrieval_jax.interop.foreign import TextSpec
from retrieval_jax.interop.tensor_files import read_json

WORD_PIECE: Final = ("tokenizer.json", "vocab.txt")
SENTENCE_PIECE: Final = ("spiece.model", "spm.model", "sentencepiece.bpe.model", "tokenizer.json")

# tokenizer_config.json writes 1e30 for "no limit".
SANE_LENGTH: Final = 100_000

# Of tokenizer_config.json, what decides the ids of a vocabulary that is only a vocab.txt, with the values of an
# uncased BERT.
VOCAB_TXT_OPTIONS: Final = {"do_lower_case": True, "strip_accents": None, "tokenize_chinese_chars": True}
CASED: Final = {**VOCAB_TXT_OPTIONS, "do_lower_case": False}
BERT_TOKENS: Final = {
  "unk_token": "[UNK]",
  "sep_token": "[SEP]",
  "pad_token": "[PAD]",
  "cls_token": "[CLS]",
  "mask_token": "[MASK]",
}
T5_TOKENS: Final = {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}


def read_text(folder: pathlib.Path, *, family: str, max_positions: int | None) -> TextSpec:
  """Returns what the tokenizer files say. No vocabulary: there is no file of the kind that the family's class reads,
  or only a vocab.txt that is neither an uncased nor a cased BERT's.

  max_length: tokenizer_config.json's model_max_length, at most `max_positions`.
  """
  names, kind = (WORD_PIECE, "word_piece") if family == "bert" else (SENTENCE_PIECE, "sentence_piece")
  path = next((folder / name for name in names if (folder / name).exists()), None)
  config = folder / "tokenizer_config.json"
  options = read_json(config) if config.exists() else {}
  reading: dict[str, Any] = {}
  if path and path.suffix == ".txt":
    said = {key: options.get(key, value) for key, value in VOCAB_TXT_OPTIONS.items()}
    if said == CASED:
      reading = {"lowercase": False}
    elif said != VOCAB_TXT_OPTIONS:
      path = None
  limit = options.get("model_max_length")
  sane = isinstance(limit, int | float) and 0 < limit <= SANE_LENGTH
  limits = [int(n) for n in (limit if sane else None, max_positions) if n]
  return TextSpec(kind if path else None, path, min(limits, default=None), options=reading)


def write_tokenizer(
  folder: pathlib.Path, text: TextSpec, *, max_length: int | None, token_types: bool
) -> None:
  """Writes files from which transformers' AutoTokenizer gives the ids of our vocabulary, end tokens included.

  max_length: where a text is cut by default. token_types: whether the model takes token_type_ids.
  None are written for a text without a vocabulary.

  Raises: UserError if the vocabulary's file is missing, damaged or of another kind.
  """
  if text.vocabulary is None or text.vocabulary_path is None:
    return
  path = text.vocabulary_path
  if not path.is_file():
    raise UserError(f"{path}: the vocabulary's file is not there. Give its new path, or put it back.")
  config: dict[str, Any] = {"padding_side": "right", "truncation_side": "right"}
  if max_length:
    config["model_max_length"] = max_length
  if text.vocabulary == "sentence_piece":
    extra = {name: value for name, value in text.options.items() if value}
    if extra:
      raise UserError(
        f"{path}: read with {extra}, which no tokenizer files can be written for that transformers reads alike. Train "
        "with the plain SentencePiece model, or write a retrieval_jax or T5X folder."
      )
    config["model_input_names"] = ["input_ids", "attention_mask"]
    config |= _copy_t5_json(folder, path) if path.suffix == ".json" else _write_sentencepiece(folder, path)
  else:
    inputs = ["input_ids", "token_type_ids", "attention_mask"]
    config["model_input_names"] = inputs if token_types else inputs[::2]
    lowercase = bool(text.options.get("lowercase", True))
    is_list = path.suffix == ".txt"
    config |= _copy_vocab_txt(folder, path, lowercase) if is_list else _copy_tokenizer_json(folder, path)
  special = {key: value for key, value in config.items() if key.endswith("_token")}
  _write_json(folder / "special_tokens_map.json", special)
  _write_json(folder / "tokenizer_config.json", config)


def _write_sentencepiece(folder: pathlib.Path, path: pathlib.Path) -> dict[str, Any]:
  model = sentencepiece_tokenizer.read_model(path)
  (folder / "tokenizer.json").write_text(sentencepiece_tokenizer.tokenizer_json(model), encoding="utf-8")
  shutil.copyfile(path, folder / "spiece.model")
  unknown = next(piece for piece, _, kind in model.pieces if kind == sentencepiece_tokenizer.UNKNOWN)
  return {
    # Not T5Tokenizer: transformers 5's builds its own normaliser and cuts, whatever tokenizer.json says.
    "tokenizer_class": "PreTrainedTokenizerFast",
    "pad_token": model.pieces[0][0],
    "eos_token": model.pieces[sentencepiece_tokenizer.EOS][0],
    "unk_token": unknown,
    # "</s>" in a text is four letters, as for SentencePiece.
    "split_special_tokens": True,
  }


def _copy_t5_json(folder: pathlib.Path, path: pathlib.Path) -> dict[str, Any]:
  if read_json(path).get("model", {}).get("type") != "Unigram":
    raise UserError(f"{path}: not the tokenizer.json of a T5: its model is not Unigram.")
  shutil.copyfile(path, folder / "tokenizer.json")
  return {"tokenizer_class": "PreTrainedTokenizerFast", **T5_TOKENS}


def _copy_tokenizer_json(folder: pathlib.Path, path: pathlib.Path) -> dict[str, Any]:
  tokenizer = read_json(path)
  shutil.copyfile(path, folder / "tokenizer.json")
  vocabulary = tokenizer.get("model", {}).get("vocab", {})
  if not isinstance(vocabulary, dict):
    raise UserError(
      f"{path}: not the tokenizer.json of a BERT: its vocabulary is no table from pieces to ids."
    )
  tokens = sorted(vocabulary, key=vocabulary.__getitem__)
  if [vocabulary[token] for token in tokens] == list(range(len(tokens))):  # what vocab.txt can express
    (folder / "vocab.txt").write_text("".join(f"{token}\n" for token in tokens), encoding="utf-8")
  # Not BertTokenizer: transformers 5's builds its own normaliser, whatever tokenizer.json says.
  known = set(vocabulary) | {token.get("content") for token in tokenizer.get("added_tokens") or []}
  special = {key: token for key, token in BERT_TOKENS.items() if token in known}
  return {"tokenizer_class": "PreTrainedTokenizerFast", **special}


def _copy_vocab_txt(folder: pathlib.Path, path: pathlib.Path, lowercase: bool) -> dict[str, Any]:
  shutil.copyfile(path, folder / "vocab.txt")
  options = VOCAB_TXT_OPTIONS if lowercase else CASED
  return {"tokenizer_class": "BertTokenizer", **BERT_TOKENS, **options}


def _write_json(path: pathlib.Path, value: dict[str, Any]) -> None:
  path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
