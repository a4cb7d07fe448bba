"""TFDS as a source: data sets that TFDS itself wrote and reads, among them its BEIR with its defects."""

import json
import pathlib
from typing import Any

import numpy as np
import pytest

from retrieval_jax.data import features
from retrieval_jax.data.dataset import load
from retrieval_jax.data.seqio_loading import load_seqio
from retrieval_jax.data.text_inputs import TextInputs
from retrieval_jax.data.tfds_source import TfdsBeir, TfdsPairs, sorted_by_id
from retrieval_jax.errors import UserError

BEIR_FEATURES = ("query", "query_id", "query_metadata", "passage", "passage_id", "passage_metadata")


def prepare(
  folder: pathlib.Path, name: str, shapes: dict[str, Any], splits: dict[str, list[dict[str, Any]]]
) -> None:
  """Writes a data set as TFDS does when it prepares one; `name` may have a config: "beir/nfcorpus"."""
  load_seqio()
  import tensorflow_datasets as tfds

  dataset, _, config = name.partition("/")
  home = folder / name / "1.0.0"
  home.mkdir(parents=True)
  identity = tfds.core.dataset_info.DatasetIdentity(
    name=dataset,
    version="1.0.0",
    data_dir=str(home),
    module_name="",
    config_name=config or None,
    config_description=None,
    config_tags=None,
    release_notes=None,
  )
  info = tfds.core.DatasetInfo(builder=identity, features=tfds.features.FeaturesDict(shapes))
  writer = tfds.core.SequentialWriter(info, max_examples_per_shard=100)
  writer.initialize_splits(list(splits))
  writer.add_examples(splits)
  writer.close_all()


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
  """A folder with squad-like questions and with beir/nfcorpus as TFDS has it, in an order of its own."""
  load_seqio()
  import tensorflow_datasets as tfds

  folder = tmp_path_factory.mktemp("tfds")
  text = tfds.features.Text()
  shapes = {
    "id": text,
    "question": text,
    "context": text,
    "about": {"title": text},
    "score": np.int32,
    "wrong": tfds.features.Sequence(text),
  }
  rows = [
    {
      "id": "1",
      "question": "red ?",
      "context": "a\u2028",
      "about": {"title": "t"},
      "score": 2,
      "wrong": ["c", "d"],
    },
    {"id": "01", "question": "blue ?", "context": "b", "about": {"title": ""}, "score": 0, "wrong": []},
  ]
  prepare(folder, "toy_qa", shapes, {"train": rows, "validation": rows[:1]})

  def row(**given: Any) -> dict[str, Any]:
    return (
      dict.fromkeys(BEIR_FEATURES, "")
      | {"query_metadata": "{}", "passage_metadata": "{}", "score": -1.0}
      | given
    )

  metadata = [json.dumps({"title": " red "}), json.dumps({"title": None}), "", "{}", "[]", "no JSON"]
  ids = ["b", "a", "10", "1", "01", "🙂"]
  splits = {
    "query": [row(query_id="q", query="red ?"), row(query_id="r", query="not judged")],
    "passage": [
      row(passage_id=id, passage=f"{id} text ", passage_metadata=found)
      for id, found in zip(ids, metadata, strict=True)
    ],
    "test": [row(query_id="q", query="red ?", passage_id="a", passage="a text", score=1.0)],
  }
  shapes = dict.fromkeys(BEIR_FEATURES, text) | {"score": np.float32}
  prepare(folder, "beir/nfcorpus", shapes, splits)
  return folder


COLUMNS = {
  "query": "question",
  "passage": "context",
  "query_id": "id",
  "title": "about/title",
  "relevance": "score",
}


