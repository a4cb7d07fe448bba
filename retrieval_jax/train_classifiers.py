"""The training of label classifiers (NGAME's module M2) on a frozen encoder. `python -m retrieval_jax.train_classifiers`."""

import contextlib
import functools
import pathlib
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import jax
import numpy as np
from tqdm import tqdm

from retrieval_jax import progress
from retrieval_jax.checkpoints import CheckpointPolicy, Checkpoints
from retrieval_jax.classifier_batches import ClassifierBatches
from retrieval_jax.classifier_recipe import ClassifierRecipe, check_resume
from retrieval_jax.classifier_state import NAME, abstract_state, initial_state
from retrieval_jax.classifier_step import Step, jit_classifier_step, make_classifier_step, put_batch
from retrieval_jax.classifiers import FOLDER, classifier_manifest, save_classifiers, saved_steps, step_folder
from retrieval_jax.data.dataset import RetrievalData
from retrieval_jax.embeddings import Layout
from retrieval_jax.encoder_points import warn_if_encoder_saw
from retrieval_jax.errors import UserError
from retrieval_jax.interruption import StopRequest, exclusive
from retrieval_jax.parameter_digest import parameter_digest
from retrieval_jax.paths import output_dir
from retrieval_jax.step_guard import OutOfMemoryError, StepGuard
from retrieval_jax.step_options import StepOptions
from retrieval_jax.train_state import TrainState
from retrieval_jax.training_log import Stopwatch, TrainingLog


class Schedule(NamedTuple):
  """How long, and how often what is written: steps in all, between log lines, the rule of checkpoints, and steps between
  results (None: one, at the end)."""

  total_steps: int
  log_period: int
  checkpoints: CheckpointPolicy
  result_period: int | None = None

  def check(self) -> None:
    """Raises UserError unless all are whole numbers of at least 1."""
    for name, value in (
      ("TRAIN_STEPS", self.total_steps),
      ("LOG_PERIOD", self.log_period),
      ("CHECKPOINT_PERIOD", self.checkpoints.period),
      ("KEEP_CHECKPOINTS", self.checkpoints.keep_latest),
      ("RESULT_PERIOD", 1 if self.result_period is None else self.result_period),
    ):
      if type(value) is not int or value < 1:
        raise UserError(f"{name}={value!r}: expected a whole number of at least 1.")


def train_classifiers(
  recipe: ClassifierRecipe,
  *,
  model_dir: str,
  total_steps: int,
  checkpoints: CheckpointPolicy = CheckpointPolicy(),  # noqa: B008  (an immutable record)
  seed: int = 0,
  log_period: int = 10,
  result_period: int | None = None,
  dry_run: bool = False,
  on_start: Callable[[pathlib.Path], None] | None = None,
) -> pathlib.Path | None:
  """Trains a classifier for every passage until step total_steps, going on from the newest checkpoint in
  MODEL_DIR/classifiers; returns the folder MODEL_DIR/classifiers/step_<n> of the result, None if it was stopped before.

  The encoder is not trained and runs once: the embeddings of points and labels are kept in MODEL_DIR/encode, made in
  evaluation mode. Each classifier begins as its label's embedding at unit length. Resume is exact, as that of `train`;
  another encoder or corpus than the checkpoint's is refused. SIGTERM and Ctrl-C finish the step, save and return.
  result_period: write a result every so many steps too, so that the best one can be chosen on held-out points: few points
    a label are soon learnt by heart.
  dry_run: check the parts and say the bytes that are needed; nothing is encoded or written to MODEL_DIR.
  on_start: called with MODEL_DIR/classifiers before the first step (writes the configuration).

  Raises: UserError for parts that do not fit, and its kinds NonFiniteError and OutOfMemoryError (step_guard.py).
  """
  folder = output_dir(model_dir, "MODEL_DIR") / FOLDER
  schedule = Schedule(total_steps, log_period, checkpoints, result_period)
  schedule.check()
  data = recipe.load()
  plan = recipe.plan(data, seed)
  first = jax.process_index() == 0
  warn_if_encoder_saw(recipe.dense, data.name, data.split, lambda: data.num_examples)
  if first:
    print(recipe.describe(data, plan, keep=checkpoints.keep_latest), flush=True)
  if dry_run:
    print("dry run: the parts fit; nothing was encoded or trained", flush=True)
    return None
  manifest = recipe.manifest(data, seed=seed, total_steps=total_steps)
  lock = exclusive(folder) if first else contextlib.nullcontext()
  with lock, Checkpoints(folder, checkpoints) as saved:
    check_resume(folder, saved, data, manifest)
    state, start = _start(recipe, saved, data)
    if start >= total_steps and start in saved_steps(folder):
      print(f"{folder} is at step {start}, TRAIN_STEPS is {total_steps}: nothing to do", file=sys.stderr)
      return step_folder(folder, start)
    if not start and first and (steps := saved_steps(folder)):
      print(
        f"warning: {folder} has the classifiers of steps {steps} of an earlier training, and no checkpoint of it. Searches "
        "take the newest step unless CLASSIFIER_STEP names one: move them away if they are not wanted.",
        file=sys.stderr,
      )
    batches = recipe.batches(data, plan, seed)
    batches.start(folder, saved.manifest(start) if start else {})
    if on_start is not None and first:
      on_start(folder)
    if first:
      print(f"steps: {start:,} -> {total_steps:,}", flush=True)
    step = make_classifier_step(
      recipe.loss, recipe.optimizer, num_labels=data.passages.num_rows, seed=seed, options=recipe.step
    )
    write = functools.partial(_write, recipe, data, manifest, folder)
    with StopRequest() as stop:  # not before: encoding may be long, and keeps what it has done anyway
      run = _Run(recipe, schedule, step, batches, manifest, saved, stop, write)
      state, done = run.steps(state, start)
    if done < total_steps:
      return None
    result = write(state, done)
  if first:
    print(
      f"{result} is written; evaluate it: python -m retrieval_jax.eval --gin_file=searchers/classifiers.gin "
      f"--gin.MODEL_DIR={model_dir} and the data flags of this run",
      flush=True,
    )
  return result


