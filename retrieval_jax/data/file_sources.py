"""Users' own files as sources: each becomes a seqio Task on the fly, so that gin alone can train on them."""

import hashlib
import pathlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from retrieval_jax.data import features, readers
from retrieval_jax.data.task_source import TaskSource
from retrieval_jax.errors import UserError
from retrieval_jax.paths import resolve

MACROS = {"train": "DATA_PATH", "dev": "DEV_PATH", "test": "TEST_PATH"}  # of configs/data/tsv.gin


class BeirFolder(NamedTuple):
  """A folder in BEIR's layout: corpus.jsonl, queries.jsonl, qrels/<split>.tsv, each plain or .gz.

  Every split searches the whole corpus. The data are read again when a file's size or time changes.

  Example: `load(BeirFolder("data/scifact", split="test"), inputs)`.
  """

  path: str
  split: str = "train"

  @property
  def name(self) -> str:
    """The folder's name."""
    return resolve(self.path).resolve().name

  def splits(self) -> Sequence[str]:
    """Returns the splits in qrels/ and "corpus"."""
    return self.task().splits

  def fingerprint(self) -> str:
    """Returns a hash of the files' names, sizes and times."""
    return self.task().fingerprint()

  def examples(self, split: str) -> Iterator[features.Example]:
    """Yields the examples of a split through seqio."""
    return _examples(self.task(), split)

  @property
  def info(self) -> features.TaskInfo:
    """What the task declares of its evaluation."""
    return self.task().info

  def files(self) -> Sequence[pathlib.Path]:
    """Returns the files that are read."""
    return self.task().files()

  def task(self) -> features.TextTask:
    """Returns the text task of the folder."""
    folder = resolve(self.path)
    splits = readers.beir_splits(folder)

    def read(split: str) -> Iterator[features.Example]:
      if split == features.CORPUS:
        return readers.read_beir_corpus(folder)
      return readers.read_beir_folder(folder, split)

    names = ("corpus.jsonl", "queries.jsonl", *(f"qrels/{split}.tsv" for split in splits))
    return features.TextTask(
      name=_task_name("beir", folder),
      splits=(*splits, features.CORPUS),
      read=read,
      fingerprint=lambda: _fingerprint([readers.beir_file(folder, name) for name in names]),
      files=lambda: [readers.beir_file(folder, name) for name in names],
    )


class TsvPairs(NamedTuple):
  """TSV files of pairs (readers.read_tsv_pairs): one for training and, if you have them, one for dev and for test.

  A split's passages are those of its own file. The data are read again when a file's size or time changes.

  Example: `load(TsvPairs("pairs.tsv"), inputs)`, `load(TsvPairs("pairs.tsv", "test", test="test.tsv"), inputs)`.
  """

  path: str
  split: str = "train"
  dev: str | None = None
  test: str | None = None

  @property
  def name(self) -> str:
    """The name of the file that holds the split, without its ending: results of two test files lie apart."""
    path = self._named().get(self.split) or self.path
    return pathlib.Path(path).name.removesuffix(".gz").removesuffix(".tsv")

  def splits(self) -> Sequence[str]:
    """Returns "train" and those of "dev" and "test" that have a file.

    Raises: UserError if a file is missing or the source's own split has none.
    """
    splits = list(self._files())
    if self.split not in splits:
      raise UserError(
        f"{self.name} has no split {self.split!r}; its splits of pairs: {', '.join(splits)}. Set TEST_PATH (or "
        "DEV_PATH) to a file of such pairs, or EVAL_SPLIT=train."
      )
    return splits

  def fingerprint(self) -> str:
    """Returns a hash of the files' names, sizes and times."""
    return self.task().fingerprint()

  def examples(self, split: str) -> Iterator[features.Example]:
    """Yields the examples of a split through seqio."""
    return _examples(self.task(), split)

  @property
  def info(self) -> features.TaskInfo:
    """What the task declares of its evaluation."""
    return self.task().info

  def files(self) -> Sequence[pathlib.Path]:
    """Returns the files that are read."""
    return self.task().files()

  def task(self) -> features.TextTask:
    """Returns the text task of the files."""
    files = self._files()
    return features.TextTask(
      name=_task_name("tsv", files["train"]),
      splits=tuple(files),
      read=lambda split: readers.read_tsv_pairs(files[split]),
      fingerprint=lambda: _fingerprint(list(files.values())),
      files=lambda: list(files.values()),
    )

  def _files(self) -> Mapping[str, pathlib.Path]:
    named = self._named()
    if not named["train"]:
      raise UserError(
        f"DATA_PATH={self.path!r}: expected the path of a TSV file, for example --gin.DATA_PATH=pairs.tsv."
      )
    return {split: _tsv_file(path, MACROS[split]) for split, path in named.items() if path}

  def _named(self) -> Mapping[str, str | None]:
    return {"train": self.path, "dev": self.dev, "test": self.test}


def _tsv_file(path: str, macro: str) -> pathlib.Path:
  found = resolve(path)
  if found.is_dir():
    raise UserError(
      f"{macro}={path!r}: that is a folder; expected a TSV file. A folder in BEIR's layout goes with "
      "--gin_file=data/beir.gin."
    )
  return found


def _task_name(kind: str, path: pathlib.Path) -> str:
  """Returns a name that seqio allows and that no other path has."""
  digest = hashlib.sha256(str(path.absolute()).encode()).hexdigest()[:8]
  return f"{kind}:{re.sub(r'[^A-Za-z0-9_]', '_', path.name)}.{digest}"


def _examples(task: features.TextTask, split: str) -> Iterator[features.Example]:
  if split not in task.splits:
    raise UserError(f"{task.name} has no split {split!r}; its splits: {', '.join(task.splits)}.")
  features.register(task)
  return TaskSource(task.name, split).examples(split)


def _fingerprint(files: Sequence[pathlib.Path]) -> str:
  marks = [(str(file.absolute()), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
  return hashlib.sha256(repr(marks).encode()).hexdigest()
