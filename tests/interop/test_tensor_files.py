"""TensorFiles: every layout of a folder's weights, and every way it can be damaged."""

import builtins
import hashlib
import json
import pickle

import ml_dtypes
import numpy as np
import pytest
from numpy.testing import assert_array_equal
from safetensors.numpy import save_file

from retrieval_jax.errors import UserError
from retrieval_jax.interop.tensor_files import TensorFiles, check_sha256

A = np.arange(6, dtype=np.float32).reshape(2, 3)
B = np.array([0.5, -2.0], np.float32)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
def test_one_file_in_any_float_type(tmp_path, dtype):
  save_file({"a": A.astype(dtype), "b": B.astype(dtype)}, tmp_path / "model.safetensors")
  tensors = TensorFiles(tmp_path)
  assert sorted(tensors) == ["a", "b"]
  assert len(tensors) == 2
  assert tensors.shape("a") == (2, 3)
  assert tensors["a"].dtype == np.float32
  assert_array_equal(tensors["a"], A)
  assert tensors.file("b") == tmp_path / "model.safetensors"
  with pytest.raises(KeyError):
    tensors["c"]


def test_whole_numbers_are_no_weights(tmp_path):
  save_file({"a": np.zeros(3, np.int8)}, tmp_path / "model.safetensors")
  with pytest.raises(UserError, match=r"model\.safetensors: a is of type int8, expected floats: quantised"):
    TensorFiles(tmp_path)["a"]


def sharded(folder, **places):
  save_file({"a": A}, folder / "model-00001-of-00002.safetensors")
  save_file({"b": B}, folder / "model-00002-of-00002.safetensors")
  files = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors", **places}
  (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))


def test_shards(tmp_path):
  sharded(tmp_path)
  tensors = TensorFiles(tmp_path)
  assert_array_equal(tensors["a"], A)
  assert_array_equal(tensors["b"], B)
  assert tensors.file("b").name == "model-00002-of-00002.safetensors"


def test_a_missing_shard(tmp_path):
  sharded(tmp_path)
  (tmp_path / "model-00002-of-00002.safetensors").unlink()
  message = r"index\.json: 1 of 2 weight files are missing: model-00002-of-00002\.safetensors"
  with pytest.raises(UserError, match=message):
    TensorFiles(tmp_path)


def test_a_tensor_that_is_not_in_its_shard(tmp_path):
  sharded(tmp_path, c="model-00001-of-00002.safetensors")
  with pytest.raises(UserError, match=r"model-00001-of-00002\.safetensors: holds no c, which model"):
    TensorFiles(tmp_path)


def test_a_shard_somewhere_else(tmp_path):
  sharded(tmp_path, a="../model-00001-of-00002.safetensors")
  with pytest.raises(UserError, match=r"the file '\.\./model-00001.* of a is not beside it"):
    TensorFiles(tmp_path)


@pytest.mark.parametrize("text", ["{", "[]", '{"weight_map": 3}', '{"weight_map": {"a": 3}}'])
def test_a_damaged_index(tmp_path, text):
  (tmp_path / "model.safetensors.index.json").write_text(text)
  with pytest.raises(UserError, match=r"index\.json: (not valid JSON|expected a)"):
    TensorFiles(tmp_path)


@pytest.mark.parametrize("keep", [0, 5, 60, -1])
def test_a_cut_file(tmp_path, keep):
  path = tmp_path / "model.safetensors"
  save_file({"a": A, "b": B}, path)
  path.write_bytes(path.read_bytes()[:keep])
  with pytest.raises(UserError, match=r"model\.safetensors: damaged or not a safetensors file"):
    TensorFiles(tmp_path)


def test_no_weights_at_all(tmp_path):
  with pytest.raises(UserError, match=r"no model\.safetensors and no pytorch_model\.bin here\. Give"):
    TensorFiles(tmp_path)
  (tmp_path / "tf_model.h5").touch()
  with pytest.raises(UserError, match=r"only tf_model\.h5, which cannot be read"):
    TensorFiles(tmp_path)


def test_sha256(tmp_path):
  path = tmp_path / "model.safetensors"
  path.write_bytes(b"abc")
  check_sha256(path, hashlib.sha256(b"abc").hexdigest().upper())
  with pytest.raises(UserError, match="expected 00ff: the file is damaged or another version"):
    check_sha256(path, "00ff")
  path.unlink()
  with pytest.raises(UserError, match=r"No such file.*leave it out for T5X checkpoints, for a MODEL_DIR"):
    check_sha256(path, "00ff")


def test_torch_files(tmp_path):
  torch = pytest.importorskip("torch")
  state = {"a": torch.tensor(A).bfloat16(), "b": torch.tensor(B).half()}
  torch.save(state, tmp_path / "pytorch_model.bin")
  tensors = TensorFiles(tmp_path)
  assert tensors.shape("a") == (2, 3)
  assert_array_equal(tensors["a"], A)
  assert_array_equal(tensors["b"], B)
  assert tensors["b"].dtype == np.float32


def test_torch_shards(tmp_path):
  torch = pytest.importorskip("torch")
  torch.save({"a": torch.tensor(A)}, tmp_path / "one.bin")
  torch.save({"b": torch.tensor(B)}, tmp_path / "two.bin")
  index = {"weight_map": {"a": "one.bin", "b": "two.bin"}}
  (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps(index))
  assert_array_equal(TensorFiles(tmp_path)["b"], B)


class Malicious:
  def __reduce__(self):
    return print, ("this code must not run",)


@pytest.mark.parametrize(
  "data", [pickle.dumps(Malicious(), 2), b"", b"<html>404</html>", pickle.dumps([1, 2], 2)]
)
def test_torch_files_that_are_none(tmp_path, data, capsys):
  pytest.importorskip("torch")
  (tmp_path / "pytorch_model.bin").write_bytes(data)
  with pytest.raises(UserError, match=r"pytorch_model\.bin: (torch's weights-only|damaged|expected a dict)"):
    TensorFiles(tmp_path)
  assert "must not run" not in capsys.readouterr().out


def test_a_cut_torch_file(tmp_path):
  torch = pytest.importorskip("torch")
  path = tmp_path / "pytorch_model.bin"
  torch.save({"a": torch.tensor(A)}, path)
  path.write_bytes(path.read_bytes()[:-40])
  with pytest.raises(UserError, match=r"pytorch_model\.bin: (damaged|torch's)"):
    TensorFiles(tmp_path)


def test_torch_files_without_torch(tmp_path, monkeypatch):
  (tmp_path / "pytorch_model.bin").write_bytes(b"x")
  import_ = builtins.__import__

  def absent(name, *rest, **named):
    if name == "torch":
      raise ImportError("No module named 'torch'")
    return import_(name, *rest, **named)

  monkeypatch.setattr(builtins, "__import__", absent)
  with pytest.raises(
    UserError, match=r"needs torch\. Install it with `pip install 'retrieval-jax\[interop\]'`"
  ):
    TensorFiles(tmp_path)
