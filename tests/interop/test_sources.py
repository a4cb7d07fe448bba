"""Where models are found and what kind they are; reading.read on each kind."""

import os
import pathlib
import subprocess
import sys

import jax
import numpy as np
import pytest
from numpy.testing import assert_array_equal
from toy_models import SPECS, V, random_tower, write_word_piece

from retrieval_jax import paths
from retrieval_jax.errors import UserError
from retrieval_jax.interop import huggingface, reading, sentence_transformers, sources, t5x
from retrieval_jax.interop.foreign import ForeignModel, TextSpec, TowerSpec


@pytest.fixture(scope="module")
def tower(tmp_path_factory):
  text = TextSpec("word_piece", write_word_piece(tmp_path_factory.mktemp("words")), max_length=24)
  return random_tower(TowerSpec(SPECS["distilbert"], vocab_size=V), text=text)


@pytest.fixture(scope="module")
def t5():
  return random_tower(TowerSpec(SPECS["t5_1_1"]._replace(fields=T5X_FIELDS), vocab_size=V))


# What a T5X checkpoint does not say must be T5's.
T5X_FIELDS = {**SPECS["t5_1_1"].fields, "relpos_max_distance": 128}


def assert_reads(source, tower, **options):
  model = reading.read(str(source), **options)
  assert model.passage is None
  read, expected = jax.tree.leaves(model.query.params), jax.tree.leaves(dict(tower.params))
  assert len(read) == len(expected)
  for ours, theirs in zip(read, expected, strict=True):
    assert_array_equal(ours, theirs)
  return model


def test_a_hugging_face_folder(tmp_path, tower):
  huggingface.write(tmp_path / "hf", tower)
  assert sources.detect(tmp_path / "hf") == "huggingface"
  assert_reads(tmp_path / "hf", tower)
  assert reading.read(str(tmp_path / "hf"), vocab_size=V + 3).query.spec.vocab_size == V + 3


def test_a_sentence_transformers_folder(tmp_path, tower):
  sentence_transformers.write(tmp_path / "st", ForeignModel(tower))
  assert sources.detect(tmp_path / "st") == "sentence_transformers"
  assert_reads(tmp_path / "st", tower)
  assert reading.read(str(tmp_path / "st"), vocab_size=V - 3).query.spec.vocab_size == V - 3


def test_t5x_checkpoints_and_the_newest_of_several(tmp_path, t5):
  other = random_tower(t5.spec, seed=1)
  for step, tower in ((9, other), (10, t5)):
    t5x.write(tmp_path / "run", ForeignModel(tower), step=step)
  for folder in ("run", "run/checkpoint_10", "run/checkpoint_10/checkpoint"):
    assert sources.detect(tmp_path / folder) == "t5x"
  assert_reads(tmp_path / "run", t5)
  assert_reads(tmp_path / "run" / "checkpoint_9", other)
  assert sources.t5x_checkpoint(tmp_path / "run") == tmp_path / "run" / "checkpoint_10"


def test_the_newest_t5x_checkpoint_is_not_whole(tmp_path, t5):
  for step in (9, 10):
    t5x.write(tmp_path, ForeignModel(t5), step=step)
  (tmp_path / "checkpoint_10").rename(tmp_path / "checkpoint_0010")
  assert sources.t5x_checkpoint(tmp_path) == tmp_path / "checkpoint_0010"
  (tmp_path / "checkpoint_0010" / "checkpoint").unlink()
  message = (
    r"checkpoint_0010: the newest checkpoint of .* is not whole.* give an earlier one: .*checkpoint_9\."
  )
  with pytest.raises(UserError, match=message):
    reading.read(tmp_path)


def test_an_orbax_checkpoint_of_t5x(tmp_path):
  for tree in ("state", "checkpoint_5/state"):
    (tmp_path / tree).mkdir(parents=True)
    (tmp_path / tree / "_METADATA").write_text("{}")
  assert sources.detect(tmp_path / "state") == "t5x"
  assert sources.detect(tmp_path / "checkpoint_5") == "t5x"
  assert sources.t5x_checkpoint(tmp_path / "checkpoint_5") == tmp_path / "checkpoint_5"


def test_a_folder_trained_here(tmp_path):
  (tmp_path / "run" / "checkpoint_5" / "state").mkdir(parents=True)
  (tmp_path / "run" / "model.gin").touch()
  assert sources.detect(tmp_path / "run") == "retrieval_jax"
  with pytest.raises(UserError, match=r"one checkpoint of a training folder\. Give the folder itself, .*run"):
    sources.detect(tmp_path / "run" / "checkpoint_5")
  with pytest.raises(
    UserError, match=r"was trained here, not a foreign model\. Use it as it is: DualEncoder\.load"
  ):
    reading.read(str(tmp_path / "run"))


def test_folders_of_something_else(tmp_path):
  with pytest.raises(UserError, match=r"no model here: none of model\.gin, .* It holds nothing\. Give"):
    sources.detect(tmp_path)
  for i in range(9):
    (tmp_path / f"{i}.csv").touch()
  with pytest.raises(UserError, match=r"It holds 0\.csv, 1\.csv, .*7\.csv \.\.\."):
    sources.detect(tmp_path)
  with pytest.raises(UserError, match=r"0\.csv: expected the folder of a model, got a file"):
    sources.detect(tmp_path / "0.csv")
  with pytest.raises(UserError, match="absent: expected the folder of a model, got nothing"):
    sources.detect(tmp_path / "absent")


