"""Where a data set comes from: a seqio Task by its name."""

import hashlib
import importlib
import inspect
import json
import pathlib
import pkgutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from retrieval_jax.data import features
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
      yield from self._seqio_examples(split)

  def _seqio_examples(self, split: str) -> Iterator[features.Example]:
    dataset = self._seqio_task().get_dataset(sequence_length=None, split=split, shuffle=False)
    needed = {features.PASSAGE_ID, features.PASSAGE}
    if not features.is_corpus(split):
      needed |= {features.QUERY_ID, features.QUERY}
    if not needed <= set(dataset.element_spec):
      raise UserError(
        f"the Task {self.task!r}, split {split!r}, has the features {', '.join(sorted(dataset.element_spec))}; "
        f"a text task needs {', '.join(sorted(needed))} (retrieval_jax/data/features.py)."
      )
    optional = (features.TITLE, features.RELEVANCE, *features.LISTS)
    wanted = [name for name in (*needed, *optional) if name in dataset.element_spec]
    for example in dataset.as_numpy_iterator():
      yield {name: _plain(name, example[name]) for name in wanted}

  def _text_task(self) -> features.TextTask | None:
    """Returns the Task if a plain Python reader makes it, or None for one that seqio alone knows."""
    import_tasks(self.module)
    return features.registered().get(self.task)

  def _seqio_task(self) -> "seqio.Task":
    text_task = self._text_task()
    if text_task is not None:
      return features.add_to_seqio(text_task)
    if "seqio" not in sys.modules:  # then nobody has registered anything there: do not wait for TensorFlow
      raise self._unknown(())
    import seqio

    if self.task in seqio.TaskRegistry.names():
      return seqio.TaskRegistry.get(self.task)
    if self.task in seqio.MixtureRegistry.names():
      raise UserError(
        f"{self.task!r} is a seqio Mixture, which repeats its examples without end. Name a Task; several Tasks "
        "are mixed by the Batcher."
      )
    raise self._unknown(seqio.TaskRegistry.names())

  def _unknown(self, seqio_names: Iterable[str]) -> UserError:
    known = sorted({*seqio_names, *features.registered()})
    return UserError(
      f"no seqio Task is called {self.task!r}{nearest(self.task, known)} (known: {', '.join(known)}). A Task of your "
      "own needs the name of the Python module that registers it: TaskSource.module = 'my_package.my_tasks'."
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
      raise UserError(
        f"the task module {module!r} cannot be imported: {error}. Put its folder on PYTHONPATH, or correct the name."
      ) from error


def describe_seqio_task(task: "seqio.Task") -> dict[str, Any]:
  """Returns plain data that names what a Task reads and does: its fingerprint is a hash of it."""
  source: Any = task.source
  seen: dict[str, Any] = {"source": type(source).__name__, "splits": sorted(task.splits)}
  tfds = getattr(source, "tfds_dataset", None)
  if tfds is not None:
    seen["tfds"] = [tfds.name, str(tfds.version)] if hasattr(tfds, "version") else [tfds.name]
  for split in seen["splits"]:
    if hasattr(source, "list_shards"):
      seen[split] = [_file_mark(shard) for shard in source.list_shards(split)]
  if hasattr(source, "_dataset_fn"):
    seen["function"] = _source_text(source._dataset_fn)
  seen["preprocessors"] = [_source_text(step) for step in task.preprocessors]
  return seen


def _file_mark(shard: str) -> list[str | int]:
  path = pathlib.Path(str(shard))
  if not path.is_file():
    return [str(shard)]
  return [str(shard), path.stat().st_size, path.stat().st_mtime_ns]


def _source_text(function: Any) -> str:
  try:
    return inspect.getsource(function)
  except (OSError, TypeError):
    return getattr(function, "__qualname__", type(function).__qualname__)


def _plain(name: str, value: Any) -> str | int | list[str]:
  if name == features.RELEVANCE:
    return int(value)
  if name in features.LISTS:
    return [_text(name, part) for part in value]
  return _text(name, value)


def _text(name: str, value: Any) -> str:
  if not isinstance(value, bytes):
    raise UserError(
      f"the feature {name!r} holds {type(value).__name__}, expected text: a text task leaves tokenising to the model."
    )
  return value.decode("utf-8")
