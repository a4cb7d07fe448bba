"""Several tasks trained together: where they come from, and their data joined into one RetrievalData."""

import pathlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from retrieval_jax.data import dataset
from retrieval_jax.data.dataset import RetrievalData
from retrieval_jax.data.joined_data import joined
from retrieval_jax.data.mixing_rates import (
  ByCount,
  Rates,
  mixture_names,
  rates,
  registered_mixture,
  task_names,
)
from retrieval_jax.data.task_part import TaskPart
from retrieval_jax.data.task_source import Source, TaskSource, import_tasks
from retrieval_jax.data.text_inputs import TextInputs
from retrieval_jax.errors import UserError, nearest

if TYPE_CHECKING:
  import seqio


class _Setting(NamedTuple):
  """A field of MixtureSource that holds something for some of its tasks."""

  field: str
  macro: str  # what a user sets
  kinds: tuple[type, ...]
  example: str


_SETTINGS = (
  _Setting(
    "sources",
    "TASK_SOURCES",
    (Source,),
    "{'a': @a/file_sources.TsvPairs()} in a gin file, with the line a/file_sources.TsvPairs.path = 'train.tsv'",
  ),
  _Setting("in_batch_negatives", "TASK_IN_BATCH_NEGATIVES", (bool,), "{'a': False}"),
  _Setting("teacher_scores", "TASK_TEACHER_SCORES", (str, pathlib.Path), "{'a': 'scores.tsv'}"),
  _Setting("hard_negatives", "TASK_HARD_NEGATIVES", (str, pathlib.Path), "{'a': 'negatives.tsv'}"),
)


class MixtureSource(NamedTuple):
  """One split of several tasks, to train on; each comes up at its rate (batching/mixture.py).

  tasks: {name: rate}, rates in any unit, None: by the task's number of examples; or a list of names, all by their
    numbers of examples; or the name of a mixture that is registered (features.register_mixture) or a seqio Mixture.
    Examples are what is trained on: queries with a passage that answers them.
  module: the Python module that registers the tasks or the mixture.
  temperature, limit: of rates by number of examples: min(number, limit) ** (1 / temperature).
  sources: the tasks that are files of your own (file_sources.py), by the name that `tasks` calls them; all other names
    are Tasks.
  in_batch_negatives: False for a task whose labels repeat in a batch (classification): its queries have their own hard
    negatives alone, and its examples are no negatives of others.
  teacher_scores, hard_negatives: the file of a task (teacher_scores.py, negatives_file.py), by its name.

  Example: `MixtureSource({"pydocs": 1.0, "mine": 3.0}, sources={"mine": TsvPairs("pairs.tsv")})`.
  """

  tasks: Mapping[str, float | None] | Sequence[str] | str
  split: str = "train"
  module: str | None = None
  temperature: float = 1.0
  limit: int | None = None
  sources: Mapping[str, Source] = {}
  in_batch_negatives: Mapping[str, bool] = {}
  teacher_scores: Mapping[str, str] = {}
  hard_negatives: Mapping[str, str] = {}

  @property
  def name(self) -> str:
    """The mixture's name, or those of its tasks."""
    return self.tasks if isinstance(self.tasks, str) else "+".join(sorted(self.tasks))

  def source(self, task: str) -> Source:
    """Returns where one task's examples come from."""
    return self.sources[task] if task in self.sources else TaskSource(task, self.split, self.module)


