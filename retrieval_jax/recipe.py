"""The recipe of a training: its parts, whether they fit together, and what a checkpoint says of them."""

import dataclasses
import pathlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import jax
import numpy as np
import optax
from jaxtyping import Array

from retrieval_jax.batching.base import Batcher
from retrieval_jax.data import dataset
from retrieval_jax.data.dataset import RetrievalData
from retrieval_jax.data.mixture import MixtureSource
from retrieval_jax.data.text_inputs import TextInputs
from retrieval_jax.errors import UserError, nearest
from retrieval_jax.eval_loss import EvalLoss
from retrieval_jax.example_options import ExampleOptions
from retrieval_jax.freezing import freeze
from retrieval_jax.losses.base import DataSizes, Loss
from retrieval_jax.negative_options import NegativeOptions
from retrieval_jax.optimizers import Optimizer
from retrieval_jax.records import Batch
from retrieval_jax.refresh_options import ClusterOptions
from retrieval_jax.retriever import Retriever, check_computation, check_inputs, model_manifest
from retrieval_jax.step_options import StepOptions
from retrieval_jax.table_updates import TableUpdates
from retrieval_jax.task_evaluators import Evaluators, check_names, flat
from retrieval_jax.train_state import TrainState, initial_state
from retrieval_jax.train_step import Step, StepWithQueries, make_step_with_queries, make_train_step


class Recipe(NamedTuple):
  """What is trained and how: the parts that a gin file each swaps.

  passage_length: tokens of a passage in training where that is to be less than the retriever's own (None: the same).
  Short passages train faster and in less memory; the saved model still encodes at its own length.
  frozen: patterns of parameters that training leaves as they are, as model-info.txt prints them ("token_embedder/.*").
  teacher_scores: a TSV file of query_id, passage_id, score for the losses that distil (data/teacher_scores.py).
  negatives: the hard negatives that batches carry.
  step: in how many chunks and microbatches a step is computed, and how many steps may be not finite.
  evaluators, eval_loss: what is measured at every checkpoint, and every eval_period steps if that is given.
  clusters: where a batcher that clusters the examples takes their embeddings from.
  examples: what an example is, and what a loss that estimates something draws besides.
  gramian_period: steps between two looks at the exact Gramians (gramian_tracker.py), which encode all rows; 0: none.
  """

  retriever: Retriever
  loss: Loss
  batcher: Batcher
  optimizer: Optimizer
  data: dataset.Source | MixtureSource
  evaluators: Evaluators = ()
  passage_length: int | None = None
  frozen: Sequence[str] = ()
  teacher_scores: str | None = None
  negatives: NegativeOptions = NegativeOptions()
  step: StepOptions = StepOptions()
  eval_loss: EvalLoss | None = None
  eval_period: int | None = None
  clusters: ClusterOptions = ClusterOptions()
  examples: ExampleOptions = ExampleOptions()
  gramian_period: int = 0

  def evaluates_at(self, step: int) -> bool:
    """Returns whether the evaluators run after `step` steps although no checkpoint is saved there."""
    if self.eval_period is None or not (self.evaluators or self.eval_loss):
      return False
    return step % self.eval_period == 0

  @property
  def frozen_paths(self) -> tuple[str, ...]:
    """Patterns of all parameters that stay as they are: the sharing scheme's and the recipe's own."""
    if isinstance(self.frozen, str) or not isinstance(self.frozen, Sequence):
      raise UserError(f"FROZEN={self.frozen!r}: expected a list of patterns, such as ['token_embedder/.*'].")
    return (*self.retriever.model.frozen_paths, *self.frozen)

  @property
  def transform(self) -> optax.GradientTransformation:
    """The optimizer's transformation, acting on what is neither frozen nor a table with an optimizer of its own."""
    return freeze(
      self.optimizer.transform, self.frozen_paths, all_may_freeze=self.optimizer.tables is not None
    )

  @property
  def tables(self) -> TableUpdates | None:
    """What trains the model's tables, where the optimizer has a part for them."""
    if self.optimizer.tables is None:
      return None
    return TableUpdates(self.retriever.model, self.optimizer.tables, self.frozen_paths)

  @property
  def has_bank(self) -> bool:
    """Whether training steps must hand out the query embeddings: a refresh of the batches may come that takes them."""
    return self.batcher.refreshes and self.clusters.embeddings == "bank"

  def make_step(self, *, seed: int) -> Step | StepWithQueries:
    """Returns the training step of these parts, to be jitted: with the embeddings of the queries if `has_bank`.

    Raises: UserError for options that do not fit.

    Example: `partitioner.jit_step(recipe.make_step(seed=0), shardings)`.
    """
    make = make_step_with_queries if self.has_bank else make_train_step
    return make(
      self.retriever.model,
      self.loss,
      self.transform,
      seed=seed,
      frozen=self.frozen_paths,
      options=self.step,
      tables=self.tables,
    )

  @property
  def inputs(self) -> TextInputs:
    """The retriever's inputs at the training's passage length."""
    inputs = self.retriever.inputs
    return inputs if self.passage_length is None else inputs._replace(passage_length=self.passage_length)


