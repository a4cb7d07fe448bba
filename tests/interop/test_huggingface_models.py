"""Hugging Face folders against transformers: equal embeddings in both directions, families, heads, shards."""

import json

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from toy_models import (  # noqa: E402
  FAMILIES,
  SPECS,
  V,
  batch,
  make,
  our_vectors,
  random_tower,
  their_vectors,
)

from retrieval_jax.errors import UserError  # noqa: E402
from retrieval_jax.interop import huggingface  # noqa: E402
from retrieval_jax.interop.foreign import TowerSpec  # noqa: E402

# Rows and lengths; 48 is the toy BERTs' last position and beyond the toy T5s' relpos_max_distance.
SHAPES = [(1, 1), (3, 7), (4, 48)]


@pytest.mark.parametrize("name", FAMILIES)
def test_read_gives_their_embeddings(tmp_path, name):
  model = make(name)
  model.save_pretrained(tmp_path)
  tower = huggingface.read(tmp_path)
  for rows, length in SHAPES:
    tokens = batch(rows, length)
    assert_allclose(our_vectors(tower, tokens), their_vectors(model, tokens), atol=1e-5)
  assert tower.spec.pooling == "mean"
  assert tower.spec.normalize
  assert not tower.report.of("missing")


@pytest.mark.parametrize("name", SPECS)
def test_write_gives_our_embeddings(tmp_path, name):
  tower = random_tower(TowerSpec(SPECS[name], vocab_size=V))
  huggingface.write(tmp_path / "out", tower)
  architecture = json.loads((tmp_path / "out" / "config.json").read_text())["architectures"][0]
  model, info = getattr(transformers, architecture).from_pretrained(
    tmp_path / "out", output_loading_info=True
  )
  assert not info["unexpected_keys"]
  assert all("pooler" in key for key in info["missing_keys"])
  for rows, length in SHAPES:
    tokens = batch(rows, length)
    assert_allclose(our_vectors(tower, tokens), their_vectors(model.eval(), tokens), atol=1e-5)
  again = huggingface.read(tmp_path / "out")
  assert again.spec == tower.spec
  table = again.params["token_embedder"]["embedding"]
  assert_array_equal(table, tower.params["token_embedder"]["embedding"])


@pytest.mark.parametrize(
  "name, model_class, left",
  [
    ("bert", "BertForMaskedLM", "cls.predictions.bias"),
    ("bert", "BertForSequenceClassification", "classifier.weight"),
    ("distilbert", "DistilBertForMaskedLM", "vocab_transform.weight"),
    ("t5_1_0", "T5ForConditionalGeneration", "decoder.final_layer_norm.weight"),
    ("t5_1_1", "T5ForSequenceClassification", "classification_head.dense.weight"),
    ("mt5", "MT5ForConditionalGeneration", "decoder.final_layer_norm.weight"),
    ("umt5", "UMT5Model", "decoder.final_layer_norm.weight"),
  ],
)
def test_the_encoder_of_a_model_with_more(tmp_path, name, model_class, left):
  model = make(name, model_class=model_class)
  model.save_pretrained(tmp_path)
  tower = huggingface.read(tmp_path)
  base = getattr(model, model.base_model_prefix, model)
  encoder = base.encoder if "T5" in model_class else base
  tokens = batch(3, 7)
  assert_allclose(our_vectors(tower, tokens), their_vectors(encoder, tokens), atol=1e-5)
  leftover = [line for line in tower.report.of("left") if line.source.endswith(left)]
  assert len(leftover) == 1
  assert leftover[0].note


def test_the_report_names_every_tensor(tmp_path):
  make("bert").save_pretrained(tmp_path)
  report = huggingface.read(tmp_path).report
  # Two layers of 6 kernels, 6 biases of kernels, 2 norms; three tables and a norm; the pooler.
  assert report.summary == f"{3 + 2 + 2 * (6 + 4)} taken, {2 * 6} reshaped, 2 left, 0 missing"
  lines = {line.source: line for line in report}
  query = lines["encoder.layer.0.attention.self.query.weight"]
  assert (query.target, query.status, query.note) == (
    "encoder/layers_0/attention/query/kernel",
    "reshaped",
    "transposed",
  )
  assert lines["pooler.dense.weight"].note == "the [CLS] classifier's layer, which no pooling here uses"


