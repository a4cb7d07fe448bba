"""The linear head between a pooled text and its embedding."""

import flax.linen as nn
from jaxtyping import Array, Float

from retrieval_jax import sharding
from retrieval_jax.models.dense import Dense


class Projection(nn.Module):
  """Returns x W in float32, without bias, as T5X Retrieval's `projection_layer`."""

  features: int

  @nn.compact
  def __call__(self, x: Float[Array, "b d"]) -> Float[Array, "b f"]:
    init = nn.initializers.variance_scaling(1.0, "fan_in", "truncated_normal")
    dense = Dense(self.features, (sharding.EMBED, sharding.AFFINITY), init, precision="highest")
    # Adopts Dense's parameter as its own, so that the name is projection_layer/kernel and not one level deeper.
    nn.share_scope(self, dense)
    return dense(x)