def test_pairs(home: pathlib.Path, inputs: TextInputs, tmp_path: pathlib.Path):
  source = TfdsPairs("toy_qa", columns={**COLUMNS, "negative": "wrong"}, data_dir=str(home))
  first, second = source.examples("train")
  assert (first["query_id"], first["inputs"], first["targets"], first["title"]) == (
    "1",
    "red ?",
    "a\u2028",
    "t",
  )
  assert (first["relevance"], first["negative_targets"]) == (2, ["c", "d"])
  assert ("title" in second, "negative_targets" in second, second["relevance"]) == (False, False, 0)
  data = load(source, inputs, cache=tmp_path)
  assert (data.name, list(data.queries.ids), data.num_examples) == ("toy_qa", ["1", "01"], 1)
  assert list(source.splits()) == ["train", "validation"]
  assert "toy_qa/1.0.0" in data.info.source
  assert source.fingerprint() != TfdsPairs("toy_qa", columns=COLUMNS, data_dir=str(home)).fingerprint()


@pytest.mark.parametrize(
  "source, message",
  [
    (TfdsPairs("no_such_set"), "no_such_set: TFDS has no such data set in .*Dataset no_such_set not found"),
    (
      TfdsPairs("squad"),
      r"squad: TFDS knows it, but it is not prepared in .*Prepare it with `tfds build squad`",
    ),
    (
      TfdsPairs("toy_qa", columns={"query": "quest", "passage": "context"}),
      "example 0: no feature 'quest'; there are",
    ),
    (TfdsPairs("toy_qa", columns={"question": "quest"}), "COLUMNS names 'question'"),
    (TfdsPairs("toy_qa"), "the column 'about' is not known"),
    (
      TfdsPairs("toy_qa", "test", columns=COLUMNS),
      "toy_qa has no split 'test'; its splits of pairs: train, validation",
    ),
  ],
)
def test_mistakes(
  source: TfdsPairs, message: str, home: pathlib.Path, inputs: TextInputs, tmp_path: pathlib.Path
):
  import dataclasses

  with pytest.raises(UserError, match=message):
    load(dataclasses.replace(source, data_dir=str(home)), inputs, cache=tmp_path)


@pytest.mark.parametrize("source", [TfdsPairs("beir/nfcorpus", "test"), TfdsBeir("nfcorpus")])
def test_beirs_own_splits_of_pairs_are_refused(source: TfdsPairs | TfdsBeir):
  message = (
    r"beir/nfcorpus.*: TFDS's copy of BEIR keeps one query of each passage.*scripts/download_beir.py.*"
    r"TfdsBeir\('nfcorpus', qrels=\.\.\.\)"
  )
  with pytest.raises(UserError, match=message):
    source.splits()


def test_beir_with_judgements_of_its_own(home: pathlib.Path, inputs: TextInputs, tmp_path: pathlib.Path):
  qrels = tmp_path / "test.tsv"
  qrels.write_text("query-id\tcorpus-id\tscore\nq\ta\t1\nq\tb\t2\n")
  source = TfdsBeir("nfcorpus", qrels=str(qrels), data_dir=str(home))
  data = load(source, inputs, cache=tmp_path / "cache")
  assert data.name == "beir_nfcorpus"
  assert list(data.passages.ids) == [
    "01",
    "1",
    "10",
    "a",
    "b",
    "🙂",
  ]  # sorted: TFDS's order is of its preparation
  assert data.passages.texts[4] == "red b text"  # the title is in the metadata
  assert data.passages.texts[0] == "01 text"
  assert [column.tolist() for column in data.relevance.row(0)] == [[3, 4], [1, 2]]
  assert str(qrels) in data.files
  assert (data.info.counts["test"], data.info.metrics[0]) == (
    323,
    "ndcg@10",
  )  # as our Task of the set declares
  qrels.write_text("query-id\tcorpus-id\tscore\nq\ta\t1\n")
  assert TfdsBeir("nfcorpus", qrels=str(qrels), data_dir=str(home)).fingerprint() != data.fingerprint
  assert TfdsBeir("arguana", qrels=str(qrels), data_dir=str(home))._declared().drop_identical


def test_sorting_does_not_depend_on_the_order():
  passages = [features.passage(id, f"text\n{id}", title="t") for id in ("2", "10", "\ud800", "é", "")]
  found = list(sorted_by_id(passages))
  assert [one["passage_id"] for one in found] == ["", "10", "2", "é", "\ud800"]
  assert found == list(sorted_by_id(reversed(passages)))
  assert found[1] == features.passage("10", "text\n10", title="t")
