"""From token vectors to one vector a text: float32 out, and 0 for a row of nothing but padding."""

from collections.abc import Callable
from typing import Final

import jax.numpy as jnp
from jaxtyping import Array, Float

from retrieval_jax.errors import UserError, nearest

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


POOLINGS: Final[dict[str, Pooling]] = {"mean": mean, "max": max_, "first": first, "last": last}


def pooling(name: str) -> Pooling:
  """Returns the pooling called `name`: mean, max, first or last.

  Raises: UserError for another name.

  Example: `pooling("mean")(hidden, (tokens != 0).astype(jnp.float32))`.
  """
  if name not in POOLINGS:
    raise UserError(
      f"unknown pooling {name!r}; expected one of {', '.join(POOLINGS)}{nearest(name, POOLINGS)}"
    )
  return POOLINGS[name]
