"""What launch makes of an error that the system reports."""

import errno

import gin
import pytest

from retrieval_jax import launch


@gin.configurable
def retrieval_jax_test_writes_to_a_full_disk():
  raise OSError(errno.ENOSPC, "No space left on device", "/full/file")


def test_an_error_of_the_system_is_known_through_gin():
  """gin raises a copy of its own, without number and file."""
  with pytest.raises(OSError) as found:
    retrieval_jax_test_writes_to_a_full_disk()
  assert found.value.errno is None
  cause = launch._cause(found.value)
  assert (cause.errno, cause.filename) == (errno.ENOSPC, "/full/file")


def test_a_disk_that_is_full_is_one_message(monkeypatch, capsys):
  monkeypatch.setattr(launch, "run", lambda *_: retrieval_jax_test_writes_to_a_full_disk())
  with pytest.raises(SystemExit) as stopped:
    launch.main("train")
  assert stopped.value.code == 2
  assert "error: /full/file: No space left on device. Make room there" in capsys.readouterr().err
