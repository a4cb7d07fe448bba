"""The weights a training starts from: what fits, what is refused and why."""

import pathlib

import jax
import numpy as np
import pytest
from numpy.testing import assert_array_equal

from retrieval_jax.data.text_inputs import TextInputs
from retrieval_jax.data.vocabularies import WordPiece
from retrieval_jax.errors import UserError
from retrieval_jax.interop import huggingface, reading, t5x
from retrieval_jax.interop.foreign import EncoderSpec, ForeignModel, TextSpec, TowerSpec
from retrieval_jax.models.bert import BertEncoder
from retrieval_jax.models.dual_encoder import dual_encoder
from retrieval_jax.models.t5 import T5Encoder
from retrieval_jax.models.tower import Tower
from retrieval_jax.partitioning import partitioner
from retrieval_jax.portable import tower_of
from retrieval_jax.pretrained import Pretrained
from retrieval_jax.retriever import Retriever, check_inputs
from retrieval_jax.weights import initial_params
from tests.interop.toy_models import SPECS, V, random_tower, write_word_piece

ENCODER = T5Encoder(num_layers=2, num_heads=2, head_dim=4, embed_dim=8, mlp_dim=16)
T5 = EncoderSpec("t5", {
  "num_layers": 2, "num_heads": 2, "head_dim": 4, "embed_dim": 8, "mlp_dim": 16, "relpos_buckets": 32,
  "relpos_max_distance": 128, "activation": "gelu", "gated": True, "relpos_per_layer": False, "layer_norm_eps": 1e-6,
})  # fmt: skip


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> str:
  """A T5X checkpoint of 30 rows of tokens, without a projection."""
  return str(t5x.write(tmp_path_factory.mktemp("t5x"), ForeignModel(random_tower(TowerSpec(T5, 30)))))


@pytest.fixture(scope="module")
def bert(tmp_path_factory) -> str:
  folder = tmp_path_factory.mktemp("hf")
  text = TextSpec("word_piece", write_word_piece(folder), max_length=12)
  huggingface.write(folder / "model", random_tower(TowerSpec(SPECS["bert"], V), text=text))
  return str(folder / "model")


def overlay(model, start: Pretrained):
  params = jax.jit(model.init)(jax.random.key(0))
  return params, start.overlay(model, params, lambda source, rows: reading.read(source, vocab_size=rows))


@pytest.mark.parametrize("scan_layers", [False, True])
def test_a_projection_starts_from_random_numbers_and_says_so(checkpoint, capsys, scan_layers):
  model = dual_encoder(Tower(ENCODER.clone(scan_layers=scan_layers), 30, projection_dim=5))
  before, after = overlay(model, Pretrained(checkpoint))
  source = t5x.read_arrays(pathlib.Path(checkpoint), prefix="target/")
  assert_array_equal(after["token_embedder"]["embedding"], source["target/token_embedder/embedding"])
  last = model.portable_params(after, "query")["encoder"]["layers_1"]
  assert_array_equal(last["mlp"]["wo"]["kernel"], source["target/encoder/layers_1/mlp/wo/kernel"])
  assert after["projection_layer"] is before["projection_layer"]
  assert "starts from random numbers: projection_layer" in capsys.readouterr().err


def test_another_number_of_rows_is_named_and_fitted_when_asked(checkpoint):
  model = dual_encoder(Tower(ENCODER, 32))
  with pytest.raises(
    UserError, match=r"30 rows in the files, 32 in the model: set NUM_EMBEDDINGS .* RESIZE_VOCABULARY = True"
  ):
    overlay(model, Pretrained(checkpoint))
  _, after = overlay(model, Pretrained(checkpoint, resize_vocabulary=True))
  table = np.asarray(after["token_embedder"]["embedding"])
  assert_array_equal(table[:30], t5x.read_arrays(pathlib.Path(checkpoint))["target/token_embedder/embedding"])
  assert not table[30:].any()


def test_what_no_shape_tells_is_compared(checkpoint, bert):
  wrong = ENCODER.clone(num_heads=4, head_dim=2, activation="relu")
  with pytest.raises(UserError) as caught:
    overlay(dual_encoder(Tower(wrong, 30)), Pretrained(checkpoint))
  text = str(caught.value)
  assert "query tower: num_heads is 2 in the files, 4 in the model" in text
  assert "activation is 'gelu' in the files, 'relu' in the model" in text
  assert "Choose the models/ file" in text
  with pytest.raises(UserError, match="the files hold a bert encoder, the model has a t5 one"):
    overlay(dual_encoder(Tower(ENCODER, 30)), Pretrained(bert))
  half = BertEncoder(**{**SPECS["bert"].fields, "num_heads": 4})
  with pytest.raises(UserError, match="num_heads is 2 in the files, 4 in the model"):
    overlay(dual_encoder(Tower(half, V)), Pretrained(bert))


def test_two_towers_from_two_places(checkpoint, bert):
  query, passage = (
    tower_of(TowerSpec(T5, 30, projection_dim=4)),
    tower_of(TowerSpec(SPECS["bert"], V, projection_dim=4)),
  )
  model = dual_encoder(query, sharing="ade", passage_tower=passage)
  _, after = overlay(model, Pretrained(checkpoint, passage_path=bert))
  source = t5x.read_arrays(pathlib.Path(checkpoint))
  assert_array_equal(after["query_token_embedder"]["embedding"], source["target/token_embedder/embedding"])
  assert after["passage_token_embedder"]["embedding"].shape == (V, 16)


def test_a_checksum_that_differs(bert):
  model = dual_encoder(Tower(BertEncoder(**SPECS["bert"].fields), V))
  with pytest.raises(UserError, match=r"sha256 is .*, expected 00.*sha256"):
    overlay(model, Pretrained(f"{bert}#sha256=00"))


def test_weights_of_the_passage_tower_alone_are_a_mistake(bert):
  model = dual_encoder(Tower(BertEncoder(**SPECS["bert"].fields), V))
  inputs = TextInputs(WordPiece(f"{bert}/tokenizer.json"), 8, 8)
  with pytest.raises(
    UserError, match=r"PASSAGE_CHECKPOINT_PATH=.* is set and INITIAL_CHECKPOINT_PATH is not"
  ):
    initial_params(Retriever(model, inputs, Pretrained(None, passage_path=bert)), partitioner(), seed=0)


def test_every_device_gets_its_own_piece_and_what_is_missing_is_drawn_as_without_weights(bert):
  encoder = BertEncoder(**SPECS["bert"].fields)
  model = dual_encoder(Tower(encoder, V, projection_dim=4))
  inputs = TextInputs(WordPiece(f"{bert}/tokenizer.json"), 8, 8)
  mesh = partitioner(num_partitions=2)
  params = initial_params(Retriever(model, inputs, Pretrained(bert)), mesh, seed=3)
  fresh = jax.jit(model.init)(jax.random.key(3))
  assert_array_equal(params["projection_layer"]["kernel"], fresh["projection_layer"]["kernel"])
  kernel = params["encoder"]["layers_0"]["mlp"]["wi"]["kernel"]
  assert {piece.data.shape for piece in kernel.addressable_shards} == {(16, 12)}
  assert jax.tree.structure(params) == jax.tree.structure(fresh)


def test_texts_longer_than_the_positions_are_refused_before_anything_runs(bert):
  model = dual_encoder(Tower(BertEncoder(**SPECS["bert"].fields), V))
  with pytest.raises(UserError, match="PASSAGE_LENGTH=49: the passage tower has 48 positions"):
    check_inputs(Retriever(model, TextInputs(WordPiece(f"{bert}/tokenizer.json"), 8, 49)))
