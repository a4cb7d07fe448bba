"""Numbers that no model can have: NaN and infinity, also as what a float64 becomes in float32."""

import pathlib
from typing import Any

import numpy as np

from retrieval_jax.errors import UserError
from retrieval_jax.interop.foreign import ForeignTower
from retrieval_jax.interop.huggingface_parameters import flatten
from retrieval_jax.interop.tensor_files import is_finite


def check(folder: pathlib.Path, *towers: ForeignTower) -> None:
  """Raises UserError naming the first parameter of towers to be written into `folder` that holds NaN or infinity.

  Example: `check(pathlib.Path("out"), tower)`.
  """
  seen: set[int] = set()
  for tower in towers:
    for name, value in flatten(tower.params):
      array: Any = value
      if id(array) in seen:  # shared by both towers
        continue
      seen.add(id(array))
      if not is_finite(np.asarray(array)):
        raise UserError(
          f"{folder}: not written: the parameter {name} holds NaN or infinity (in float32). Use a checkpoint from "
          "before training diverged."
        )
