"""The training program: parts that fit together, a state, a loop. `python -m retrieval_jax.train --gin_file=...`."""

import contextlib
import json
import pathlib
import sys
from collections.abc import Callable, Mapping

import jax
from tqdm import tqdm

from retrieval_jax import processes, progress
from retrieval_jax.checkpoints import CheckpointPolicy, Checkpoints
from retrieval_jax.data import mixture
from retrieval_jax.data.dataset import RetrievalData
from retrieval_jax.errors import UserError
from retrieval_jax.exit_codes import STOPPED
from retrieval_jax.gramian_tracker import GramianTracker, check_period
from retrieval_jax.interruption import StopRequest, exclusive
from retrieval_jax.loop_options import LoopOptions
from retrieval_jax.model_info import write_model_info
from retrieval_jax.partitioning import Partitioner
from retrieval_jax.paths import atomic_write, output_dir
from retrieval_jax.recipe import (
  Recipe,
  check_best_metric,
  check_parts,
  check_resume,
  manifest_of,
  state_creator,
  warn_of_other_rows,
)
from retrieval_jax.retriever import announce
from retrieval_jax.train_state import TrainState, abstract_with, state_shardings
from retrieval_jax.training_batches import TrainingBatches
from retrieval_jax.training_evaluation import SECONDS, make_evaluation
from retrieval_jax.training_log import TrainingLog
from retrieval_jax.training_plan import describe_tasks, plan_of
from retrieval_jax.training_steps import TrainingSteps
from retrieval_jax.weights import initial_params

# A batch of more than FEW examples may be so many times as large as the data.
FEW, PADDED = 4096, 4


