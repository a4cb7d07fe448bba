"""Several tasks as one RetrievalData: rows, rates, switches; registered and seqio mixtures; what cannot be mixed."""

import pathlib
import sys
import textwrap

import numpy as np
import pytest
from toy_source import ListSource

from retrieval_jax.data import features, mixture
from retrieval_jax.data.dataset import load as load_task
from retrieval_jax.data.dataset import make_batch
from retrieval_jax.data.mixing_rates import ByCount
from retrieval_jax.data.mixture import MixtureSource
from retrieval_jax.data.task_source import TaskSource, import_tasks
from retrieval_jax.data.text_inputs import TextInputs
from retrieval_jax.errors import UserError

COLOURS = ListSource(
  {
    "train": [
      features.pair("q1", "red", "p1", "a red", negatives=["d d", "e e"]),
      features.pair("q2", "green", "p2", "a green"),
      features.pair("q2", "green", "p3", "green ?"),
      features.pair("q0", "blue ?", "p4", "c", relevance=0),  # no example: nothing answers it
    ]
  },
  name="colours",
)
LETTERS = ListSource(
  {"train": [features.pair(f"q{i}", f"{c} ?", f"p{i}", f"{c} b") for i, c in enumerate("abc")]},
  name="letters",
)
BOTH = MixtureSource({"letters": 1.0, "colours": 3.0}, sources={"letters": LETTERS, "colours": COLOURS})


@pytest.fixture
def data(inputs: TextInputs, tmp_path: pathlib.Path):
  return mixture.load(BOTH, inputs, cache=tmp_path)


def test_rows_of_one_task_follow_those_of_the_other(data):
  assert (data.name, data.split, data.num_examples) == ("colours+letters", "train", 5)
  assert [(task.name, task.num_examples, task.rate) for task in data.tasks] == [
    ("colours", 2, 3.0),
    ("letters", 3, 1.0),
  ]
  assert list(data.queries.ids) == ["q1", "q2", "q0", "q0", "q1", "q2"]
  assert data.queries.texts[-1] == "c ?"
  assert data.examples.tolist() == [0, 1, 3, 4, 5]
  assert data.passages.num_rows == 6 + 3
  assert data.passages.texts[6] == "a b"
  assert data.relevance.width == 2
  assert data.negatives.row(0).tolist() == [1, 2]
  assert data.negatives.counts.tolist() == [2, 0, 0, 0, 0, 0]


def test_a_batch_is_that_of_each_task_with_rows_of_its_own(data, inputs: TextInputs, tmp_path: pathlib.Path):
  colours, letters = (load_task(source, inputs, cache=tmp_path) for source in (COLOURS, LETTERS))
  batch = make_batch(data, np.array([4, 0, -1, 1, 2]), seed=1, epoch=2, hard_negatives=1)
  of_colours = make_batch(colours, np.array([0, 1]), seed=1, epoch=2, hard_negatives=1)
  of_letters = make_batch(letters, np.array([2, 0]), seed=1, epoch=2)
  assert batch.query_rows.tolist() == [5, 0, -1, 1, 3]
  assert batch.query_tokens[[1, 3]].tolist() == of_colours.query_tokens.tolist()
  assert batch.query_tokens[[0, 4]].tolist() == of_letters.query_tokens.tolist()
  assert batch.passage_rows[[1, 3, 6]].tolist() == of_colours.passage_rows[[0, 1, 2]].tolist()
  assert batch.passage_rows[[0, 4]].tolist() == (of_letters.passage_rows + 6).tolist()
  assert batch.positives.tolist() == [[8, -1], [0, -1], [-1, -1], [3, 4], [6, -1]]
  assert batch.passage_tokens[[0, 4]].tolist() == of_letters.passage_tokens.tolist()
  assert batch.in_batch is None


def test_each_example_has_an_epoch_of_its_own(inputs: TextInputs, tmp_path: pathlib.Path):
  pairs = [features.pair(f"q{q}", f"red {q}", f"p{p}", "abcd"[p]) for q in range(20) for p in range(4)]
  data = load_task(ListSource({"train": pairs}), inputs, cache=tmp_path)
  everything, epochs = np.arange(20), np.arange(20) % 3
  mixed = make_batch(data, everything, seed=3, epoch=epochs).passage_rows
  whole = [make_batch(data, everything, seed=3, epoch=k).passage_rows for k in range(3)]
  assert mixed.tolist() == [whole[epoch][i] for i, epoch in enumerate(epochs)]


