"""The modules of a sentence-transformers folder: what each file says, and files that say what a tower does."""

import json
import pathlib
from collections.abc import Mapping
from typing import Any, Final, Literal, NamedTuple

import numpy as np
from safetensors.numpy import save_file

from retrieval_jax.errors import UserError, nearest
from retrieval_jax.interop.foreign import TextSpec, TowerSpec
from retrieval_jax.interop.report import Parameter
from retrieval_jax.interop.tensor_files import TensorFiles, few, read_json

# The names of versions 2 to 5, which 6 still loads; 6 itself writes sentence_transformers.base.modules.dense.Dense.
OLD_PREFIX: Final = "sentence_transformers.models."
KINDS: Final = ("Transformer", "Pooling", "Dense", "Normalize", "Router", "Asym")

# Our pooling -> its key in the Pooling's config.json of versions 2 to 5, and its pooling_mode in that of 6.
POOLING_KEYS: Final = {
  "mean": "pooling_mode_mean_tokens",
  "max": "pooling_mode_max_tokens",
  "first": "pooling_mode_cls_token",
  "last": "pooling_mode_lasttoken",
}
POOLING_MODES: Final = {"mean": "mean", "max": "max", "first": "cls", "last": "lasttoken"}

# activation_function -> ours. A config.json without the key means Tanh, the constructor's default.
TANH: Final = "torch.nn.modules.activation.Tanh"
IDENTITY: Final = "torch.nn.modules.linear.Identity"
ACTIVATIONS: Final[Mapping[str, Literal["none", "tanh"]]] = {
  IDENTITY: "none",
  TANH: "tanh",
  "torch.nn.Identity": "none",
  "torch.nn.Tanh": "tanh",
}

SETTINGS: Final = ("sentence_bert_config.json", "sentence_distilbert_config.json")
WEIGHT, BIAS = "linear.weight", "linear.bias"


class Module(NamedTuple):
  """One module. kind: one of KINDS. folder: of its files, which need not exist for Normalize."""

  kind: str
  folder: pathlib.Path


class Dense(NamedTuple):
  """A Dense module: its parameters in our layout, and what became of its tensors."""

  params: Mapping[str, np.ndarray]
  activation: Literal["none", "tanh"]
  lines: tuple[Parameter, ...]


def module_at(root: pathlib.Path, path: str, type_name: str, source: pathlib.Path) -> Module:
  """Returns the module of this type name in a folder below `root`. source: the file that names both.

  Raises: UserError for a type that is unknown or not sentence-transformers' own, or a path that leaves `root`.
  """
  kind = type_name.rsplit(".", 1)[-1]
  if not type_name.startswith("sentence_transformers.") or kind not in KINDS:
    raise UserError(
      f"{source}: the module type {type_name!r} cannot be read; expected sentence-transformers' own "
      f"{', '.join(KINDS)}{nearest(kind, KINDS) or '.'} Choose a model of these modules."
    )
  if pathlib.PurePath(path).is_absolute() or ".." in pathlib.PurePath(path).parts:
    raise UserError(f"{source}: the path {path!r} leaves the model's folder.")
  return Module(kind, root / path)


def read_pooling(folder: pathlib.Path, *, width: int) -> str:
  """Returns our name of a Pooling module's mode. width: of the encoder before it.

  Raises: UserError for a mode that no pooling here computes, for none or several at once, for another width, or if
  prompts are left out of it.
  """
  path = folder / "config.json"
  config = read_json(path)
  # Version 6 calls it embedding_dimension.
  for key in ("word_embedding_dimension", "embedding_dimension"):
    if config.get(key) is not None and config[key] != width:
      raise UserError(
        f"{path}: {key} is {config[key]!r}, but the encoder's width is {width}. Check that the file belongs to this "
        "model."
      )
  if config.get("include_prompt") is False:
    raise UserError(
      f"{path}: include_prompt is False, expected True: the poolings here take every token of a text, its prompt "
      "included. Choose another model."
    )
  if "pooling_mode" in config:
    modes = config["pooling_mode"]
    modes = list(modes) if isinstance(modes, list | tuple) else [modes]
    key = "pooling_mode"
  else:
    given = [name for name in config if name.startswith("pooling_mode_")]
    modes = [name for name in given if config[name]]
    if given and not modes and POOLING_KEYS["mean"] in given:
      raise UserError(
        f"{path}: none of {few(given)} is true; expected one of them. Download the model folder again."
      )
    modes = modes or [POOLING_KEYS["mean"]]
    key = " and ".join(modes)
  names = {**{k: name for name, k in POOLING_KEYS.items()}, **{m: name for name, m in POOLING_MODES.items()}}
  if len(modes) != 1 or not isinstance(modes[0], str) or modes[0] not in names:
    raise UserError(
      f"{path}: {key} asks for {' + '.join(map(str, modes)) or 'none'}; expected one of {', '.join(POOLING_MODES.values())}. "
      "Choose another model."
    )
  return names[modes[0]]