def load(
  source: Source | MixtureSource,
  inputs: TextInputs,
  *,
  teacher_scores: str | None = None,
  hard_negatives: str | None = None,
  cache: pathlib.Path | None = None,
) -> RetrievalData:
  """Returns what is trained on: `dataset.load` of one task, or of all tasks of a mixture, joined.

  A mixture's rows are the first task's, then the next one's, in the order of their names, so that every row number says
  which task it is of; passages of one corpus that several tasks search are one row. Equal texts of different corpora
  are not recognised: only there can a passage act as the negative of a query that it answers.

  source: also a TaskSource that names a mixture.
  teacher_scores, hard_negatives: as in `dataset.load`; of a mixture, MixtureSource names a file for each task.

  Raises: UserError as `dataset.load`; and for tasks, rates or files of a mixture that cannot be, all before training.

  Example: `load(MixtureSource(["pydocs", "toy"]), inputs).tasks[0].num_examples`.
  """
  mixture = _as_mixture(source)
  if mixture is None:
    assert not isinstance(source, MixtureSource)
    return dataset.load(
      source, inputs, teacher_scores=teacher_scores, hard_negatives=hard_negatives, cache=cache
    )
  by_count = ByCount(mixture.temperature, mixture.limit)
  by_count.check()
  _check_kinds(mixture)
  for what, path in (("TEACHER_SCORES_PATH", teacher_scores), ("HARD_NEGATIVES_PATH", hard_negatives)):
    if path is not None:
      raise UserError(
        f"{what}={path!r} with the mixture {mixture.name}: ids are unique in one task only. Name each task's file: "
        f"TASK_{what.removesuffix('_PATH')} = {{'a task': 'its file'}} (data/mixture.gin)."
      )
  declared = _declared(mixture)
  names = task_names(declared)
  _check_names(mixture, names)
  parts = {
    name: dataset.load(
      mixture.source(name),
      inputs,
      teacher_scores=mixture.teacher_scores.get(name),
      hard_negatives=mixture.hard_negatives.get(name),
      cache=cache,
    )
    for name in names
  }
  counts = {name: part.num_examples for name, part in parts.items()}
  of_tasks = rates(declared, counts, by_count)
  tasks = [
    TaskPart(name, counts[name], of_tasks[name], mixture.in_batch_negatives.get(name, True)) for name in names
  ]
  _check_negatives(tasks, parts)
  return joined(mixture.name, mixture.split, tasks, list(parts.values()))


def _as_mixture(source: Source | MixtureSource) -> MixtureSource | None:
  """Returns the mixture that is meant, also by a TaskSource that names one; None for a single task."""
  if isinstance(source, MixtureSource):
    return source
  if not isinstance(source, TaskSource):
    return None
  import_tasks(source.module)
  if registered_mixture(source.task) is None:
    return None
  return MixtureSource(source.task, source.split, source.module)


def _declared(mixture: MixtureSource) -> "Rates | seqio.Mixture":
  """Returns the rates as they are declared, of a user's mapping or list or of a registered mixture."""
  tasks = mixture.tasks
  if isinstance(tasks, Mapping):
    return tasks
  if not isinstance(tasks, str):
    return dict.fromkeys(tasks)
  import_tasks(mixture.module)
  found = registered_mixture(tasks)
  if found is None:
    raise UserError(
      f"no mixture is called {tasks!r}{nearest(tasks, mixture_names()) or '.'} Set TASKS to {{name: rate}} of tasks, or name "
      "the Python module that registers the mixture: TASK_MODULE = 'my_package.my_tasks'."
    )
  return found


def _check_kinds(mixture: MixtureSource) -> None:
  """Raises UserError for a setting of another kind than it must be, whatever its tasks are called."""
  tasks = mixture.tasks
  if not isinstance(tasks, Mapping | list | tuple | str) or not all(isinstance(task, str) for task in tasks):
    raise UserError(
      f"TASKS={tasks!r}: expected {{'a': 1.0, 'b': 3.0}}, the rates of tasks by their names, with None for a rate by number "
      "of examples; or a list of tasks, or the name of a mixture."
    )
  for setting in _SETTINGS:
    by_task = getattr(mixture, setting.field)
    if not isinstance(by_task, Mapping):
      raise UserError(
        f"{setting.macro}={by_task!r}: expected a dict by the names of tasks, such as {setting.example}."
      )
    for name, value in by_task.items():
      if isinstance(value, type) or not isinstance(value, setting.kinds):
        raise UserError(f"{setting.macro} of {name} is {value!r}; expected it as in {setting.example}.")


def _check_names(mixture: MixtureSource, names: Sequence[str]) -> None:
  """Raises UserError for a mixture without tasks, and for settings of a task that it does not have."""
  if not names:
    raise UserError(
      "a mixture of no tasks: set TASKS to {name: rate}, with None for a rate by number of examples."
    )
  for setting in _SETTINGS:
    for name in getattr(mixture, setting.field):
      if name not in names:
        raise UserError(
          f"{setting.macro} names {name!r}, which is no task of the mixture: {', '.join(names)}"
          f"{nearest(name, names) or '.'}"
        )


def _check_negatives(tasks: Sequence[TaskPart], parts: Mapping[str, RetrievalData]) -> None:
  for task in tasks:
    if not task.in_batch_negatives and parts[task.name].negatives is None:
      raise UserError(
        f"TASK_IN_BATCH_NEGATIVES of {task.name} is False, which leaves its queries their own hard negatives alone, and the "
        "task has none. Give them in its examples or in TASK_HARD_NEGATIVES."
      )
