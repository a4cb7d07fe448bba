"""Weights of a loss as functions of the step: on for a while, moving in a straight line, or falling ever more slowly."""

import math
import numbers
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, ArrayLike, Float

from retrieval_jax.errors import UserError

# A number, or a function of the step; optax's schedules are such.
Weight = float | optax.Schedule
TRIED = (0, 1, 10, 100, 1_000, 10_000, 100_000)


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
    if not is_number(value):
      raise UserError(f"ramp: {name} is {value!r}; expected a finite number.")

  def schedule(step: ArrayLike) -> Float[Array, ""]:
    done = jnp.clip((jnp.asarray(step) - start) / (end - start), 0.0, 1.0)
    return (1 - done) * initial + done * final  # exact at both ends

  return schedule


def decay(*, initial: float, steps: float, power: float = 0.5, minimum: float = 0.0) -> optax.Schedule:
  """Returns a schedule that falls as max(minimum, initial (1 + t / steps)^-power) with the step t.

  For SOGram's alpha: large while the embeddings move fast, small when the noise of the batches is what is left. Keep the
  minimum well above 8 times the learning rate: below, the estimate lags so far behind that it swings.

  Raises: UserError unless initial and minimum are finite, 0 <= minimum <= initial, and steps and power above 0.

  Example: `decay(initial=0.1, steps=1000, power=1.0, minimum=0.01)` is .05 at step 1,000 and .01 from step 9,000 on.
  """
  given = initial, minimum, steps, power
  if not all(map(is_number, given)) or not (0 <= minimum <= initial and steps > 0 and power > 0):
    raise UserError(
      f"decay: initial is {initial!r}, minimum is {minimum!r}, steps is {steps!r}, power is {power!r}; expected finite numbers, "
      "0 <= minimum <= initial, steps and power above 0."
    )

  def schedule(step: ArrayLike) -> Float[Array, ""]:
    return jnp.maximum(minimum, initial * (1 + jnp.asarray(step) / steps) ** -power)

  return schedule


def check(where: str, what: str, schedule: Callable) -> None:
  """Raises UserError, beginning with `where` and naming `what`, unless a call with a step gives one number."""
  try:
    shape = jax.eval_shape(schedule, jax.ShapeDtypeStruct((), jnp.int32)).shape
  except Exception as error:
    # The error comes last: gin appends lines to it.
    raise UserError(
      f"{where}: the {what} {schedule!r} is no schedule, step -> number. In gin, @name is the function that makes it "
      f"and @name() the schedule. A call with a step gave {type(error).__name__}: {error}"
    ) from error
  if shape != ():
    raise UserError(f"{where}: the schedule gives an array of shape {shape}; expected one number.")


def check_fraction(where: str, what: str, schedule: Callable) -> None:
  """Raises UserError unless the schedule is above 0 and at most 1 at step 0, and at least 0 and at most 1 at some steps after
  it (TRIED): a training may well be over when it reaches 0."""
  for step in TRIED:
    with jax.ensure_compile_time_eval():
      value = float(schedule(jnp.int32(step)))
    if not 0 <= value <= 1 or (step == 0 and value == 0):
      raise UserError(
        f"{where}: the schedule of {what} gives {value:g} at step {step}; expected numbers above 0 and at most 1."
      )


def fraction(value: Float[Array, ""]) -> Float[Array, ""]:
  """Returns the value, not a number unless it is above 0 and at most 1: what a schedule gives in training is seen only then."""
  return jnp.where((value > 0) & (value <= 1), value, jnp.nan)


def is_number(value: Any) -> bool:
  """Returns whether a value is a finite real number, and no bool."""
  return isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(value)


def _check_steps(name: str, start: int, end: int | None) -> None:
  steps = [start] if end is None and name == "stage" else [start, end]
  whole = all(type(step) is int and step >= 0 for step in steps)
  if not whole or (end is not None and end <= start):
    raise UserError(
      f"{name}: start is {start!r}, end is {end!r}; expected whole numbers of steps, 0 <= start < end"
      f"{' (or no end)' if name == 'stage' else ''}."
    )