def train(
  recipe: Recipe,
  *,
  model_dir: str,
  total_steps: int,
  partitioner: Partitioner,
  checkpoints: CheckpointPolicy = CheckpointPolicy(),  # noqa: B008  (an immutable record)
  seed: int = 0,
  loop: LoopOptions = LoopOptions(),  # noqa: B008  (an immutable record)
  dry_run: bool = False,
  on_start: Callable[[pathlib.Path], None] | None = None,
) -> Mapping[str, float]:
  """Trains until step total_steps, going on from MODEL_DIR's newest checkpoint; returns the last step's metrics.

  Resume is exact: the rows of step t are a function of (seed, t), dropout keys of (seed, t), and everything else is in
  the checkpoint. SIGTERM and Ctrl-C finish the step, save, write MODEL_DIR/STOPPED and return. Several processes train
  together (processes.py), each on its rows of the global batch.
  dry_run: check that the parts fit, tokenise the data, read the pretrained weights, say what would be trained, and stop;
  the training then starts from the cache (and without TensorFlow). Nothing is written to MODEL_DIR.
  on_start: called with MODEL_DIR once the parts fit together and before the first step (writes the configuration).

  Raises: UserError for parts that do not fit, and its kinds NonFiniteError, when a loss or gradient is not finite, and
    OutOfMemoryError (step_guard.py).
  """
  folder = output_dir(model_dir, "MODEL_DIR")
  _check_numbers(total_steps, checkpoints, seed)
  loop.check(total_steps)
  loop.folder(folder)
  check_best_metric(checkpoints.best_metric, recipe.evaluators)
  data = _prepare(recipe, partitioner)
  batches = TrainingBatches(recipe, data, plan_of(recipe, data, seed), seed=seed)
  step_of_parts = recipe.make_step(seed=seed)
  check_parts(recipe, step_of_parts, batches.make(0), data, seed)
  if dry_run:
    initial_params(recipe.retriever, partitioner, seed=seed)
    _describe(recipe, partitioner, data, batches, 0, total_steps, loop)
    print("dry run: the parts fit and the data is tokenised; nothing was trained", flush=True)
    return {}

  manifest = manifest_of(recipe, data, seed)
  processes.check_same("model and data", manifest)
  with (
    _alone(folder),
    contextlib.closing(batches),
    Checkpoints(folder, checkpoints) as saved,
    StopRequest() as stop,
    processes.leaving_on_failure(),
  ):
    state, start = _start(recipe, saved, partitioner, data, seed)
    before = saved.manifest(start) if start else {}
    if start:
      check_resume(folder, before, manifest)
      warn_of_other_rows(before, manifest, recipe.loss)
    if processes.is_first():
      (folder / STOPPED).unlink(missing_ok=True)
    if start >= total_steps:
      _say_nothing_to_do(folder, start, total_steps)
      return {}
    if processes.is_first():
      if on_start is not None:
        on_start(folder)
      write_model_info(folder / "model-info.txt", recipe.retriever.model, state, partitioner)
    _describe(recipe, partitioner, data, batches, start, total_steps, loop)
    batches.start(folder, partitioner, step=start, manifest=before)
    step_fn = partitioner.jit_step(step_of_parts, jax.tree.map(lambda x: x.sharding, state))
    tracker = GramianTracker(recipe, data, partitioner)
    evaluation = make_evaluation(recipe, partitioner, folder, seed=seed)
    log = TrainingLog(folder)
    metrics: Mapping[str, float] = {}
    done = start

    with (
      TrainingSteps(
        step_fn, recipe, batches, tracker, partitioner, options=loop, folder=folder, end=total_steps
      ) as steps,
      tqdm(
        total=total_steps,
        initial=start,
        desc="train",
        unit="step",
        disable=jax.process_index() != 0,
        mininterval=progress.interval(),
      ) as bar,
    ):
      for step in range(start, total_steps):
        done = step + 1
        with steps.aside():
          refreshed = batches.refresh(step, state)
        if refreshed:
          log.write(step, refreshed)
        state = steps.run(step, state, fresh=bool(refreshed))
        if tracked := tracker.numbers():
          log.write(done, tracked)
        bar.update(1)
        if done % loop.log_period == 0 or done == total_steps:
          metrics, around = steps.metrics(step), steps.numbers(step)
          log.write(done, {**metrics, **around})
          bar.set_postfix_str(f"loss {metrics['loss']:.4f}, {around['examples_per_second']:.1f} examples/s")
        evaluates = recipe.evaluates_at(done)
        saves = stop.after(done) or done % checkpoints.period == 0 or done == total_steps
        saves |= evaluates and checkpoints.best_metric is not None  # the best step may be this one
        if saves or evaluates:
          with steps.aside():
            metrics = {**metrics, **steps.metrics(step)}
            scores: Mapping[str, float] = {}
            try:
              if not stop.requested:  # whoever stops a run may be in a hurry
                with stop.leaving(f"the evaluation of step {done}"):
                  scores = evaluation(state, done)
                if scores:
                  log.write(done, scores)
                  _show(done, scores)
            finally:  # an evaluation that fails costs no training
              if saves or stop.requested:
                saved.save(done, state, manifest={**manifest, **batches.save(done)}, metrics=scores or None)
                batches.prune(saved.steps())
        if stop.requested:
          break
    saved.wait()
    batches.prune(saved.steps())
    log.close()
    if stop.requested and done < total_steps:
      _leave_word(folder, done)
  if processes.is_first():
    print(f"{folder / f'checkpoint_{done}'} is written; python -m retrieval_jax.eval measures it", flush=True)
  return metrics


def _prepare(recipe: Recipe, partitioner: Partitioner) -> RetrievalData:
  """Returns the data of a training, after what needs no data is found to fit."""
  model, batch_size = recipe.retriever.model, recipe.batcher.batch_size
  partitioner.check_batch_size(batch_size)
  partitioner.shardings(jax.eval_shape(model.init, jax.random.key(0)), model.logical_axes())
  recipe.step.check(batch_size, partitioner.data_size)
  recipe.negatives.check_number()
  check_period(recipe.gramian_period)
  data = mixture.load(
    recipe.data,
    recipe.inputs,
    teacher_scores=recipe.teacher_scores,
    hard_negatives=recipe.negatives.path,
  )
  recipe.negatives.check(data)
  data = recipe.examples.of(data, recipe.loss)
  if batch_size > max(FEW, PADDED * data.num_examples):
    raise UserError(
      f"BATCH_SIZE={batch_size:,}: {data.name}/{data.split} has {data.num_examples:,} examples, and all but these places of "
      f"each batch would be padding. Expected at most {max(FEW, PADDED * data.num_examples):,}; lower it."
    )
  partitioner.check_batch_size(
    recipe.examples.estimation_size(recipe.loss, batch_size), "ESTIMATION_BATCH_SIZE"
  )
  return data


