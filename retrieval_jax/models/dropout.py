"""Inverted dropout that may share its mask along chosen axes."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


class Dropout(nn.Module):
  """Returns x with each entry zeroed with probability `rate` and the rest divided by 1 - rate.

  Outside training, or at rate 0, it is the identity and draws no key.
  broadcast_axes: axes along which one draw serves all positions.
  """

  rate: float
  broadcast_axes: tuple[int, ...] = ()

  @nn.compact
  def __call__(self, x: Float[Array, "..."], *, train: bool) -> Float[Array, "..."]:
    if not train or self.rate == 0.0:
      return x
    shape = list(x.shape)
    for axis in self.broadcast_axes:
      shape[axis] = 1
    keep = jax.random.bernoulli(self.make_rng("dropout"), 1.0 - self.rate, tuple(shape))
    scale = jnp.where(keep, 1.0 / (1.0 - self.rate), 0.0).astype(x.dtype)
    return x * scale
