"""Temperatures: a fixed number, or one that is learned as the exponent of a parameter and kept within bounds."""

import math
import numbers
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from retrieval_jax.errors import UserError

PARAMETER = "log_scale"


class LearnedTemperature(NamedTuple):
  """Where a learned temperature starts and the bounds that it keeps; make it with `learned`."""

  initial: float
  minimum: float
  maximum: float


Temperature = float | LearnedTemperature


def learned(*, initial: float = 0.05, minimum: float = 0.01, maximum: float = 1.0) -> LearnedTemperature:
  """Returns a temperature that training learns: 1 / temperature = exp(log_scale), log_scale a parameter of the loss.

  The exponent keeps the scale positive; the bounds keep it from running away. At a bound the gradient that would lead
  further out is 0 and the one that leads back is kept, so the parameter cannot get stuck outside.

  Raises: UserError unless 0 < minimum <= initial <= maximum.

  Source: CLIP (Radford et al., 2021), section 2.5: initial 0.07, maximum scale 100.

  Example: `samtone(temperature=learned(initial=0.05))`.
  """
  if not 0 < minimum <= initial <= maximum < math.inf:
    raise UserError(
      f"learned temperature: minimum {minimum}, initial {initial}, maximum {maximum}; expected "
      "0 < minimum <= initial <= maximum. A temperature is 1 / scale: scale 100 is temperature 0.01."
    )
  return LearnedTemperature(initial, minimum, maximum)


def checked(name: str, temperature: Any) -> Temperature:
  """Returns the temperature; raises UserError, naming the loss, for anything but a number above 0."""
  if isinstance(temperature, LearnedTemperature):
    return learned(**temperature._asdict())
  number = float(temperature) if isinstance(temperature, numbers.Real) else math.nan
  if not 0 < number < math.inf:
    raise UserError(
      f"{name}: temperature is {temperature!r}; it must be above 0. A temperature is 1 / scale: scale 100 is "
      "temperature 0.01, scale 20 is 0.05."
    )
  return number


def initial_params(temperature: Temperature) -> dict[str, Float[Array, ""]]:
  """Returns the parameters of a loss with this temperature: {} or {"log_scale": a float32 scalar}."""
  if isinstance(temperature, LearnedTemperature):
    return {PARAMETER: jnp.asarray(-math.log(temperature.initial), jnp.float32)}
  return {}


def scale(temperature: Temperature, params: Mapping[str, Float[Array, ""]]) -> Float[Array, ""]:
  """Returns 1 / temperature, a differentiable scalar: of the parameter's type if it is learned, else float32, or float64
  under enable_x64."""
  if isinstance(temperature, LearnedTemperature):
    bounds = -math.log(temperature.maximum), -math.log(temperature.minimum)
    return jnp.exp(_bounded(params[PARAMETER], *bounds))
  return jnp.asarray(1 / temperature, jnp.result_type(float))


@jax.custom_vjp
def _bounded(x: Float[Array, ""], low: float | Array, high: float | Array) -> Float[Array, ""]:
  """Returns x clipped to [low, high]; a descent step is blocked only where it leads further out."""
  return jnp.clip(x, low, high)


def _bounded_fwd(x: Float[Array, ""], low: float | Array, high: float | Array) -> tuple[Array, tuple]:
  return jnp.clip(x, low, high), (x, low, high)


def _bounded_bwd(saved: tuple, gradient: Float[Array, ""]) -> tuple[Array, None, None]:
  x, low, high = saved
  outwards = ((x >= high) & (gradient < 0)) | ((x <= low) & (gradient > 0))
  return jnp.where(outwards, 0, gradient), None, None


_bounded.defvjp(_bounded_fwd, _bounded_bwd)
