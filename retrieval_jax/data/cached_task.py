"""CachedTask: the examples of a Task as scripts/cache_tasks.py, or seqio's own seqio_cache_tasks, wrote them to files."""

import dataclasses
import json
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from retrieval_jax.data import features
from retrieval_jax.data.built_folder import short_hash
from retrieval_jax.data.file_task import FileSource, files_fingerprint
from retrieval_jax.data.seqio_examples import seqio_examples
from retrieval_jax.data.seqio_loading import load_seqio
from retrieval_jax.data.task_source import import_tasks
from retrieval_jax.errors import UserError
from retrieval_jax.paths import resolve

if TYPE_CHECKING:
  import seqio

COMPLETED: Final = (
  "COMPLETED"  # written when everything else is: a folder without it is the rest of a broken run
)


@dataclasses.dataclass(frozen=True)
class CachedTask(FileSource):
  """A split of a Task, read from its cache: the same examples as the Task's own, in the order of the cache's files.

  The files are TFRecords in seqio's layout, one folder a Task (a ":" in its name is a folder's border). What a Task does
  after its CacheDatasetPlaceholder is done at reading, if a module registers the Task here; without it the cache must hold
  text. What it declares of its evaluation (metrics, grades) is the registered Task's too.

  Attributes:
    task_name: the Task's name.
    path: the folder of caches (--output_dir of scripts/cache_tasks.py).
    split: one of the splits that were cached.
    module: the Python module that registers the Task, unless retrieval_jax.tasks does.

  Example: `load(CachedTask("beir_scifact", "/data/cached", "test"), inputs)`.
  """

  task_name: str
  path: str
  split: str = "train"
  module: str | None = None

  @property
  def name(self) -> str:
    """The Task's name: results are called as those of the Task itself."""
    return self.task_name

  @property
  def info(self) -> features.TaskInfo:
    """What the Task declares of the split."""
    return self.task().info_of(self.split)

  def task(self) -> features.TextTask:
    """Returns the text task of the files.

    Raises: UserError if there is no cache of the Task, or an unfinished one.
    """
    folder = self._folder()
    splits = [_split_of(file) for file in sorted(folder.glob("info.*.json"))]
    import_tasks(self.module)
    declared = features.registered().get(self.task_name)
    files = sorted(file for file in folder.iterdir() if file.is_file())
    return features.TextTask(
      name=f"cached_{short_hash({'task': self.task_name, 'folder': str(folder)})}",
      splits=splits,
      read=lambda split: self._read(folder, split),
      fingerprint=lambda: files_fingerprint(files, self.task_name),
      info=declared.info if declared else features.TaskInfo(),
      split_info=declared.split_info if declared else {},
      files=lambda: files,
      filter_pairs=lambda split: read_filter_pairs(folder, split),
    )

  def _folder(self) -> pathlib.Path:
    root = resolve(self.path)
    folder = root.joinpath(*self.task_name.split(":"))
    if (folder / COMPLETED).is_file():
      return folder
    if folder.is_dir():
      raise UserError(
        f"{folder} has no file {COMPLETED}: the caching of {self.task_name} did not end. Run scripts/cache_tasks.py again."
      )
    found = sorted(
      str(file.parent.relative_to(root)).replace("/", ":") for file in root.glob(f"**/{COMPLETED}")
    )
    raise UserError(
      f"DATA_PATH={self.path}: there is no cache of the Task {self.task_name!r}; there are {', '.join(found) or 'none'}. "
      f"Make it with: python scripts/cache_tasks.py --task={self.task_name} --output_dir={self.path}"
    )

  def _read(self, folder: pathlib.Path, split: str) -> Iterator[features.Example]:
    held = json.loads((folder / f"info.{split}.json").read_text(encoding="utf-8")).get("features", {})
    if held:  # of no examples the writer knows no features
      yield from seqio_examples(self._seqio_task(folder, split, held), split)

  def _seqio_task(self, folder: pathlib.Path, split: str, held: Mapping[str, Any]) -> "seqio.Task":
    """Returns a Task of the cached files, with the Task's own steps that follow caching."""
    load_seqio()
    import seqio

    name = f"{self.task_name}:cached_{short_hash({'folder': str(folder), 'split': split})}"
    if name in seqio.TaskRegistry.names():
      seqio.TaskRegistry.remove(name)
    origin = self._origin()
    source: Any = seqio.TFExampleDataSource(
      {split: [str(file) for file in sorted(folder.glob(f"{split}.tfrecord-*"))]},
      feature_description={feature: _parsed_as(mark) for feature, mark in held.items()},
    )
    return seqio.TaskRegistry.add(
      name,
      source=source,
      preprocessors=[_restorer(held), *(steps_after_cache(origin) if origin else ())],
      output_features=origin.output_features if origin else _text_features(held),
    )

  def _origin(self) -> "seqio.Task | None":
    """Returns the Task itself where seqio alone knows it."""
    import seqio

    if self.task_name in features.registered() or self.task_name not in seqio.TaskRegistry.names():
      return None
    return seqio.TaskRegistry.get(self.task_name)


