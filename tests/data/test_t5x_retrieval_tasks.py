"""Tasks as T5X Retrieval has them, made with seqio's own preprocessors on T5's vocabulary: text out of tokens."""

import functools
import logging
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from retrieval_jax.data import features
from retrieval_jax.data.dataset import load, make_batch
from retrieval_jax.data.seqio_loading import load_seqio
from retrieval_jax.data.task_source import TaskSource
from retrieval_jax.data.text_inputs import TextInputs
from retrieval_jax.data.text_table import text_id
from retrieval_jax.data.vocabularies import SentencePiece
from retrieval_jax.errors import UserError

ROWS = {
  "query": ["what is red ?", "what is blue ?", "what is red ?"],
  "passage": ["red is a colour", "blue  is\u2028one too", "a b c"],
  "negatives": [["green is a plant", "e"], ["d", ""], ["", ""]],
  "one": ["green is a plant", "d", "e"],
  "label": [1, 0, 1],
}
Add = Callable[..., TaskSource]


@pytest.fixture
def add(data_dir: pathlib.Path) -> Iterator[Add]:
  """Registers a Task with T5's vocabulary: the columns of ROWS that its features are, preprocessors, ranks of features."""
  load_seqio()
  import seqio
  import tensorflow as tf

  vocabulary = seqio.SentencePieceVocabulary(str(data_dir / "vocab/t5_spiece.model"))
  added = []

  def task(
    name: str, columns: dict[str, str], *steps: Any, rank: int = 1, splits=("train", "validation")
  ) -> TaskSource:
    def dataset(split: str, shuffle_files: bool, seed: int | None = None) -> Any:
      del split, shuffle_files, seed
      return tf.data.Dataset.from_tensor_slices(ROWS)

    def rekey(rows: Any) -> Any:
      return rows.map(lambda row: {ours: row[theirs] for ours, theirs in columns.items()})

    ranks = {"negative_targets": rank}
    seqio.TaskRegistry.add(
      name,
      source=seqio.FunctionDataSource(dataset, splits=splits),
      preprocessors=[rekey, *steps],
      output_features={
        key: seqio.Feature(vocabulary, add_eos=True, required=False, rank=ranks.get(key, 1))
        for key in columns
        if key in ("inputs", "targets", "negative_targets")
      },
    )
    added.append(name)
    return TaskSource(name)

  yield task
  for name in added:
    seqio.TaskRegistry.remove(name)


def steps(*, keep_text: bool) -> list[Any]:
  """Returns the preprocessors that T5X Retrieval's Tasks have."""
  import seqio

  return [
    functools.partial(seqio.preprocessors.tokenize, copy_pretokenized=keep_text),
    seqio.CacheDatasetPlaceholder(),
    seqio.preprocessors.append_eos_after_trim,
  ]


PAIR = {"inputs": "query", "targets": "passage"}


def test_pairs_of_tokens_with_their_text(add: Add, inputs: TextInputs, tmp_path: pathlib.Path):
  source = add("t5x_pairs", {**PAIR, "label": "label"}, *steps(keep_text=True))
  first, second, _ = source.examples("train")
  assert first == {
    "query_id": text_id("what is red ?"),
    "inputs": "what is red ?",
    "passage_id": text_id("red is a colour"),
    "targets": "red is a colour",
  }
  assert second["targets"] == "blue  is\u2028one too"  # the very text
  data = load(source, inputs, cache=tmp_path)
  assert list(data.queries.texts) == ["what is red ?", "what is blue ?"]  # equal texts are one query
  assert data.relevance.positives(np.array([0])).tolist() == [[0, 2]]
  assert load(source._replace(split="validation"), inputs, cache=tmp_path).num_examples == 2


def test_lengths_include_the_end_token_whatever_the_tasks_tokens_were(
  add: Add, data_dir: pathlib.Path, tmp_path: pathlib.Path
):
  vocabulary = SentencePiece(str(data_dir / "vocab/t5_spiece.model"))
  source = add("t5x_lengths", PAIR, *steps(keep_text=True))
  data = load(source, TextInputs(vocabulary, query_length=4, passage_length=16), cache=tmp_path)
  row = vocabulary.encode(["what is red ?"], length=16)[0].tolist()
  assert row[5:] == [1] + [0] * 10  # 5 tokens and the end token
  assert data.queries.gather([0]).tolist() == [[*row[:3], 1]]  # cut to 3 and the end token
  assert data.passages.gather([0])[0].tolist().count(1) == 1  # not the Task's end token and then ours


def test_pairs_of_tokens_alone(add: Add, caplog: pytest.LogCaptureFixture):
  source = add("t5x_tokens", PAIR, *steps(keep_text=False))
  first, second, _ = source.examples("train")
  assert (first["inputs"], first["targets"]) == ("what is red ?", "red is a colour")
  assert second["targets"] == "blue is one too"  # one blank for two, and for U+2028
  assert caplog.text.count("is read back from its tokens") == 2  # a feature, not an example


@pytest.mark.parametrize("keep_text", [True, False])
def test_lists_of_negatives(add: Add, inputs: TextInputs, tmp_path: pathlib.Path, keep_text: bool):
  import seqio

  tokenise, _, _ = steps(keep_text=keep_text)
  columns = {**PAIR, "negative_targets": "negatives"}
  source = add(f"t5x_lists_{keep_text}", columns, tokenise, seqio.preprocessors.append_eos, rank=2)
  assert [example.get("negative_targets") for example in source.examples("train")] == [
    ["green is a plant", "e"],
    ["d"],
    [],
  ]
  data = load(source, inputs, cache=tmp_path)
  batch = make_batch(data, np.array([0, 1]), seed=0, epoch=0, hard_negatives=2)
  hard = [
    sorted(data.passages.texts[int(row)] for row in rows if row >= 0)
    for rows in batch.passage_rows[2:].reshape(2, 2)
  ]
  assert hard == [["e", "green is a plant"], ["d"]]