def test_tasks_of_one_corpus_share_its_rows(inputs: TextInputs, tmp_path: pathlib.Path):
  splits = {
    "corpus": [features.passage("p1", "a"), features.passage("p2", "b")],
    "train": [features.pair("q1", "red", "p1", "")],
    "dev": [features.pair("q2", "blue", "p1", "")],
  }
  sources = {split: ListSource(splits, split) for split in ("train", "dev")}
  data = mixture.load(MixtureSource(["train", "dev"], sources=sources), inputs, cache=tmp_path)
  assert data.passages.num_rows == 2
  batch = make_batch(data, np.array([0, 1]), seed=0, epoch=0)
  assert batch.query_rows.tolist() == [0, 1]
  assert batch.passage_rows.tolist() == [0, 0]  # so that neither is the other's negative


def test_rates_by_number_of_examples():
  assert ByCount().rate(7) == 7
  assert ByCount(temperature=2.0).rate(49) == 7
  assert ByCount(temperature=2.0, limit=16).rate(49) == 4
  for by_count in (ByCount(temperature=0.0), ByCount(limit=0)):
    with pytest.raises(UserError, match="above 0"):
      by_count.rate(1)


@pytest.mark.parametrize(
  "of_counts, message",
  [
    ({"temperature": 0}, r"MIXTURE_TEMPERATURE=0: expected a number above 0"),
    ({"temperature": -1.0}, r"MIXTURE_TEMPERATURE=-1\.0: expected a number above 0"),
    ({"temperature": "2"}, r"MIXTURE_TEMPERATURE='2': expected a number above 0"),
    ({"limit": -1}, r"MIXTURE_LIMIT=-1: expected a number of examples above 0, or None"),
    ({"limit": "9"}, r"MIXTURE_LIMIT='9': expected a number of examples above 0, or None"),
  ],
)
def test_temperature_and_limit_are_checked_with_given_rates_too(
  of_counts, message, inputs: TextInputs, tmp_path: pathlib.Path
):
  with pytest.raises(UserError, match=message):
    mixture.load(BOTH._replace(**of_counts), inputs, cache=tmp_path)


def test_rates_given_and_by_count(inputs: TextInputs, tmp_path: pathlib.Path):
  some = BOTH._replace(tasks={"letters": None, "colours": 9.0}, temperature=0.5)
  data = mixture.load(some, inputs, cache=tmp_path)
  assert [task.rate for task in data.tasks] == [9.0, 3.0**2]
  data = mixture.load(BOTH._replace(tasks=["letters", "colours"]), inputs, cache=tmp_path)
  assert [task.rate for task in data.tasks] == [2.0, 3.0]


def test_the_fingerprint_tells_other_rates(data, inputs: TextInputs, tmp_path: pathlib.Path):
  other = mixture.load(BOTH._replace(tasks={"letters": 1.0, "colours": 2.0}), inputs, cache=tmp_path)
  assert other.fingerprint != data.fingerprint
  turned = BOTH._replace(tasks={"colours": 3.0, "letters": 1.0})
  assert mixture.load(turned, inputs, cache=tmp_path).fingerprint == data.fingerprint


def test_a_task_without_in_batch_negatives(inputs: TextInputs, tmp_path: pathlib.Path):
  switched = BOTH._replace(in_batch_negatives={"colours": False})
  data = mixture.load(switched, inputs, cache=tmp_path)
  batch = make_batch(data, np.array([1, 2, -1, 4, 0]), seed=0, epoch=0)
  assert batch.in_batch.tolist() == [False, True, True, True, False]
  with pytest.raises(
    UserError, match=r"TASK_IN_BATCH_NEGATIVES of letters is False.*the task has none.*TASK_HARD_NEG"
  ):
    mixture.load(BOTH._replace(in_batch_negatives={"letters": False}), inputs, cache=tmp_path)


def test_teacher_scores_of_one_task(inputs: TextInputs, tmp_path: pathlib.Path):
  file = tmp_path / "scores.tsv"
  file.write_text("q1\tp0\t2.5\nq1\tp1\t1.5\n")  # the ids of letters; colours has a q1 and a p1 too
  data = mixture.load(BOTH._replace(teacher_scores={"letters": str(file)}), inputs, cache=tmp_path)
  batch = make_batch(data, np.array([0, 2, 3]), seed=0, epoch=0)
  none = -np.inf
  assert batch.teacher_scores.tolist() == [[none] * 3, [none] * 3, [none, 2.5, 1.5]]
  with pytest.raises(
    UserError,
    match=r"TEACHER_SCORES_PATH='s\.tsv' with the mixture colours\+letters.* TASK_TEACHER_SCORES = {",
  ):
    mixture.load(BOTH, inputs, teacher_scores="s.tsv", cache=tmp_path)


