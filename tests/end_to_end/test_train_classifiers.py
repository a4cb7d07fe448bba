"""The training of label classifiers as a user runs it: trained, stopped, killed, resumed, evaluated."""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import time

import numpy as np
import pytest

from retrieval_jax.classifiers import load_classifiers
from retrieval_jax.errors import UserError
from tests.end_to_end.conftest import (
  NOUNS,
  TINY,
  assert_equal_states,
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
  # 32 rows of 64 floats are 8,192 bytes; 768 rows 196,608 bytes, and as much for each moment.
  assert (
    "classifiers: 32 x 64 float32 = 8.2 kB; in training padded to 768 rows, 196.6 kB, with 2 slots of the optimizer "
    "589.8 kB; 589.8 kB on each of 1 cpu" in said
  )
  assert "disk: embeddings 16.4 kB, 5 checkpoints of 589.8 kB, the result 8.2 kB" in said
  assert (
    f"--gin_file=searchers/classifiers.gin --gin.MODEL_DIR={trained} and the data flags of this run" in said
  )
  assert said.index("classifiers: 32 x 64") < said.index("steps: 0 -> 8")
  log = (trained / "classifiers" / "train" / "log.jsonl").read_text(encoding="utf-8").splitlines()
  count = round(json.loads(log[0])["labels"])  # 17 .. 32 of 16 points
  size = 24 if count <= 24 else 32
  expected = f"batch 16 points, 2 steps an epoch; the first has {count} different labels, padded to {size}: "
  assert f"{expected}{4 * 16 * size / 1000:.1f} kB of scores" in said


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


def start(data, folder: pathlib.Path) -> subprocess.Popen:
  return subprocess.Popen(
    command("train_classifiers", *data, *PLAN, at(folder)),
    env=environment(),
    stdout=subprocess.DEVNULL,
    stderr=subprocess.PIPE,
    text=True,
  )


def wait_for(folder: pathlib.Path, pattern: str, started: subprocess.Popen, timeout: float = 240) -> None:
  end = time.monotonic() + timeout
  while not any(folder.glob(pattern)):
    assert started.poll() is None, started.communicate()[1]
    assert time.monotonic() < end, f"{pattern} did not appear in {folder}"
    time.sleep(0.002)


def losses(folder: pathlib.Path) -> dict[int, float]:
  lines = (folder / "classifiers" / "train" / "log.jsonl").read_text(encoding="utf-8").splitlines()
  return {record["step"]: record["loss"] for record in map(json.loads, lines)}


def assert_same_result(folder: pathlib.Path, trained: pathlib.Path) -> None:
  assert_equal_states(state_of(folder / "classifiers", STEPS), state_of(trained / "classifiers", STEPS))
  np.testing.assert_array_equal(load_classifiers(folder).weights[:], load_classifiers(trained).weights[:])


def test_a_stopped_training_goes_on_to_the_same_bits(data, encoder, trained, tmp_path, process):
  folder = tmp_path / "run"
  shutil.copytree(encoder, folder)
  started = start(data, folder)
  wait_for(folder, "classifiers/checkpoint_2", started)
  started.send_signal(signal.SIGTERM)
  _, errors = started.communicate(timeout=120)
  assert started.returncode == 0, errors
  assert "as requested; the same command goes on from there" in errors
  assert not (folder / "classifiers" / f"step_{STEPS}").exists()
  again = process("train_classifiers", *data, *PLAN, at(folder))
  assert again.returncode == 0, again.stderr
  assert "warning: resuming" not in again.stderr
  assert_same_result(folder, trained)
  assert losses(folder) == losses(trained)


def test_a_killed_training_goes_on_to_the_same_bits(data, encoder, trained, tmp_path, process):
  folder = tmp_path / "run"
  shutil.copytree(encoder, folder)
  started = start(data, folder)
  wait_for(folder, "classifiers/checkpoint_4*", started)
  os.kill(started.pid, signal.SIGKILL)
  started.communicate(timeout=60)
  again = process("train_classifiers", *data, *PLAN, at(folder))
  assert again.returncode == 0, again.stderr
  assert_same_result(folder, trained)


@pytest.fixture
def halfway(trained, tmp_path) -> pathlib.Path:
  """MODEL_DIR of a training that was killed between checkpoint 4 and checkpoint 6."""
  folder = tmp_path / "run"
  shutil.copytree(trained, folder)
  for name in ("checkpoint_6", "checkpoint_8", f"step_{STEPS}"):
    shutil.rmtree(folder / "classifiers" / name)
  return folder


def test_a_training_goes_on_on_other_devices(launch, data, trained, halfway, capsys):
  """On 8 devices instead of 1: the same numbers but for the order of sums."""
  launch("train_classifiers", *data, *PLAN, at(halfway))
  said = capsys.readouterr()
  assert "on each of 8 cpu devices" in said.out
  assert "steps: 4 -> 8" in said.out
  assert "warning: resuming" not in said.err
  got, want = load_classifiers(halfway).weights[:], load_classifiers(trained).weights[:]
  np.testing.assert_allclose(got, want, atol=1e-4)


def test_a_finished_training_is_left_alone_and_a_lost_result_is_written_again(
  launch, data, trained, tmp_path, capsys
):
  folder = tmp_path / "run"
  shutil.copytree(trained, folder)
  result = launch("train_classifiers", *data, *PLAN, at(folder))
  assert result == folder / "classifiers" / f"step_{STEPS}"
  assert "is at step 8, TRAIN_STEPS is 8: nothing to do" in capsys.readouterr().err
  (result / "00000.npy").unlink()
  launch("train_classifiers", *data, *PLAN, at(folder))
  assert_same_result(folder, trained)


def test_another_encoder_is_refused(launch, data, halfway):
  with pytest.raises(UserError, match=r"trained on the embeddings of .*checkpoint_2 .*--gin\.STEP="):
    launch("train_classifiers", *data, *PLAN, at(halfway), "--gin.STEP=1")
  with pytest.raises(UserError, match=r"trained on the embeddings of .*checkpoint_2 .*--gin\.STEP="):
    launch("train_classifiers", *data, *PLAN, at(halfway), "--gin.STEP=1", f"--gin.TRAIN_STEPS={STEPS + 2}")


def test_another_corpus_is_refused(launch, halfway, tmp_path):
  (tmp_path / "other.tsv").write_text("red car\tsome text\nblue car\tanother text\n", encoding="utf-8")
  other = ("--gin_file=data/tsv.gin", f"--gin.DATA_PATH={tmp_path / 'other.tsv'}")
  with pytest.raises(
    UserError, match=r"belong to the corpus .* of train; other/train has the corpus .*2 passages"
  ):
    launch("train_classifiers", *other, *PLAN, at(halfway))


def test_another_optimizer_is_refused_and_other_settings_are_said(launch, data, halfway, capsys):
  sgd = "--gin_file=classifier_optimizers/sgd.gin"
  with pytest.raises(UserError, match=r"checkpoint 4 is of another optimizer.*\n  m: only in the checkpoint"):
    launch("train_classifiers", *data, sgd, *PLAN, at(halfway))
  launch("train_classifiers", *data, *PLAN, at(halfway), "--gin.POINT_DROPOUT=0.25", "--gin.TRAIN_STEPS=6")
  said = capsys.readouterr().err
  assert "warning: resuming with point_dropout 0.25, was 0.5" in said
  assert "warning: resuming with train_steps 6, was 8" in said


def test_a_dry_run_writes_nothing(launch, data, encoder, tmp_path, capsys):
  folder = tmp_path / "run"
  shutil.copytree(encoder, folder)
  before = sorted(folder.rglob("*"))
  assert launch("train_classifiers", *data, *PLAN, at(folder), "--gin.DRY_RUN=True") is None
  assert "dry run: the parts fit; nothing was encoded or trained" in capsys.readouterr().out
  assert sorted(folder.rglob("*")) == before


def test_clusters_of_a_training_are_those_of_the_training_that_goes_on(
  launch, data, encoder, tmp_path, capsys
):
  """NGAME's batches: clustered before epoch 1, a resume at step 4 reads what was written down at step 2."""
  flags = (
    *data,
    *PLAN,
    "--gin_file=batching/ngame.gin",
    "--gin.CLUSTER_SIZES=((0, 1), (1, 8))",
    "--gin.IN_BATCH_HARDNESS=3",
    "--gin_file=classifier_optimizers/sgd.gin",
    "--gin.CHECKPOINT_PERIOD=4",
  )
  straight, resumed = tmp_path / "straight", tmp_path / "resumed"
  for folder in (straight, resumed):
    shutil.copytree(encoder, folder)
  launch("train_classifiers", *flags, at(straight))
  assert "step 2: batches are made of clusters of 8 of 32 points" in capsys.readouterr().out
  log = (straight / "classifiers" / "train" / "log.jsonl").read_text(encoding="utf-8").splitlines()
  assert all(0 < json.loads(line)["in_batch_hardness"] <= 1.001 for line in log)
  shutil.copytree(straight / "classifiers", resumed / "classifiers")
  for name in (f"checkpoint_{STEPS}", f"step_{STEPS}"):
    shutil.rmtree(resumed / "classifiers" / name)
  launch("train_classifiers", *flags, at(resumed))
  assert "steps: 4 -> 8" in capsys.readouterr().out
  assert_same_result(resumed, straight)
  (resumed / "classifiers" / "batches" / "clusters_00000002.npz").unlink()
  for name in (f"checkpoint_{STEPS}", f"step_{STEPS}"):
    shutil.rmtree(resumed / "classifiers" / name)
  with pytest.raises(
    UserError, match=r"clusters_00000002\.npz: the batches of this checkpoint cannot be read"
  ):
    launch("train_classifiers", *flags, at(resumed))


def test_a_loss_of_losses_with_hard_negatives(launch, data, encoder, tmp_path):
  folder, path = tmp_path / "run", tmp_path / "negatives.tsv"
  shutil.copytree(encoder, folder)
  lines = ["query_id\tpassage_id", *(f"q{i}\tp{(i + 3) % 32}" for i in range(32))]
  path.write_text("\n".join(lines) + "\n", encoding="utf-8")
  launch(
    "train_classifiers",
    *data,
    *PLAN,
    "--gin_file=classifier_losses/of_pairs.gin",
    "--gin_file=losses/in_batch_one_way.gin",
    f"--gin.HARD_NEGATIVES_PATH={path}",
    "--gin.HARD_NEGATIVES=1",
    "--gin.TRAIN_STEPS=3",
    "--gin.RESULT_PERIOD=2",
    at(folder),
  )
  log = (folder / "classifiers" / "train" / "log.jsonl").read_text(encoding="utf-8").splitlines()
  assert all(np.isfinite(json.loads(line)["loss"]) for line in log)
  assert all("accuracy" in json.loads(line) for line in log)
  assert load_classifiers(folder).step == 3
  assert load_classifiers(folder, 2).record["step"] == 2
  assert np.abs(load_classifiers(folder, 2).weights[:] - load_classifiers(folder).weights[:]).max() > 0


def test_classifiers_that_overflowed_are_no_result(launch, data, encoder, tmp_path):
  folder = tmp_path / "run"
  shutil.copytree(encoder, folder)
  with pytest.raises(UserError, match=r"the classifier of passage 'p\d+' .*lower LEARNING_RATE"):
    launch("train_classifiers", *data, *PLAN, "--gin.LEARNING_RATE=1e38", at(folder))
  assert not list((folder / "classifiers").glob("step_*"))


@pytest.mark.parametrize(
  "flag, message",
  [
    ("--gin.HARD_NEGATIVES=2", "HARD_NEGATIVES=2, but train/train has none"),
    ("--gin.POINT_DROPOUT=1.5", "POINT_DROPOUT=1.5: expected 0 or more and less than 1"),
    ("--gin.CHECKPOINT_PERIOD=0", "CHECKPOINT_PERIOD=0: expected a whole number of at least 1"),
    ("--gin.RESULT_PERIOD=0", "RESULT_PERIOD=0: expected a whole number of at least 1"),
    (
      "--gin.WARMUP_STEPS=8",
      "the warm-up must be shorter than the run. Lower WARMUP_STEPS=8 or raise TRAIN_STEPS=8",
    ),
    ("--gin.HARDEST_POSITIVES=0", r"num_positives is 0; .*\(HARDEST_POSITIVES\)"),
    ("--gin.HARDEST_NEGATIVES=0", r"num_negatives is 0; .*\(HARDEST_NEGATIVES\)"),
    ("--gin.MARGIN=-1.0", r"margin is -1\.0; expected 0 or more"),
    ("--gin.BATCH_SIZE=15", "BATCH_SIZE=15 is not divisible by the 8 data shards"),
  ],
)
def test_settings_that_cannot_be_write_nothing(launch, data, encoder, tmp_path, flag, message):
  folder = tmp_path / "run"
  shutil.copytree(encoder, folder)
  with pytest.raises(UserError, match=message):
    launch("train_classifiers", *data, *PLAN, flag, at(folder))
  assert not (folder / "classifiers").exists()


def test_a_model_without_classifiers_says_how_to_train_them(launch, data, encoder):
  with pytest.raises(UserError, match=r"no trained classifiers here.*train_classifiers"):
    launch("eval", *data, "--gin_file=searchers/classifiers.gin", "--gin.EVAL_SPLIT=train", at(encoder))
