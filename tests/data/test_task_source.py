"""seqio Tasks by name: ours without TensorFlow, a user's own module, and names that do not exist."""

import pathlib
import subprocess
import sys
import textwrap

import pytest

from retrieval_jax.data import features
from retrieval_jax.data.dataset import load
from retrieval_jax.data.task_source import TaskSource
from retrieval_jax.data.text_inputs import TextInputs
from retrieval_jax.errors import UserError

USER_MODULE = """
  import seqio
  import tensorflow as tf
  from retrieval_jax.data import features

  ROWS = {"query_id": ["01", "1"], "inputs": ["red", "blue\\u2028"], "passage_id": ["a", "b"], "targets": ["c", "d"]}

  def dataset(split, shuffle_files):
    return tf.data.Dataset.from_tensor_slices(ROWS)

  def tokens(split, shuffle_files):
    return tf.data.Dataset.from_tensor_slices({**ROWS, "targets": [[1, 2], [3, 4]]})

  def add(name, function, output_features):
    source = seqio.FunctionDataSource(function, splits=("train", "validation"))
    seqio.TaskRegistry.add(name, source=source, preprocessors=(), output_features=output_features)

  add("user_words", dataset, features.seqio_features())
  add("user_tokens", tokens, {})
  add("user_pairs", lambda split, shuffle_files: dataset(split, False).map(lambda e: {"inputs": e["inputs"]}), {})
  seqio.MixtureRegistry.add("user_mixture", [("user_words", 1.0)])
"""


@pytest.fixture(scope="module")
def user_module(tmp_path_factory: pytest.TempPathFactory) -> str:
  """A module as users of seqio write them: it registers at import."""
  folder = tmp_path_factory.mktemp("modules")
  (folder / "user_retrieval_tasks.py").write_text(textwrap.dedent(USER_MODULE))
  sys.path.insert(0, str(folder))
  return "user_retrieval_tasks"


def test_a_users_seqio_task(user_module: str, inputs: TextInputs, tmp_path: pathlib.Path):
  data = load(TaskSource("user_words", module=user_module), inputs, cache=tmp_path)
  assert list(data.queries.ids) == ["01", "1"]
  assert data.queries.texts[1] == "blue\u2028"
  assert data.passages.gather([1]).tolist() == [[2, 7, 3, 0, 0, 0, 0, 0]]
  assert data.num_examples == 2


def test_fingerprint_of_a_users_task(user_module: str):
  first = TaskSource("user_words", module=user_module)
  assert first.fingerprint() == first._replace(split="validation").fingerprint()
  assert first.fingerprint() != first._replace(version="2").fingerprint()
  assert first.fingerprint() != first._replace(task="user_tokens").fingerprint()


@pytest.mark.parametrize(
  "source, message",
  [
    (TaskSource("user_word"), "no seqio Task is called 'user_word'; did you mean 'user_words'"),
    (TaskSource("pydoc"), "no seqio Task is called 'pydoc'; did you mean 'pydocs'"),
    (
      TaskSource("beir_cqadupstack"),
      r"is a group, whose result is the mean over beir_cqadupstack_android, .*EVAL_TASKS=\('beir_cqadupstack',\)",
    ),
    (TaskSource("user_mixture"), "'user_mixture' is a seqio Mixture"),
    (
      TaskSource("user_words", "dev"),
      "user_words has no split 'dev'; its splits of pairs: train, validation",
    ),
    (
      TaskSource("user_pairs"),
      "has the features inputs; a retrieval Task needs inputs and targets",
    ),
    (TaskSource("user_tokens"), "the feature 'targets' holds int32 of 1 axes, and there is neither text in"),
    (
      TaskSource("x", module="mytasks.py"),
      r"'mytasks.py' cannot be .* without \"\.py\": TASK_MODULE = 'mytasks'\.",
    ),
    (TaskSource("x", module="lib/mytasks.py"), r"without \"\.py\": TASK_MODULE = 'lib\.mytasks'\."),
    (TaskSource("x", module="no_such_module"), "'no_such_module' cannot be imported: No module named"),
  ],
)
def test_mistakes(
  source: TaskSource, message: str, user_module: str, inputs: TextInputs, tmp_path: pathlib.Path
):
  source = source if source.module else source._replace(module=user_module)
  with pytest.raises(UserError, match=message):
    load(source, inputs, cache=tmp_path)


def test_a_task_is_the_same_through_seqio():
  def read(split: str):
    yield features.pair(
      "q", "red", "p", "a \ud800", 2, title="t", negatives=["x", ""], negative_ids=["1", "2"]
    )
    yield features.pair("q", "red", "r", "b")

  task = features.TextTask("through_seqio", ("train",), read, lambda: "1")
  features.register(task)
  dataset = features.add_to_seqio(task).get_dataset(None, split="train", shuffle=False)
  first, second = dataset.as_numpy_iterator()
  assert first["targets"] == b"a ?"  # an unpaired surrogate has no UTF-8
  assert first["negative_targets"].tolist() == [b"x", b""]
  assert first["negative_ids"].tolist() == [b"1", b"2"]
  assert (first["title"], first["relevance"]) == (b"t", 2)
  assert (second["title"], second["relevance"], len(second["negative_ids"])) == (b"", 1, 0)


def test_a_readers_error_comes_unchanged_and_also_ends_a_pipeline_of_seqio():
  def read(split: str):
    yield features.pair("q", "red", "p", "green")
    raise UserError("x.tsv:2: 1 columns, expected 2")

  task = features.TextTask("broken_reader", ("train",), read, lambda: "1")
  features.register(task)
  examples = TaskSource("broken_reader").examples("train")
  assert next(examples)["targets"] == "green"
  with pytest.raises(UserError, match=r"^x\.tsv:2: 1 columns, expected 2$"):
    next(examples)
  dataset = features.add_to_seqio(task).get_dataset(None, split="train", shuffle=False)
  with pytest.raises(Exception, match=r"x\.tsv:2: 1 columns, expected 2"):
    list(dataset.as_numpy_iterator())


def test_seqio_users_find_our_tasks():
  import seqio

  from retrieval_jax.data.task_source import import_tasks

  import_tasks()
  features.add_to_seqio(features.registered()["pydocs"])
  assert "pydocs" in seqio.TaskRegistry.names()
  assert "train" in seqio.get_mixture_or_task("pydocs").splits


def test_a_misspelt_task_and_importing_load_no_tensorflow():
  script = """
    import sys
    from retrieval_jax.data import beir, dataset, file_sources, pydocs, seqio_vocabulary, tables, token_store
    from retrieval_jax.data.task_source import TaskSource
    try:
      TaskSource("pydoc").splits()
    except ValueError as error:
      assert "did you mean 'pydocs'" in str(error), error
    else:
      raise AssertionError
    assert "tensorflow" not in sys.modules and "seqio" not in sys.modules
  """
  subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=True)
