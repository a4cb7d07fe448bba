"""A refused write is known by its number, wherever a library put it."""

import errno
import subprocess
import sys

import pytest

from retrieval_jax.refused_writes import free_space, refusal

# What TensorStore raises, and Orbax hands on.
FULL = (
  'RESOURCE_EXHAUSTED: Error writing "params.a/0" in OCDBT database at local file "/run/ocdbt.process_0/": Failed writing: '
  '"/run/ocdbt.process_0/d/9bf1": Failed to write 1312273 bytes to file 26: No space left on device '
  "[os_error_code='28'] [source locations='tensorstore/internal/os/file_util_posix.cc:287']"
)


def caused(error: Exception, cause: Exception) -> Exception:
  error.__cause__ = cause
  return error


@pytest.mark.parametrize(
  ("error", "said"),
  [
    (OSError(errno.ENOSPC, "full"), "No space left on device"),
    (PermissionError(errno.EACCES, "no"), "Permission denied"),
    (ValueError(FULL), "No space left on device"),
    (caused(RuntimeError("a save failed"), OSError(errno.EROFS, "")), "Read-only file system"),
    (OSError(errno.ENOENT, "not there"), None),
    (ValueError(FULL.replace("'28'", "'2'")), None),
    (ValueError("RESOURCE_EXHAUSTED: out of memory"), None),
    (OSError("without a number"), None),
  ],
)
def test_what_the_system_said(error, said):
  assert refusal(error) == said


def test_the_room_that_is_left(tmp_path, monkeypatch):
  monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 12_345_678_901}))
  assert free_space(tmp_path) == "12.3 GB are free"
  monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 0}))
  assert free_space(tmp_path) == "0.0 MB are free"


def test_a_file_that_finds_no_room_is_named_and_leaves_nothing(tmp_path):
  """The system itself gives no name to the error of a write."""
  script = """
import resource, sys
from retrieval_jax.paths import atomic_write
resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
try:
  with atomic_write(sys.argv[1]) as file:
    file.write("text")
except OSError as error:
  sys.exit(f"{error.filename}: {error.strerror}")
"""
  done = subprocess.run(
    [sys.executable, "-c", script, str(tmp_path / "file")], capture_output=True, text=True, check=False
  )
  assert done.stderr.strip() == f"{tmp_path / 'file'}: File too large"
  assert list(tmp_path.iterdir()) == []