def test_local_paths_win(tmp_path, monkeypatch):
  (tmp_path / "org" / "name").mkdir(parents=True)
  monkeypatch.chdir(tmp_path)
  assert sources.locate("org/name") == pathlib.Path("org/name")
  monkeypatch.setenv("HOME", str(tmp_path))
  assert sources.locate("~/org") == tmp_path / "org"


def test_paths_as_objects_and_what_is_none(tmp_path):
  assert sources.locate(tmp_path) == tmp_path
  for source in (3, None, [str(tmp_path)], b"/tmp"):
    with pytest.raises(UserError, match="as the place of a model; expected the path of a local folder"):
      sources.locate(source)
  for source in ("x" * 5000, "~no_such_user_here/model"):
    with pytest.raises(UserError, match="no path that this machine can have"):
      sources.locate(source)


def test_package_paths():
  assert sources.locate("package:numpy/linalg") == pathlib.Path(np.__file__).parent / "linalg"
  with pytest.raises(UserError, match="no_such_package_here"):
    sources.locate("package:no_such_package_here/model")


@pytest.mark.parametrize("source", ["", "no_such_model", "/no/such/folder", "a/b/c"])
def test_nothing_there(source):
  with pytest.raises(
    UserError, match=r"no such folder \(looked at .*Give a local folder, package:NAME/folder, gs://"
  ):
    sources.locate(source)


def test_a_bucket_is_copied_without_what_no_reader_needs(tmp_path, t5):
  epath = pytest.importorskip("etils.epath")
  remote = tmp_path / "remote"
  for step in (9, 10):
    t5x.write(remote, ForeignModel(t5), step=step)
  for extra in (
    "checkpoint_10/state.param_states.a.v/.zarray",
    "train/events.out.tfevents.1",
    "checkpoint_11.tmp-3/x",
  ):
    (remote / extra).parent.mkdir(parents=True)
    (remote / extra).touch()
  (tmp_path / "copy").mkdir()
  sources.copy_model(epath.Path(remote), tmp_path / "copy")
  copied = {path.relative_to(tmp_path / "copy").as_posix() for path in (tmp_path / "copy").rglob("*")}
  assert not [path for path in copied if "param_states" in path or "tfevents" in path or "tmp-" in path]
  assert not [path for path in copied if path.startswith("checkpoint_9")]
  assert_reads(tmp_path / "copy", t5)
  (remote / "checkpoint_10" / "checkpoint").unlink()
  (tmp_path / "again").mkdir()
  with pytest.raises(UserError, match=r"checkpoint_10: the newest checkpoint is not whole"):
    sources.copy_model(epath.Path(remote), tmp_path / "again")


def test_a_bucket_that_was_copied_before(tmp_path, monkeypatch):
  monkeypatch.setenv("RETRIEVAL_JAX_CACHE", str(tmp_path))
  (tmp_path / "remote" / "gs" / "bucket" / "model").mkdir(parents=True)
  (tmp_path / "remote" / "gs" / "bucket" / "model" / "config.json").touch()
  assert sources.locate("gs://bucket/model/") == tmp_path / "remote" / "gs" / "bucket" / "model"
  with pytest.raises(UserError, match=r"'\.\.' in the path of a bucket"):
    sources.locate("gs://bucket/../../model")
  assert paths.cache_dir() == tmp_path


def test_a_bucket_of_an_unknown_kind():
  with pytest.raises(
    UserError, match=r"nosuch://bucket/x: (cannot be reached|reading buckets needs|no such folder, or it)"
  ):
    sources.locate("nosuch://bucket/x")


HUB = """
from retrieval_jax.errors import UserError
from retrieval_jax.interop import sources
print(sources.detect(sources.locate("org/name")))
try:
  sources.locate("org/other")
except UserError as error:
  print(error)
"""


def test_the_hubs_cache_without_a_network(tmp_path):
  pytest.importorskip("huggingface_hub")
  revision = "0" * 40
  cached = tmp_path / "hub" / "models--org--name"
  (cached / "snapshots" / revision).mkdir(parents=True)
  (cached / "snapshots" / revision / "modules.json").write_text("[]")
  (cached / "refs").mkdir()
  (cached / "refs" / "main").write_text(revision)
  environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
  done = subprocess.run(
    [sys.executable, "-c", HUB], env=environment, capture_output=True, text=True, check=True
  )
  kind, message = done.stdout.strip().splitlines()
  assert kind == "sentence_transformers"
  assert message.startswith("org/other: no such local folder (looked at ")
  assert "and the Hugging Face hub gives nothing either" in message


def test_the_hub_without_its_package(monkeypatch):
  monkeypatch.setitem(sys.modules, "huggingface_hub", None)
  message = (
    r"a name on the Hugging Face hub needs huggingface_hub\. Install it with `pip install 'retrieval-jax\[hub"
  )
  with pytest.raises(UserError, match=message):
    sources.locate("org/name")


def test_a_copied_checkpoint_reads_without_its_optimizer_state(tmp_path, oracles):
  epath = pytest.importorskip("etils.epath")
  (tmp_path / "copy").mkdir()
  original = oracles / "t5x_ckpt" / "legacy_f32"
  sources.copy_model(epath.Path(original), tmp_path / "copy")
  assert len(list((tmp_path / "copy").rglob("*"))) < len(list(original.rglob("*")))
  copied, whole = reading.read(str(tmp_path / "copy")), reading.read(str(original))
  for ours, theirs in zip(
    jax.tree.leaves(copied.query.params), jax.tree.leaves(whole.query.params), strict=True
  ):
    assert_array_equal(ours, theirs)