@pytest.mark.parametrize("name", ["bert", "umt5"])
def test_shards_and_torch_files_read_the_same(tmp_path, name):
  model = make(name)
  model.save_pretrained(tmp_path / "whole")
  model.save_pretrained(tmp_path / "sharded", max_shard_size="4KB")
  assert len(list((tmp_path / "sharded").glob("*.safetensors"))) > 2
  (tmp_path / "torch").mkdir()
  torch.save(model.state_dict(), tmp_path / "torch" / "pytorch_model.bin")
  (tmp_path / "torch" / "config.json").write_bytes((tmp_path / "whole" / "config.json").read_bytes())
  tokens = batch(3, 7)
  whole, sharded, pickled = (
    our_vectors(huggingface.read(tmp_path / kind), tokens) for kind in ("whole", "sharded", "torch")
  )
  assert_array_equal(sharded, whole)
  assert_array_equal(pickled, whole)


def test_a_bfloat16_model(tmp_path):
  make("t5_1_1").to(torch.bfloat16).save_pretrained(tmp_path)
  tower = huggingface.read(tmp_path)
  model = transformers.T5EncoderModel.from_pretrained(tmp_path, dtype=torch.float32).eval()
  tokens = batch(3, 7)
  assert_allclose(our_vectors(tower, tokens), their_vectors(model, tokens), atol=1e-5)


def test_the_first_checkpoints_names_of_layer_norms(tmp_path):
  model = make("bert")
  model.save_pretrained(tmp_path)
  (tmp_path / "model.safetensors").unlink()
  old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
  state = {}
  for name, tensor in model.state_dict().items():
    for new, other in old.items():
      name = name.replace(new, other)
    state["bert." + name] = tensor
  torch.save(state, tmp_path / "pytorch_model.bin")
  tokens = batch(3, 7)
  assert_allclose(our_vectors(huggingface.read(tmp_path), tokens), their_vectors(model, tokens), atol=1e-5)


def test_a_t5_without_shared_weight(tmp_path):
  model = make("t5_1_0")
  model.save_pretrained(tmp_path)
  (tmp_path / "model.safetensors").unlink()
  state = {name: tensor for name, tensor in model.state_dict().items() if name != "shared.weight"}
  torch.save(state, tmp_path / "pytorch_model.bin")
  tower = huggingface.read(tmp_path)
  tokens = batch(3, 7)
  assert_allclose(our_vectors(tower, tokens), their_vectors(model, tokens), atol=1e-5)
  assert tower.report[0].source == "encoder.embed_tokens.weight"


def test_another_number_of_rows(tmp_path):
  make("t5_1_0").save_pretrained(tmp_path)
  table = huggingface.read(tmp_path).params["token_embedder"]["embedding"]
  more = huggingface.read(tmp_path, vocab_size=V + 8)
  assert more.spec.vocab_size == V + 8
  assert_array_equal(more.params["token_embedder"]["embedding"][:V], table)
  assert_array_equal(more.params["token_embedder"]["embedding"][V:], np.zeros((8, 16)))
  assert more.report[0].status == "reshaped"
  assert more.report[0].note == f"8 rows of zeros added: {V} -> {V + 8}"
  fewer = huggingface.read(tmp_path, vocab_size=V - 8)
  assert_array_equal(fewer.params["token_embedder"]["embedding"], table[: V - 8])


def test_a_table_of_another_size_than_the_config_says(tmp_path):
  make("bert").save_pretrained(tmp_path)
  config = json.loads((tmp_path / "config.json").read_text())
  (tmp_path / "config.json").write_text(json.dumps({**config, "vocab_size": 32}))
  with pytest.raises(
    UserError, match=r"word_embeddings\.weight has 40 rows, but config\.json says vocab_size 32"
  ):
    huggingface.read(tmp_path)
  assert huggingface.read(tmp_path, vocab_size=40).spec.vocab_size == 40


def test_transformers_defaults(tmp_path):
  """A config.json that leaves everything out means what transformers takes it to mean."""
  from retrieval_jax.interop import huggingface_bert, huggingface_t5
  from retrieval_jax.interop.model_config import ModelConfig

  for name, read in (
    ("bert", huggingface_bert.bert_encoder),
    ("distilbert", huggingface_bert.distilbert_encoder),
    ("t5_1_0", huggingface_t5.encoder),
    ("mt5", huggingface_t5.encoder),
    ("umt5", huggingface_t5.encoder),
  ):
    config = getattr(transformers, FAMILIES[name][0])()
    full = ModelConfig(tmp_path, config.to_dict())
    bare = ModelConfig(tmp_path, {"model_type": config.model_type})
    assert read(full) == read(bare)
    assert huggingface.default_vocab_size(config.model_type) == config.vocab_size
