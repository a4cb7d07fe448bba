"""Hugging Face folders that cannot be read or written: what was got, by the name of the file and the key."""

import json

import numpy as np
import pytest
from safetensors.numpy import save_file
from toy_models import SPECS, V, random_tower

from retrieval_jax.errors import UserError
from retrieval_jax.interop import huggingface
from retrieval_jax.interop.foreign import TowerSpec
from retrieval_jax.interop.tensor_files import TensorFiles


@pytest.fixture(params=["bert", "distilbert", "t5_1_1"])
def folder(tmp_path, request):
  huggingface.write(tmp_path / "model", random_tower(TowerSpec(SPECS[request.param], vocab_size=V)))
  return tmp_path / "model"


def change(folder, **keys):
  path = folder / "config.json"
  path.write_text(json.dumps({**json.loads(path.read_text()), **keys}))


def replace_tensors(folder, edit):
  tensors = dict(TensorFiles(folder))
  edit(tensors)
  save_file(tensors, folder / "model.safetensors")


@pytest.mark.parametrize(
  "model_type, message",
  [
    ("roberta", "RoBERTa counts its positions from the padding id on"),
    ("xlm-roberta", "XLM-RoBERTa"),
    ("mpnet", "MPNet has relative position biases"),
    ("longt5", "LongT5"),
    ("brt", r"did you mean 'bert'\? Choose"),
    (["bert"], r"model_type is \['bert'\]; the encoders here are"),
    (None, "model_type is None; the encoders here are bert, distilbert, t5, mt5, umt5"),
  ],
)
def test_another_family(tmp_path, model_type, message):
  (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
  with pytest.raises(UserError, match=message):
    huggingface.read(tmp_path)


@pytest.mark.parametrize(
  "keys, message",
  [
    ({"pad_token_id": 1}, "pad_token_id is 1, expected 0"),
    ({"is_decoder": True}, "is_decoder is True, expected False"),
    ({"add_cross_attention": True}, "add_cross_attention is True"),
    ({"auto_map": {"AutoModel": "custom.Model"}}, "auto_map names code that comes with the model"),
    ({"quantization_config": {"bits": 4}}, "quantization_config says that the weights are quantised"),
    ({"pruned_heads": {"0": [1]}}, "pruned_heads is"),
    ({"vocab_size": "many"}, "vocab_size is 'many', expected a number of at least 1"),
    ({"vocab_size": 0}, "vocab_size is 0, expected a number of at least 1"),
  ],
)
def test_what_no_family_can_be(folder, keys, message):
  change(folder, **keys)
  with pytest.raises(UserError, match=rf"config\.json: {message}"):
    huggingface.read(folder)


@pytest.mark.parametrize(
  "name, keys, message",
  [
    ("bert", {"hidden_act": "relu"}, "hidden_act is 'relu', expected 'gelu'"),
    ("bert", {"hidden_act": "gelu_new"}, "hidden_act is 'gelu_new', expected 'gelu'"),
    ("bert", {"position_embedding_type": "alibi"}, "position_embedding_type is 'alibi'"),
    ("bert", {"num_hidden_layers": "six"}, "num_hidden_layers is 'six', expected a number"),
    ("bert", {"layer_norm_eps": 0}, "layer_norm_eps is 0, expected a number above 0"),
    ("distilbert", {"activation": "relu"}, "activation is 'relu', expected 'gelu'"),
    ("t5_1_1", {"feed_forward_proj": "gelu"}, "feed_forward_proj is 'gelu', expected 'relu' or"),
    ("t5_1_1", {"feed_forward_proj": "gated-tanh"}, "feed_forward_proj is 'gated-tanh'"),
    ("t5_1_1", {"dense_act_fn": "relu"}, "dense_act_fn is 'relu', expected 'gelu_new'"),
    ("t5_1_1", {"is_gated_act": False}, "is_gated_act is False, expected True"),
    ("t5_1_1", {"relative_attention_num_buckets": True}, "relative_attention_num_buckets is True"),
  ],
)
def test_what_our_encoders_do_not_compute(tmp_path, name, keys, message):
  huggingface.write(tmp_path / "model", random_tower(TowerSpec(SPECS[name], vocab_size=V)))
  change(tmp_path / "model", **keys)
  with pytest.raises(UserError, match=rf"config\.json: {message}"):
    huggingface.read(tmp_path / "model")


def test_missing_and_unexpected_tensors(folder):
  name = next(name for name in TensorFiles(folder) if ".1." in name)
  replace_tensors(folder, lambda tensors: tensors.pop(name))
  with pytest.raises(UserError, match=rf"unexpected none, missing {name}\. Check that config\.json"):
    huggingface.read(folder)
  replace_tensors(folder, lambda tensors: tensors.update({f"{name}.adapter": np.zeros(3, np.float32)}))
  with pytest.raises(UserError, match=rf"unexpected {name}\.adapter, missing {name}"):
    huggingface.read(folder)


def test_more_layers_than_the_config_says(folder):
  config = json.loads((folder / "config.json").read_text())
  key = next(key for key in ("num_hidden_layers", "n_layers", "num_layers") if key in config)
  change(folder, **{key: 1})
  with pytest.raises(UserError, match=r"unexpected .*\.1\..* more, missing none"):
    huggingface.read(folder)
  change(folder, **{key: 3})
  with pytest.raises(UserError, match=r"unexpected none, missing .*\.2\..* more"):
    huggingface.read(folder)


def test_another_width(folder):
  config = json.loads((folder / "config.json").read_text())
  key = next(key for key in ("intermediate_size", "hidden_dim", "d_ff") if key in config)
  change(folder, **{key: 32})
  with pytest.raises(UserError, match=r"has the shape \(24, 16\), but config\.json asks for \(32, 16\)"):
    huggingface.read(folder)


def test_a_damaged_folder(folder):
  (folder / "model.safetensors").write_bytes(b"<html>404</html>")
  with pytest.raises(UserError, match=r"model\.safetensors: damaged or not a safetensors file"):
    huggingface.read(folder)
  (folder / "config.json").write_text("{")
  with pytest.raises(UserError, match=r"config\.json: not valid JSON"):
    huggingface.read(folder)
  (folder / "config.json").unlink()
  with pytest.raises(UserError, match=r"config\.json: no such file"):
    huggingface.read(folder)


def test_what_cannot_be_written(tmp_path):
  spec = TowerSpec(SPECS["distilbert"], vocab_size=V)
  tower = random_tower(spec._replace(projection_dim=4))
  with pytest.raises(
    UserError, match=r"the tower projects to 4 dimensions.*sentence-transformers folder instead"
  ):
    huggingface.write(tmp_path / "out", tower)
  with pytest.raises(UserError, match="no place for the weights of attention pooling"):
    huggingface.write(tmp_path / "out", tower._replace(spec=spec._replace(pooling="attention")))
  other = spec.encoder._replace(fields={**spec.encoder.fields, "layer_norm_eps": 1e-6})
  with pytest.raises(UserError, match="layer_norm_eps=1e-06: Hugging Face's encoder without token types"):
    huggingface.write(tmp_path / "out", tower._replace(spec=spec._replace(encoder=other)))
  deeper = spec.encoder._replace(fields={**spec.encoder.fields, "num_layers": 3})
  with pytest.raises(UserError, match=r"left over none, missing encoder/layers_2.* more"):
    huggingface.write(tmp_path / "out", tower._replace(spec=spec._replace(encoder=deeper)))
  assert not list(tmp_path.iterdir())  # nothing half-written


def test_a_folder_that_is_there_already(tmp_path):
  tower = random_tower(TowerSpec(SPECS["distilbert"], vocab_size=V))
  (tmp_path / "empty").mkdir()
  huggingface.write(tmp_path / "empty", tower)
  assert sorted(path.name for path in (tmp_path / "empty").iterdir()) == ["config.json", "model.safetensors"]
  with pytest.raises(UserError, match="empty: is there already; expected a new or an empty folder"):
    huggingface.write(tmp_path / "empty", tower)


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e300])
def test_numbers_that_no_model_can_have(folder, value):
  name = sorted(TensorFiles(folder))[3]

  def spoil(tensors):
    tensors[name] = tensors[name].astype(np.float64)
    tensors[name].flat[0] = value

  replace_tensors(folder, spoil)
  with pytest.raises(UserError, match=rf"model\.safetensors: {name} holds NaN or infinity"):
    huggingface.read(folder)


