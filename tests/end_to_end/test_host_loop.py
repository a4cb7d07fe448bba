"""Trainings as the host runs them: batches ahead change nothing, the step compiles once, traces are whole after SIGTERM."""

import collections
import json
import os
import pathlib
import signal

import jax
import numpy as np
import pytest
from jax import monitoring

from retrieval_jax.errors import UserError
from retrieval_jax.optimizers import Optimizer
from retrieval_jax.step_guard import StepGuard
from retrieval_jax.training_batches import TrainingBatches
from tests.end_to_end.conftest import assert_equal_states, state_of

NGAME = ("--gin_file=batching/ngame.gin", "--gin.CLUSTER_SIZES=((0, 1), (1, 4))", "--gin.REFRESH_EPOCHS=1")
ANCE = (
  "--gin_file=negatives/ance.gin",
  "--gin.NEGATIVES_DEPTH=8",
  "--gin.HARD_NEGATIVES=2",
  "--gin.NEGATIVES_FROM_EPOCH=1",
)
WARNING = "compiled anew after the first step"
STEP = "jit(train_step)"


@pytest.fixture
def compiled():
  """Counts the compilations of each program by its name."""
  names: collections.Counter[str] = collections.Counter()

  def heard(event: str, duration_secs: float, **kwargs: str | int) -> None:
    if event == "/jax/core/compile/backend_compile_duration":
      names[str(kwargs["fun_name"])] += 1

  monitoring.register_event_duration_secs_listener(heard)
  yield names
  monitoring.unregister_event_duration_listener(heard)


def log_of(folder: pathlib.Path) -> list[dict]:
  lines = (folder / "train" / "log.jsonl").read_text(encoding="utf-8").splitlines()
  return [record for record in map(json.loads, lines) if "loss" in record]


def test_the_step_compiles_once_over_epochs_padded_batches_evaluations_and_a_resume(
  launch, tiny, tmp_path, compiled, capsys
):
  folder = tmp_path / "run"
  flags = (
    *tiny,
    "--gin_file=batching/unique.gin",
    "--gin.BATCH_SIZE=24",  # 64 examples: the last batch of an epoch has empty places
    "--gin_file=evaluators/retrieval.gin",
    "--gin.CHECKPOINT_PERIOD=3",
    f"--gin.MODEL_DIR={folder}",
  )
  launch("train", *flags, "--gin.TRAIN_STEPS=9")
  assert compiled[STEP] == 1
  launch("train", *flags, "--gin.TRAIN_STEPS=12")
  assert compiled[STEP] == 2
  log = log_of(folder)
  assert [record["step"] for record in log] == list(range(1, 13))
  counts = [record["compilations"] for record in log]
  # The first evaluation, after step 3, compiles the encoder, unless another test of this session has done so.
  assert counts[0] == counts[1] == counts[2] <= counts[3]
  assert counts[3:9] == counts[3:4] * 6  # and the second one and the third nothing more
  assert all(0 <= record["host_share"] <= 1 for record in log)
  captured = capsys.readouterr()
  assert WARNING not in captured.err
  assert captured.out.count("memory a device: ") == 2


def test_what_the_log_says_of_the_schedule_is_computed_when_the_step_is_over(
  launch, tiny, tmp_path, monkeypatch
):
  """On a CPU the schedule's little programs queue behind the step that runs: the host would seem to take that time."""
  order = []

  def noted(cls: type, name: str) -> None:
    method = getattr(cls, name)

    def run(self, *args):
      found = method(self, *args)
      order.append(name)
      return found

    monkeypatch.setattr(cls, name, run)

  noted(StepGuard, "metrics")
  noted(Optimizer, "learning_rates")
  launch("train", *tiny, f"--gin.MODEL_DIR={tmp_path / 'run'}", "--gin.TRAIN_STEPS=1")
  # Before the only step's log line: the guard's look at the step before (there is none), at this one, then the schedule.
  assert order[:3] == ["metrics", "metrics", "learning_rates"]


def test_batches_made_ahead_are_those_of_the_refreshed_plan_and_the_step_compiles_once(
  launch, tiny, tmp_path, compiled, capsys
):
  for ahead in (0, 3):
    compiled.clear()
    launch(
      "train",
      *tiny,
      *NGAME,
      *ANCE,
      "--gin.TRAIN_STEPS=10",  # clusters and negatives are made anew before the 5th and the 9th
      f"--gin.BATCHES_AHEAD={ahead}",
      f"--gin.MODEL_DIR={tmp_path / str(ahead)}",
    )
    assert compiled[STEP] == 1
  assert_equal_states(state_of(tmp_path / "0", 10), state_of(tmp_path / "3", 10))
  assert [record.get("clusters_age") for record in log_of(tmp_path / "3")] == [None] * 4 + [0, 1, 2, 3, 0, 1]
  assert WARNING not in capsys.readouterr().err


def test_a_batch_of_another_shape_is_noticed(launch, tiny, tmp_path, monkeypatch, compiled, capsys):
  make = TrainingBatches.make

  def wider(self, step):
    batch = make(self, step)
    return batch._replace(
      positives=np.pad(batch.positives, ((0, 0), (0, max(0, step - 2))), constant_values=-1)
    )

  monkeypatch.setattr(TrainingBatches, "make", wider)
  launch("train", *tiny, "--gin.TRAIN_STEPS=5", f"--gin.MODEL_DIR={tmp_path / 'run'}")
  assert compiled[STEP] == 3
  err = capsys.readouterr().err
  assert f"warning: step 4: {STEP} {WARNING}" in err
  assert err.count(WARNING) == 1
  counts = [record["compilations"] for record in log_of(tmp_path / "run")]
  assert np.diff(counts[1:]).tolist() == [0, 1, 1]


def test_an_error_in_the_thread_ends_the_training_at_its_step(launch, tiny, tmp_path, monkeypatch):
  make = TrainingBatches.make

  def unreadable(self, step):
    if step == 5:
      raise UserError("the tokens of step 6 cannot be read")
    return make(self, step)

  monkeypatch.setattr(TrainingBatches, "make", unreadable)
  with pytest.raises(UserError, match="the tokens of step 6 cannot be read"):
    launch("train", *tiny, "--gin.TRAIN_STEPS=8", f"--gin.MODEL_DIR={tmp_path / 'run'}")
  assert [record["step"] for record in log_of(tmp_path / "run")] == [1, 2, 3, 4, 5]


def test_a_training_that_is_stopped_within_the_traced_steps_leaves_a_whole_trace(
  launch, tiny, tmp_path, monkeypatch, capsys
):
  hold = TrainingBatches.hold

  def stopping(self, step):
    if step == 2:
      os.kill(os.getpid(), signal.SIGTERM)
    hold(self, step)

  monkeypatch.setattr(TrainingBatches, "hold", stopping)
  folder = tmp_path / "traces"
  launch(
    "train",
    *tiny,
    "--gin.TRAIN_STEPS=8",
    "--gin.PROFILE_STEPS=(2, 8)",
    f"--gin.PROFILE_DIR={folder}",
    f"--gin.MODEL_DIR={tmp_path / 'run'}",
  )
  assert (tmp_path / "run" / "checkpoint_3").is_dir()
  (path,) = folder.glob("plugins/profile/*/*.xplane.pb")
  steps = {
    dict(event.stats)["step_num"]
    for plane in jax.profiler.ProfileData.from_file(str(path)).planes
    for line in plane.lines
    for event in line.events
    if event.name == "train"
  }
  assert steps == {2, 3}
  captured = capsys.readouterr()
  assert "traced: steps 2 to 7" in captured.out
  assert f"the trace is in {folder}" in captured.out
