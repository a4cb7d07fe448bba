"""Writes that the system refuses: a full disk, a quota, a folder without rights, whichever library met them."""

import errno
import os
import pathlib
import re
import shutil
from typing import Final

REFUSED: Final = frozenset((errno.EACCES, errno.EPERM, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG))
_NUMBER: Final = re.compile(r"os_error_code='(\d+)'")  # TensorStore's, whose exceptions are ValueErrors


def refusal(error: BaseException) -> str | None:
  """Returns what the system said where an error is of a refused write, and None for any other error.

  Example: `refusal(OSError(errno.ENOSPC, ""))` is "No space left on device".
  """
  found: BaseException | None = error
  while found is not None:
    number = found.errno if isinstance(found, OSError) else _number(str(found))
    if number in REFUSED:
      return os.strerror(number)
    found = found.__cause__
  return None


def free_space(folder: pathlib.Path) -> str:
  """Returns how much room is left where a folder is, such as "12 MB are free"."""
  size = shutil.disk_usage(folder).free
  return f"{size / 1e9:,.1f} GB are free" if size >= 1e9 else f"{size / 1e6:,.1f} MB are free"


def _number(text: str) -> int | None:
  match = _NUMBER.search(text)
  return int(match[1]) if match else None