def steps_after_cache(task: "seqio.Task") -> Sequence[Any]:
  """Returns the preprocessors that follow the Task's CacheDatasetPlaceholder; none where it has no preprocessors at all.

  Raises: UserError for a Task with preprocessors and no placeholder: its cache would not say what is left to do.
  """
  import seqio

  steps = list(task.preprocessors)
  places = [i for i, step in enumerate(steps) if isinstance(step, seqio.CacheDatasetPlaceholder)]
  if steps and not places:
    raise UserError(
      f"the Task {task.name!r} has {len(steps)} preprocessors and no seqio.CacheDatasetPlaceholder() among them: put one where "
      "what is cached ends, best as the last one."
    )
  return steps[places[0] + 1 :] if places else ()


def filter_pairs_file(split: str) -> str:
  """Returns the name of the file in a cache that holds the split's (query id, passage id) that are no results."""
  return f"filter_pairs.{split}.jsonl"


def read_filter_pairs(folder: pathlib.Path, split: str) -> Iterator[tuple[str, str]]:
  """Yields the (query id, passage id) of a cached split that are no results; none where no such file is."""
  file = folder / filter_pairs_file(split)
  if file.is_file():
    with open(file, encoding="utf-8", newline="\n") as lines:
      for line in lines:
        query_id, passage_id = json.loads(line)
        yield query_id, passage_id


def _split_of(info: pathlib.Path) -> str:
  return info.name.removeprefix("info.").removesuffix(".json")


def _parsed_as(mark: Mapping[str, Any]) -> Any:
  """Returns how a feature stands in a tf.train.Example: whole numbers as int64, lists of any length by a missing first axis."""
  import tensorflow as tf

  shape = mark["shape"]
  dtype = "int64" if mark["dtype"] in ("int32", "bool") else mark["dtype"]
  if any(size is None for size in shape[1:]):
    raise UserError(
      f"the cache holds a feature of the shape {shape}, rows of several lengths, which no retrieval Task has."
    )
  if shape and shape[0] is None:
    return tf.io.FixedLenSequenceFeature(shape[1:], dtype, allow_missing=True)
  return tf.io.FixedLenFeature(shape, dtype)


def _restorer(held: Mapping[str, Any]) -> Any:
  """Returns the preprocessor that gives features the type they had."""

  def restore(dataset: Any) -> Any:
    import tensorflow as tf

    return dataset.map(lambda row: {name: tf.cast(row[name], held[name]["dtype"]) for name in held})

  return restore


def _text_features(held: Mapping[str, Any]) -> Mapping[str, Any]:
  """Returns the output features of a text task (features.py), as far as the cache holds them."""
  return {
    name: feature
    for name, feature in features.seqio_features().items()
    if name in held and held[name]["dtype"] == feature.dtype.name
  }
