"""The head between a pooled text and its embedding: linear, or with bias and tanh as sentence-transformers' Dense."""

from collections.abc import Callable
from typing import Final

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float

from retrieval_jax import sharding
from retrieval_jax.errors import UserError, nearest
from retrieval_jax.models.dense import Dense

ACTIVATIONS: Final[dict[str, Callable[[Array], Array]]] = {"none": lambda x: x, "tanh": jnp.tanh}


class Projection(nn.Module):
  """Returns f(x W (+ b)) in float32. Without bias and activation it is T5X Retrieval's `projection_layer`.

  activation: "none" or "tanh".

  Raises: UserError for another activation.

  Example: `Projection(768, use_bias=True, activation="tanh")` is LaBSE's Dense.
  """

  features: int
  use_bias: bool = False
  activation: str = "none"

  @nn.compact
  def __call__(self, x: Float[Array, "b d"]) -> Float[Array, "b f"]:
    if self.activation not in ACTIVATIONS:
      raise UserError(
        f"unknown projection activation {self.activation!r}; expected one of {', '.join(ACTIVATIONS)}"
        f"{nearest(self.activation, ACTIVATIONS) or '.'}"
      )
    init = nn.initializers.variance_scaling(1.0, "fan_in", "truncated_normal")
    axes = (sharding.EMBED, sharding.AFFINITY)
    dense = Dense(self.features, axes, init, use_bias=self.use_bias, precision="highest")
    # Adopts Dense's parameters as its own, so that the name is projection_layer/kernel and not one level deeper.
    nn.share_scope(self, dense)
    return ACTIVATIONS[self.activation](dense(x))
