"""Biases of logits: a fixed number, or one that is learned."""

import math
from collections.abc import Mapping
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from retrieval_jax.errors import UserError

PARAMETER = "bias"


class LearnedBias(NamedTuple):
  """Where a learned bias starts; make it with `learned`."""

  initial: float


Bias = float | LearnedBias


def learned(*, initial: float = -10.0) -> LearnedBias:
  """Returns a bias that training learns: the parameter `bias` of the loss, without bounds.

  Raises: UserError for an initial value that is not finite.

  Source: SigLIP (Zhai et al., 2023), section 3.2: initial -10, so that the many negatives start out as such.

  Example: `sigmoid(bias=learned(initial=-5.0))`.
  """
  if not math.isfinite(initial):
    raise UserError(f"learned bias: initial is {initial}; expected a finite number, such as SigLIP's -10.")
  return LearnedBias(initial)


def checked(name: str, bias: Bias) -> Bias:
  """Returns the bias; raises UserError, naming the loss, for a number that is not finite."""
  if isinstance(bias, LearnedBias):
    return learned(**bias._asdict())
  if not math.isfinite(bias):
    raise UserError(f"{name}: bias is {bias}; expected a finite number. It is added to score / temperature.")
  return bias


def initial_params(bias: Bias) -> dict[str, Float[Array, ""]]:
  """Returns the parameters of a loss with this bias: {} or {"bias": a float32 scalar}."""
  return {PARAMETER: jnp.asarray(bias.initial, jnp.float32)} if isinstance(bias, LearnedBias) else {}


def value(bias: Bias, params: Mapping[str, Float[Array, ""]]) -> Float[Array, ""]:
  """Returns the bias, a differentiable scalar (float32, or float64 under enable_x64)."""
  if isinstance(bias, LearnedBias):
    return params[PARAMETER]
  return jnp.asarray(bias, jnp.result_type(float))
