"""Resume is exact: an interrupted run ends in the same bits as one that was left alone."""

import pathlib
import signal
import subprocess

import pytest

from scripts.soak.model_dir import differences, losses, stopped_at, wait_for
from tests.end_to_end.conftest import command, environment

STEPS = 10  # 4 steps an epoch: the interruptions fall into epochs 0, 1 and 2
COMMON = (f"--gin.TRAIN_STEPS={STEPS}", "--gin.CHECKPOINT_PERIOD=2", "--gin.KEEP_CHECKPOINTS=3")


@pytest.fixture(scope="module")
def uninterrupted(process, tiny, tmp_path_factory) -> pathlib.Path:
  folder = tmp_path_factory.mktemp("straight")
  done = process("train", *tiny, *COMMON, f"--gin.MODEL_DIR={folder}")
  assert done.returncode == 0, done.stderr
  return folder


def test_resume_after_a_clean_stop_equals_an_uninterrupted_run(process, tiny, tmp_path, uninterrupted):
  folder = tmp_path / "run"
  started = start(tiny, folder)
  wait_for(folder, "checkpoint_4", started)
  started.send_signal(signal.SIGTERM)
  _, errors = started.communicate(timeout=120)
  assert started.returncode == 0, errors
  assert "as requested; the same command goes on from there" in errors
  assert stopped_at(folder) == max(losses(folder))
  again = process("train", *tiny, *COMMON, f"--gin.MODEL_DIR={folder}")
  assert again.returncode == 0, again.stderr
  assert differences(folder, uninterrupted, STEPS) == []
  assert stopped_at(folder) is None


@pytest.mark.parametrize(
  "marker", ["model-info.txt", "checkpoint_2", "checkpoint_4.orbax-checkpoint-tmp*", "checkpoint_8"]
)
def test_resume_after_kill_equals_an_uninterrupted_run(process, tiny, tmp_path, uninterrupted, marker):
  """The first marker comes before the first checkpoint: the run starts afresh."""
  folder = tmp_path / "run"
  started = start(tiny, folder)
  wait_for(folder, marker, started)
  started.kill()
  started.communicate(timeout=60)
  again = process("train", *tiny, *COMMON, f"--gin.MODEL_DIR={folder}")
  assert again.returncode == 0, again.stderr
  assert differences(folder, uninterrupted, STEPS) == []


def start(tiny, folder: pathlib.Path) -> subprocess.Popen:
  return subprocess.Popen(
    command("train", *tiny, *COMMON, f"--gin.MODEL_DIR={folder}"),
    env=environment(),
    stdout=subprocess.DEVNULL,
    stderr=subprocess.PIPE,
    text=True,
  )
