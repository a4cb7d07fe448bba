"""What goes wrong on real machines, each once: the run says what happened, loses nothing that was saved, and goes on from there."""

import os
import pathlib
import shutil
import signal
import subprocess
import time

import gin
import pytest

from retrieval_jax import exit_codes
from retrieval_jax import launch as launcher
from retrieval_jax.errors import UserError
from scripts.soak import pairs
from scripts.soak.damage import WAYS
from scripts.soak.line import Line
from scripts.soak.model_dir import (
  differences,
  half_written,
  last_logged,
  steps_on_disk,
  stopped_at,
  wait_for,
)
from scripts.soak.small_disk import SmallDisk, why_not
from scripts.soak.trainings import Workshop
from tests.end_to_end.conftest import command, environment

STEPS = 8  # 4 steps an epoch
COMMON = (f"--gin.TRAIN_STEPS={STEPS}", "--gin.CHECKPOINT_PERIOD=2", "--gin.KEEP_CHECKPOINTS=3")
NGAME = ("--gin_file=batching/ngame.gin", "--gin.CLUSTER_SIZES=((0, 1), (1, 4))", "--gin.REFRESH_EPOCHS=1")
SOGRAM = ("--gin_file=losses/samtone_sogram.gin",)


def start(flags, folder: pathlib.Path, *, prefix=(), cache: pathlib.Path | None = None) -> subprocess.Popen:
  more = {"RETRIEVAL_JAX_CACHE": str(cache)} if cache else {}
  return subprocess.Popen(
    [*prefix, *command("train", *flags, f"--gin.MODEL_DIR={folder}")],
    env={**environment(), **more},
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
  )


def ended(started: subprocess.Popen, timeout: float = 900) -> tuple[int, str, str]:
  """Returns (exit code, stdout, stderr)."""
  out, err = started.communicate(timeout=timeout)
  return started.returncode, out, err


@pytest.fixture(scope="module")
def undisturbed(tiny, tmp_path_factory) -> pathlib.Path:
  """A training in a process of its own, to compare others with."""
  folder = tmp_path_factory.mktemp("undisturbed")
  code, _, err = ended(start((*tiny, *COMMON), folder))
  assert code == 0, err
  return folder


@pytest.fixture(scope="module")
def whole(tiny, tmp_path_factory) -> pathlib.Path:
  """A training in this process, with clusters, their bank and a loss with a state; to be damaged in copies."""
  folder = tmp_path_factory.mktemp("whole")
  gin.clear_config()
  launcher.run("train", (*tiny, *COMMON, *NGAME, *SOGRAM, f"--gin.MODEL_DIR={folder}"))
  gin.clear_config()
  return folder


def test_a_full_disk_ends_the_run_with_a_message_and_it_goes_on_when_there_is_room(
  tiny, tmp_path, undisturbed
):
  if reason := why_not():
    pytest.skip(reason)
  with SmallDisk(tmp_path / "disk", 60) as disk:
    folder, seen = disk.folder / "run", disk.outside / "run"
    flags = (*tiny, *COMMON)
    started = start(flags, folder, prefix=disk.inside([]))
    wait_for(seen, "checkpoint_2", started)
    disk.keep_full(started, left=100_000)  # room for the log
    code, _, err = ended(started)
    kept = steps_on_disk(seen)
    assert code == exit_codes.BAD_INPUT, err
    message = err.strip().splitlines()[-1]
    assert message.startswith(f"error: {folder}: checkpoint {kept[-1] + 2} could not be written"), err
    assert "No space left on device (0." in message
    assert "Traceback" not in err
    assert kept[0] == 2
    disk.free()
    code, out, err = ended(start(flags, folder, prefix=disk.inside([])))
    assert code == 0, err
    assert f"steps: {kept[-1]} -> {STEPS}" in out
    assert half_written(seen) == []
    assert differences(seen, undisturbed, STEPS) == []


