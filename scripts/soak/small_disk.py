"""A disk of a few megabytes, which a test can fill: a tmpfs in a namespace of its own."""

import contextlib
import pathlib
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from typing import Final

_UNSHARE: Final = ("unshare", "--user", "--map-root-user", "--mount")
_MOUNT: Final = 'mount -t tmpfs -o size="$1" tmpfs "$2" && echo mounted && exec sleep infinity'


class SmallDisk:
  """A tmpfs of `megabytes` over an empty folder, for the processes that are started by `inside`.

  Attributes:
    folder: the disk, as those processes see it. outside: the same disk for everybody else.

  Raises: OSError on entering, where the system makes none.

  Example:
    with SmallDisk(tmp_path, 5) as disk:
      subprocess.run(disk.inside(["touch", f"{disk.folder}/file"]), check=True)
      assert (disk.outside / "file").exists()
  """

  def __init__(self, folder: pathlib.Path, megabytes: float):
    self.folder = folder.absolute()
    self._size = f"{int(megabytes * 1000)}k"

  def __enter__(self) -> "SmallDisk":
    self.folder.mkdir(parents=True, exist_ok=True)
    self._holder = subprocess.Popen(
      [*_UNSHARE, "sh", "-c", _MOUNT, "sh", self._size, str(self.folder)],
      stdout=subprocess.PIPE,
      stderr=subprocess.PIPE,
      text=True,
    )
    assert self._holder.stdout is not None
    if self._holder.stdout.readline() != "mounted\n":
      _, reason = self._holder.communicate()
      raise OSError(reason.strip() or "unshare failed")
    self.outside = pathlib.Path(f"/proc/{self._holder.pid}/root{self.folder}")
    return self

  def __exit__(self, *_: object) -> None:
    self._holder.kill()
    self._holder.communicate()

  def inside(self, command: Sequence[str]) -> list[str]:
    """Returns the command that runs another one where the disk is."""
    return [
      "nsenter",
      f"--target={self._holder.pid}",
      "--user",
      "--mount",
      "--preserve-credentials",
      *command,
    ]

  def keep_full(self, process: subprocess.Popen, *, left: int = 0) -> None:
    """Takes all room but `left` bytes, and what is given back, until a process has ended."""
    with open(self.outside / "ballast", "ab", buffering=0) as file:
      while process.poll() is None:
        with contextlib.suppress(OSError):  # full already
          file.write(bytes(max(0, shutil.disk_usage(self.outside).free - left)))
        time.sleep(0.002)

  def free(self) -> None:
    """Gives back the room that `keep_full` took."""
    (self.outside / "ballast").unlink()


def why_not() -> str | None:
  """Returns why this machine makes no small disks, or None where it does."""
  with tempfile.TemporaryDirectory() as folder:
    try:
      with SmallDisk(pathlib.Path(folder), 1):
        return None
    except OSError as error:
      return f"a full disk cannot be made here: {error}"