def state_creator(recipe: Recipe, data: RetrievalData) -> Callable[[Array, Mapping | None], TrainState]:
  """Returns (rng, model parameters or None) -> the state at step 0."""
  sizes = DataSizes(num_queries=data.queries.num_rows, num_passages=data.passages.num_rows)

  def create(rng: Array, model_params: Mapping | None) -> TrainState:
    return initial_state(
      rng,
      recipe.retriever.model,
      recipe.loss,
      recipe.transform,
      data=sizes,
      model_params=model_params,
      tables=recipe.tables,
    )

  return create


def check_best_metric(best: str | None, evaluators: Evaluators) -> None:
  """Raises UserError unless `best` is None or a metric that one of the evaluators gives."""
  metrics = {evaluator.name: evaluator.metric_names for evaluator in (*flat(evaluators), *evaluators)}
  known = [f"{name}/{metric}" for name, names in metrics.items() for metric in names]
  if best is not None and best not in known:
    expected = (
      f"one of {', '.join(known)}" if known else "evaluators: add --gin_file=evaluators/retrieval.gin"
    )
    raise UserError(f"BEST_METRIC={best!r}: expected {expected}{nearest(best, known) or '.'}")


def check_parts(
  recipe: Recipe, step: Step | StepWithQueries, batch: Batch, data: RetrievalData, seed: int
) -> None:
  """Raises UserError for parts that do not fit, before anything is written: traces a step, loads the evaluators' data."""
  check_inputs(recipe.retriever)
  missing = sorted(name for name in recipe.loss.requires if getattr(batch, name, None) is None)
  if missing:
    advice = "Choose another loss."
    if missing == ["teacher_scores"]:
      advice = (
        "Set --gin.TEACHER_SCORES_PATH to a TSV file of query_id, passage_id, score, or choose another loss."
      )
    raise UserError(f"the loss reads {', '.join(missing)}, which this task's batches do not have. {advice}")
  _check_targets(recipe.loss, data)
  if len(np.unique(batch.passage_rows[batch.passage_rows >= 0])) < 2:
    raise UserError(
      f"{data.name}/{data.split}: the first batch (BATCH_SIZE={recipe.batcher.batch_size}, {data.num_examples} examples) "
      "has fewer than two different passages, so there is no negative to learn from. Raise BATCH_SIZE or add data."
    )
  if "teacher_scores" in recipe.loss.requires:
    _warn_of_nothing_to_distil(batch)
  abstract = jax.eval_shape(lambda: state_creator(recipe, data)(jax.random.key(seed), None))
  jax.eval_shape(step, abstract, batch)
  check_names(recipe.evaluators)
  for evaluator in recipe.evaluators:
    _ = evaluator.metric_names
    evaluator.load()
  if recipe.eval_loss is not None:
    recipe.eval_loss.check(recipe.loss)
    held_out = dataset.load(recipe.eval_loss.source, recipe.inputs)
    recipe.examples.of(held_out, recipe.loss, held_out=True)
  period = recipe.eval_period
  if period is not None and (type(period) is not int or period < 1):
    raise UserError(
      f"EVAL_PERIOD={period!r}: expected a whole number of at least 1, or None: at checkpoints."
    )


