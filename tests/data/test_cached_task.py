"""Caches of Tasks: read without Beam, written with it where it is installed; the same examples come back."""

import importlib
import importlib.util
import json
import pathlib
import subprocess
import sys

import pytest

from retrieval_jax.data.cached_task import CachedTask
from retrieval_jax.data.dataset import load
from retrieval_jax.data.seqio_loading import load_seqio
from retrieval_jax.data.task_cache import CacheOptions, cache_task
from retrieval_jax.data.task_source import TaskSource
from retrieval_jax.errors import UserError

ROOT = pathlib.Path(__file__).parents[2]
needs_beam = pytest.mark.skipif(
  importlib.util.find_spec("apache_beam") is None,
  reason="Apache Beam is not installed: pip install -e '.[beam]' in an environment without constraints.txt",
)

# A module as users write it: a Task of a JSON-lines file, and one that seqio reads line by line from several files.
MODULE = """
import json, pathlib
import seqio
import tensorflow as tf
from retrieval_jax.data import features
from retrieval_jax.data.file_sources import JsonlPairs

HERE = pathlib.Path(__file__).parent
pairs = JsonlPairs(str(HERE / "train.jsonl"), corpus=str(HERE / "corpus.jsonl")).task()
features.register(
  pairs._replace(
    name="cached_pairs",
    info=features.TaskInfo(metrics=("p@1",)),
    filter_pairs=lambda split: iter([("q1", "p1")] if split == "train" else []),
  )
)

def parse(lines):
  def one(line):
    query, passage = tf.unstack(tf.strings.split(line, "\\t"), num=2)
    return {"inputs": query, "targets": passage}
  return lines.map(one)

def shout(rows):
  return rows.map(lambda row: {**row, "targets": tf.strings.upper(row["targets"])})

TEXT = seqio.Feature(seqio.PassThroughVocabulary(size=0), add_eos=False, dtype=tf.string, rank=0)
OUTPUT = {"inputs": TEXT, "targets": TEXT}
seqio.TaskRegistry.add(
  "cached_lines",
  source=seqio.TextLineDataSource({"train": str(HERE / "lines-*.tsv")}),
  preprocessors=[parse, seqio.CacheDatasetPlaceholder(), shout],
  output_features=OUTPUT,
)
seqio.TaskRegistry.add(
  "uncachable_lines",
  source=seqio.TextLineDataSource({"train": str(HERE / "lines-*.tsv")}),
  preprocessors=[parse],
  output_features=OUTPUT,
)
"""
PAIRS = [
  {
    "query_id": "q1",
    "query": "red ?",
    "passage_id": "p1",
    "passage": "a red\u2028a",
    "negative": ["d", "c"],
    "negative_id": ["p9", "01"],
  },
  {"query_id": "q1", "query": "red ?", "passage_id": "p2", "passage": "b", "title": "b red"},
  {"query_id": "q2", "query": "blue ?", "passage_id": "01", "passage": "c", "relevance": 0},
]
CORPUS = [
  *({"id": pair["passage_id"], "text": pair["passage"], "title": pair.get("title", "")} for pair in PAIRS),
  {"id": "p9", "text": "d"},
]


@pytest.fixture(scope="module")
def module(tmp_path_factory) -> str:
  """Returns the name of a module that can be imported here, and whose Tasks are registered."""
  folder = tmp_path_factory.mktemp("tasks")
  for name, rows in (("train.jsonl", PAIRS), ("corpus.jsonl", CORPUS)):
    (folder / name).write_text("".join(f"{json.dumps(row)}\n" for row in rows))
  for number in range(3):
    (folder / f"lines-{number}.tsv").write_text(f"query {number}\tpassage {number}\n")
  (folder / "cached_task_module.py").write_text(MODULE)
  sys.path.insert(0, str(folder))
  load_seqio()
  importlib.import_module("cached_task_module")
  return "cached_task_module"


def write(folder: pathlib.Path, task: str, split: str, rows, held) -> None:
  """Writes a cache by hand, in two files, as seqio lays it out."""
  import seqio
  import tensorflow as tf

  folder = folder / task
  folder.mkdir(parents=True, exist_ok=True)
  for number in range(2):
    with tf.io.TFRecordWriter(str(folder / f"{split}.tfrecord-0000{number}-of-00002")) as file:
      for row in rows[number::2]:
        file.write(seqio.utils.dict_to_tfexample(row).SerializeToString())
  info = {"num_shards": 2, "features": held, "seqio_version": "0.0.20"}
  (folder / f"info.{split}.json").write_text(json.dumps(info))
  (folder / "COMPLETED").touch()


STRING, STRINGS = {"shape": [], "dtype": "string"}, {"shape": [None], "dtype": "string"}


def test_a_cache_of_text_is_read_without_beam_and_without_the_module(tmp_path):
  load_seqio()
  import tensorflow as tf

  row = {
    "query_id": b"q",
    "inputs": "r\u2028?".encode(),
    "passage_id": b"01",
    "targets": b"a",
    "relevance": 0,
  }
  other = {**row, "passage_id": b"1", "relevance": 2}
  lists = [{"negative_targets": tf.constant(texts, tf.string)} for texts in ([b"x", b"y"], [])]
  held = dict.fromkeys(("query_id", "inputs", "passage_id", "targets"), STRING)
  held |= {"relevance": {"shape": [], "dtype": "int32"}, "negative_targets": STRINGS}
  write(tmp_path, "by_hand", "train", [{**row, **lists[0]}, {**other, **lists[1]}], held)
  source = CachedTask("by_hand", str(tmp_path))
  first, second = source.examples("train")
  assert first == {
    **{"query_id": "q", "inputs": "r\u2028?", "passage_id": "01", "targets": "a", "relevance": 0},
    "negative_targets": ["x", "y"],
  }
  assert (second["passage_id"], second["relevance"], second["negative_targets"]) == ("1", 2, [])
  assert (source.name, source.splits()) == ("by_hand", ["train"])


