"""ProfiledSteps: a trace of some steps of a training, for TensorBoard, XProf or Perfetto."""

import contextlib
import pathlib
import sys
from collections.abc import Iterator

import jax
from jaxtyping import PyTree
from tqdm import tqdm

from retrieval_jax.errors import UserError

FOLDER = "profile"


class ProfiledSteps:
  """Traces the steps first <= number < end on process 0, and marks every step, for a profiler that is started by hand too.

  Numbers are those of the log: the first step of a training is 1. The trace goes into folder/plugins/profile/<time>/.

  Example:
    with contextlib.closing(ProfiledSteps((10, 13), folder)) as profile:
      for number in range(1, 100):
        with profile.step(number): state, metrics = step(state, batch)
        profile.after(number, state)
  """

  def __init__(self, steps: tuple[int, int] | None, folder: pathlib.Path):
    self._steps = steps if jax.process_index() == 0 else None
    self._folder = folder
    self._tracing = False

  @contextlib.contextmanager
  def step(self, number: int) -> Iterator[None]:
    """The step runs inside the block.

    Raises: UserError if the trace's folder cannot be made.
    """
    if self._steps is not None and not self._tracing and self._steps[0] <= number < self._steps[1]:
      self._start()
    with jax.profiler.StepTraceAnnotation("train", step_num=number):
      yield

  def after(self, number: int, state: PyTree) -> None:
    """Ends the trace after its last step, for which it waits."""
    if self._tracing and self._steps is not None and number == self._steps[1] - 1:
      jax.block_until_ready(state)
      self.close()

  def close(self) -> None:
    """Ends a trace that is running, with what there is of it. One that cannot be written costs no training: it is said."""
    if not self._tracing:
      return
    self._tracing, self._steps = False, None
    try:
      jax.profiler.stop_trace()
    except (OSError, RuntimeError) as error:
      tqdm.write(f"warning: the trace in {self._folder} cannot be written: {error}", file=sys.stderr)
      return
    tqdm.write(f"the trace is in {self._folder}: look at it with tensorboard --logdir or ui.perfetto.dev")

  def _start(self) -> None:
    try:
      self._folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
      raise UserError(
        f"PROFILE_DIR={self._folder} cannot be made: {error.strerror}. Name a folder you may write to."
      ) from error
    jax.profiler.start_trace(self._folder)
    self._tracing = True
