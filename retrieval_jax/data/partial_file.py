"""A file that is being downloaded, and what a later attempt needs to go on with it."""

import contextlib
import json
import os
import pathlib
from typing import IO, Any

from retrieval_jax.errors import UserError
from retrieval_jax.paths import atomic_write


class PartialFile:
  """The file `<target>.part`, what it is a part of, and a lock: two processes do not write to it at once.

  Args:
    target: the name of the file when it is whole.
    url: where it comes from: bytes from elsewhere are not gone on with.
    resumable: go on also where the server does not name the version of its file.

  Raises: UserError, in a `with` statement, if another process has it.

  Example: `with PartialFile(target, url, resumable=True) as part: part.add(data); part.publish()`.
  """

  def __init__(self, target: pathlib.Path, url: str, *, resumable: bool):
    self.url, self.target = url, target
    self.path = target.with_name(f"{target.name}.part")
    self._note = target.with_name(f"{target.name}.part.json")
    self._resumable = resumable
    self._file: IO[bytes] | None = None

  def __enter__(self) -> "PartialFile":
    import fcntl  # not on Windows

    self._file = open(self.path, "ab")
    try:
      fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
      self._file.close()
      raise UserError(f"{self.path}: another process is downloading this file. Wait for it.") from None
    except OSError:
      pass  # a file system without locks
    note = self._read_note()
    if note.get("url") != self.url or not (note.get("validator") or self._resumable):
      self.clear()
    return self

  def __exit__(self, *_: object) -> None:
    assert self._file is not None
    self._file.close()
    if not (self.path.exists() and self.path.stat().st_size):
      self.path.unlink(missing_ok=True)
      self._note.unlink(missing_ok=True)

  @property
  def size(self) -> int:
    """Bytes that are there."""
    assert self._file is not None
    return self._file.tell()

  @property
  def validator(self) -> str:
    """What names the version of the server's file: a strong ETag, or its date; "" if the server told neither."""
    return self._read_note().get("validator", "")

  def clear(self) -> None:
    """Begins anew."""
    assert self._file is not None
    self._file.truncate(0)
    self._file.seek(0)

  def note(self, headers: Any) -> None:
    """Writes down what is being received."""
    etag = headers.get("ETag") or ""
    validator = headers.get("Last-Modified") or "" if etag.startswith("W/") or not etag else etag
    with atomic_write(self._note) as file:
      json.dump({"url": self.url, "validator": validator}, file)

  def add(self, block: bytes) -> None:
    """Appends bytes.

    Raises: UserError if the disk is full.
    """
    assert self._file is not None
    try:
      self._file.write(block)
    except OSError as error:
      raise self.no_room(error) from error

  def publish(self) -> None:
    """Renames the file to its own name."""
    assert self._file is not None
    self._file.flush()
    os.fsync(self._file.fileno())
    os.replace(self.path, self.target)
    self._note.unlink(missing_ok=True)

  def flush(self) -> None:
    """Hands what was added to the system."""
    assert self._file is not None
    try:
      self._file.flush()
    except OSError as error:
      raise self.no_room(error) from error

  def no_room(self, reason: object) -> UserError:
    """Returns the error of a disk that takes no more."""
    return UserError(
      f"{self.path}: cannot be written ({reason}). Make room or choose another --output; what is there is gone on with."
    )

  def _read_note(self) -> dict[str, str]:
    with contextlib.suppress(OSError, ValueError):
      return json.loads(self._note.read_bytes())
    return {}