def test_one_task_is_loaded_as_it_is(inputs: TextInputs, tmp_path: pathlib.Path):
  assert mixture.load(LETTERS, inputs, cache=tmp_path).tasks == ()
  alone = mixture.load(
    BOTH._replace(tasks={"letters": 1.0}, sources={"letters": LETTERS}), inputs, cache=tmp_path
  )
  assert alone.num_examples == 3


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch):
  """What a test registers is forgotten after it."""
  import_tasks()
  monkeypatch.setattr(features, "_TASKS", features.registered())
  monkeypatch.setattr(features, "_MIXTURES", features.registered_mixtures())


def _register(name, count):
  pairs = [features.pair(f"q{i}", f"red {i}", f"p{i}", f"blue {i}") for i in range(count)]
  task = features.TextTask(name, ("train",), lambda split: iter(pairs), lambda: "1")
  features.register(task)


def test_a_registered_mixture(registry, inputs: TextInputs, tmp_path: pathlib.Path):
  _register("mixed_a", 4)
  _register("mixed_b", 2)
  features.register_mixture("mixed", {"mixed_a": 2.0, "mixed_b": None})
  for source in (MixtureSource("mixed"), TaskSource("mixed")):
    data = mixture.load(source, inputs, cache=tmp_path)
    assert (data.name, data.num_examples) == ("mixed", 6)
    assert [task.rate for task in data.tasks] == [2.0, 2.0]
  with pytest.raises(UserError, match=r"'mixed' is a mixture.*here one Task is wanted.*mixed_a, mixed_b"):
    load_task(TaskSource("mixed"), inputs, cache=tmp_path)
  with pytest.raises(UserError, match=r"the mixture 'other' names 'mixed_c'; expected.*registered before"):
    features.register_mixture("other", {"mixed_a": 1.0, "mixed_c": 1.0})


def test_a_misspelt_mixture(registry, inputs: TextInputs, tmp_path: pathlib.Path):
  _register("mixed_a", 4)
  features.register_mixture("my_mix", {"mixed_a": 2.0})
  with pytest.raises(UserError, match=r"no mixture is called 'my_mxi'; did you mean 'my_mix'\? Set TASKS"):
    mixture.load(MixtureSource("my_mxi"), inputs, cache=tmp_path)


def test_seqio_learns_of_a_mixture(registry):
  _register("mixed_a", 4)
  _register("mixed_b", 2)
  features.register_mixture("mixed", {"mixed_a": 3.0, "mixed_b": None})
  import seqio

  found = features.add_mixture_to_seqio("mixed")
  assert seqio.MixtureRegistry.get("mixed") is found
  assert found.get_rate(seqio.TaskRegistry.get("mixed_a")) == 3.0
  assert found.get_rate(seqio.TaskRegistry.get("mixed_b")) == 2.0


USER_MODULE = """
  import functools
  import seqio
  import tensorflow as tf
  from retrieval_jax.data import features

  def add(name, rows):
    def dataset(split, shuffle_files):
      texts = {"query_id": rows, "inputs": rows, "passage_id": rows, "targets": rows}
      return tf.data.Dataset.from_tensor_slices(texts)
    source = seqio.FunctionDataSource(dataset, splits=("train",))
    seqio.TaskRegistry.add(name, source=source, preprocessors=(), output_features=features.seqio_features())

  add("theirs_a", ["red", "blue", "a", "b"])
  add("theirs_b", ["c"])
  add("theirs_c", ["d", "e"])
  by_count = functools.partial(seqio.mixing_rate_num_examples, temperature=2.0)
  seqio.MixtureRegistry.add("theirs_inner", [("theirs_b", 1.0), ("theirs_c", 3.0)])
  seqio.MixtureRegistry.add("theirs", [("theirs_a", by_count), ("theirs_inner", 8.0)])
  seqio.MixtureRegistry.add("unknowable", [("theirs_a", lambda task: task.reader.count)])
"""


@pytest.fixture(scope="module")
def user_module(tmp_path_factory: pytest.TempPathFactory) -> str:
  folder = tmp_path_factory.mktemp("modules")
  (folder / "user_mixtures.py").write_text(textwrap.dedent(USER_MODULE))
  sys.path.insert(0, str(folder))
  return "user_mixtures"


