"""Declares a module's parameter: float32, with logical axis names."""

from collections.abc import Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Float

from retrieval_jax.errors import UserError
from retrieval_jax.records import AnyArray

Initializer = jax.nn.initializers.Initializer


def parameter(
  module: nn.Module, name: str, init: Initializer, shape: Sequence[int], axes: tuple[str | None, ...]
) -> Float[AnyArray, "..."]:
  """Returns `module`'s float32 parameter `name`, made by `init` and annotated with one name of sharding.py an axis.

  Raises: UserError for a size below 1.

  Example: `parameter(self, "scale", nn.initializers.ones, (512,), (sharding.EMBED,))`.
  """
  if any(not isinstance(size, int) or size < 1 for size in shape):
    raise UserError(
      f"the parameter {name} of {'/'.join(module.scope.path) if module.scope else type(module).__name__} would have the "
      f"shape {tuple(shape)}: sizes are whole numbers of at least 1. Correct the model's widths, heads and rows."
    )
  value = module.param(name, nn.with_logical_partitioning(init, axes), tuple(shape), jnp.float32)
  # Inside apply and init flax hands out the bare array; its type says the box of the initialiser.
  assert not isinstance(value, nn.Partitioned)
  return value