class _Run(NamedTuple):
  """What the loop works with."""

  recipe: ClassifierRecipe
  schedule: Schedule
  step: Step
  batches: ClassifierBatches
  manifest: Mapping[str, object]
  saved: Checkpoints
  stop: StopRequest
  write: Callable[[TrainState, int], pathlib.Path]

  def steps(self, state: TrainState, start: int) -> tuple[TrainState, int]:
    """Returns the state after the last step and its number: less than total_steps if a stop was requested."""
    recipe, (total, log_period, policy, result_period) = self.recipe, self.schedule
    guard = self._guard(state)
    log, watch = TrainingLog(self.saved.folder), Stopwatch(recipe.batcher.batch_size)
    done = start
    with self._bar(start) as bar, _explaining_memory(recipe.batcher.batch_size):
      for step in range(start, total):
        done = step + 1
        with watch.paused():
          self.batches.refresh(step)
        batch = put_batch(self.batches.make(step), recipe.partitioner)
        state = guard.run(done, state, batch)  # pyright: ignore[reportArgumentType]  (a step of ours takes our batch)
        watch.tick()
        bar.update(1)
        if done % log_period == 0 or done == total:
          numbers = {
            **guard.metrics(),
            "learning_rate": float(np.asarray(recipe.optimizer.learning_rate(step))),
            "epoch": recipe.batcher.epoch_of(self.batches.plan, step),
            "examples_per_second": watch.rate(),
          }
          log.write(done, numbers)
          bar.set_postfix_str(f"loss {numbers['loss']:.4f}, {numbers['examples_per_second']:.1f} points/s")
        if self.stop.after(done) or done % policy.period == 0 or done == total:
          with watch.paused():
            guard.metrics()  # a step that is not finite is not saved
            self.saved.save(done, state, manifest={**self.manifest, **self.batches.saved()})
            self.batches.prune(self.saved.steps())
        if result_period is not None and done % result_period == 0 and done < total:
          with watch.paused():
            guard.metrics()
            self.write(state, done)
        if self.stop.requested and done < total:
          tqdm.write(
            f"stopped at step {done} as requested; the same command goes on from there", file=sys.stderr
          )
          break
    log.close()
    return state, done

  def _guard(self, state: TrainState) -> StepGuard:
    recipe = self.recipe
    shardings = jax.tree.map(lambda x: x.sharding, state)
    options = StepOptions(max_nonfinite_steps=recipe.step.max_nonfinite_steps)
    return StepGuard(
      jit_classifier_step(self.step, shardings, recipe.partitioner), options, recipe.batcher.batch_size
    )

  def _bar(self, start: int) -> tqdm:
    return tqdm(
      total=self.schedule.total_steps,
      initial=start,
      desc="train classifiers",
      unit="step",
      disable=jax.process_index() != 0,
      mininterval=progress.interval(),
    )


def _start(recipe: ClassifierRecipe, saved: Checkpoints, data: RetrievalData) -> tuple[TrainState, int]:
  """Returns (state, step): the newest checkpoint's, or the labels' embeddings."""
  abstract = abstract_state(data.passages.num_rows, recipe.embed_dim, recipe.optimizer, recipe.partitioner)
  restored = saved.restore_newest(abstract)
  if restored is not None:
    return restored
  return initial_state(recipe.dense.passages(data), recipe.optimizer, recipe.partitioner), 0


def _write(
  recipe: ClassifierRecipe,
  data: RetrievalData,
  note: Mapping[str, object],
  folder: pathlib.Path,
  state: TrainState,
  step: int,
) -> pathlib.Path:
  """Writes the classifiers of a step and returns their folder."""
  weights = state.params[NAME]
  assert isinstance(weights, jax.Array)
  layout = Layout(data.passages.num_rows, recipe.embed_dim, recipe.dense.rows_per_shard)
  # Of the array itself: another training of as many steps does not take its shards for its own.
  manifest = classifier_manifest({"weights": parameter_digest(weights)}, layout, {**note, "step": step})
  result = step_folder(folder, step)
  everywhere = jax.jit(lambda x: x, out_shardings=recipe.partitioner.replicated)

  def block(span: range) -> np.ndarray:
    return np.asarray(everywhere(weights[span.start : span.stop]))

  if jax.process_index() == 0:
    save_classifiers(result, block, ids=data.passages.ids, manifest=manifest)
  else:
    for number in [*range(layout.num_shards)] * 2:  # as often as save_classifiers asks
      block(layout.span(number))
  return result


@contextlib.contextmanager
def _explaining_memory(batch_size: int) -> Iterator[None]:
  """Names the settings of this program where a device has not enough memory."""
  try:
    yield
  except OutOfMemoryError as error:
    raise OutOfMemoryError(
      "a training step does not fit into a device's memory.\n"
      f"  BATCH_SIZE (now {batch_size}): lower it, or HARD_NEGATIVES: both make the [points, labels] scores of a batch.\n"
      "  The classifiers and the optimizer's slots are split over all devices: more of them, or "
      "--gin_file=classifier_optimizers/sgd.gin, which keeps no slots.\n"
      f"{str(error).partition('JAX said: ')[2]}"
    ) from error


if __name__ == "__main__":
  from retrieval_jax import launch

  launch.main("train_classifiers")
