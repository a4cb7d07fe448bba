"""The parameters of towers under T5X's names, as a T5X checkpoint keeps them under "target/"."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from retrieval_jax.errors import UserError
from retrieval_jax.interop import t5x_architecture
from retrieval_jax.interop.foreign import ForeignModel, ForeignTower
from retrieval_jax.interop.t5x_layout import PARTS, SIDES, few


def target(model: ForeignModel) -> dict[str, np.ndarray]:
  """Returns the float32 parameters of both towers under T5X's slash-joined names (without "target/").

  Raises: UserError if a tower is no T5, or not what a reader of such parameters alone would take it for.
  """
  towers = {"query": model.query, "passage": model.query if model.passage is None else model.passage}
  flat = {side: _checked(tower, side) for side, tower in towers.items()}
  result: dict[str, np.ndarray] = {}
  for part in PARTS:
    of_side = {
      side: {name: value for name, value in flat[side].items() if name.startswith(f"{part}/")}
      for side in SIDES
    }
    query, passage = of_side["query"], of_side["passage"]
    if query.keys() == passage.keys() and all(passage[name] is value for name, value in query.items()):
      result.update(query)
    else:
      result.update({f"left_{name}": value for name, value in query.items()})
      result.update({f"right_{name}": value for name, value in passage.items()})
  # After the comparison: a converted copy would be another object.
  return {name: np.ascontiguousarray(value, dtype=np.float32) for name, value in result.items()}


def _checked(tower: ForeignTower, side: str) -> dict[str, np.ndarray]:
  """Returns a tower's parameters, flat, if a T5X checkpoint can say all that its spec says."""
  encoder = tower.spec.encoder
  if encoder.family != "t5":
    raise UserError(
      f"the {side} tower is of the family {encoder.family!r}; a T5X checkpoint holds T5 encoders. Write a Hugging Face "
      "or sentence-transformers folder instead."
    )
  params = _flat(tower.params)
  readable = t5x_architecture.tower_spec(params, f"the {side} tower")
  given = {**tower.spec._asdict(), **encoder.fields, "encoder": None}
  said = {**readable._asdict(), **readable.encoder.fields, "encoder": None}
  faults = [
    f"{name}={value!r} for {said.get(name)!r}" for name, value in given.items() if value != said.get(name)
  ]
  if faults:
    raise UserError(
      f"the {side} tower is not what a reader of its T5X checkpoint would take it for: {few(faults)}. Such a "
      "checkpoint holds parameters only. Write a format that says more, or change the model."
    )
  return params


def _flat(params: Mapping[str, Any], prefix: str = "") -> dict[str, np.ndarray]:
  result = {}
  for name, value in params.items():
    result.update(_flat(value, f"{prefix}{name}/") if isinstance(value, Mapping) else {prefix + name: value})
  return result