def test_a_seqio_mixture_with_a_mixture_in_it(user_module, inputs: TextInputs, tmp_path: pathlib.Path):
  data = mixture.load(MixtureSource("theirs", module=user_module), inputs, cache=tmp_path)
  assert [(task.name, task.num_examples, task.rate) for task in data.tasks] == [
    ("theirs_a", 4, 2.0),
    ("theirs_b", 1, 8.0 * 1 / 4),
    ("theirs_c", 2, 8.0 * 3 / 4),
  ]


def test_a_rate_that_cannot_be_told_before_training(user_module, inputs: TextInputs, tmp_path: pathlib.Path):
  with pytest.raises(
    UserError, match=r"'unknowable': its rate of 'theirs_a'.*cannot be told before training"
  ):
    mixture.load(MixtureSource("unknowable", module=user_module), inputs, cache=tmp_path)


@pytest.mark.parametrize(
  "source, message",
  [
    (MixtureSource("no_such"), "no mixture is called 'no_such'"),
    (BOTH._replace(tasks={}), "a mixture of no tasks"),
    (MixtureSource("no_such"), "TASK_MODULE = 'my_package.my_tasks'"),
    (BOTH._replace(tasks=5), r"TASKS=5: expected \{'a': 1\.0, 'b': 3\.0\}"),
    (BOTH._replace(tasks=None), r"TASKS=None: expected \{'a': 1\.0, 'b': 3\.0\}"),
    (BOTH._replace(tasks=["letters", 5]), r"TASKS=\['letters', 5\]: expected \{"),
    (
      BOTH._replace(sources=None),
      r"TASK_SOURCES=None: expected a dict .*\{'a': @a/file_sources\.TsvPairs\(\)\}",
    ),
    (
      BOTH._replace(sources={"letters": "train.tsv"}),
      r"TASK_SOURCES of letters is 'train\.tsv'; expected .*\{'a': @a/file_sources\.TsvPairs\(\)\} in a gin file",
    ),
    (BOTH._replace(sources={"letters": ListSource}), r"TASK_SOURCES of letters is <class.*; expected "),
    (
      BOTH._replace(in_batch_negatives=False),
      r"TASK_IN_BATCH_NEGATIVES=False: expected a dict .*\{'a': False\}",
    ),
    (
      BOTH._replace(in_batch_negatives={"letters": "no"}),
      r"TASK_IN_BATCH_NEGATIVES of letters is 'no'; expected",
    ),
    (
      BOTH._replace(hard_negatives="mt.tsv"),
      r"TASK_HARD_NEGATIVES='mt\.tsv': expected a dict .*\{'a': 'negatives\.tsv'\}",
    ),
    (
      BOTH._replace(teacher_scores={"letters": 5}),
      r"TASK_TEACHER_SCORES of letters is 5; expected .*\{'a': 'scores\.tsv'\}",
    ),
    (
      BOTH._replace(tasks={"letters": 1.0}),
      "TASK_SOURCES names 'colours', which is no task of the mixture: letters",
    ),
    (
      BOTH._replace(in_batch_negatives={"leters": True}),
      "names 'leters', which is no task .*; did you mean 'letters'.$",
    ),
    (
      BOTH._replace(tasks={"letters": -1.0, "colours": 1.0}),
      r"the rate of letters is -1\.0; expected a number",
    ),
    (BOTH._replace(tasks={"letters": "1", "colours": 1.0}), "the rate of letters is '1'; expected a number"),
    (MixtureSource({"pydoc": 1.0}), "no seqio Task is called 'pydoc'; did you mean 'pydocs'"),
    (
      MixtureSource(["one", "two"], sources={"one": LETTERS, "two": LETTERS}),
      "has the same queries twice: one, two",
    ),
  ],
)
def test_what_cannot_be_mixed(source, message, inputs: TextInputs, tmp_path: pathlib.Path):
  with pytest.raises(UserError, match=message):
    mixture.load(source, inputs, cache=tmp_path)


def test_joined_stores(data, inputs: TextInputs, tmp_path: pathlib.Path):
  letters = load_task(LETTERS, inputs, cache=tmp_path)
  store = data.passages
  assert store.gather([6, -1, 0]).tolist()[0] == letters.passages.gather([0]).tolist()[0]
  assert not store.gather([-1]).any()
  assert store.lengths.tolist()[6:] == letters.passages.lengths.tolist()
  assert store.identity.tolist() == list(range(9))
  assert not store.empty.any()
  with pytest.raises(IndexError, match=r"rows 9\.\.9"):
    store.gather([9])
  assert store.row_of("p4") == 5
  with pytest.raises(UserError, match="2 of the joined tasks have the id 'p1'"):
    store.row_of("p1")
  assert list(store.ids[-4:]) == ["p4", "p0", "p1", "p2"]