@pytest.mark.parametrize("keep_text", [True, False])
def test_one_negative(add: Add, keep_text: bool):
  source = add(f"t5x_one_{keep_text}", {**PAIR, "negative_targets": "one"}, *steps(keep_text=keep_text))
  assert [example["negative_targets"] for example in source.examples("train")] == [
    ["green is a plant"],
    ["d"],
    ["e"],
  ]


def test_text_without_tokens(add: Add):
  import seqio

  source = add("t5x_text", {**PAIR, "negative_targets": "negatives"})
  with pytest.raises(UserError, match=r"'t5x_text', split 'train': seqio refuses it .*incorrect type"):
    next(source.examples("train"))  # seqio wants what the Task declares
  task = seqio.TaskRegistry.get("t5x_text")
  task._output_features = {}
  first = next(source.examples("train"))
  assert (first["inputs"], first["negative_targets"]) == ("what is red ?", ["green is a plant", "e"])


def test_padding_behind_tokens(add: Add):
  def pad(rows: Any) -> Any:
    import tensorflow as tf

    return rows.map(lambda row: {name: tf.concat([ids, [0, 0, 0]], 0) for name, ids in row.items()})

  source = add("t5x_padded", PAIR, *steps(keep_text=False), pad)
  assert next(source.examples("train"))["inputs"] == "what is red ?"


@pytest.mark.parametrize(
  "columns, message",
  [
    (
      {"inputs": "query"},
      "has the features inputs; a retrieval Task needs inputs and targets, as text or as tokens",
    ),
    ({"targets": "passage"}, "has the features targets; a retrieval Task needs inputs and targets"),
    (
      {**PAIR, "targets": "label"},
      "'targets' holds int32 of 0 axes, and there is neither text in 'targets_pretokenized'",
    ),
    ({**PAIR, "targets": "negatives"}, "'targets' holds string of 1 axes"),
  ],
)
def test_what_cannot_be_read(add: Add, columns: dict[str, str], message: str):
  import seqio

  source = add("t5x_bad", columns)
  seqio.TaskRegistry.get("t5x_bad")._output_features = {}
  with pytest.raises(UserError, match=message):
    next(source.examples("train"))


def test_a_corpus_split_needs_targets_alone(add: Add):
  source = add("t5x_passages", {"targets": "passage"}, *steps(keep_text=True), splits=("corpus",))
  assert next(source.examples("corpus")) == {
    "passage_id": text_id("red is a colour"),
    "targets": "red is a colour",
  }


def test_bytes_that_are_no_text(add: Add):
  import seqio
  import tensorflow as tf

  source = add("t5x_bytes", PAIR, lambda rows: rows.map(lambda row: {**row, "targets": tf.constant(b"\xff")}))
  seqio.TaskRegistry.get("t5x_bytes")._output_features = {}
  with pytest.raises(UserError, match=r"'targets' holds b'\\xff', which is not UTF-8"):
    next(source.examples("train"))


def test_the_fingerprint_follows_preprocessors_and_vocabulary(add: Add, data_dir: pathlib.Path):
  import seqio

  first = add("t5x_a", PAIR, *steps(keep_text=True)).fingerprint()
  assert first == TaskSource("t5x_a").fingerprint()
  seqio.TaskRegistry.remove("t5x_a")
  assert add("t5x_a", PAIR, *steps(keep_text=False)).fingerprint() != first
  other = seqio.SentencePieceVocabulary(str(data_dir / "vocab/seqio_test_sentencepiece.model"))
  seqio.TaskRegistry.remove("t5x_a")
  source = add("t5x_a", PAIR, *steps(keep_text=True))
  assert source.fingerprint() == first
  seqio.TaskRegistry.get("t5x_a")._output_features = {
    "inputs": seqio.Feature(other),
    "targets": seqio.Feature(other),
  }
  assert source.fingerprint() != first


def test_tfds_beir_pairs_are_told_to_be_incomplete(add: Add, caplog: pytest.LogCaptureFixture):
  import seqio

  from retrieval_jax.data.seqio_examples import seqio_examples

  add("t5x_tfds", PAIR, *steps(keep_text=True))
  task = seqio.TaskRegistry.get("t5x_tfds")
  task._source = seqio.TfdsDataSource("beir/msmarco:1.0.0", splits={"train": "train"})
  with caplog.at_level(logging.WARNING), pytest.raises(Exception):  # noqa: B017  (the data are not here)
    next(seqio_examples(task, "train"))
  assert "reads beir/msmarco:1.0.0 from TFDS, which keeps one query of each passage" in caplog.text


def test_features_of_a_task_of_ours_are_not_taken_for_padding():
  def read(split: str) -> Iterator[features.Example]:
    yield features.pair("q", "red", "p", "a", negatives=["x", ""], negative_ids=["1", "2"])

  from retrieval_jax.data.seqio_examples import seqio_examples

  task = features.add_to_seqio(features.TextTask("t5x_ours", ("train",), read, lambda: "1"))
  (example,) = seqio_examples(task, "train")
  assert (example["negative_targets"], example["negative_ids"]) == (["x", ""], ["1", "2"])
