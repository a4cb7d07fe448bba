"""Where a data set comes from: a seqio Task by its name."""

import hashlib
import importlib
import json
import pathlib
import pkgutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

from retrieval_jax.data import features
from retrieval_jax.data.benchmarks import members
from retrieval_jax.data.seqio_examples import describe_seqio_task, seqio_examples
from retrieval_jax.errors import UserError, nearest

if TYPE_CHECKING:
  import seqio


@runtime_checkable
class Source(Protocol):
  """One split of a text task (features.py)."""

  @property
  def name(self) -> str:
    """What messages and result folders call it."""
    ...

  @property
  def split(self) -> str:
    """The split of pairs that is meant."""
    ...

  def splits(self) -> Sequence[str]:
    """Returns every split there is."""
    ...

  def fingerprint(self) -> str:
    """Returns a hash that changes when the examples of any split do."""
    ...

  def examples(self, split: str) -> Iterator[features.Example]:
    """Yields the examples of a split, always in the same order."""
    ...

  @property
  def info(self) -> features.TaskInfo:
    """What the task declares of its evaluation and its origin."""
    ...

  def files(self) -> Sequence[pathlib.Path]:
    """Returns the files that are read, as far as they are known."""
    ...


class TaskSource(NamedTuple):
  """A split of the seqio Task `task`, registered by a module of retrieval_jax.tasks or by `module`.

  A Task of ours is fingerprinted without loading TensorFlow. One that a module registers with seqio itself is
  fingerprinted by its source and preprocessors as far as they can be seen (TFDS name and version; names, sizes and
  times of files; a function's source text): if your data change in another way, change `version` too.

  Example: `TaskSource("pydocs", split="dev")`.
  """

  task: str
  split: str = "train"
  module: str | None = None
  version: str = ""

  @property
  def name(self) -> str:
    """The Task's name."""
    return self.task

  def splits(self) -> Sequence[str]:
    """Returns every split of the Task."""
    text_task = self._text_task()
    return list(text_task.splits) if text_task else sorted(self._seqio_task().splits)

  def fingerprint(self) -> str:
    """Returns a hash of what decides the examples."""
    text_task = self._text_task()
    seen = text_task.fingerprint() if text_task else describe_seqio_task(self._seqio_task())
    return hashlib.sha256(json.dumps([self.task, self.version, seen]).encode()).hexdigest()

  def corpus_fingerprint(self, split: str) -> str:
    """Returns a hash of what decides the passages of a corpus split: that of everything, unless the Task tells more."""
    text_task = self._text_task()
    if text_task is None or text_task.corpus_fingerprint is None:
      return self.fingerprint()
    seen = text_task.corpus_fingerprint(split)
    return hashlib.sha256(json.dumps([self.task, self.version, split, seen]).encode()).hexdigest()

  def filter_pairs(self, split: str) -> Iterator[tuple[str, str]]:
    """Yields the (query id, passage id) of a split that are no results; none for a Task that seqio alone knows."""
    text_task = self._text_task()
    return iter(()) if text_task is None else text_task.filter_pairs_of(split)

  @property
  def info(self) -> features.TaskInfo:
    """What the Task declares; a Task that seqio alone knows declares nothing but our defaults."""
    text_task = self._text_task()
    return text_task.info_of(self.split) if text_task else features.TaskInfo()

  def files(self) -> Sequence[pathlib.Path]:
    """Returns the files that a text task reads; none for a Task that seqio alone knows."""
    text_task = self._text_task()
    return text_task.files() if text_task else ()

  def examples(self, split: str) -> Iterator[features.Example]:
    """Yields the Task's examples of a split as Python strings, ints and lists of strings.

    A Task of ours is read directly; one that seqio alone knows comes through tf.data (loads TensorFlow: 4 s, 0.8 GB).
    """
    text_task = self._text_task()
    if text_task is not None:
      yield from text_task.read(split)
    else:
      yield from seqio_examples(self._seqio_task(), split)

  def _text_task(self) -> features.TextTask | None:
    """Returns the Task if a plain Python reader makes it, or None for one that seqio alone knows."""
    import_tasks(self.module)
    return features.registered().get(self.task)

  def _seqio_task(self) -> "seqio.Task":
    text_task = self._text_task()
    if text_task is not None:
      return features.add_to_seqio(text_task)
    if self.task in features.registered_mixtures():
      raise UserError(
        f"{self.task!r} is a mixture: it can be trained on (data/mixture.gin), but here one Task is wanted. Its Tasks: "
        f"{', '.join(features.registered_mixtures()[self.task])}."
      )
    if "seqio" not in sys.modules:  # then nobody has registered anything there: do not wait for TensorFlow
      raise self._unknown(())
    import seqio

    if self.task in seqio.TaskRegistry.names():
      return seqio.TaskRegistry.get(self.task)
    if self.task in seqio.MixtureRegistry.names():
      raise UserError(
        f"{self.task!r} is a seqio Mixture: it can be trained on (data/mixture.gin), but here one Task is wanted. Its "
        f"Tasks: {', '.join(sorted(task.name for task in seqio.MixtureRegistry.get(self.task).tasks))}."
      )
    raise self._unknown(seqio.TaskRegistry.names())

  def _unknown(self, seqio_names: Iterable[str]) -> UserError:
    if tasks := members(self.task):
      return UserError(
        f"{self.task!r} is a group, whose result is the mean over {', '.join(tasks)}. Evaluate it with "
        f"--gin_file=evaluators/tasks.gin and EVAL_TASKS=({self.task!r},); here one Task is wanted."
      )
    known = sorted({*seqio_names, *features.registered()})
    return UserError(
      f"no seqio Task is called {self.task!r}{nearest(self.task, known)} (known: {', '.join(known)}). A Task of your "
      "own needs the name of the Python module that registers it: TASK_MODULE = 'my_package.my_tasks'."
    )


def import_tasks(module: str | None = None) -> None:
  """Imports the shipped task modules and `module`, so that their tasks are registered.

  Raises: UserError if `module` cannot be imported.
  """
  package = importlib.import_module("retrieval_jax.tasks")
  for found in pkgutil.iter_modules(package.__path__):
    importlib.import_module(f"retrieval_jax.tasks.{found.name}")
  if module is not None:
    try:
      importlib.import_module(module)
    except ModuleNotFoundError as error:
      hint = "Put its folder on PYTHONPATH, or correct the name."
      if module.endswith(".py"):
        name = module.removesuffix(".py").replace("/", ".")
        hint = f'A module is named without ".py": TASK_MODULE = {name!r}.'
      raise UserError(f"the task module {module!r} cannot be imported: {error}. {hint}") from error