def _check_targets(loss: Loss, data: RetrievalData) -> None:
  """Raises UserError for a grade of a positive that the loss cannot take."""
  grades = data.relevance.grades[data.relevance.grades > 0]
  if loss.target_range is None or not len(grades):
    return
  low, high = loss.target_range
  if grades.min() < low or grades.max() > high:
    raise UserError(
      f"{data.name}/{data.split}: the grades of its positives go from {grades.min()} to {grades.max()}; the loss takes "
      f"targets from {low:g} to {high:g}. Set --gin.TARGET_SCALE to the highest grade, or choose another loss."
    )


def _warn_of_nothing_to_distil(batch: Batch) -> None:
  """Says so if no query of the batch has a scored passage besides its own."""
  scored = np.isfinite(np.asarray(batch.teacher_scores))
  others = scored & (
    np.asarray(batch.passage_rows)[None, :] != np.asarray(batch.passage_rows)[: len(scored), None]
  )
  if not others.any() and jax.process_index() == 0:
    print(
      f"warning: the teacher scored {np.count_nonzero(scored)} of the {scored.size} pairs of query and passage in the "
      "first batch, and none of a query with another passage than its own: there is nothing to distil in it. The "
      "candidates are the passages of the batch; TEACHER_SCORES_PATH must score each query with some of them.",
      file=sys.stderr,
    )


def manifest_of(recipe: Recipe, data: RetrievalData, seed: int) -> dict[str, object]:
  """Returns what a checkpoint is a state of, besides its arrays."""
  return {
    **model_manifest(recipe.retriever),
    "task": data.name,
    "split": data.split,
    "points": data.num_examples,
    "task_fingerprint": data.fingerprint,
    "batcher": described(recipe.batcher),
    "batch_size": recipe.batcher.batch_size,
    "microbatches": recipe.step.microbatches,
    "hard_negatives": recipe.negatives.per_query,
    "examples": recipe.examples.kind,
    "marginals": recipe.examples.marginal_record() if "marginals" in recipe.loss.requires else None,
    "seed": seed,
  }


def described(batcher: Batcher) -> str:
  """Returns the batcher's kind and settings, such as "Mixture(one_task_per_batch=False)"; its size stands by itself."""
  names = [field.name for field in dataclasses.fields(batcher)] if dataclasses.is_dataclass(batcher) else []
  settings = [f"{name}={getattr(batcher, name)!r}" for name in names if name != "batch_size"]
  return f"{type(batcher).__name__}({', '.join(settings)})"


# What checkpoints meant before there were any of these.
_BEFORE: Mapping[str, object] = {
  "batcher": "Shuffled()",
  "microbatches": 1,
  "hard_negatives": 0,
  "examples": "queries",
  "marginals": None,
}


def warn_of_other_rows(saved: Mapping[str, object], now: Mapping[str, object], loss: Loss) -> None:
  """Says so if a loss that keeps something of every row goes on with other rows, or with other weights of them."""
  saved = {**_BEFORE, **saved}
  changed = [name for name in ("task_fingerprint", "marginals") if saved.get(name) != now[name]]
  if loss.state_axes is not None and changed:
    print(
      f"warning: the loss's caches are by row, and {' and '.join(changed)} are not as they were: what it estimates is wrong until "
      "all rows have come up again. Better start in another MODEL_DIR.",
      file=sys.stderr,
    )


def check_resume(folder: pathlib.Path, saved: Mapping[str, object], now: Mapping[str, object]) -> None:
  """Raises UserError where going on would be another model than the folder's; says what else is not as it was."""
  if saved.get("inputs") != now["inputs"]:
    raise UserError(
      f"{folder} was trained with another vocabulary, other lengths or prefixes (see its model.gin). "
      "Resume with the same, or start in another MODEL_DIR."
    )
  check_computation(folder, saved, now)
  saved = {**_BEFORE, **saved}
  for name in ("task", "task_fingerprint", "batch_size", *_BEFORE, "seed"):
    if saved.get(name) != now[name]:
      what = (
        " (the data's files or settings, such as HELD_OUT, are others)" if name == "task_fingerprint" else ""
      )
      print(f"warning: resuming with {name} {now[name]!r}, was {saved.get(name)!r}{what}", file=sys.stderr)
