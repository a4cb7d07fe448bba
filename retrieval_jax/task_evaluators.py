"""Evaluators of tasks by their names, and of groups of tasks, whose result is the mean of their members."""

import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jax
import numpy as np

from retrieval_jax.data.benchmarks import members
from retrieval_jax.data.features import is_corpus
from retrieval_jax.data.sampling import Sample
from retrieval_jax.data.task_source import TaskSource
from retrieval_jax.data.text_inputs import TextInputs
from retrieval_jax.errors import UserError
from retrieval_jax.evaluation import METRICS_FILE, RetrievalEvaluator
from retrieval_jax.paths import atomic_write
from retrieval_jax.searchers import Searcher

USUAL_SPLITS = ("test", "dev")  # of a task that is named without a split: the first of these that it has


class EvaluatorGroup(NamedTuple):
  """Evaluates every member and reports the mean of each metric over the members, each member counting the same.

  CQADupStack, for example, is published as the mean of its 12 forums.
  """

  name: str
  members: Sequence[RetrievalEvaluator]

  @property
  def metric_names(self) -> Sequence[str]:
    """The metrics that all members have."""
    first, *others = [member.metric_names for member in self.members]
    return [name for name in first if all(name in other for other in others)]

  def load(self) -> None:
    """Raises UserError if a member's data are not there or cannot be read; a mean over the others would be another
    number under the same name."""
    for member in self.members:
      member.load()

  def run(self, searcher: Searcher, *, model_dir: pathlib.Path) -> dict[str, float]:
    """Returns the means over the members."""
    return dict(self.run_all(searcher, model_dir=model_dir)[self.name])

  def run_all(self, searcher: Searcher, *, model_dir: pathlib.Path) -> dict[str, Mapping[str, float]]:
    """Returns {member's name: its results} and {group's name: means}; writes the means to eval/<group>/.../metrics.json."""
    results: dict[str, Mapping[str, float]] = {}
    for member in self.members:
      results.update(member.run_all(searcher, model_dir=model_dir))
    means = {
      name: float(np.mean([results[member.name][name] for member in self.members]))
      for name in self.metric_names
    }
    if jax.process_index() == 0:
      record = {**means, "members": [member.name for member in self.members], "step": searcher.step}
      with atomic_write(self.folder(searcher, model_dir) / METRICS_FILE) as file:
        json.dump({**record, "checkpoint": searcher.checkpoint, "searcher": searcher.name}, file, indent=2)
        file.write("\n")
    return {**results, self.name: means}

  def folder(self, searcher: Searcher, model_dir: pathlib.Path) -> pathlib.Path:
    """Returns MODEL_DIR/eval/<group>/step_<n>."""
    return model_dir / "eval" / self.name / self.members[0].folder(searcher, model_dir).name


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
  if isinstance(tasks, str) or not tasks:
    raise UserError(
      f"EVAL_TASKS={tasks!r}: expected a list of names, such as ('beir_scifact', 'beir_nfcorpus')."
    )

  def one(name: str) -> RetrievalEvaluator:
    task, _, split = name.partition(":")
    source = _with_split(TaskSource(task, module=module), split)
    return RetrievalEvaluator(source, inputs, metrics, depth, run_depth, sample, drop_identical)

  found = []
  for name in tasks:
    group = members(name)
    found.append(EvaluatorGroup(name, [one(member) for member in group]) if group else one(name))
  check_names(found)
  return found


def flat(evaluators: Evaluators) -> list[RetrievalEvaluator]:
  """Returns the evaluators with every group replaced by its members."""
  return [member for e in evaluators for member in (e.members if isinstance(e, EvaluatorGroup) else [e])]


def check_names(evaluators: Evaluators) -> None:
  """Raises UserError if two evaluators would write to one folder."""
  names = [
    e.name
    for e in (*evaluators, *(m for e in evaluators if isinstance(e, EvaluatorGroup) for m in e.members))
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
