"""LoopOptions: how the loop over the steps runs on the host, which changes nothing of what is learnt."""

import pathlib
from typing import Final, NamedTuple

from retrieval_jax.errors import UserError
from retrieval_jax.paths import output_dir
from retrieval_jax.profiling import FOLDER
from retrieval_jax.watchdog import check_timeout

MOST_AHEAD: Final = 64


class LoopOptions(NamedTuple):
  """The defaults are those of a training that nobody looks into.

  log_period (LOG_PERIOD): steps between two lines of the log.
  batches_ahead (BATCHES_AHEAD): so many batches are gathered and placed in a thread while the step before runs; 0: none.
  profile_steps (PROFILE_STEPS): (first, end) traces the steps first <= number < end, as the log numbers them; None: none.
    Leave the first step out, which compiles.
  profile_dir (PROFILE_DIR): the trace's folder; None: MODEL_DIR/profile.
  step_timeout (STEP_TIMEOUT): seconds without a step after which each of several processes ends with exit code 75, because one
    of them hangs; None: never. Compiling, saving and evaluating may take an hour more. A single process is not watched.

  Example: `LoopOptions(profile_steps=(10, 13))` traces steps 10, 11 and 12.
  """

  log_period: int = 10
  batches_ahead: int = 2
  profile_steps: tuple[int, int] | None = None
  profile_dir: str | None = None
  step_timeout: float | None = 600.0

  def check(self, total_steps: int) -> None:
    """Raises UserError for settings that cannot be."""
    for name, value, least in (("LOG_PERIOD", self.log_period, 1), ("BATCHES_AHEAD", self.batches_ahead, 0)):
      if type(value) is not int or value < least:
        raise UserError(f"{name}={value!r}: expected a whole number of at least {least}.")
    if self.batches_ahead > MOST_AHEAD:
      raise UserError(
        f"BATCHES_AHEAD={self.batches_ahead}: expected at most {MOST_AHEAD}; each of them is held on the devices. 2 are enough "
        "unless making a batch takes longer than a step."
      )
    check_timeout(self.step_timeout)
    steps = self.profile_steps
    if steps is None:
      return
    numbers = isinstance(steps, tuple | list) and len(steps) == 2 and all(type(n) is int for n in steps)
    if not numbers or not 1 <= steps[0] < steps[1]:
      raise UserError(
        f"PROFILE_STEPS={steps!r}: expected two numbers of steps (first, end) with 1 <= first < end, such as (10, 13) for "
        "steps 10, 11 and 12; or None."
      )
    if steps[0] > total_steps:
      raise UserError(
        f"PROFILE_STEPS={steps!r}: the training ends at TRAIN_STEPS={total_steps}, before the first of these steps."
      )

  def folder(self, model_dir: pathlib.Path) -> pathlib.Path:
    """Returns the trace's folder."""
    if self.profile_dir is None:
      return model_dir / FOLDER
    return output_dir(self.profile_dir, "PROFILE_DIR")

  def describe(self, start: int) -> list[str]:
    """Returns the lines to print at the start of a training from step `start`: none without a trace."""
    if self.profile_steps is None:
      return []
    first, end = self.profile_steps
    if start >= end - 1:
      return [f"warning: PROFILE_STEPS={self.profile_steps!r} are done already; nothing is traced"]
    return [f"traced: steps {max(first, start + 1):,} to {end - 1:,}"]
