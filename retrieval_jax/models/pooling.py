"""From token vectors to one vector a text: float32 out, and 0 for a row of nothing but padding."""

from collections.abc import Callable
from typing import Final

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from retrieval_jax import sharding
from retrieval_jax.errors import UserError, nearest
from retrieval_jax.models.dense import Dense

Pooling = Callable[[Float[Array, "b l d"], Float[Array, "b l"]], Float[Array, "b d"]]


def mean(x: Float[Array, "b l d"], mask: Float[Array, "b l"]) -> Float[Array, "b d"]:
  """Returns sum(x * mask) / max(sum(mask), 1e-10) over the tokens, end-of-sequence included."""
  total = jnp.einsum("bld,bl->bd", x.astype(jnp.float32), mask, precision="highest")
  return total / jnp.maximum(jnp.sum(mask, axis=-1, keepdims=True), 1e-10)


def max_(x: Float[Array, "b l d"], mask: Float[Array, "b l"]) -> Float[Array, "b d"]:
  """Returns the largest value of each feature over the unmasked tokens."""
  seen = (mask > 0)[:, :, None]
  largest = jnp.max(jnp.where(seen, x.astype(jnp.float32), jnp.finfo(jnp.float32).min), axis=1)
  return jnp.where(jnp.any(seen, axis=1), largest, 0.0)


def first(x: Float[Array, "b l d"], mask: Float[Array, "b l"]) -> Float[Array, "b d"]:
  """Returns the first token's vector (BERT's [CLS])."""
  return x[:, 0].astype(jnp.float32) * mask[:, :1]


def last(x: Float[Array, "b l d"], mask: Float[Array, "b l"]) -> Float[Array, "b d"]:
  """Returns the vector of the last token that is not padding (T5's end of sequence)."""
  index = jnp.maximum(jnp.sum(mask, axis=-1).astype(jnp.int32) - 1, 0)
  picked = jnp.take_along_axis(x, index[:, None, None], axis=1)[:, 0]
  return picked.astype(jnp.float32) * mask[:, :1]


class AttentionPooling(nn.Module):
  """Returns sum over tokens of w * x, with w[:, d] = softmax over the unmasked tokens of (tanh(x W_h + b_h) W_l + b_l)[:, d].

  Each feature has weights of its own, as in flaxformer's AttentionPooling. Parameters: attention_hidden and
  attention_logits, both [d, d] with bias.
  """

  @nn.compact
  def __call__(self, x: Float[Array, "b l d"], mask: Float[Array, "b l"]) -> Float[Array, "b d"]:
    x = x.astype(jnp.float32)
    init = nn.initializers.variance_scaling(1.0, "fan_in", "truncated_normal")
    # The second axis of a square kernel stays whole: the mesh axis of one name can split an array once.
    axes = (sharding.EMBED, sharding.AFFINITY)
    hidden = jnp.tanh(Dense(x.shape[-1], axes, init, use_bias=True, name="attention_hidden")(x))
    logits = Dense(x.shape[-1], axes, init, use_bias=True, name="attention_logits")(hidden)
    seen = (mask > 0)[:, :, None]
    weights = jax.nn.softmax(jnp.where(seen, logits, jnp.finfo(jnp.float32).min), axis=1)
    return jnp.sum(weights * x * mask[:, :, None], axis=1)


POOLINGS: Final[dict[str, Pooling]] = {"mean": mean, "max": max_, "first": first, "last": last}
ATTENTION: Final = "attention"
NAMES: Final = (*POOLINGS, ATTENTION)


def pooling(name: str) -> Pooling:
  """Returns the pooling called `name`: mean, max, first, last, or (inside a module's setup) attention.

  Raises: UserError for another name.

  Example: `pooling("mean")(hidden, (tokens != 0).astype(jnp.float32))`.
  """
  if name == ATTENTION:
    return AttentionPooling()
  if name not in POOLINGS:
    raise UserError(
      f"unknown pooling {name!r}; expected one of {', '.join(NAMES)}{nearest(name, NAMES) or '.'}"
    )
  return POOLINGS[name]