@pytest.mark.parametrize("way", WAYS)
def test_a_damaged_newest_checkpoint_is_said_and_the_one_before_taken(
  launch, tiny, tmp_path, whole, capsys, way
):
  folder = tmp_path / "run"
  shutil.copytree(whole, folder)
  WAYS[way](folder / f"checkpoint_{STEPS}")
  launch("train", *tiny, *COMMON, *NGAME, *SOGRAM, f"--gin.MODEL_DIR={folder}")
  said = capsys.readouterr()
  assert f"checkpoint {STEPS} in {folder} cannot be read, trying an older one" in said.err
  assert f"steps: {STEPS - 2} -> {STEPS}" in said.out
  assert (folder / f"damaged_checkpoint_{STEPS}").is_dir()
  assert differences(folder, whole, STEPS) == []


def test_a_half_deleted_old_checkpoint_is_no_obstacle_and_goes(launch, tiny, tmp_path, whole):
  """What kill -9 leaves in the midst of deleting the oldest of them."""
  folder = tmp_path / "run"
  shutil.copytree(whole, folder)
  assert steps_on_disk(folder) == [4, 6, 8]
  WAYS["half deleted"](folder / "checkpoint_4")
  flags = (*tiny, *COMMON, *NGAME, *SOGRAM, f"--gin.MODEL_DIR={folder}")
  launch("train", *flags, f"--gin.TRAIN_STEPS={STEPS + 2}")
  assert steps_on_disk(folder) == [6, 8, 10]


def test_batches_that_the_newest_checkpoint_needs_and_that_are_gone_are_named(launch, tiny, tmp_path, whole):
  folder = tmp_path / "run"
  shutil.copytree(whole, folder)
  (folder / "batches" / f"bank_{STEPS:08d}.npy").unlink()
  flags = (*tiny, *COMMON, *NGAME, *SOGRAM, f"--gin.MODEL_DIR={folder}", f"--gin.TRAIN_STEPS={STEPS + 2}")
  with pytest.raises(UserError, match=r"bank_00000008.npy: .*Copy MODEL_DIR with its folder batches"):
    launch("train", *flags)
  assert steps_on_disk(folder) == [4, 6, 8]


def test_a_deleted_cache_is_made_again(tiny, tmp_path, undisturbed):
  folder, cache = tmp_path / "run", tmp_path / "cache"
  flags = (*tiny, *COMMON)
  started = start(flags, folder, cache=cache)
  wait_for(folder, "checkpoint_4", started)
  started.kill()
  started.communicate()
  shutil.rmtree(cache)
  code, _, err = ended(start(flags, folder, cache=cache))
  assert code == 0, err
  assert "tokenise train passages" in err
  assert differences(folder, undisturbed, STEPS) == []


def test_a_second_training_in_the_folder_refuses_and_the_first_goes_on(tiny, tmp_path, undisturbed):
  folder = tmp_path / "run"
  flags = (*tiny, *COMMON)
  first = start(flags, folder)
  wait_for(folder, "train/log.jsonl", first)
  first.send_signal(signal.SIGSTOP)  # it keeps its lock meanwhile
  code, _, err = ended(start(flags, folder))
  first.send_signal(signal.SIGCONT)
  assert code == exit_codes.BAD_INPUT
  assert "another training is writing to this folder" in err
  code, _, err = ended(first)
  assert code == 0, err
  assert differences(folder, undisturbed, STEPS) == []


def test_a_stop_before_the_first_step_is_over_saves_that_step(tiny, tmp_path):
  """It comes while the step compiles, where nothing is interrupted."""
  folder = tmp_path / "run"
  started = start((*tiny, *COMMON), folder)
  assert started.stdout is not None
  while not started.stdout.readline().startswith("steps: 0"):
    assert started.poll() is None, ended(started)
  started.send_signal(signal.SIGTERM)
  code, _, err = ended(started)
  assert code == exit_codes.DONE, err
  assert steps_on_disk(folder) == [stopped_at(folder)] == [last_logged(folder)]
  assert "the same command goes on from there" in err


# An evaluation of an hour, at whose beginning the machine's owner wants it back.
SLOW = """
import os, signal, time
class Slow:
  name, metric_names = "slow", ()
  def load(self):
    pass
  def run_all(self, searcher, *, model_dir):
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(3600)
"""
SLOW_GIN = """
from __gin__ import dynamic_registration
import slow_evaluator
EVALUATORS = (@slow_evaluator.Slow(),)
"""