def read_dense(folder: pathlib.Path) -> Dense:
  """Returns a Dense module's kernel [in, out], its bias if it has one, and its activation.

  Raises: UserError if its files are missing or damaged, or if it does anything else than act(x W + b).
  """
  path = folder / "config.json"
  config = read_json(path)
  name = config.get("activation_function", TANH)
  if not isinstance(name, str) or name not in ACTIVATIONS:
    raise UserError(
      f"{path}: activation_function is {name!r}, expected {IDENTITY} or {TANH}. Choose another model."
    )
  for key, expected in (
    ("use_residual", False),
    ("module_input_name", "sentence_embedding"),
    ("module_output_name", "sentence_embedding"),
  ):
    value = config.get(key)
    if value is not None and value != expected:
      raise UserError(f"{path}: {key} is {value!r}, expected {expected!r}. Choose another model.")
  size = (config.get("out_features"), config.get("in_features"))
  expected = {WEIGHT: size, **({BIAS: size[:1]} if config.get("bias", True) else {})}
  tensors = TensorFiles(folder)
  if set(tensors) != set(expected):
    raise UserError(
      f"{folder}: holds the tensors {few(sorted(tensors))}, expected {few(sorted(expected))}, as config.json says."
    )
  for tensor, shape in expected.items():
    if tensors.shape(tensor) != shape:
      raise UserError(
        f"{folder}: {tensor} has the shape {tensors.shape(tensor)}, but config.json asks for {shape}."
      )
  stem, target = folder.name, "projection_layer"
  params = {"kernel": np.ascontiguousarray(tensors[WEIGHT].T)}
  lines = [Parameter(f"{stem}/{WEIGHT}", f"{target}/kernel", "reshaped", tensors.shape(WEIGHT), "transposed")]
  if BIAS in expected:
    params["bias"] = tensors[BIAS]
    lines.append(Parameter(f"{stem}/{BIAS}", f"{target}/bias", "taken", tensors.shape(BIAS)))
  return Dense(params, ACTIVATIONS[name], tuple(lines))


def read_settings(folder: pathlib.Path, text: TextSpec, *, max_positions: int | None) -> TextSpec:
  """Returns `text` with the max_seq_length of a Transformer module's own file, if it has one.

  Raises: UserError for settings that change the tokens or the hidden states.
  """
  path = next((folder / name for name in SETTINGS if (folder / name).exists()), None)
  if path is None:
    return text
  config = read_json(path)
  for key, allowed in (
    ("transformer_task", "feature-extraction"),
    ("module_output_name", "token_embeddings"),
    ("tokenizer_name_or_path", None),
    ("config_args", {}),
    ("config_kwargs", {}),
    ("query_length", None),
    ("document_length", None),
  ):
    value = config.get(key)
    if value is not None and value != allowed:
      raise UserError(f"{path}: {key} is {value!r}, expected {allowed!r}. Choose another model.")
  if config.get("do_lower_case") and not _lowercases(text.vocabulary_path):
    raise UserError(
      f"{path}: do_lower_case is True, but the tokenizer beside it keeps letter case: give it lower-case text and set "
      "the key to false, or choose another model."
    )
  length = config.get("max_seq_length")
  if length is None:
    return text
  if isinstance(length, bool) or not isinstance(length, int) or length < 1:
    raise UserError(f"{path}: max_seq_length is {length!r}, expected a number of at least 1.")
  return text._replace(max_length=min(length, max_positions or length))


def write_pooling(folder: pathlib.Path, spec: TowerSpec) -> None:
  """Writes a Pooling module of versions 2 to 6.

  Raises: UserError for a pooling that sentence-transformers does not have.
  """
  if spec.pooling not in POOLING_KEYS:
    raise UserError(
      f"{folder.parent}: sentence-transformers has no {spec.pooling} pooling, only {', '.join(POOLING_KEYS)}. "
      "Train the tower with one of these to export it."
    )
  width = spec.encoder.fields["embed_dim"]
  modes = {key: name == spec.pooling for name, key in POOLING_KEYS.items()}
  write_json(folder / "config.json", {"word_embedding_dimension": width, **modes, "include_prompt": True})


def write_dense(folder: pathlib.Path, spec: TowerSpec, projection: Mapping[str, Any]) -> None:
  """Writes a tower's projection as a Dense module of versions 2 to 6."""
  width = spec.encoder.fields["embed_dim"]
  kernel = np.asarray(projection["kernel"], np.float32)
  expected = {"kernel", "bias"} if spec.projection_bias else {"kernel"}
  if set(projection) != expected or kernel.shape != (width, spec.projection_dim):
    raise UserError(
      f"projection_layer holds {', '.join(sorted(projection))} with a kernel of {kernel.shape}; the tower's "
      f"specification asks for {', '.join(sorted(expected))} and {(width, spec.projection_dim)}."
    )
  config = {
    "in_features": width,
    "out_features": spec.projection_dim,
    "bias": spec.projection_bias,
    "activation_function": TANH if spec.projection_activation == "tanh" else IDENTITY,
  }
  write_json(folder / "config.json", config)
  tensors = {WEIGHT: np.ascontiguousarray(kernel.T)}
  if spec.projection_bias:
    tensors[BIAS] = np.asarray(projection["bias"], np.float32)
  save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def write_json(path: pathlib.Path, value: Any) -> None:
  """Writes a JSON file, and its folder if it is not there."""
  path.parent.mkdir(exist_ok=True)
  path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _lowercases(vocabulary: pathlib.Path | None) -> bool:
  """Whether a tokenizer.json's normaliser, or that of a vocab.txt, makes letters small."""
  if vocabulary is None or vocabulary.suffix != ".json":
    return vocabulary is not None and vocabulary.suffix == ".txt"  # only an uncased BERT's is ever given
  normalizer = read_json(vocabulary).get("normalizer") or {}
  return any(
    step.get("lowercase") or step.get("type") == "Lowercase"
    for step in [normalizer, *(normalizer.get("normalizers") or [])]
  )
