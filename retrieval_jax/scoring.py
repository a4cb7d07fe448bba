"""The one place where scores are made: cosine and inner product, always in float32 (float64 stays float64)."""

import inspect
from collections.abc import Callable

import jax.numpy as jnp
from jaxtyping import Array, Float

Score = Callable[[Float[Array, "q d"], Float[Array, "p d"]], Float[Array, "q p"]]

# Far below the squared norm of any embedding, so the value is the exact cosine to float32; keeps the gradient at 0 finite.
EPSILON = 1e-12


def upcast(x: Float[Array, "*b d"]) -> Float[Array, "*b d"]:
  """Returns x in float32, or unchanged if it is float64 (tests under enable_x64)."""
  return x if x.dtype == jnp.float64 else x.astype(jnp.float32)


def l2_normalize(x: Float[Array, "*b d"]) -> Float[Array, "*b d"]:
  """Returns x / sqrt(|x|^2 + 1e-12) in float32; a zero row stays zero with a finite gradient.

  Example: `l2_normalize(jnp.array([[3., 4.]]))` is `[[0.6, 0.8]]`.
  """
  x = upcast(x)
  squares = jnp.sum(x * x, axis=-1, keepdims=True)
  return x / jnp.sqrt(squares + EPSILON)


def dot(query: Float[Array, "q d"], passage: Float[Array, "p d"]) -> Float[Array, "q p"]:
  """Returns the inner products [q, p] in float32."""
  query, passage = upcast(query), upcast(passage)
  return jnp.einsum("qd,pd->qp", query, passage, precision="highest")


def cosine(query: Float[Array, "q d"], passage: Float[Array, "p d"]) -> Float[Array, "q p"]:
  """Returns the cosines [q, p] in float32: bfloat16 would merge .995, .997 and .998 into one value."""
  return dot(l2_normalize(query), l2_normalize(passage))


def preparation(score: Score) -> Callable[[Float[Array, "*b d"]], Float[Array, "*b d"]] | None:
  """Returns the f with score(q, p) = dot(f(q), f(p)), or None for a score that is not cosine or dot.

  Embeddings that meet several others are then normalised once.
  """
  # gin wraps what it configures, and the tests' shape checks wrap these.
  known = {inspect.unwrap(cosine): l2_normalize, inspect.unwrap(dot): upcast}
  return known.get(inspect.unwrap(score))
