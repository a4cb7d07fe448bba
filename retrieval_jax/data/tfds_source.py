"""Data sets of TensorFlow Datasets (TFDS) as sources: any with a column of queries and one of passages, and BEIR's.

They must be prepared already: nothing is downloaded here. Every use loads TensorFlow (4 s, 0.8 GB); the files that BEIR,
MS MARCO and MultiReQA publish are read without it, by the Tasks of those names.
"""

import contextlib
import dataclasses
import hashlib
import json
import tempfile
from array import array
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from retrieval_jax.data import features
from retrieval_jax.data.file_task import FileSource, files_fingerprint
from retrieval_jax.data.judged_pairs import judged_pairs
from retrieval_jax.data.lines import stem
from retrieval_jax.data.pair_columns import Columns, check_columns, layout, pair_of
from retrieval_jax.data.seqio_loading import load_seqio
from retrieval_jax.data.task_source import import_tasks
from retrieval_jax.errors import UserError
from retrieval_jax.paths import resolve


@dataclasses.dataclass(frozen=True)
class TfdsPairs(FileSource):
  """Pairs of a prepared TFDS data set, in the order in which its files have them.

  Attributes:
    dataset: TFDS's name, perhaps with config and version: "squad", "glue/mrpc:2.0.0".
    split: TFDS's name of the split.
    columns: our names (pair_columns.NAMES) -> its features, "answers/text" for one within another.
    data_dir: where it was prepared; None: TFDS's own default.

  Example: `TfdsPairs("squad", columns={"query": "question", "passage": "context", "query_id": "id", "title": "title"})`.
  """

  dataset: str
  split: str = "train"
  columns: Columns | None = None
  data_dir: str | None = None

  @property
  def name(self) -> str:
    """The data set's name with "_" between its parts."""
    return _plain_name(self.dataset)

  def task(self) -> features.TextTask:
    """Returns the text task of the data set.

    Raises: UserError if it is not prepared, or is TFDS's BEIR, whose splits of pairs are incomplete.
    """
    if self.dataset.partition("/")[0] == "beir":
      raise UserError(f"{self.dataset}: {_incomplete(self.dataset.partition('/')[2])}")
    builder = _builder(self.dataset, self.data_dir)
    given = check_columns(self.columns, self.dataset)
    wanted = [column for columns in given.values() for column in columns]

    def read(split: str) -> Iterator[features.Example]:
      for number, example in enumerate(_examples(builder, split)):
        where = f"{self.dataset}, split {split}, example {number}"
        row = {name: _value(example, name, where) for name in wanted or example}
        yield pair_of(row, layout(given, tuple(row), where, with_corpus=False), where)

    return features.TextTask(
      name=f"tfds:{self.name}",
      splits=tuple(builder.info.splits),
      read=read,
      fingerprint=lambda: _fingerprint(builder, sorted(given.items())),
      info=features.TaskInfo(source=f"TFDS {builder.info.full_name}"),
    )


@dataclasses.dataclass(frozen=True)
class TfdsBeir(FileSource):
  """A set of BEIR whose queries and passages come from TFDS, and whose judgements are a file of BEIR's own.

  TFDS's own splits of pairs cannot be evaluated on: they keep one query of each passage. Its order of passages is another
  at every preparation: they are sorted by their ids here. Titles stand in passage_metadata, as far as there are any.
  Memory: 100 bytes a passage; texts wait in a temporary file.

  Attributes:
    config: TFDS's name of the set: "nfcorpus", "cqadupstack.android".
    qrels: BEIR's file of judgements, qrels/test.tsv.
    split: what these judgements are called.
    data_dir: where TFDS prepared the set; None: its own default.

  Example: `load(TfdsBeir("nfcorpus", qrels="qrels/test.tsv", split="test"), inputs)`.
  """

  config: str
  qrels: str = ""
  split: str = "test"
  data_dir: str | None = None

  @property
  def name(self) -> str:
    """The name as that of our Task of the set."""
    return f"beir_{_plain_name(self.config)}"

  def task(self) -> features.TextTask:
    """Returns the text task of the set.

    Raises: UserError without a file of judgements, or if the set is not prepared.
    """
    if not self.qrels:
      raise UserError(f"beir/{self.config}, split {self.split}: {_incomplete(self.config)}")
    qrels = resolve(self.qrels)
    builder = _builder(f"beir/{self.config}", self.data_dir)

    def read(split: str) -> Iterator[features.Example]:
      if split == features.CORPUS:
        return sorted_by_id(map(_passage, _examples(builder, "passage")))
      queries = {_utf8(row["query_id"]): _utf8(row["query"]) for row in _examples(builder, "query")}
      return judged_pairs(queries, qrels, where=f"{self.qrels}, beir/{self.config}")

    return features.TextTask(
      name=f"tfds:{self.name}_{stem(self.qrels)}",
      splits=(self.split, features.CORPUS),
      read=read,
      fingerprint=lambda: _fingerprint(builder, files_fingerprint([qrels])),
      info=self._declared()._replace(source=f"TFDS {builder.info.full_name}, judged by {qrels.name}"),
      files=lambda: [qrels],
    )

  def _declared(self) -> features.TaskInfo:
    """Returns what our Task of the set declares: metrics, and whether a query's own passage is no result."""
    import_tasks()
    ours = features.registered().get(self.name)
    return features.TaskInfo() if ours is None else ours.info


