"""Layer norms; statistics in float32 whatever the activations' dtype."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from retrieval_jax import sharding
from retrieval_jax.models.parameter import parameter

AXES = (sharding.EMBED,)


class LayerNorm(nn.Module):
  """Returns (x - mean) / sqrt(var + epsilon) * scale + bias over the last axis (BERT)."""

  epsilon: float = 1e-12
  dtype: str = "float32"

  @nn.compact
  def __call__(self, x: Float[Array, "*b d"]) -> Float[Array, "*b d"]:
    shape = (x.shape[-1],)
    scale = parameter(self, "scale", nn.initializers.ones, shape, AXES)
    bias = parameter(self, "bias", nn.initializers.zeros, shape, AXES)
    x = x.astype(jnp.float32)
    centred = x - jnp.mean(x, axis=-1, keepdims=True)
    inverse = jax.lax.rsqrt(jnp.mean(centred * centred, axis=-1, keepdims=True) + self.epsilon)
    y = centred * inverse * jnp.broadcast_to(scale, x.shape) + jnp.broadcast_to(bias, x.shape)
    return y.astype(jnp.dtype(self.dtype))


class RmsNorm(nn.Module):
  """Returns x / sqrt(mean(x^2) + epsilon) * scale over the last axis (T5)."""

  epsilon: float = 1e-6
  dtype: str = "float32"

  @nn.compact
  def __call__(self, x: Float[Array, "*b d"]) -> Float[Array, "*b d"]:
    scale = parameter(self, "scale", nn.initializers.ones, x.shape[-1:], AXES)
    x = x.astype(jnp.float32)
    inverse = jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + self.epsilon)
    return (x * inverse * jnp.broadcast_to(scale, x.shape)).astype(jnp.dtype(self.dtype))
