"""The training of label classifiers as a user runs it: trained, stopped, killed, resumed, evaluated."""

import json
import pathlib
import shutil
import subprocess

import numpy as np
import pytest

from retrieval_jax.classifiers import load_classifiers
from tests.end_to_end.conftest import (
  NOUNS,
  TINY,
  command,
  environment,
  pairs,
  state_of,
)

STEPS = 8  # two steps an epoch
PLAN = (
  f"--gin.TRAIN_STEPS={STEPS}",
  "--gin.CHECKPOINT_PERIOD=2",
  "--gin.KEEP_CHECKPOINTS=4",
  "--gin.WARMUP_STEPS=1",
  "--gin.LEARNING_RATE=0.01",
  "--gin.BATCH_SIZE=16",
  "--gin.LOG_PERIOD=1",
)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
  """Flags of 32 points with two labels each: their own passage, and that of the same noun and the next adjective."""
  folder = tmp_path_factory.mktemp("points")
  texts = pairs()[:32]
  lines = [f"q{i}\tp{j}\t{texts[i][0]}\t{texts[j][1]}" for i in range(32) for j in (i, (i + len(NOUNS)) % 32)]
  text = "\n".join(["query_id\tpassage_id\tquery\tpassage", *lines])
  (folder / "train.tsv").write_text(text + "\n", encoding="utf-8")
  return ("--gin_file=data/tsv.gin", f"--gin.DATA_PATH={folder / 'train.tsv'}")


@pytest.fixture(scope="module")
def encoder(data, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
  """MODEL_DIR of an encoder with the checkpoints 1 and 2."""
  folder = tmp_path_factory.mktemp("encoder") / "run"
  run(
    "train",
    *(f for f in TINY if "data/" not in f),
    *data,
    at(folder),
    "--gin.TRAIN_STEPS=2",
    "--gin.CHECKPOINT_PERIOD=1",
  )
  return folder


@pytest.fixture(scope="module")
def trained(data, encoder, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
  """MODEL_DIR with classifiers of an uninterrupted training in a process of its own."""
  folder = tmp_path_factory.mktemp("trained") / "run"
  shutil.copytree(encoder, folder)
  done = subprocess.run(
    command("train_classifiers", *data, *PLAN, at(folder)),
    env=environment(),
    capture_output=True,
    text=True,
    check=False,
  )
  assert done.returncode == 0, done.stderr
  (folder / "said.txt").write_text(done.stdout, encoding="utf-8")
  return folder


def at(folder: pathlib.Path) -> str:
  return f"--gin.MODEL_DIR={folder}"


def run(program: str, *flags: str) -> object:
  import gin

  from retrieval_jax import launch as launcher

  gin.clear_config()
  try:
    return launcher.run(program, flags)
  finally:
    gin.clear_config()


def test_it_says_what_it_needs_before_it_starts(trained):
  said = (trained / "said.txt").read_text(encoding="utf-8")
  assert f"encoder: {trained / 'checkpoint_2'}, frozen" in said
  assert "32 points with 2.00 labels on average (at most 2), 32 labels" in said
  # 768 rows of 64 floats: 196,608 bytes, and as much for each moment.
  assert (
    "classifiers: 32 x 64 float32 = 196.6 kB, with 2 slots of the optimizer 589.8 kB; 589.8 kB on each of 1 cpu"
    in said
  )
  assert said.index("classifiers: 32 x 64") < said.index("steps: 0 -> 8")


def test_it_leaves_its_files(trained):
  folder = trained / "classifiers"
  names = {path.name for path in folder.iterdir()}
  assert {
    "checkpoint_2",
    "checkpoint_4",
    "checkpoint_6",
    "checkpoint_8",
    "step_8",
    "config.gin",
    "versions.json",
  } <= names
  assert "model.gin" not in names
  log = [
    json.loads(line) for line in (folder / "train" / "log.jsonl").read_text(encoding="utf-8").splitlines()
  ]
  assert [record["step"] for record in log] == list(range(1, STEPS + 1))
  assert {"loss", "grad_norm", "labels", "positives", "negatives", "learning_rate", "epoch"} <= log[0].keys()
  assert all(record["positives"] == 2 for record in log)
  assert all(16 < record["labels"] <= 32 for record in log)
  assert all(record["negatives"] == record["labels"] - 2 for record in log)
  found = load_classifiers(trained)
  assert found.step == STEPS
  np.testing.assert_allclose(np.linalg.norm(found.weights[:], axis=1), 1, atol=1e-5)
  state = state_of(trained / "classifiers", STEPS)
  np.testing.assert_array_equal(state["params/classifiers"][32:], 0)


def test_eval_measures_the_classifiers(launch, data, trained):
  ((name, result),) = launch(
    "eval", *data, "--gin_file=searchers/classifiers.gin", "--gin.EVAL_SPLIT=train", at(trained)
  ).items()
  record = json.loads(
    (trained / "eval" / name / f"classifiers_step_{STEPS}" / "metrics.json").read_text("utf-8")
  )
  assert record["searcher"] == "classifiers"
  assert record["step"] == STEPS
  assert str(trained / "checkpoint_2") in record["checkpoint"]
  assert 0 < result["mrr"] <= 1