def sorted_by_id(passages: Iterable[features.Example]) -> Iterator[features.Example]:
  """Yields passages by ascending id, as text: the same for every order that they come in.

  Memory: their ids and 16 bytes each; the rest waits in a temporary file, which two passes write and read.
  """
  ids: list[str] = []
  starts = array("q")
  with tempfile.TemporaryFile() as file:
    for passage in passages:
      ids.append(str(passage[features.PASSAGE_ID]))
      starts.append(file.tell())
      file.write(json.dumps(passage).encode() + b"\n")
    file.flush()
    for place in sorted(range(len(ids)), key=ids.__getitem__):
      file.seek(starts[place])
      yield json.loads(file.readline())


def _passage(row: Mapping[str, Any]) -> features.Example:
  """Returns a passage with the title that its metadata may hold."""
  metadata: Any = {}
  with contextlib.suppress(ValueError):
    metadata = json.loads(_utf8(row.get("passage_metadata", b"{}")))
  title = metadata.get("title") if isinstance(metadata, dict) else None
  return features.passage(
    _utf8(row["passage_id"]), _utf8(row["passage"]).strip(), title=str(title or "").strip()
  )


def _builder(name: str, data_dir: str | None) -> Any:
  """Returns the builder of a data set that is prepared.

  Raises: UserError if TFDS does not know it, or has not prepared it there.
  """
  load_seqio()
  import tensorflow_datasets as tfds

  try:
    builder = tfds.builder(name, data_dir=data_dir)
  except (ValueError, ImportError, AssertionError) as error:
    first = str(error).partition("\n")[0]
    raise UserError(
      f"{name}: TFDS has no such data set in {data_dir or 'its default folder'} ({first})"
    ) from error
  if not builder.info.splits:
    raise UserError(
      f"{name}: TFDS knows it, but it is not prepared in {builder.data_dir}. Prepare it with `tfds build {name}`, or set "
      "data_dir to where it is."
    )
  return builder


def _examples(builder: Any, split: str) -> Iterator[Mapping[str, Any]]:
  return iter(builder.as_dataset(split=split, shuffle_files=False).as_numpy_iterator())


def _fingerprint(builder: Any, *options: object) -> str:
  """Returns a hash of the set's version and sizes: TFDS keeps nothing that names the contents."""
  splits = [
    (name, split.num_bytes, split.num_examples) for name, split in sorted(builder.info.splits.items())
  ]
  return hashlib.sha256(repr([builder.info.full_name, splits, *options]).encode()).hexdigest()


def _value(example: Mapping[str, Any], name: str, where: str) -> Any:
  """Returns a feature as Python has it."""
  found: Any = example
  for part in name.split("/"):
    if not isinstance(found, Mapping) or part not in found:
      raise UserError(f"{where}: no feature {name!r}; there are {', '.join(map(str, found))}.")
    found = found[part]
  return _python(found)


def _python(value: Any) -> Any:
  if isinstance(value, bytes):
    return _utf8(value)
  if isinstance(value, Mapping):
    return {key: _python(one) for key, one in value.items()}
  listed = value.tolist() if callable(getattr(value, "tolist", None)) else value
  return [_python(one) for one in listed] if isinstance(listed, list) else listed


def _utf8(value: bytes) -> str:
  return value.decode("utf-8")


def _plain_name(name: str) -> str:
  return "".join(letter if letter.isalnum() else "_" for letter in name)


def _incomplete(config: str) -> str:
  return (
    "TFDS's copy of BEIR keeps one query of each passage, so its splits of pairs lack judgements and results would not "
    "compare. Read the folder that BEIR publishes (`python scripts/download_beir.py`, then data/task.gin or "
    f"data/beir_folder.gin), or give TfdsBeir({config!r}, qrels=...) its qrels/<split>.tsv."
  )
