"""Resume is exact: an interrupted run ends in the same bits as one that was left alone."""

import json
import os
import pathlib
import signal
import subprocess
import time

import pytest

from tests.end_to_end.conftest import assert_equal_states, command, environment, state_of

STEPS = 10  # 4 steps an epoch: the interruptions fall into epochs 0, 1 and 2
COMMON = (f"--gin.TRAIN_STEPS={STEPS}", "--gin.CHECKPOINT_PERIOD=2", "--gin.KEEP_CHECKPOINTS=3")


@pytest.fixture(scope="module")
def uninterrupted(tiny, tmp_path_factory) -> pathlib.Path:
  folder = tmp_path_factory.mktemp("straight")
  done = subprocess.run(
    command("train", *tiny, *COMMON, f"--gin.MODEL_DIR={folder}"),
    env=environment(),
    capture_output=True,
    text=True,
    check=False,
  )
  assert done.returncode == 0, done.stderr
  return folder


def losses(folder: pathlib.Path) -> dict[int, float]:
  """The last logged loss of every step."""
  lines = (folder / "train" / "log.jsonl").read_text(encoding="utf-8").splitlines()
  return {record["step"]: record["loss"] for record in map(json.loads, lines)}


def test_resume_after_a_clean_stop_equals_an_uninterrupted_run(process, tiny, tmp_path, uninterrupted):
  folder = tmp_path / "run"
  started = start(tiny, folder)
  wait_for(folder, "checkpoint_4", started)
  started.send_signal(signal.SIGTERM)
  _, errors = started.communicate(timeout=120)
  assert started.returncode == 0, errors
  assert "as requested; the same command goes on from there" in errors
  again = process("train", *tiny, *COMMON, f"--gin.MODEL_DIR={folder}")
  assert again.returncode == 0, again.stderr
  assert_equal_states(state_of(folder, STEPS), state_of(uninterrupted, STEPS))
  assert losses(folder) == losses(uninterrupted)


@pytest.mark.parametrize("marker", ["checkpoint_2", "checkpoint_4.orbax-checkpoint-tmp*", "checkpoint_8"])
def test_resume_after_kill_equals_an_uninterrupted_run(process, tiny, tmp_path, uninterrupted, marker):
  folder = tmp_path / "run"
  started = start(tiny, folder)
  wait_for(folder, marker, started)
  os.kill(started.pid, signal.SIGKILL)
  started.communicate(timeout=60)
  again = process("train", *tiny, *COMMON, f"--gin.MODEL_DIR={folder}")
  assert again.returncode == 0, again.stderr
  assert_equal_states(state_of(folder, STEPS), state_of(uninterrupted, STEPS))


def test_kill_before_the_first_checkpoint_starts_afresh(process, tiny, tmp_path, uninterrupted):
  folder = tmp_path / "run"
  started = start(tiny, folder)
  wait_for(folder, "model-info.txt", started)
  os.kill(started.pid, signal.SIGKILL)
  started.communicate(timeout=60)
  again = process("train", *tiny, *COMMON, f"--gin.MODEL_DIR={folder}")
  assert again.returncode == 0, again.stderr
  assert_equal_states(state_of(folder, STEPS), state_of(uninterrupted, STEPS))


def start(tiny, folder: pathlib.Path) -> subprocess.Popen:
  return subprocess.Popen(
    command("train", *tiny, *COMMON, f"--gin.MODEL_DIR={folder}"),
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
