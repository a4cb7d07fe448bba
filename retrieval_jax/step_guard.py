"""What can go wrong in a training step, and what is said of it: values that are not finite, memory that does not suffice."""

import contextlib
import math
import sys
from collections.abc import Callable, Iterator, Mapping

import jax
from jaxtyping import Array
from tqdm import tqdm

from retrieval_jax.errors import UserError
from retrieval_jax.records import Batch
from retrieval_jax.step_options import StepOptions
from retrieval_jax.train_state import TrainState

COUNT = "nonfinite_steps"


class NonFiniteError(UserError):
  """A loss or gradient became NaN or infinite; nothing after the last good checkpoint was saved."""


class OutOfMemoryError(UserError):
  """A device has not enough memory for a training step; the message names the settings that change that."""


class StepGuard:
  """Runs a jitted step, looks at the metrics of every step, and says what went wrong.

  Example: `state = guard.run(1, state, batch)`, then `guard.metrics()["loss"]`.
  """

  def __init__(self, step: Callable, options: StepOptions, batch_size: int):
    self._step = step
    self._options = options
    self._batch_size = batch_size
    self._pending: tuple[int, Mapping[str, Array]] | None = None
    self._metrics: dict[str, float] = {}
    self._count = 0

  def run(self, number: int, state: TrainState, batch: Batch) -> TrainState:
    """Returns the state after step `number`, which may still be running, and checks the step before.

    The host so sees every step, and yet never idles the device. Raises as `metrics` does.
    """
    with explaining_memory(self._options, self._batch_size):
      state, device_metrics = self._step(state, batch)
    self.metrics()
    self._pending = number, device_metrics
    return state

  def metrics(self) -> dict[str, float]:
    """Returns the last step's metrics as floats, and as `nonfinite_steps` how many steps were not finite so far.

    Waits for the step. It is not finite when one of its metrics is not, the loss and the gradient's norm among them; it
    is then named on stderr, and the train step left its update out (StepOptions.max_nonfinite_steps).

    Raises: NonFiniteError when more than max_nonfinite_steps were not finite, OutOfMemoryError.
    """
    if self._pending is None:
      return self._metrics
    step, device_metrics = self._pending
    self._pending = None
    with explaining_memory(self._options, self._batch_size):
      metrics = {name: float(value) for name, value in jax.device_get(device_metrics).items()}
    bad = ", ".join(f"{name} is {value}" for name, value in metrics.items() if not math.isfinite(value))
    if bad:
      self._count += 1
      self._refuse_or_report(step, bad)
    if not self._metrics and metrics.get("negatives") == 0 and jax.process_index() == 0:
      tqdm.write(
        f"warning: step {step}: no query has a negative, so there is nothing to learn from. Raise BATCH_SIZE, lower "
        "TRAIN_MICROBATCHES, or give the data hard negatives if IN_BATCH_NEGATIVES is False.",
        file=sys.stderr,
      )
    self._metrics = {**metrics, COUNT: float(self._count)}
    return self._metrics

  def _refuse_or_report(self, step: int, bad: str) -> None:
    limit = self._options.max_nonfinite_steps
    if self._count > limit:
      seen = f" It is number {self._count} since the start; MAX_NONFINITE_STEPS is {limit}." if limit else ""
      raise NonFiniteError(
        f"step {step}: {bad}.{seen} Training stopped and nothing of this step was saved; earlier checkpoints are "
        "whole. Lower LEARNING_RATE, lengthen the warm-up, or check the data. MAX_NONFINITE_STEPS above 0 leaves out so "
        "many steps before it stops."
      )
    if jax.process_index() == 0:
      tqdm.write(
        f"step {step}: {bad}; its update was left out ({self._count} of at most {limit} such steps)",
        file=sys.stderr,
      )


@contextlib.contextmanager
def explaining_memory(options: StepOptions, batch_size: int) -> Iterator[None]:
  """Turns JAX's RESOURCE_EXHAUSTED inside the block into an OutOfMemoryError that names the settings to change.

  Raises: OutOfMemoryError; whatever else is raised inside comes through.
  """
  try:
    yield
  except jax.errors.JaxRuntimeError as error:
    if "RESOURCE_EXHAUSTED" not in str(error):
      raise
    raise OutOfMemoryError(
      f"a training step does not fit into a device's memory.\n"
      f"  TRAIN_CHUNKS (now {options.chunks}): try {2 * options.chunks}. Each side is encoded in so many pieces: less "
      "activation memory, the same gradient.\n"
      f"  BATCH_SIZE (now {batch_size}): lower it, or HARD_NEGATIVES: each query brings 1 + HARD_NEGATIVES "
      "passages. This changes the training: fewer negatives.\n"
      "  REMAT_POLICY: 'full' keeps fewer activations of each layer.\n"
      f"JAX said: {error}"
    ) from error
