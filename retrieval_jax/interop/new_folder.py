"""A folder that appears whole or not at all."""

import contextlib
import fcntl
import os
import pathlib
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from typing import Final

from safetensors import SafetensorError

from retrieval_jax.errors import UserError

# What tensorstore, and Orbax with it, says of a full disk: a ValueError with the system's message in it.
SYSTEM_ERROR: Final = re.compile(r": ([^:\[\]]+) \[[^\]]*os_error_code='\d+'")
SECONDS_TO_LOCK: Final = 60


@contextlib.contextmanager
def new_folder(folder: pathlib.Path) -> Iterator[pathlib.Path]:
  """Yields an empty folder beside `folder` that takes its place on success and vanishes on an exception.

  It is locked while this process builds in it; those of processes that were killed before, which nothing locks, are
  removed first.

  Raises: UserError if `folder` is a file or holds anything already, or cannot be made or written, as on a full disk.

  Example: `with new_folder(pathlib.Path("out")) as building: (building / "a.txt").write_text("a")`.
  """
  if os.path.exists(folder) and (not folder.is_dir() or any(folder.iterdir())):
    raise UserError(
      f"{folder}: is there already; expected a new or an empty folder. Choose another, or remove it."
    )
  parent, prefix = folder.absolute().parent, f".{folder.name}.building-"
  try:
    parent.mkdir(parents=True, exist_ok=True)
    _remove_leftovers(parent, prefix)
    building = pathlib.Path(tempfile.mkdtemp(dir=parent, prefix=prefix))
  except OSError as error:
    raise UserError(
      f"{folder}: the folder cannot be made ({error}). Choose one where you may write."
    ) from None
  try:
    with _locked(building):
      yield building
      building.chmod(0o755)
      try:
        os.replace(building, folder)
      except OSError as error:  # another process was there first
        raise UserError(
          f"{folder}: cannot be put in its place ({error.strerror}). Choose another folder."
        ) from None
  except BaseException as error:
    remove(building)
    if reason := write_failure(error):
      raise UserError(
        f"{folder}: could not be written ({reason}). Is the disk full? Nothing is left of it."
      ) from error
    raise


def write_failure(error: BaseException) -> str | None:
  """Returns what the system said of a write that failed, or None for an error of another kind."""
  if isinstance(error, OSError | SafetensorError):
    return str(error) or type(error).__name__
  found = SYSTEM_ERROR.search(str(error)) if isinstance(error, ValueError | RuntimeError) else None
  return found[1] if found and not isinstance(error, UserError) else None


def remove(folder: pathlib.Path) -> None:
  """Removes a folder, as far as that is possible, also while other threads finish their writing to it."""
  for _ in range(3):
    shutil.rmtree(folder, ignore_errors=True)
    if not os.path.lexists(folder):
      return
    time.sleep(0.1)


@contextlib.contextmanager
def _locked(folder: pathlib.Path) -> Iterator[None]:
  """Marks the folder as in use by a living process: the system itself takes the lock back from a killed one."""
  handle = os.open(folder, os.O_RDONLY)
  try:
    with contextlib.suppress(OSError):  # a file system without locks: there no leftover is ever removed
      fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    yield
  finally:
    os.close(handle)


def _remove_leftovers(parent: pathlib.Path, prefix: str) -> None:
  try:
    children = [child for child in parent.iterdir() if child.name.startswith(prefix)]
  except OSError:  # a folder that may be written to and not read
    return
  for child in children:
    with contextlib.suppress(OSError):  # locked by a living process, or another's
      handle = os.open(child, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
      try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # A folder is made a moment before it is locked.
        if time.time() - child.stat().st_mtime > SECONDS_TO_LOCK:
          shutil.rmtree(child)
      finally:
        os.close(handle)