def _say_nothing_to_do(folder: pathlib.Path, start: int, total_steps: int) -> None:
  if processes.is_first():
    print(
      f"{folder} is at step {start} already, TRAIN_STEPS is {total_steps}: nothing to do", file=sys.stderr
    )


def _leave_word(folder: pathlib.Path, step: int) -> None:
  """Says that the training was stopped and would go on, on stderr and to the scripts that start it again."""
  if processes.is_first():
    with atomic_write(folder / STOPPED) as file:
      json.dump({"step": step}, file)
    print(f"stopped at step {step} as requested; the same command goes on from there", file=sys.stderr)


def _show(step: int, scores: Mapping[str, float]) -> None:
  """Prints what evaluation found at a step, once."""
  if jax.process_index() == 0:
    shown = ", ".join(f"{name} {value:.4f}" for name, value in scores.items() if name != SECONDS)
    tqdm.write(f"step {step:,}: {shown} ({scores[SECONDS]:.0f} s)", file=sys.stderr)


def _alone(folder: pathlib.Path) -> contextlib.AbstractContextManager[None]:
  return exclusive(folder) if jax.process_index() == 0 else contextlib.nullcontext()


def _start(
  recipe: Recipe, saved: Checkpoints, partitioner: Partitioner, data: RetrievalData, seed: int
) -> tuple[TrainState, int]:
  """Returns (state, step): the newest checkpoint's, or the initial one with the pretrained weights."""
  create, rng = state_creator(recipe, data), jax.random.key(seed)
  abstract = jax.eval_shape(lambda: create(rng, None))
  shardings = state_shardings(abstract, recipe.retriever.model, partitioner, recipe.loss)
  restored = saved.restore_newest(abstract_with(abstract, shardings))
  if restored is not None:
    return restored
  params = initial_params(recipe.retriever, partitioner, seed=seed)
  return jax.jit(create, out_shardings=shardings, donate_argnums=1)(rng, params), 0


def _check_numbers(total_steps: int, checkpoints: CheckpointPolicy, seed: int) -> None:
  for name, value in (
    ("TRAIN_STEPS", total_steps),
    ("CHECKPOINT_PERIOD", checkpoints.period),
    ("KEEP_CHECKPOINTS", checkpoints.keep_latest),
  ):
    if type(value) is not int or value < 1:
      raise UserError(f"{name}={value!r}: expected a whole number of at least 1.")
  if type(seed) is not int or not 0 <= seed < 2**32:  # jax.random.key takes 32 bits and drops the rest
    raise UserError(f"SEED={seed!r}: expected a whole number from 0 to 4294967295.")


def _describe(
  recipe: Recipe,
  partitioner: Partitioner,
  data: RetrievalData,
  batches: TrainingBatches,
  start: int,
  total_steps: int,
  loop: LoopOptions,
) -> None:
  """Prints once what is trained on what: the numbers a user checks before leaving the machine alone."""
  if jax.process_index() != 0:
    return
  announce(recipe.inputs)
  batch, plan = recipe.batcher.batch_size, batches.plan
  platform = jax.devices()[0].platform
  filled = int((recipe.batcher.rows(plan, 0) >= 0).sum())
  few = f"the first batch has {filled} examples, the rest of its {batch} places is padding: lower BATCH_SIZE"
  details = [
    *([few] if filled < batch else []),
    *describe_tasks(data),
    *recipe.negatives.describe(data, batch),
    *recipe.step.describe(batch, partitioner.data_size),
    *batches.describe(total_steps),
    *loop.describe(start),
  ]
  print(
    f"{data.name}/{data.split}: {data.num_examples:,} examples, {data.passages.num_rows:,} passages\n"
    f"mesh: {dict(partitioner.mesh.shape)} of {platform}, batch {batch} ({batch // partitioner.data_size} a shard), "
    f"{recipe.batcher.steps_per_epoch(plan):,} steps an epoch\n"
    + "".join(f"{line}\n" for line in details)
    + f"steps: {start:,} -> {total_steps:,}",
    flush=True,
  )


if __name__ == "__main__":
  from retrieval_jax import launch

  launch.main("train")
