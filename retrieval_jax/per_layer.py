"""An optimizer over scanned layers that treats each layer as a parameter of its own."""

from typing import Any, Final

import jax
import optax
from jaxtyping import Array, PyTree

from retrieval_jax.models.layer_stack import SCANNED

WHOLE: Final = "whole"


def per_layer(transform: optax.GradientTransformation) -> optax.GradientTransformation:
  """Returns `transform`, mapped over the first axis of every parameter of scanned layers.

  For a transformation that looks at whole parameters (Adafactor: factored moments, RMS clipping, parameter scale) scanned
  and unrolled layers then train alike. Without scanned layers it is `transform` itself, state included.

  Example: `per_layer(optax.adafactor(1e-3))`.
  """

  def chosen(params: PyTree[Array]) -> optax.GradientTransformation:
    labels = _labels(params)
    depths = {label for label in jax.tree.leaves(labels) if label != WHOLE}
    if not depths:
      return transform
    return optax.partition({WHOLE: transform, **dict.fromkeys(depths, _mapped(transform))}, labels)

  def init(params: PyTree[Array]) -> Any:
    return chosen(params).init(params)

  def update(updates: PyTree[Array], state: Any, params: PyTree[Array] | None = None) -> tuple[Any, Any]:
    return chosen(updates).update(updates, state, params)

  return optax.GradientTransformation(init, update)


def _labels(params: PyTree[Array]) -> PyTree[str]:
  """Stacks of one depth are mapped together: two towers may be of two depths."""

  def one(path: tuple, leaf: Array) -> str:
    keys = jax.tree_util.keystr(path, simple=True, separator="/").split("/")
    return f"{SCANNED}_{leaf.shape[0]}" if SCANNED in keys else WHOLE

  return jax.tree_util.tree_map_with_path(one, params)


def _mapped(transform: optax.GradientTransformation) -> optax.GradientTransformation:
  def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
    return jax.vmap(transform.update)(updates, state, params)

  return optax.GradientTransformation(jax.vmap(transform.init), update)
