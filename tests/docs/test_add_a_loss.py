"""docs/add_a_loss.md, done as it says: its files, its commands."""

import inspect
import json
import sys

import gin
import numpy as np
import pytest

from retrieval_jax import launch
from tests.conformance import test_losses as conformance
from tests.docs.examples import run_python, shell_lines, write_files
from tests.docs.pages import ROOT

PAGE = ROOT / "docs" / "add_a_loss.md"
PROPERTIES = [
  name
  for name, function in inspect.getmembers(conformance, inspect.isfunction)
  if name.startswith("test_") and list(inspect.signature(function).parameters) == ["loss"]
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  """A folder with the document's files and a file of pairs."""
  folder = tmp_path_factory.mktemp("add_a_loss")
  write_files(PAGE, folder)
  return folder


@pytest.fixture
def focal(folder, monkeypatch):
  """The document's module."""
  monkeypatch.syspath_prepend(folder)
  monkeypatch.delitem(sys.modules, "focal", raising=False)
  import focal

  return focal


def test_the_files_are_those_promised(folder):
  names = {"focal.py", "focal.gin", "focal_spread.gin", "test_focal.py", "pairs.tsv"}
  assert {path.name for path in folder.iterdir()} >= names
  assert len((folder / "focal.py").read_text(encoding="utf-8").splitlines()) < 40


def test_its_commands_test_the_loss_and_train_with_it(folder):
  for line in shell_lines(PAGE):
    run_python(line, folder)
  lines = (folder / "run" / "train" / "log.jsonl").read_text(encoding="utf-8").splitlines()
  log = [json.loads(line) for line in lines]
  assert [record["step"] for record in log] == [1, 2, 3, 4, 5]
  for record in log:
    assert 0 < record["loss"] < record["cross_entropy"]
    assert 0 < record["focus"] < 1
  assert "gamma = %FOCAL_GAMMA" in (folder / "run" / "config.gin").read_text(encoding="utf-8")
  assert "focal" not in (folder / "run" / "model.gin").read_text(encoding="utf-8")


def test_its_sum_with_another_loss_fits_together(folder, focal, monkeypatch, capsys):
  monkeypatch.chdir(folder)
  gin.clear_config()
  flags = (
    "--gin_file=models/bert_tiny.gin",
    "--gin_file=./focal_spread.gin",
    "--gin_file=data/tsv.gin",
    "--gin.DATA_PATH=pairs.tsv",
    "--gin.MODEL_DIR=dry",
    "--gin.TRAIN_STEPS=5",
    "--gin.BATCH_SIZE=16",
    "--gin.DRY_RUN=True",
  )
  try:
    launch.run("train", flags)
  finally:
    gin.clear_config()
  assert "dry run: the parts fit" in capsys.readouterr().out


@pytest.mark.parametrize("name", PROPERTIES)
def test_the_loss_has_every_property_of_the_shipped_ones(focal, name):
  getattr(conformance, name)(focal.focal_softmax(temperature=0.1))


def test_value_by_hand(focal):
  """Cosines 1 and 0 at temperature 1: y = e / (e + 1)."""
  rows = np.arange(2)
  eye = np.eye(2, dtype=np.float32)
  batch = conformance.EmbeddedBatch(eye, eye, rows, rows, rows[:, None], np.ones(2, np.float32))
  output, _ = focal.focal_softmax(temperature=1.0, gamma=2.0).apply({}, {}, batch, rng=None, train=True)
  y = np.e / (np.e + 1)
  assert float(output.loss) == pytest.approx((1 - y) ** 2 * -np.log(y), rel=1e-5)


def test_it_names_a_gamma_that_has_no_gradient(focal):
  with pytest.raises(ValueError, match=r"focal_softmax: gamma is 0.5; expected 0 .* or at least 1"):
    focal.focal_softmax(gamma=0.5)
