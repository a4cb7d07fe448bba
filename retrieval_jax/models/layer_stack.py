"""The layers of an encoder, one after the other: unrolled or scanned, with or without rematerialisation."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from retrieval_jax import sharding
from retrieval_jax.errors import UserError, nearest
from retrieval_jax.models.dense import PRODUCT

# The name of the one module that holds all layers, stacked along its parameters' first axis.
SCANNED: Final = "layers"
UNROLLED: Final = "layers_{}"

# What the backward pass finds kept: everything, what each Dense returns, or nothing but each layer's input.
REMAT_POLICIES: Final[dict[str, Callable[..., bool] | None]] = {
  "none": None,
  "minimal": jax.checkpoint_policies.save_only_these_names(PRODUCT),
  "full": jax.checkpoint_policies.nothing_saveable,
}


def run_layers(
  make: Callable[[str], nn.Module],
  call: Callable[[Any, Float[Array, "b l d"]], Float[Array, "b l d"]],
  x: Float[Array, "b l d"],
  *,
  num_layers: int,
  scan_layers: bool,
  remat_policy: str,
) -> Float[Array, "b l d"]:
  """Returns x after num_layers layers, inside an encoder's compact method.

  make: name -> one layer. call: (layer, x) -> x; it closes over what all layers share.
  scan_layers: one traced layer for all, parameters [layers, ...] under `layers`: compile time and the size of the program
    no longer grow with the depth; on CPU it costs 9% a step. Otherwise parameters under `layers_0`, `layers_1`, ...
  remat_policy: "none", "minimal" (keeps the products with parameters) or "full" (keeps each layer's input alone):
    activation memory against a second forward pass. XLA's CPU backend saves no memory by it.

  Scanned layers are one parameter each (encoder/layers/...), so a FROZEN pattern that picks single layers
  (encoder/layers_0/...) needs unrolled ones.

  Raises: UserError for an unknown remat_policy.
  """
  if not isinstance(num_layers, int) or num_layers < 1:
    raise UserError(f"num_layers={num_layers!r}: expected a whole number of at least 1.")
  if remat_policy not in REMAT_POLICIES:
    raise UserError(
      f"unknown remat_policy {remat_policy!r}; set REMAT_POLICY to one of {', '.join(REMAT_POLICIES)}"
      f"{nearest(remat_policy, REMAT_POLICIES) or '.'}"
    )
  policy = REMAT_POLICIES[remat_policy]
  if policy is not None:
    # Inside a scan the loop already keeps XLA from merging the two forward passes.
    call = nn.remat(call, prevent_cse=not scan_layers, policy=policy)
  if not scan_layers:
    for i in range(num_layers):
      x = call(make(UNROLLED.format(i)), x)
    return x
  scan = nn.scan(
    lambda layer, carry, _: (call(layer, carry), None),
    variable_axes={"params": 0},
    split_rngs={"params": True, "dropout": True},
    length=num_layers,
    metadata_params={nn.PARTITION_NAME: sharding.LAYERS},
  )
  return scan(make(SCANNED), x, None)[0]


def stacked(encoder: Mapping[str, Any], num_layers: int) -> dict[str, Any]:
  """Returns an encoder's parameters with `layers_0`, ... stacked along a new first axis into `layers`.

  Example: `stacked({"layers_0": {"w": np.zeros(3)}, "layers_1": {"w": np.ones(3)}}, 2)["layers"]["w"].shape` is `(2, 3)`.
  """
  layers = [encoder[UNROLLED.format(i)] for i in range(num_layers)]
  rest = {name: part for name, part in encoder.items() if name not in _unrolled(num_layers)}
  return {**rest, SCANNED: jax.tree.map(_stack, *layers)}


def unstacked(encoder: Mapping[str, Any], num_layers: int) -> dict[str, Any]:
  """Returns an encoder's parameters with `layers` taken apart into `layers_0`, ...: the inverse of `stacked`.

  Example: `unstacked({"layers": {"w": np.eye(2)}}, 2)["layers_1"]["w"]` is `[0.0, 1.0]`.
  """
  rest = {name: part for name, part in encoder.items() if name != SCANNED}
  layers = [jax.tree.map(lambda x, i=i: x[i], encoder[SCANNED]) for i in range(num_layers)]
  return {**rest, **dict(zip(_unrolled(num_layers), layers, strict=True))}


def _unrolled(num_layers: int) -> list[str]:
  return [UNROLLED.format(i) for i in range(num_layers)]


def _stack(*leaves: PyTree[Any]) -> Any:
  return np.stack(leaves) if all(isinstance(leaf, np.ndarray) for leaf in leaves) else jnp.stack(leaves)
