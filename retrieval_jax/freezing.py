"""Freezing: parameters that training leaves bit for bit as they are, chosen by their paths."""

import re
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, PyTree

from retrieval_jax.errors import UserError, nearest

MODEL = (
  "model/"  # the tree of a train state says model/... and loss/...; model-info.txt and users leave model/ out
)


def frozen_mask(params: PyTree[Any], patterns: Sequence[str]) -> PyTree[bool]:
  """Returns the tree of `params` with True where a pattern matches the whole of a parameter's path.

  patterns: regular expressions over paths as model-info.txt prints them, such as "token_embedder/.*".

  Raises: UserError for a pattern that is no regular expression or matches no parameter.

  Example: `frozen_mask({"a": {"kernel": 1.0}, "b": 2.0}, ["a/.*"])` is `{"a": {"kernel": True}, "b": False}`.
  """
  leaves, structure = jax.tree_util.tree_flatten_with_path(params)
  names = [jax.tree_util.keystr(path, simple=True, separator="/").removeprefix(MODEL) for path, _ in leaves]
  mask = [False] * len(names)
  for pattern in patterns:
    try:
      expression = re.compile(pattern)
    except (re.error, TypeError) as error:
      raise UserError(f"FROZEN: {pattern!r} is not a regular expression ({error}).") from None
    hits = [expression.fullmatch(name) is not None for name in names]
    if not any(hits):
      raise UserError(
        f"FROZEN: {pattern!r} matches no parameter{nearest(pattern, names) or '.'} A pattern must match a whole path as "
        "model-info.txt prints it, for example 'encoder/.*'."
      )
    mask = [old or hit for old, hit in zip(mask, hits, strict=True)]
  return jax.tree.unflatten(structure, mask)


def freeze(
  transform: optax.GradientTransformation, patterns: Sequence[str], *, all_may_freeze: bool = False
) -> optax.GradientTransformation:
  """Returns `transform` acting on the parameters that no pattern matches; the others get the update -0.0.

  x + -0.0 is x for every x, the sign of zero included. Frozen parameters have no optimizer state, no weight decay and no
  part in a clipped norm. Without patterns it is `transform` itself.
  all_may_freeze: whether the patterns may match all of these parameters, because something else trains others.

  Raises: UserError as frozen_mask does, when the state is made.

  Example: `freeze(optax.adam(1e-3), ["token_embedder/.*"])`.
  """
  if not patterns:
    return transform

  def labels(params: PyTree[Any]) -> PyTree[str]:
    mask = frozen_mask(params, patterns)
    if all(jax.tree.leaves(mask)) and not all_may_freeze:
      raise UserError(
        f"FROZEN: {list(patterns)} match every parameter, so nothing is left to train. Freeze fewer."
      )
    return jax.tree.map(lambda frozen: "frozen" if frozen else "trained", mask)

  return optax.partition({"trained": transform, "frozen": _keep()}, labels)


def stop_frozen(params: PyTree[Array], patterns: Sequence[str]) -> PyTree[Array]:
  """Returns `params` with no gradient through the frozen ones: their backward pass is not computed at all."""
  if not patterns:
    return params
  mask = frozen_mask(params, patterns)
  return jax.tree.map(lambda x, frozen: jax.lax.stop_gradient(x) if frozen else x, params, mask)


def _keep() -> optax.GradientTransformation:
  def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
    del params
    return jax.tree.map(lambda x: jnp.full_like(x, -0.0), updates), state

  return optax.GradientTransformation(optax.identity().init, update)
