"""Bidirectional multi-head self-attention, shared by BERT and T5."""

from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from retrieval_jax import sharding
from retrieval_jax.models.dense import Dense, half_product
from retrieval_jax.models.dropout import Dropout
from retrieval_jax.models.parameter import Initializer

# Finite, so that a row of nothing but padding attends uniformly instead of giving NaN; in float32 a logit added to it is lost.
MASKED = -1e10


def attend(
  query: Float[Array, "b h l k"],
  key: Float[Array, "b h l k"],
  value: Float[Array, "b h l k"],
  mask: Bool[Array, "b l"],
  position_bias: Float[Array, "1 h l l"] | None,
  *,
  drop: Callable[[Array], Array] = lambda weights: weights,
) -> Float[Array, "b h l k"]:
  """Returns softmax(Q K^T + position_bias, over unmasked keys) V, softmax in float32; bfloat16 as in `half_product`.

  Not jax.nn.dot_product_attention, which has no dropout and on CPU took 1.2 to 1.4 times as long
  (scripts/benchmarks/attention.py).
  """
  product = jnp.einsum if value.dtype == jnp.float32 else half_product
  logits = product("bhqk,bhlk->bhql", query, key)
  if position_bias is not None:
    logits = logits + position_bias
  logits = logits + jnp.where(mask, 0.0, MASKED)[:, None, None, :]
  weights = drop(jax.nn.softmax(logits, axis=-1).astype(value.dtype))
  return product("bhql,bhlk->bhqk", weights, value).astype(value.dtype)


class SelfAttention(nn.Module):
  """Returns softmax(scale Q K^T + position_bias, over unmasked keys) V, heads joined and projected by `out`.

  The projections are [embed, heads * head_dim], head-major (T5X's layout). Softmax in float32.
  scale: 1 / sqrt(head_dim) for BERT, 1 for T5.
  query_init: of the query projection where it differs from `kernel_init`.
  """

  num_heads: int
  head_dim: int
  kernel_init: Initializer
  query_init: Initializer | None = None
  scale: float = 1.0
  use_bias: bool = False
  dropout_rate: float = 0.0
  dropout_broadcast_axes: tuple[int, ...] = ()
  dtype: str = "float32"

  @nn.compact
  def __call__(
    self,
    x: Float[Array, "b l d"],
    mask: Bool[Array, "b l"],
    position_bias: Float[Array, "1 h l l"] | None = None,
    *,
    train: bool,
  ) -> Float[Array, "b l d"]:
    query = self._heads("query", self.query_init or self.kernel_init, x)
    key = self._heads("key", self.kernel_init, x)
    value = self._heads("value", self.kernel_init, x)
    if self.scale != 1.0:
      query = query * self.scale
    dropout = Dropout(self.dropout_rate, self.dropout_broadcast_axes)
    mixed = attend(query, key, value, mask, position_bias, drop=lambda weights: dropout(weights, train=train))
    mixed = mixed.transpose(0, 2, 1, 3)
    axes = (sharding.JOINED_KV, sharding.EMBED)
    out = Dense(x.shape[-1], axes, self.kernel_init, self.use_bias, self.dtype, name="out")
    return out(mixed.reshape(*mixed.shape[:2], -1))

  def _heads(self, name: str, init: Initializer, x: Float[Array, "b l d"]) -> Float[Array, "b h l k"]:
    axes = (sharding.EMBED, sharding.JOINED_KV)
    dense = Dense(self.num_heads * self.head_dim, axes, init, self.use_bias, self.dtype, name=name)
    split = dense(x).reshape(*x.shape[:2], self.num_heads, self.head_dim)
    # Heads before length: 14% off a MiniLM forward pass on CPU against products over [b, l, h, k].
    return sharding.constrain(split.transpose(0, 2, 1, 3), sharding.PER_HEAD)
