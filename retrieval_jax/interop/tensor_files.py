"""The weights of a model folder by name, read when asked for: safetensors or pytorch_model.bin, whole or in shards."""

import functools
import hashlib
import json
import pathlib
import pickle
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import ml_dtypes  # noqa: F401  (teaches numpy bfloat16, which safetensors then gives)
import numpy as np
from safetensors import SafetensorError, safe_open

from retrieval_jax.errors import UserError

SAFETENSORS: Final = "model.safetensors"
TORCH: Final = "pytorch_model.bin"
INDEX: Final = ".index.json"
AGAIN: Final = "Download the file again or reinstall the package that holds it."

# What else such folders hold, none of which can be read here.
OTHERS: Final = (
  "tf_model.h5",
  "flax_model.msgpack",
  "rust_model.ot",
  "adapter_model.safetensors",
  "model.onnx",
)

FLOATS: Final = ("float16", "bfloat16", "float32", "float64")


class TensorFiles(Mapping[str, np.ndarray]):
  """The tensors of a folder, name -> float32 array; each is read from its file when it is asked for.

  Takes the first it finds of model.safetensors, model.safetensors.index.json with its shards, pytorch_model.bin and
  pytorch_model.bin.index.json with its shards. The last two need torch, and are read with its weights-only reader:
  a file that would run code is refused. float16, bfloat16 and float64 become float32.

  Raises: UserError if there is no such file, if one is damaged, if a shard is missing or lacks a tensor of the
  index; on reading a tensor, if it holds no floats, or NaN or infinity once it is float32.

  Example: `TensorFiles(pathlib.Path("all-MiniLM-L6-v2"))["embeddings.LayerNorm.bias"]`.
  """

  def __init__(self, folder: pathlib.Path):
    self.folder = folder
    self._sources = _sources(folder)

  def __getitem__(self, name: str) -> np.ndarray:
    tensor = self._sources[name].read(name)
    if tensor.dtype.name not in FLOATS:
      raise UserError(
        f"{self._sources[name].path}: {name} is of type {tensor.dtype}, expected floats: quantised weights cannot be "
        "read. Take the model's float16, bfloat16 or float32 weights."
      )
    if not is_finite(tensor):
      raise UserError(
        f"{self._sources[name].path}: {name} holds NaN or infinity (in float32). Download the file again, or take a "
        "checkpoint from before training diverged."
      )
    return tensor.astype(np.float32)

  def __iter__(self) -> Iterator[str]:
    return iter(self._sources)

  def __len__(self) -> int:
    return len(self._sources)

  def shape(self, name: str) -> tuple[int, ...]:
    """Returns the tensor's shape; its numbers stay on disk, as far as the format allows."""
    return self._sources[name].shapes[name]

  def file(self, name: str) -> pathlib.Path:
    """Returns the file that holds the tensor."""
    return self._sources[name].path


def check_sha256(path: pathlib.Path, expected: str) -> None:
  """Raises UserError if the file's sha256 is not `expected` (hexadecimal, in any case), or if it is not there."""
  try:
    with path.open("rb") as file:
      got = hashlib.file_digest(file, "sha256").hexdigest()
  except OSError as error:
    raise UserError(
      f"{path}: cannot be read for its sha256 ({error.strerror}). #sha256= is of a folder's "
      f"{path.name}: leave it out for T5X checkpoints, for a MODEL_DIR and for weights in other files."
    ) from None
  if got != expected.lower():
    raise UserError(
      f"{path}: sha256 is {got}, expected {expected}: the file is damaged or another version. "
      "Download it again; if you mean this file, put its own sum behind #sha256= or leave that out."
    )


class SafetensorsFile(NamedTuple):
  """One safetensors file: reads a tensor at a time."""

  path: pathlib.Path
  shapes: Mapping[str, tuple[int, ...]]

  def read(self, name: str) -> np.ndarray:
    """Returns the tensor in the file's own type."""
    try:
      with safe_open(self.path, framework="numpy") as file:
        return file.get_tensor(name)
    except (SafetensorError, OSError) as error:
      raise _damaged(self.path, error) from None
    except (TypeError, AttributeError) as error:  # numpy has no such type: 8-bit floats, 4-bit numbers
      raise UserError(
        f"{self.path}: {name} is of a type that numpy cannot hold ({error}). "
        "Take the model's float16, bfloat16 or float32 weights."
      ) from None


class TorchFile(NamedTuple):
  """One file of torch.save, held whole in memory."""

  path: pathlib.Path
  tensors: Mapping[str, Any]
  shapes: Mapping[str, tuple[int, ...]]

  def read(self, name: str) -> np.ndarray:
    """Returns the tensor; bfloat16 as float32, since torch gives numpy no bfloat16."""
    import torch

    tensor = self.tensors[name].detach()
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()


