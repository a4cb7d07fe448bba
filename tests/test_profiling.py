"""A trace of some steps: which, where, and settings that cannot be."""

import contextlib
import pathlib

import jax
import numpy as np
import pytest

from retrieval_jax.errors import UserError
from retrieval_jax.loop_options import LoopOptions
from retrieval_jax.profiling import ProfiledSteps


def traced_steps(folder: pathlib.Path) -> list[int]:
  """Returns the numbers of the steps that a folder's one trace has."""
  (path,) = folder.glob("plugins/profile/*/*.xplane.pb")
  found = [
    int(dict(event.stats)["step_num"])
    for plane in jax.profiler.ProfileData.from_file(str(path)).planes
    for line in plane.lines
    for event in line.events
    if event.name == "train"
  ]
  return sorted(found)


def run(profile: ProfiledSteps, numbers: range) -> None:
  step = jax.jit(lambda x: x + 1)
  state = np.zeros(3, np.float32)
  with contextlib.closing(profile):
    for number in numbers:
      with profile.step(number):
        state = step(state)
      profile.after(number, state)


def test_the_steps_asked_for_are_traced_and_no_others(tmp_path, capsys):
  run(ProfiledSteps((3, 5), tmp_path / "profile"), range(1, 8))
  assert traced_steps(tmp_path / "profile") == [3, 4]
  assert f"the trace is in {tmp_path / 'profile'}" in capsys.readouterr().out


def test_a_training_that_ends_within_the_window_has_a_trace_as_far_as_it_came(tmp_path):
  run(ProfiledSteps((2, 100), tmp_path / "profile"), range(1, 4))
  assert traced_steps(tmp_path / "profile") == [2, 3]
  run(ProfiledSteps((2, 100), tmp_path / "other"), range(1, 4))  # the first one has been stopped
  assert traced_steps(tmp_path / "other") == [2, 3]


def test_a_training_that_goes_on_within_the_window_traces_the_rest(tmp_path):
  run(ProfiledSteps((2, 7), tmp_path / "profile"), range(5, 9))
  assert traced_steps(tmp_path / "profile") == [5, 6]


@pytest.mark.parametrize("steps", [None, (20, 30), (1, 3)])
def test_without_such_steps_there_is_no_trace(tmp_path, steps):
  run(ProfiledSteps(steps, tmp_path / "profile"), range(3, 6))
  assert not (tmp_path / "profile").exists()


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
  (tmp_path / "file").write_text("")
  with pytest.raises(UserError, match=r"PROFILE_DIR=.*/file/profile cannot be made: Not a directory"):
    run(ProfiledSteps((1, 2), tmp_path / "file" / "profile"), range(1, 3))


@pytest.mark.parametrize(
  ("options", "message"),
  [
    (LoopOptions(log_period=0), "LOG_PERIOD=0: expected a whole number of at least 1"),
    (LoopOptions(batches_ahead=-1), "BATCHES_AHEAD=-1: expected a whole number of at least 0"),
    (
      LoopOptions(batches_ahead=65),
      "BATCHES_AHEAD=65: expected at most 64; each of them is held on the devices",
    ),
    (LoopOptions(batches_ahead=True), "BATCHES_AHEAD=True: expected a whole number"),
    (LoopOptions(profile_steps=(0, 3)), r"PROFILE_STEPS=\(0, 3\): expected two numbers of steps"),
    (LoopOptions(profile_steps=(3, 3)), r"with 1 <= first < end, such as \(10, 13\)"),
    (LoopOptions(profile_steps=(3.0, 4)), r"PROFILE_STEPS=\(3.0, 4\)"),  # pyright: ignore[reportArgumentType]  (meant to be wrong)
    (LoopOptions(profile_steps=5), "PROFILE_STEPS=5"),  # pyright: ignore[reportArgumentType]  (meant to be wrong)
    (LoopOptions(profile_steps=(1, 2, 3)), r"PROFILE_STEPS=\(1, 2, 3\)"),  # pyright: ignore[reportArgumentType]  (meant to be wrong)
    (LoopOptions(profile_steps=(11, 13)), "the training ends at TRAIN_STEPS=10, before the first"),
  ],
)
def test_settings_that_cannot_be(options, message):
  with pytest.raises(UserError, match=message):
    options.check(10)


def test_the_folder_of_the_trace(tmp_path):
  assert LoopOptions().folder(tmp_path) == tmp_path / "profile"
  assert LoopOptions(profile_dir=f"{tmp_path}/mine").folder(tmp_path / "run") == tmp_path / "mine"
  (tmp_path / "file").write_text("")
  with pytest.raises(UserError, match=r"PROFILE_DIR=.*file; expected a folder"):
    LoopOptions(profile_dir=f"{tmp_path}/file").folder(tmp_path)


def test_what_is_said_of_the_trace_at_the_start():
  assert LoopOptions().describe(0) == []
  assert LoopOptions(profile_steps=(3, 6)).describe(0) == ["traced: steps 3 to 5"]
  assert LoopOptions(profile_steps=(3, 6)).describe(4) == ["traced: steps 5 to 5"]
  (line,) = LoopOptions(profile_steps=(3, 6)).describe(5)
  assert line.startswith("warning: PROFILE_STEPS=(3, 6) are done already")
