"""FileSource: what all sources that are made of files have in common, and the names of their tasks."""

import hashlib
import pathlib
import re
from collections.abc import Iterator, Sequence

from retrieval_jax.data import features
from retrieval_jax.errors import UserError


class FileSource:
  """A Source (task_source.Source) of a text task that reads files: a subclass has name, split and `task`.

  The data are read again when a file's size or time changes. Examples come from the reader directly; seqio knows the
  task as well, by the name `task().name`, once examples were read.
  """

  def task(self) -> features.TextTask:
    """Returns the text task of the files."""
    raise NotImplementedError

  def splits(self) -> Sequence[str]:
    """Returns every split there is."""
    return self.task().splits

  def fingerprint(self) -> str:
    """Returns a hash of what is read and of the files' names, sizes and times."""
    return self.task().fingerprint()

  def corpus_fingerprint(self, split: str) -> str:
    """Returns a hash of what decides the passages of a corpus split: that of everything, unless the task tells more."""
    task = self.task()
    return task.fingerprint() if task.corpus_fingerprint is None else task.corpus_fingerprint(split)

  def pairs_fingerprint(self, split: str) -> str:
    """Returns a hash of what decides the examples of a split of pairs: that of everything, unless the task tells more."""
    task = self.task()
    return task.fingerprint() if task.pairs_fingerprint is None else task.pairs_fingerprint(split)

  def filter_pairs(self, split: str) -> Iterator[tuple[str, str]]:
    """Yields the (query id, passage id) of a split that are no results."""
    return self.task().filter_pairs_of(split)

  def examples(self, split: str) -> Iterator[features.Example]:
    """Yields the examples of a split, always in the same order.

    Raises: UserError for a split that is not there, and with file and line number for what cannot be read.
    """
    task = self.task()
    if split not in task.splits:
      raise UserError(f"{task.name} has no split {split!r}; its splits: {', '.join(task.splits)}.")
    features.register(task)
    yield from task.read(split)

  @property
  def info(self) -> features.TaskInfo:
    """What the task declares of its evaluation."""
    return self.task().info

  def files(self) -> Sequence[pathlib.Path]:
    """Returns the files that are read."""
    return self.task().files()


def task_name(kind: str, path: pathlib.Path) -> str:
  """Returns a name that seqio allows and that no other path has."""
  digest = hashlib.sha256(str(path.absolute()).encode()).hexdigest()[:8]
  return f"{kind}:{re.sub(r'[^A-Za-z0-9_]', '_', path.name)}.{digest}"


def files_fingerprint(files: Sequence[pathlib.Path], *options: object) -> str:
  """Returns a hash of the files' names, sizes and times, and of what is read of them: plain values."""
  marks: list[object] = [
    (str(file.absolute()), file.stat().st_size, file.stat().st_mtime_ns) for file in files
  ]
  return hashlib.sha256(repr([*marks, *options]).encode()).hexdigest()