def _sources(folder: pathlib.Path) -> dict[str, SafetensorsFile | TorchFile]:
  for name, opened in ((SAFETENSORS, _open_safetensors), (TORCH, _open_torch)):
    if (folder / name).exists():
      source = opened(folder / name)
      return dict.fromkeys(source.shapes, source)
    if (folder / f"{name}{INDEX}").exists():
      return _shards(folder / f"{name}{INDEX}", opened)
  others = [name for name in OTHERS if (folder / name).exists()]
  raise UserError(
    f"{folder}: no {SAFETENSORS} and no {TORCH} here"
    + (f", only {', '.join(others)}, which cannot be read. " if others else ". ")
    + "Give the folder that holds the weights, or save the model again with save_pretrained()."
  )


def _shards(index: pathlib.Path, opened: Any) -> dict[str, SafetensorsFile | TorchFile]:
  weight_map = _read_index(index)
  # At most one open of each file: a table of contents, or for torch the whole shard.
  open_once = functools.cache(opened)
  sources = {}
  for name, file in weight_map.items():
    path = index.parent / file
    if pathlib.PurePath(file).name != file:
      raise UserError(f"{index}: the file {file!r} of {name} is not beside it; expected a bare file name.")
    if not path.exists():
      absent = sorted({f for f in weight_map.values() if not (index.parent / f).exists()})
      raise UserError(
        f"{index}: {len(absent)} of {len(set(weight_map.values()))} weight files are missing: {few(absent)}. "
        "Download them too."
      )
    source = open_once(path)
    if name not in source.shapes:
      raise UserError(
        f"{path}: holds no {name}, which {index.name} says it does. Download both files again, from one version."
      )
    sources[name] = source
  return sources


def _read_index(index: pathlib.Path) -> dict[str, str]:
  weight_map = read_json(index).get("weight_map")
  if not isinstance(weight_map, dict) or not all(isinstance(file, str) for file in weight_map.values()):
    raise UserError(f"{index}: expected a weight_map from tensors to files. {AGAIN}")
  return weight_map


def _open_safetensors(path: pathlib.Path) -> SafetensorsFile:
  try:
    with safe_open(path, framework="numpy") as file:
      names = list(file.keys())
      return SafetensorsFile(path, {name: tuple(file.get_slice(name).get_shape()) for name in names})
  except (SafetensorError, OSError) as error:
    raise _damaged(path, error) from None


def _open_torch(path: pathlib.Path) -> TorchFile:
  try:
    import torch
  except ImportError:
    raise UserError(
      f"{path}: reading this format needs torch. Install it with `pip install 'retrieval-jax[interop]'`, or take "
      f"the model's {SAFETENSORS} instead."
    ) from None
  try:
    tensors = torch.load(path, map_location="cpu", weights_only=True)
  except pickle.UnpicklingError as error:
    raise UserError(
      f"{path}: torch's weights-only reader refuses it ({str(error).splitlines()[0]}): it is damaged, or holds "
      f"code, which is never run here. {AGAIN}"
    ) from None
  except (RuntimeError, EOFError, OSError, ValueError, KeyError) as error:
    raise _damaged(path, error, "torch") from None
  if not isinstance(tensors, Mapping) or not all(isinstance(t, torch.Tensor) for t in tensors.values()):
    raise UserError(f"{path}: expected a dictionary of tensors (a state_dict), got {type(tensors).__name__}.")
  return TorchFile(path, tensors, {name: tuple(tensor.shape) for name, tensor in tensors.items()})


def read_json(path: pathlib.Path) -> dict[str, Any]:
  """Returns the JSON object in the file.

  Raises: UserError if the file is missing or holds no JSON object.
  """
  try:
    value = json.loads(path.read_text(encoding="utf-8"))
  except FileNotFoundError:
    raise UserError(f"{path}: no such file. Give the folder of a model.") from None
  except (OSError, ValueError, RecursionError) as error:  # the last: thousands of brackets within each other
    raise UserError(f"{path}: not valid JSON ({error}). Download the model folder again.") from None
  if not isinstance(value, dict):
    raise UserError(
      f"{path}: expected a JSON object, got {type(value).__name__}. Download the model folder again."
    )
  return value


def is_finite(array: np.ndarray) -> bool:
  """Returns whether every number is finite as float32: a float64 of 1e300 is not."""
  with np.errstate(over="ignore"):
    return bool(np.isfinite(array.astype(np.float32, copy=False)).all())


def few(names: list[str]) -> str:
  """Returns the first four names and how many more there are, or "none"."""
  return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "") if names else "none"


def _damaged(path: pathlib.Path, error: Exception, kind: str = "safetensors") -> UserError:
  return UserError(
    f"{path}: damaged or not a {kind} file ({str(error).splitlines()[0] if str(error) else type(error).__name__}; "
    f"{path.stat().st_size} bytes). {AGAIN}"
  )
