"""A Hugging Face config.json, whose keys are read with their type and refused when they would change what is computed."""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, Self

from retrieval_jax.errors import UserError
from retrieval_jax.interop.tensor_files import read_json

MOST_LAYERS: Final = 10_000  # far beyond any encoder: a damaged number must not become that many names


class ModelConfig(NamedTuple):
  """The values of the file `path`. A key that is left out, or null, means the default that transformers gives it.

  Example: `ModelConfig.read(folder / "config.json").whole("num_hidden_layers", 12)`.
  """

  path: pathlib.Path
  values: Mapping[str, Any]

  @classmethod
  def read(cls, path: pathlib.Path) -> Self:
    """Returns the file's values.

    Raises: UserError if the file is missing or no JSON object.
    """
    return cls(path, read_json(path))

  def get(self, key: str, default: Any) -> Any:
    """Returns the value as it stands in the file, or the default."""
    value = self.values.get(key)
    return default if value is None else value

  def whole(self, key: str, default: int, *, least: int = 1) -> int:
    """Returns a whole number of at least `least`.

    Raises: UserError for anything else.
    """
    value = self.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
      raise UserError(f"{self.path}: {key} is {value!r}, expected a number of at least {least}.")
    return value

  def layers(self, key: str, default: int) -> int:
    """Returns a number of layers, from 1 to 10,000.

    Raises: UserError for anything else.
    """
    value = self.whole(key, default)
    if value > MOST_LAYERS:
      raise UserError(
        f"{self.path}: {key} is {value}, expected at most {MOST_LAYERS:,}. Download the model folder again."
      )
    return value

  def positive(self, key: str, default: float) -> float:
    """Returns a number above zero.

    Raises: UserError for anything else.
    """
    value = self.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
      raise UserError(f"{self.path}: {key} is {value!r}, expected a number above 0.")
    return float(value)

  def expect(self, key: str, allowed: Sequence[Any], default: Any) -> Any:
    """Returns the value, one of `allowed`.

    Raises: UserError for another value: the model would compute something that our encoders do not.
    """
    value = self.get(key, default)
    if value not in allowed:
      expected = " or ".join(map(repr, allowed))
      raise UserError(
        f"{self.path}: {key} is {value!r}, expected {expected}: the encoders here compute nothing else, so its "
        "embeddings would be wrong. Choose another checkpoint."
      )
    return value

  def refuse_extras(self) -> None:
    """Raises UserError for what no family here can be: own code, quantised weights, pruned heads, another padding id."""
    if "AutoModel" in self.get("auto_map", {}):
      raise UserError(
        f"{self.path}: auto_map names code that comes with the model, which is never run here. Choose a checkpoint "
        "that transformers' own classes load."
      )
    if self.get("quantization_config", None):
      raise UserError(
        f"{self.path}: quantization_config says that the weights are quantised. Take the model's float weights."
      )
    if self.get("pruned_heads", None):
      raise UserError(f"{self.path}: pruned_heads is {self.get('pruned_heads', None)!r}, expected none.")
    self.expect("pad_token_id", [0], 0)
    self.expect("is_decoder", [False], False)
    self.expect("add_cross_attention", [False], False)