def test_a_stop_in_an_evaluation_leaves_it_and_saves(tiny, tmp_path, undisturbed, monkeypatch):
  (tmp_path / "slow_evaluator.py").write_text(SLOW, encoding="utf-8")
  (tmp_path / "slow.gin").write_text(SLOW_GIN, encoding="utf-8")
  monkeypatch.setenv("PYTHONPATH", str(tmp_path))
  folder = tmp_path / "run"
  flags = (*tiny, *COMMON)
  code, _, err = ended(start((*flags, f"--gin_file={tmp_path / 'slow.gin'}"), folder))
  assert code == exit_codes.DONE, err
  assert (steps_on_disk(folder), stopped_at(folder)) == ([2], 2)
  code, out, err = ended(start(flags, folder))
  assert code == 0, err
  assert f"steps: 2 -> {STEPS}" in out
  assert differences(folder, undisturbed, STEPS) == []


def test_two_stops_at_once_lose_nothing_that_was_saved(tiny, tmp_path, undisturbed):
  """The second one ends the process wherever it is."""
  folder = tmp_path / "run"
  flags = (*tiny, *COMMON)
  started = start(flags, folder)
  wait_for(folder, "checkpoint_4", started)
  started.send_signal(signal.SIGTERM)
  time.sleep(0.02)
  started.send_signal(signal.SIGTERM)
  code, _, err = ended(started)
  assert code in (exit_codes.DONE, -signal.SIGTERM), err
  assert 4 in steps_on_disk(folder)
  code, _, err = ended(start(flags, folder))
  assert code == 0, err
  assert differences(folder, undisturbed, STEPS) == []
  assert half_written(folder) == []


def test_a_stop_in_the_last_save_lets_it_finish(tiny, tmp_path, undisturbed):
  folder = tmp_path / "run"
  started = start((*tiny, *COMMON), folder)
  wait_for(folder, f"checkpoint_{STEPS}.orbax-checkpoint-tmp*", started)
  started.send_signal(signal.SIGTERM)
  code, _, err = ended(started)
  assert code in (exit_codes.DONE, -signal.SIGTERM), err  # the latter after all is written
  assert differences(folder, undisturbed, STEPS) == []
  assert stopped_at(folder) is None


def test_a_folder_that_may_no_longer_be_written_to_ends_the_run_with_a_message(tiny, tmp_path, undisturbed):
  """Root may write everywhere, so it is started without that right."""
  prefix = ("setpriv", "--bounding-set=-dac_override") if os.geteuid() == 0 else ()
  if prefix and not shutil.which("setpriv"):
    pytest.skip("root may write everywhere, and setpriv is not here to take that right")
  folder = tmp_path / "run"
  flags = (*tiny, *COMMON)
  started = start(flags, folder, prefix=prefix)
  wait_for(folder, "checkpoint_2", started)
  folder.chmod(0o555)
  code, _, err = ended(started)
  folder.chmod(0o755)
  kept = steps_on_disk(folder)
  assert code == exit_codes.BAD_INPUT, err
  assert "could not be written: Permission denied" in err.strip().splitlines()[-1]
  assert f"it goes on from step {kept[-1]}" in err
  assert "Traceback" not in err
  code, out, err = ended(start(flags, folder, prefix=prefix))
  assert code == 0, err
  assert f"steps: {kept[-1]} -> {STEPS}" in out
  assert differences(folder, undisturbed, STEPS) == []


@pytest.fixture(scope="module")
def pair(tmp_path_factory) -> pairs.Pair:
  """Trainings of two processes, and one of them that nothing disturbed."""
  compiled = pathlib.Path(os.environ["JAX_COMPILATION_CACHE_DIR"])
  return pairs.Pair(Workshop(tmp_path_factory.mktemp("pair"), compiled=compiled))


@pytest.mark.parametrize("fault", [pairs.FAULTS[i] for i in (1, 2, 5)], ids=lambda fault: fault.name)
def test_one_of_two_processes_is_gone_and_the_other_ends_in_time(pair, fault):
  line = Line(fault.name)
  pair.suffer(fault, line, seconds=0.2)
  assert line.failures == []
