"""Writing the examples of a Task to files with Apache Beam, on one machine or many: what CachedTask reads."""

import importlib
import json
import logging
import os
import pkgutil
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from retrieval_jax.data import features
from retrieval_jax.data.cached_task import COMPLETED, filter_pairs_file, steps_after_cache
from retrieval_jax.data.seqio_loading import load_seqio
from retrieval_jax.data.task_source import TaskSource
from retrieval_jax.errors import UserError

if TYPE_CHECKING:
  import seqio

LOG = logging.getLogger(__name__)
TASKS: Final = "retrieval_jax.tasks"


class CacheOptions(NamedTuple):
  """splits: None for all of the Task. num_shards: files a split at least; a source of more files keeps their number.

  overwrite: a cache that is there is deleted first; without it, it is left and the Task is done.
  """

  splits: Sequence[str] | None = None
  num_shards: int = 16
  overwrite: bool = False


def cache_task(
  name: str,
  output_dir: str,
  *,
  module: str | None = None,
  options: CacheOptions = CacheOptions(),  # noqa: B008  (an immutable record)
  beam_arguments: Sequence[str] = (),
) -> Mapping[str, int]:
  """Writes a Task's cache into output_dir/<name> and returns the number of examples by split; nothing if it is there already.

  Each file of the Task's source is read by one worker. A Task of retrieval_jax is one source: one worker reads it, and
  others share in writing; a seqio Task of TFRecords, TFDS or lines of text is read by as many as it has files. The order of
  the examples changes (Beam has none), and is then that of the files. Layout and file names are seqio's own.

  Args:
    output_dir: a folder, or what TensorFlow can write to, such as gs://bucket/folder.
    module: the Python module that registers the Task, importable on every worker.
    beam_arguments: what Beam's pipeline is told, such as --runner=DataflowRunner; by default it runs here.

  Raises: UserError for an unknown Task or split, a Task that cannot be cached, and without Apache Beam.

  Example: `cache_task("beir_scifact", "/data/cached")`.
  """
  beam = _beam()
  task = _task(name, module)
  splits = _splits(task, options.splits)
  if type(options.num_shards) is not int or options.num_shards < 1:
    raise UserError(f"--num_shards={options.num_shards!r}: expected a whole number of at least 1.")
  import tensorflow as tf

  folder = os.path.join(output_dir, *name.split(":"))
  completed = os.path.join(folder, COMPLETED)
  if tf.io.gfile.exists(completed) and not options.overwrite:
    LOG.warning("%s is there already: nothing to do (--overwrite makes it anew)", folder)
    return {}
  if tf.io.gfile.exists(folder):
    tf.io.gfile.rmtree(folder)
  tf.io.gfile.makedirs(folder)
  arguments = list(beam_arguments) or ["--runner=DirectRunner"]
  with beam.Pipeline(options=beam.options.pipeline_options.PipelineOptions(arguments)) as pipeline:
    for split in splits:
      _add_split(pipeline, task, split, folder, module, options.num_shards)
  _write_filter_pairs(name, splits, folder)
  counts = {split: _count(folder, split) for split in splits}
  with tf.io.gfile.GFile(completed, "w") as file:
    file.write("")
  return counts


def _beam() -> Any:
  try:
    import apache_beam
    import apache_beam.options.pipeline_options
  except ImportError as error:
    raise UserError(
      f"Apache Beam is not installed here ({error}). It goes into an environment of its own, because it does not take the "
      "newest protobuf: python -m venv .venv-beam && .venv-beam/bin/pip install -e '.[beam]' (without constraints.txt)."
    ) from error
  return apache_beam


def _task(name: str, module: str | None) -> "seqio.Task":
  """Returns the Task, known to seqio; refuses one whose cache could not be read again."""
  load_seqio()
  source = TaskSource(name, module=module)
  source.splits()  # says what is wrong with the name
  import seqio

  text_task = features.registered().get(name)
  task = features.add_to_seqio(text_task) if text_task else seqio.TaskRegistry.get(name)
  steps_after_cache(task)
  if not task.source.caching_permitted:
    raise UserError(f"the source of the Task {name!r} does not permit caching.")
  return task


def _splits(task: "seqio.Task", wanted: Sequence[str] | None) -> list[str]:
  known = list(task.splits)
  for split in wanted or ():
    if split not in known:
      raise UserError(f"the Task {task.name!r} has no split {split!r}; its splits: {', '.join(known)}.")
  return list(wanted or known)


def _add_split(
  pipeline: Any, task: "seqio.Task", split: str, folder: str, module: str | None, num_shards: int
) -> None:
  """Adds to the pipeline what writes a split's examples, and the two files that describe them."""
  import apache_beam as beam
  import seqio
  from seqio import beam_utils

  read = beam_utils.PreprocessTask(task, split, modules_to_import=_modules(module))
  shards = max(len(read.shards), num_shards)
  examples = pipeline | f"read {split}" >> read | f"spread {split}" >> beam.Reshuffle()
  prefix = seqio.get_cached_tfrecord_prefix(folder, split)
  _ = examples | f"write {split}" >> beam_utils.WriteExampleTfRecord(prefix, num_shards=shards)
  for name, describe, path in (
    ("info", beam_utils.GetInfo(shards), seqio.get_cached_info_path(folder, split)),
    ("stats", beam_utils.GetStats(task.output_features), seqio.get_cached_stats_path(folder, split)),
  ):
    described = examples | f"{name} {split}" >> describe
    _ = described | f"write {name} {split}" >> beam_utils.WriteJson(path)


def _modules(module: str | None) -> list[str]:
  """Returns what a worker imports before it looks for a Task: the modules that register the shipped Tasks, and the user's."""
  shipped = importlib.import_module(TASKS)
  names = [f"{TASKS}.{found.name}" for found in pkgutil.iter_modules(shipped.__path__)]
  return names + ([module] if module else [])


def _write_filter_pairs(name: str, splits: Sequence[str], folder: str) -> None:
  import tensorflow as tf

  text_task = features.registered().get(name)
  if text_task is None or text_task.filter_pairs is None:
    return
  for split in splits:
    with tf.io.gfile.GFile(os.path.join(folder, filter_pairs_file(split)), "w") as file:
      for pair in text_task.filter_pairs_of(split):
        file.write(json.dumps(pair) + "\n")


def _count(folder: str, split: str) -> int:
  import seqio
  import tensorflow as tf

  with tf.io.gfile.GFile(seqio.get_cached_stats_path(folder, split)) as file:
    return int(json.loads(file.read() or "{}").get("examples", 0))
