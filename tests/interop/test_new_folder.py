"""A folder that appears whole or not at all: what is left when its writer fails or is killed."""

import os
import pathlib
import resource
import subprocess
import sys
import time

import numpy as np
import pytest
from safetensors import SafetensorError
from safetensors.numpy import save_file

from retrieval_jax.errors import UserError
from retrieval_jax.interop.new_folder import new_folder

KILLED = """
import os, pathlib, signal, sys
from retrieval_jax.interop.new_folder import new_folder
with new_folder(pathlib.Path(sys.argv[1])) as building:
  (building / "half").write_text("half")
  os.kill(os.getpid(), signal.SIGKILL)
"""


def test_whole_or_not_at_all(tmp_path):
  with new_folder(tmp_path / "out") as building:
    assert not (tmp_path / "out").exists()
    (building / "a.txt").write_text("a")
  assert [path.name for path in tmp_path.iterdir()] == ["out"]
  assert (tmp_path / "out" / "a.txt").read_text() == "a"
  assert (tmp_path / "out").stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize(
  "error",
  [
    OSError(28, "No space left on device"),
    SafetensorError("I/O error: No space left on device"),
    ValueError(
      'OUT_OF_RANGE: Error writing "step/0" in OCDBT database at local file "/a/b": Failed writing: "/a/b/d/4c": '
      "Failed to write 13921 bytes to file 5: No space left on device [os_error_code='28']"
    ),
  ],
)
def test_a_write_that_fails(tmp_path, error):
  message = r"out: could not be written \(.*No space left on device\)\. Is the disk full\? Nothing is left"
  with pytest.raises(UserError, match=message), new_folder(tmp_path / "out"):
    raise error
  assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("error", [UserError("its own"), ValueError("its own"), KeyboardInterrupt("its own")])
def test_other_errors_stay_what_they_are(tmp_path, error):
  with pytest.raises(type(error), match=r"^its own$"), new_folder(tmp_path / "out"):
    raise error
  assert not list(tmp_path.iterdir())


def test_a_full_disk(tmp_path):
  before = resource.getrlimit(resource.RLIMIT_FSIZE)
  resource.setrlimit(resource.RLIMIT_FSIZE, (5000, before[1]))
  try:
    with (
      pytest.raises(UserError, match="out: could not be written"),
      new_folder(tmp_path / "out") as building,
    ):
      save_file({"a": np.zeros(10_000, np.float32)}, building / "model.safetensors")
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
  assert not list(tmp_path.iterdir())


def make_old(folder: pathlib.Path) -> None:
  os.utime(folder, (time.time() - 3600,) * 2)


def test_what_a_killed_writer_left_is_removed(tmp_path):
  done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "out")], check=False)
  assert done.returncode == -9
  (left,) = tmp_path.iterdir()
  others = [
    tmp_path / name for name in (".out.settings", ".outer.building-12345678", "out.building-12345678")
  ]
  for other in others:
    other.mkdir()
    make_old(other)
  with new_folder(tmp_path / "out"):
    assert left.exists()  # a moment old: it might be about to be locked
  (tmp_path / "out").rmdir()
  make_old(left)
  with new_folder(tmp_path / "out"):
    assert not left.exists()
  assert all(other.exists() for other in others)


def test_what_a_living_writer_builds_stays(tmp_path):
  with new_folder(tmp_path / "out") as building:
    make_old(building)
    with new_folder(tmp_path / "out"):
      assert building.exists()
    (tmp_path / "out").rmdir()
  assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_name_that_is_too_long(tmp_path):
  with pytest.raises(UserError, match="the folder cannot be made"), new_folder(tmp_path / ("x" * 300)):
    pass