@pytest.mark.parametrize("value", [np.nan, -np.inf, 1e300])
def test_parameters_that_are_not_finite_are_not_written(tmp_path, value):
  tower = random_tower(TowerSpec(SPECS["bert"], vocab_size=V))
  table = tower.params["token_embedder"]["embedding"].astype(np.float64)
  table[3, 0] = value
  tower = tower._replace(params={**tower.params, "token_embedder": {"embedding": table}})
  with pytest.raises(UserError, match="out: not written: the parameter token_embedder/embedding holds NaN"):
    huggingface.write(tmp_path / "out", tower)
  assert not list(tmp_path.iterdir())


def test_more_layers_than_any_model_has(folder):
  config = json.loads((folder / "config.json").read_text())
  key = next(key for key in ("num_hidden_layers", "n_layers", "num_layers") if key in config)
  change(folder, **{key: 10**9})
  with pytest.raises(UserError, match=rf"config\.json: {key} is 1000000000, expected at most 10,000"):
    huggingface.read(folder)


def test_a_config_of_nothing_but_brackets(tmp_path):
  (tmp_path / "config.json").write_text("[" * 100_000)
  with pytest.raises(UserError, match=r"config\.json: not valid JSON"):
    huggingface.read(tmp_path)


@pytest.mark.parametrize("vocab_size", ["50", 50.0, 0, 10**12])
def test_a_vocab_size_that_is_none(folder, vocab_size):
  with pytest.raises(UserError, match=r"vocab_size=.*: expected .*rows of the token table"):
    huggingface.read(folder, vocab_size=vocab_size)
