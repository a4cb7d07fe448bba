"""Weights of a loss as functions of the step: on for a while, or moving in a straight line."""

import math

import jax.numpy as jnp
import optax
from jaxtyping import Array, ArrayLike, Float

from retrieval_jax.errors import UserError


def stage(*, start: int = 0, end: int | None = None) -> optax.Schedule:
  """Returns a schedule that is 1 at the steps start <= step < end, and else 0. end None: to the end of the training.

  Raises: UserError unless both are whole numbers with 0 <= start < end.

  Example: `stage(end=1000)` and `stage(start=1000)` are the two stages of PAIR: exactly one is 1 at any step.
  """
  _check_steps("stage", start, end)

  def schedule(step: ArrayLike) -> Float[Array, ""]:
    step = jnp.asarray(step)
    inside = step >= start if end is None else (step >= start) & (step < end)
    return inside.astype(jnp.float32)

  return schedule


def ramp(*, start: int, end: int, initial: float, final: float) -> optax.Schedule:
  """Returns a schedule that is `initial` until step start, `final` from step end on, and a straight line between.

  Raises: UserError unless start and end are whole numbers with 0 <= start < end, and both values finite.

  Example: `ramp(start=0, end=1000, initial=0.0, final=0.1)` is 0.05 at step 500.
  """
  _check_steps("ramp", start, end)
  for name, value in (("initial", initial), ("final", final)):
    if not math.isfinite(value):
      raise UserError(f"ramp: {name} is {value}; expected a finite number.")

  def schedule(step: ArrayLike) -> Float[Array, ""]:
    done = jnp.clip((jnp.asarray(step) - start) / (end - start), 0.0, 1.0)
    return (1 - done) * initial + done * final  # exact at both ends

  return schedule


def _check_steps(name: str, start: int, end: int | None) -> None:
  steps = [start] if end is None else [start, end]
  whole = all(type(step) is int and step >= 0 for step in steps)
  if not whole or (end is not None and end <= start):
    raise UserError(
      f"{name}: start is {start!r}, end is {end!r}; expected whole numbers of steps, 0 <= start < end"
      f"{' (or no end)' if name == 'stage' else ''}."
    )
