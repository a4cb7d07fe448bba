"""Bidirectional multi-head self-attention, shared by BERT and T5."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from retrieval_jax import sharding
from retrieval_jax.models.dense import Dense
from retrieval_jax.models.dropout import Dropout
from retrieval_jax.models.parameter import Initializer

# Finite, so that a row of nothing but padding attends uniformly instead of giving NaN; in float32 a logit added to it is lost.
MASKED = -1e10


def mask_bias(mask: Bool[Array, "b k"]) -> Float[Array, "b 1 1 k"]:
  """Returns what is added to the logits: 0 where `mask` holds, -1e10 elsewhere."""
  return jnp.where(mask, 0.0, MASKED).astype(jnp.float32)[:, None, None, :]


class SelfAttention(nn.Module):
  """Returns softmax(scale Q K^T + bias) V, heads joined and projected by `out`.

  The projections are [embed, heads * head_dim], head-major (T5X's layout). Softmax in float32.
  scale: 1 / sqrt(head_dim) for BERT, 1 for T5, whose initialiser absorbs it.
  """

  num_heads: int
  head_dim: int
  scale: float
  kernel_init: Initializer
  use_bias: bool = False
  dropout_rate: float = 0.0
  dropout_broadcast_axes: tuple[int, ...] = ()
  dtype: str = "float32"

  @nn.compact
  def __call__(
    self, x: Float[Array, "b l d"], bias: Float[Array, "#b #h #l l"], *, train: bool
  ) -> Float[Array, "b l d"]:
    batch, length, width = x.shape

    def project(name: str) -> Float[Array, "b l h k"]:
      dense = Dense(
        self.num_heads * self.head_dim,
        (sharding.EMBED, sharding.JOINED_KV),
        self.kernel_init,
        self.use_bias,
        self.dtype,
        name=name,
      )
      return dense(x).reshape(batch, length, self.num_heads, self.head_dim)

    query, key, value = project("query"), project("key"), project("value")
    if self.scale != 1.0:
      query = query * self.scale
    logits = jnp.einsum("bqhd,bkhd->bhqk", query, key, preferred_element_type=jnp.float32)
    weights = jax.nn.softmax(logits + bias, axis=-1).astype(query.dtype)
    weights = Dropout(self.dropout_rate, self.dropout_broadcast_axes)(weights, train=train)
    mixed = jnp.einsum("bhqk,bkhd->bqhd", weights, value)
    out = Dense(
      width,
      (sharding.JOINED_KV, sharding.EMBED),
      self.kernel_init,
      self.use_bias,
      self.dtype,
      name="out",
    )
    return out(mixed.reshape(batch, length, self.num_heads * self.head_dim))