def test_a_task_s_steps_after_caching_are_done_at_reading(tmp_path, module):
  held = {"inputs": STRING, "targets": STRING}
  write(tmp_path, "cached_lines", "train", [{"inputs": b"q", "targets": b"loud"}], held)
  [example] = CachedTask("cached_lines", str(tmp_path), module=module).examples("train")
  assert example["targets"] == "LOUD"


def test_other_files_are_other_data(tmp_path):
  load_seqio()
  write(tmp_path, "by_hand", "train", [{"targets": b"a"}], {"targets": STRING})
  before = CachedTask("by_hand", str(tmp_path)).fingerprint()
  assert CachedTask("by_hand", str(tmp_path)).fingerprint() == before
  write(tmp_path, "by_hand", "train", [{"targets": b"abc"}], {"targets": STRING})
  assert CachedTask("by_hand", str(tmp_path)).fingerprint() != before


def test_a_cache_that_is_not_there_or_not_finished_is_refused(tmp_path):
  load_seqio()
  write(tmp_path, "by_hand", "train", [{"targets": b"a"}], {"targets": STRING})
  with pytest.raises(UserError, match="no cache of the Task 'by_hands'; there are by_hand"):
    CachedTask("by_hands", str(tmp_path)).splits()
  (tmp_path / "by_hand" / "COMPLETED").unlink()
  with pytest.raises(UserError, match="the caching of by_hand did not end"):
    CachedTask("by_hand", str(tmp_path)).splits()


def test_without_beam_the_message_says_where_it_goes(tmp_path):
  if importlib.util.find_spec("apache_beam") is not None:
    pytest.skip("Apache Beam is installed")
  with pytest.raises(UserError, match=r"pip install -e '\.\[beam\]'"):
    cache_task("pydocs", str(tmp_path))


def rows(source, split: str) -> list[str]:
  """Returns the examples in an order of their own; what says nothing left out."""
  return sorted(
    json.dumps({name: value for name, value in example.items() if value not in ("", [])}, sort_keys=True)
    for example in source.examples(split)
  )


@needs_beam
def test_the_examples_of_a_file_come_back(tmp_path, module, inputs):
  options = CacheOptions(num_shards=2)
  assert cache_task("cached_pairs", str(tmp_path), module=module, options=options) == {
    "train": 3,
    "corpus": 4,
  }
  cached, own = CachedTask("cached_pairs", str(tmp_path), module=module), TaskSource("cached_pairs")
  for split in ("train", "corpus"):
    assert rows(cached, split) == rows(own, split)
  assert cached.info.metrics == ("p@1",)
  assert list(cached.filter_pairs("train")) == [("q1", "p1")]
  data, expected = (
    load(source, inputs, cache=tmp_path / source.__class__.__name__) for source in (cached, own)
  )
  assert (data.num_examples, data.passages.num_rows) == (expected.num_examples, expected.passages.num_rows)


@needs_beam
def test_a_task_of_seqio_is_cached_by_file_and_a_cache_is_not_made_twice(tmp_path, module):
  assert cache_task("cached_lines", str(tmp_path), module=module, options=CacheOptions(num_shards=1)) == {
    "train": 3
  }
  files = sorted(file.name for file in (tmp_path / "cached_lines").glob("*.tfrecord-*"))
  assert files == [f"train.tfrecord-0000{i}-of-00003" for i in range(3)]
  cached = CachedTask("cached_lines", str(tmp_path), module=module)
  assert rows(cached, "train") == rows(TaskSource("cached_lines", module=module), "train")
  assert cache_task("cached_lines", str(tmp_path), module=module) == {}
  (tmp_path / "cached_lines" / "COMPLETED").unlink()  # as a run that was killed leaves it
  assert cache_task("cached_lines", str(tmp_path), module=module) == {"train": 3}
  assert rows(cached, "train") == rows(TaskSource("cached_lines", module=module), "train")


@needs_beam
def test_what_cannot_be_cached_is_refused(tmp_path, module):
  with pytest.raises(UserError, match=r"1 preprocessors and no seqio\.CacheDatasetPlaceholder"):
    cache_task("uncachable_lines", str(tmp_path), module=module)
  with pytest.raises(UserError, match="has no split 'dev'; its splits: train"):
    cache_task("cached_lines", str(tmp_path), module=module, options=CacheOptions(splits=["dev"]))
  with pytest.raises(UserError, match="no seqio Task is called 'cached_line'"):
    cache_task("cached_line", str(tmp_path), module=module)
  assert not list(tmp_path.iterdir())


@needs_beam
def test_the_script_hands_what_follows_two_dashes_to_beam(tmp_path, module):
  folder = str(pathlib.Path(sys.modules[module].__file__ or "").parent)
  command = [
    *(sys.executable, ROOT / "scripts" / "cache_tasks.py", "--task=cached_lines", f"--module={module}"),
    *(f"--output_dir={tmp_path}", "--num_shards=1", "--"),
    *("--runner=DirectRunner", "--direct_num_workers=2", "--direct_running_mode=multi_threading"),
  ]
  done = subprocess.run(
    command,
    env={"PYTHONPATH": f"{folder}:{ROOT}", "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
    capture_output=True,
    text=True,
    timeout=500,
    check=False,
  )
  assert done.returncode == 0, done.stderr[-2000:]
  assert "cached_lines, train: 3 examples are cached" in done.stdout
