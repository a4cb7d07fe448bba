"""TrainingSteps: one step of a training after the other, with all that goes around it on the host."""

import contextlib
import pathlib
from collections.abc import Callable, Iterator, Mapping

import jax
from jaxtyping import Array

from retrieval_jax import processes
from retrieval_jax.batches_ahead import BatchesAhead
from retrieval_jax.compilations import Compilations
from retrieval_jax.gramian_tracker import GramianTracker
from retrieval_jax.loop_options import LoopOptions
from retrieval_jax.partitioning import Partitioner
from retrieval_jax.profiling import ProfiledSteps
from retrieval_jax.recipe import Recipe
from retrieval_jax.records import Batch
from retrieval_jax.step_guard import StepGuard
from retrieval_jax.step_program import StepProgram
from retrieval_jax.train_state import TrainState
from retrieval_jax.training_batches import TrainingBatches
from retrieval_jax.training_log import Stopwatch
from retrieval_jax.watchdog import Watchdog


class TrainingSteps:
  """Takes each step's batch, runs the step under its guard, and looks at what the host does meanwhile.

  step: the jitted one. end: the number of the last step. folder: MODEL_DIR.

  Within the `with` block batches are made ahead (batches_ahead.py), compilations counted (compilations.py), the steps of
  `options.profile_steps` traced (profiling.py), and a run of several processes ended when it stands still (watchdog.py).

  Example:
    with TrainingSteps(step, recipe, batches, tracker, partitioner, options=LoopOptions(), folder=folder, end=100) as steps:
      for step in range(100):
        with steps.aside(): refreshed = batches.refresh(step, state)
        state = steps.run(step, state, fresh=bool(refreshed))
  """

  def __init__(
    self,
    step: Callable,
    recipe: Recipe,
    batches: TrainingBatches,
    tracker: GramianTracker,
    partitioner: Partitioner,
    *,
    options: LoopOptions,
    folder: pathlib.Path,
    end: int,
  ):
    self._recipe, self._batches, self._tracker = recipe, batches, tracker
    self._compilations = Compilations()
    self._guard = StepGuard(
      tracker.watching(self._compiled_once(batches.watching(StepProgram(step)))),
      recipe.step,
      recipe.batcher.batch_size,
    )
    self._watchdog = Watchdog(
      options.step_timeout if jax.process_count() > 1 else None, processes.described()
    )
    self._watch = Stopwatch(recipe.batcher.batch_size)
    self._ran = False
    self._profile = ProfiledSteps(options.profile_steps, options.folder(folder))
    self._ahead = BatchesAhead(
      lambda number: partitioner.put_batch(batches.make(number)),
      due=batches.due,
      ahead=options.batches_ahead,
      end=end,
    )

  def __enter__(self) -> "TrainingSteps":
    with contextlib.ExitStack() as stack:
      stack.enter_context(contextlib.closing(self._ahead))
      stack.enter_context(contextlib.closing(self._profile))
      stack.enter_context(self._compilations)
      stack.enter_context(self._watchdog)
      self._open = stack.pop_all()
    return self

  def __exit__(self, *_: object) -> None:
    self._open.close()

  @contextlib.contextmanager
  def aside(self) -> Iterator[None]:
    """What is done inside the block is not training: its time does not count, and it may compile."""
    with self._watch.paused(), self._compilations.expected(), self._watchdog.aside():
      yield

  def run(self, step: int, state: TrainState, *, fresh: bool) -> TrainState:
    """Returns the state after batch `step` (from 0), which may still be running. fresh: a refresh has just been made.

    Raises: as making the batch, and as StepGuard.run.
    """
    number = step + 1
    if fresh:
      self._ahead.forget()
    batch = self._ahead.take(step)
    first = contextlib.nullcontext() if self._ran else self._watchdog.aside()  # compiles
    self._ran = True
    with first, self._watch.on_device(), self._profile.step(number), self._compilations.expected():
      state = self._guard.run(number, state, batch)
    self._watchdog.beat()
    self._profile.after(number, state)
    self._batches.hold(step)
    self._watch.tick()
    self._compilations.settle()
    self._compilations.report(number)
    return state

  def metrics(self, step: int) -> dict[str, float]:
    """Returns the metrics and learning rates of batch `step`, which must be the last that was run; waits for it.

    Raises: as StepGuard.metrics.
    """
    with self._watch.on_device():
      found = self._guard.metrics()
    with (
      self._compilations.expected()
    ):  # the schedule's first look; before the step is over it would wait for it
      return {**found, **self._recipe.optimizer.learning_rates(step)}

  def numbers(self, step: int) -> dict[str, float]:
    """Returns what there is to log beside the metrics of batch `step`, some of it of the time since the last call."""
    return {
      **self._batches.ages(step),
      "epoch": self._recipe.batcher.epoch_of(self._batches.plan, step),
      **self._watch.rates(),
      "compilations": self._compilations.count,
    }

  def _compiled_once(self, step: Callable) -> Callable:
    """Returns the step, whose compilations are expected before the first call is over, whatever goes on around it."""

    def run(state: TrainState, batch: Batch) -> tuple[TrainState, Mapping[str, Array]]:
      with self._compilations.expected(False):
        return step(state, batch)

    return run
