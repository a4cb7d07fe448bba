"""Floating-point operations of a traced function: those of its matrix products, loops counted as often as they run.

XLA's own analysis of a compiled program counts the body of a loop once, whatever its length: of scanned layers, chunks
and tiles it sees one.
"""

import math
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr

# A matrix unit multiplies bfloat16; float32 takes as many passes as the precision asks for.
_PASSES: Final = {jax.lax.Precision.HIGHEST: 6, jax.lax.Precision.HIGH: 3, jax.lax.Precision.DEFAULT: 1}


class Products(NamedTuple):
  """flops: 2 for each multiplication of all matrix products. passes: the same, a product of float32 at "highest" precision
  six times: what a matrix unit of bfloat16 does."""

  flops: float
  passes: float

  def __add__(self, other: "Products") -> "Products":  # pyright: ignore[reportIncompatibleMethodOverride]  (not a tuple's)
    return Products(self.flops + other.flops, self.passes + other.passes)

  def times(self, count: float) -> "Products":
    """Returns those of `count` repetitions."""
    return Products(count * self.flops, count * self.passes)


NOTHING: Final = Products(0.0, 0.0)


def products(jaxpr: ClosedJaxpr | Jaxpr) -> Products:
  """Returns the matrix products of a traced function, over all devices.

  A scan counts as often as it goes round, a shard_map once a device of its axes, of branches the dearest. A while loop
  of unknown length counts once. What is computed again in a backward pass (remat, chunks) is there twice and counts so.

  Example: of `jax.make_jaxpr(jnp.dot)(a, b)` with a [2, 3] and b [3, 5] it is 60 flops.
  """
  inner = jaxpr.jaxpr if isinstance(jaxpr, ClosedJaxpr) else jaxpr
  total = NOTHING
  for eqn in inner.eqns:
    name = eqn.primitive.name
    if name == "dot_general":
      total += _dot(eqn)
      continue
    found = [products(sub) for sub in _sub_jaxprs(eqn.params)]
    if not found:
      continue
    if name == "cond":
      total += max(found)
      continue
    summed = Products(sum(x.flops for x in found), sum(x.passes for x in found))
    if name == "scan":
      summed = summed.times(eqn.params["length"])
    elif name == "shard_map":
      sizes = eqn.params["mesh"].shape
      # Another name in other versions of JAX.
      axes = next(eqn.params[key] for key in ("newly_manual_axes", "manual_axes") if key in eqn.params)
      summed = summed.times(math.prod(sizes[axis] for axis in axes))
    total += summed
  return total


def _sub_jaxprs(params: Any) -> Iterator[ClosedJaxpr | Jaxpr]:
  for value in params.values():
    for one in value if isinstance(value, tuple | list) else (value,):
      if isinstance(one, ClosedJaxpr | Jaxpr):
        yield one


def _dot(eqn: Any) -> Products:
  (contracted, _), _ = eqn.params["dimension_numbers"]
  left = eqn.invars[0].aval
  flops = 2.0 * math.prod(eqn.outvars[0].aval.shape) * math.prod(left.shape[axis] for axis in contracted)
  precision = eqn.params["precision"]
  if isinstance(precision, tuple):
    precision = max(precision, key=lambda x: _PASSES.get(x, 1))
  single = all(var.aval.dtype == "float32" for var in eqn.invars)
  return Products(flops, flops * (_PASSES.get(precision, 1) if single else 1))
