"""Evaluators of tasks by their names, and of groups of tasks, whose result is the mean of their members."""

import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jax

from retrieval_jax.data.benchmarks import macro_mean, members, tasks_of
from retrieval_jax.data.features import is_corpus
from retrieval_jax.data.sampling import Sample
from retrieval_jax.data.task_source import TaskSource
from retrieval_jax.data.text_inputs import TextInputs
from retrieval_jax.errors import UserError
from retrieval_jax.evaluation import RetrievalEvaluator
from retrieval_jax.paths import atomic_write
from retrieval_jax.result_files import METRICS_FILE
from retrieval_jax.searchers import Searcher

USUAL_SPLITS = ("test", "dev")  # of a task that is named without a split: the first of these that it has


class EvaluatorGroup(NamedTuple):
  """Evaluates the tasks of a group (data/benchmarks.py) and reports the mean of each metric over its members.

  CQADupStack, for example, is published as the mean of its 12 forums, and counts as one of the 18 sets of "beir".
  evaluators: of every task in the group and in the groups within it.
  """

  name: str
  evaluators: Sequence[RetrievalEvaluator]

  @property
  def metric_names(self) -> Sequence[str]:
    """The metrics that all tasks have."""
    first, *others = [evaluator.metric_names for evaluator in self.evaluators]
    return [name for name in first if all(name in other for other in others)]

  def load(self) -> None:
    """Raises UserError if a task's data are not there or cannot be read; a mean over the others would be another number
    under the same name."""
    for evaluator in self.evaluators:
      evaluator.load()

  def run_all(self, searcher: Searcher, *, model_dir: pathlib.Path) -> dict[str, Mapping[str, float]]:
    """Returns the results of each task by its evaluator's name, and the means of the group and of the groups within it
    by theirs; writes the means to MODEL_DIR/eval/<group>/step_<n>/metrics.json."""
    results = {e.name: e.run(searcher, model_dir=model_dir) for e in self.evaluators}
    by_task = {
      e.source.name: {name: results[e.name][name] for name in self.metric_names} for e in self.evaluators
    }
    means = {name: macro_mean(name, by_task) for name in groups_in(self.name)}
    if jax.process_index() == 0:
      record = {"tasks": list(by_task), "checkpoint": searcher.checkpoint, "searcher": searcher.name}
      with atomic_write(self.folder(searcher, model_dir) / METRICS_FILE) as file:
        json.dump({**means[self.name], **record, "step": searcher.step}, file, indent=2)
        file.write("\n")
    return {**results, **means}

  def folder(self, searcher: Searcher, model_dir: pathlib.Path) -> pathlib.Path:
    """Returns MODEL_DIR/eval/<group>/step_<n>."""
    return model_dir / "eval" / self.name / self.evaluators[0].folder(searcher, model_dir).name


Evaluators = Sequence[RetrievalEvaluator | EvaluatorGroup]


def task_evaluators(
  tasks: Sequence[str],
  inputs: TextInputs,
  *,
  module: str | None = None,
  metrics: Sequence[str] | None = None,
  depth: int = 1000,
  run_depth: int = 100,
  drop_identical: bool | None = None,
  sample: Sample = Sample(),  # noqa: B008  (an immutable record)
) -> Evaluators:
  """Returns an evaluator for each name: a task ("beir_scifact"), a task and its split ("msmarco_passage:dev_small"), or
  a group ("beir_cqadupstack"), which expands to its members and their mean.

  A task named without a split is evaluated on "test", or where it has none on "dev".

  Raises: UserError for a name that is unknown or comes twice, a split that a task lacks, and a group of which a member's
  files are missing.

  Example: `task_evaluators(["beir_scifact", "msmarco_passage:dl19"], inputs)`.
  """
  if not isinstance(tasks, list | tuple) or not tasks or not all(isinstance(name, str) for name in tasks):
    raise UserError(
      f"EVAL_TASKS={tasks!r}: expected a list of names, such as ('beir_scifact', 'beir_nfcorpus')."
    )

  def one(name: str) -> RetrievalEvaluator:
    task, _, split = name.partition(":")
    source = _with_split(TaskSource(task, module=module), split)
    return RetrievalEvaluator(source, inputs, metrics, depth, run_depth, sample, drop_identical)

  found = []
  for name in tasks:
    found.append(EvaluatorGroup(name, [one(task) for task in tasks_of(name)]) if members(name) else one(name))
  check_names(found)
  return found


def flat(evaluators: Evaluators) -> list[RetrievalEvaluator]:
  """Returns the evaluators with every group replaced by its members."""
  return [member for e in evaluators for member in (e.evaluators if isinstance(e, EvaluatorGroup) else [e])]


def groups_in(name: str) -> list[str]:
  """Returns the group and all groups within it, the outermost last."""
  return [inner for member in members(name) if members(member) for inner in groups_in(member)] + [name]


def check_names(evaluators: Evaluators) -> None:
  """Raises UserError if two evaluators would write to one folder."""
  names = [
    e.name
    for e in (*evaluators, *(m for e in evaluators if isinstance(e, EvaluatorGroup) for m in e.evaluators))
  ]
  repeated = sorted({name for name in names if names.count(name) > 1})
  if repeated:
    raise UserError(
      f"EVALUATORS: {', '.join(repeated)} comes more than once; one would overwrite the other. Name each task once."
    )


def _with_split(source: TaskSource, split: str) -> TaskSource:
  splits = [name for name in source.splits() if not is_corpus(name)]
  if split:
    if split not in splits:
      raise UserError(f"{source.name}:{split}: the task has no such split; its splits: {', '.join(splits)}.")
    return source._replace(split=split)
  for usual in USUAL_SPLITS:
    if usual in splits:
      return source._replace(split=usual)
  raise UserError(
    f"{source.name}: name the split too, as in '{source.name}:{splits[0]}'; its splits: {', '.join(splits)}."
  )
