"""Label classifiers: trained, as files, and searched with."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from retrieval_jax.batching.shuffled import shuffled
from retrieval_jax.classifier_losses import of_columns
from retrieval_jax.classifier_searcher import ClassifierSearcher, classifier_searcher
from retrieval_jax.classifier_state import initial_state
from retrieval_jax.classifier_step import jit_classifier_step, make_classifier_step
from retrieval_jax.classifiers import (
  classifier_manifest,
  corpus_identity,
  encoder_identity,
  load_classifiers,
  save_classifiers,
  step_folder,
  unit_rows,
)
from retrieval_jax.data import dataset, features
from retrieval_jax.data.text_inputs import TextInputs
from retrieval_jax.data.vocabularies import WordPiece
from retrieval_jax.embeddings import Layout
from retrieval_jax.encoding import Encoder
from retrieval_jax.errors import UserError
from retrieval_jax.index.exact import exact
from retrieval_jax.label_unions import LabelUnions
from retrieval_jax.models.bert import BertEncoder
from retrieval_jax.models.dual_encoder import dual_encoder
from retrieval_jax.models.tower import Tower
from retrieval_jax.partitioning import partitioner
from retrieval_jax.searchers import DenseSearcher
from retrieval_jax.sparse_optimizers import sparse_adam
from tests.data.toy_source import WORDS, ListSource, write_tokenizer

LABELS = 10
D = 8


def source(split="train", labels=LABELS):
  """Points 0 to 11: point i has the labels i mod 10 and (i + 1) mod 10. Label j is two words."""
  texts = [f"{WORDS[4 + j % 5]} {WORDS[9 + j % 3]}" for j in range(labels)]
  points = [
    features.pair(f"q{i}", f"{WORDS[4 + i % 5]} ?", f"p{label % labels}", texts[label % labels])
    for i in range(12)
    for label in (i, i + 1)
  ]
  corpus = [features.passage(f"p{j}", text) for j, text in enumerate(texts)]
  return ListSource({"train": points, "test": points[:4], "corpus": corpus}, split)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
  return TextInputs(
    WordPiece(str(write_tokenizer(tmp_path_factory.mktemp("words") / "tokenizer.json"))), 8, 8
  )


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
  return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def data(inputs, cache):
  return dataset.load(source(), inputs, cache=cache)


@pytest.fixture(scope="module")
def encoder():
  model = dual_encoder(Tower(BertEncoder(1, 2, D, 16, max_positions=8), vocab_size=len(WORDS)))
  return Encoder(model, jax.jit(model.init)(jax.random.key(0)), partitioner(), tokens_per_batch=64)


@pytest.fixture
def dense(encoder, tmp_path):
  return DenseSearcher(encoder, 7, str(tmp_path / "checkpoint_7"), keep_in=tmp_path / "encode")


def saved(folder, encoder, data, weights, step=3, rows_per_shard=4):
  """Writes weights as the classifiers of MODEL_DIR `folder`."""
  of = {**encoder_identity(encoder), **corpus_identity(data)}
  note = {"checkpoint": "checkpoint_7", "task": data.name}
  manifest = classifier_manifest(of, Layout(len(weights), D, rows_per_shard), note)
  own = step_folder(folder / "classifiers", step)
  save_classifiers(
    own, lambda span: weights[span.start : span.stop], ids=data.passages.ids, manifest=manifest
  )
  return own


@pytest.fixture
def weights():
  return np.random.default_rng(0).normal(size=(LABELS, D)).astype(np.float32) * 5


def test_saved_classifiers_come_back_at_unit_length(tmp_path, encoder, data, weights):
  own = saved(tmp_path, encoder, data, weights)
  found = load_classifiers(tmp_path)
  assert (found.step, found.folder) == (3, own)
  assert found.passages_fingerprint == data.passages.fingerprint
  assert_allclose(found.weights[:], weights / np.linalg.norm(weights, axis=1, keepdims=True), atol=1e-6)
  assert [len(shard) for shard in found.weights.shards] == [4, 4, 2]
  lines = (own / "00001.ids.jsonl").read_text(encoding="utf-8").splitlines()
  assert [json.loads(line) for line in lines] == [f"p{j}" for j in range(4, 8)]


def test_the_newest_whole_step_is_taken(tmp_path, encoder, data, weights, capsys):
  saved(tmp_path, encoder, data, weights, step=3)
  saved(tmp_path, encoder, data, -weights, step=20)
  assert load_classifiers(tmp_path).step == 20
  assert load_classifiers(tmp_path, 3).step == 3
  assert capsys.readouterr().err == ""
  own = saved(tmp_path, encoder, data, weights, step=100)
  (own / "00002.npy").unlink()
  assert load_classifiers(tmp_path).step == 20
  said = capsys.readouterr().err
  assert said.count("warning: ") == 1
  assert f"{own} is damaged ({own / '00002.npy'} is missing" in said
  assert "the older step_20 is taken instead" in said
  assert load_classifiers(tmp_path, 3).step == 3
  assert capsys.readouterr().err == ""
  with pytest.raises(
    UserError, match=r"step_100 is damaged \(.*00002\.npy.*\)\. Whole are those of \[3, 20\]"
  ):
    load_classifiers(tmp_path, 100)
  with pytest.raises(UserError, match=r"no classifiers of step 7; there are those of \[3, 20\]"):
    load_classifiers(tmp_path, 7)


def test_only_damaged_classifiers_are_not_called_absent(tmp_path, encoder, data, weights):
  own = saved(tmp_path, encoder, data, weights)
  (own / "manifest.json").write_text("{", encoding="utf-8")
  with pytest.raises(
    UserError, match=r"step_3 is damaged \(its manifest\.json is missing or cannot be read\)"
  ):
    load_classifiers(tmp_path)


def test_a_folder_without_classifiers_says_how_to_train_them(tmp_path):
  with pytest.raises(
    UserError, match=r"no trained classifiers here.*python -m retrieval_jax\.train_classifiers"
  ):
    load_classifiers(tmp_path)


@pytest.mark.parametrize(
  "row, fault",
  [
    ([np.nan] + [0] * (D - 1), "is not finite"),
    ([1e38] * D, "has a length that is not finite in float32"),
    ([0] * D, "is all zeros"),
  ],
)
def test_a_classifier_without_a_direction_is_named_and_nothing_is_written(
  tmp_path, encoder, data, weights, row, fault
):
  weights[6] = row
  with pytest.raises(
    UserError, match=rf"classifier of passage 'p6' \(row 6\) {fault}.*a lower LEARNING_RATE"
  ):
    saved(tmp_path, encoder, data, weights)
  assert not list(tmp_path.rglob("step_3"))


def test_rows_of_any_size_come_to_unit_length():
  rows = np.array([[3e30, 4e30], [3e-30, 4e-30], [3, -4], [0, 0]], np.float32)
  assert_allclose(unit_rows(rows), [[0.6, 0.8], [0.6, 0.8], [0.6, -0.8], [0, 0]], rtol=1e-6)
  assert unit_rows(np.zeros((0, 3), np.float32)).shape == (0, 3)


def test_search_ranks_by_the_cosine_with_the_classifiers(dense, tmp_path, data, weights):
  saved(tmp_path, dense.encoder, data, weights)
  searcher = classifier_searcher(dense, model_dir=str(tmp_path))
  assert (searcher.name, searcher.step) == ("classifiers", 3)
  found = searcher.search(data, k=LABELS)
  queries = np.asarray(dense.queries(data)[:])[data.judged]
  cosines = (queries @ weights.T) / np.outer(np.linalg.norm(queries, axis=1), np.linalg.norm(weights, axis=1))
  assert_array_equal(found.rows, np.argsort(-cosines, axis=1, kind="stable"))
  assert_allclose(found.scores, -np.sort(-cosines, axis=1), atol=1e-5)


def test_another_index_has_a_name_of_its_own(dense, tmp_path, data, weights):
  saved(tmp_path, dense.encoder, data, weights)

  def backwards(corpus):
    return exact(-corpus[:])

  searcher = classifier_searcher(dense, model_dir=str(tmp_path), build_index=backwards)
  assert searcher.name == "classifiers_backwards"
  assert_array_equal(
    searcher.search(data, k=LABELS).rows[:, ::-1],
    searcher._replace(build_index=exact).search(data, k=LABELS).rows,
  )


def test_another_split_of_the_same_corpus_is_searched(dense, tmp_path, data, weights, inputs, cache):
  saved(tmp_path, dense.encoder, data, weights)
  searcher = ClassifierSearcher(dense, load_classifiers(tmp_path))
  test = dataset.load(source("test"), inputs, cache=cache)
  assert searcher.search(test, k=3).rows.shape == (2, 3)


def test_another_corpus_is_refused(dense, tmp_path, data, weights, inputs, cache):
  saved(tmp_path, dense.encoder, data, weights)
  searcher = ClassifierSearcher(dense, load_classifiers(tmp_path))
  other = dataset.load(source(labels=9)._replace(name="other"), inputs, cache=cache)
  with pytest.raises(
    UserError, match=r"belong to the corpus .* of toy; other/train has the corpus .*\(9 passages\)"
  ):
    searcher.search(other, k=1)


def test_another_encoder_is_refused(dense, tmp_path, data, weights):
  saved(tmp_path, dense.encoder, data, weights)
  params = jax.tree.map(lambda x: x * 1.5, dense.encoder.params)
  other = dense._replace(encoder=dense.encoder._replace(params=params))
  with pytest.raises(
    UserError, match=r"trained on the embeddings of checkpoint_7 \(parameters .*--gin\.STEP="
  ):
    classifier_searcher(other, model_dir=str(tmp_path))


def test_training_finds_labels_whose_texts_say_nothing_of_their_points(data):
  """Points of label j lie around a direction of its own, while every classifier starts at another label's direction."""
  rng = np.random.default_rng(0)
  directions = np.linalg.qr(rng.normal(size=(LABELS, LABELS)))[0].astype(np.float32)
  points = np.zeros((data.queries.num_rows, LABELS), np.float32)
  for row in range(len(points)):
    points[row] = directions[data.relevance.row(row)[0]].sum(axis=0)
  part, optimizer = partitioner(devices=jax.devices()[:1]), sparse_adam(lambda step: jnp.full((), 0.03))
  state = initial_state(np.roll(directions, 5, axis=0), optimizer, part)
  step = make_classifier_step(of_columns(), optimizer, num_labels=LABELS, seed=0)
  jitted = jit_classifier_step(step, jax.tree.map(lambda x: x.sharding, state), part)
  unions, batcher = LabelUnions(data, points, 768, seed=0), shuffled(12)
  plan = batcher.plan(num_examples=data.num_examples, seed=0)

  def precision(state):
    found = points @ unit_rows(np.asarray(state.params["classifiers"])[:LABELS]).T
    best = np.argmax(found, axis=1)
    return np.mean([best[row] in data.relevance.row(row)[0] for row in range(len(points))])

  assert precision(state) < 0.5
  for number in range(60):
    state, _ = jitted(state, unions.batch(batcher.rows(plan, number), batcher.epochs(plan, number)))
  assert precision(state) == 1.0
