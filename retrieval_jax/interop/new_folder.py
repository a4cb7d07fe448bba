"""A folder that appears whole or not at all."""

import contextlib
import os
import pathlib
import shutil
import tempfile
from collections.abc import Iterator

from retrieval_jax.errors import UserError


@contextlib.contextmanager
def new_folder(folder: pathlib.Path) -> Iterator[pathlib.Path]:
  """Yields an empty folder beside `folder` that takes its place on success and vanishes on an exception.

  Raises: UserError if `folder` is a file or holds anything already, or cannot be made.

  Example: `with new_folder(pathlib.Path("out")) as building: (building / "a.txt").write_text("a")`.
  """
  if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
    raise UserError(
      f"{folder}: is there already; expected a new or an empty folder. Choose another, or remove it."
    )
  try:
    folder.absolute().parent.mkdir(parents=True, exist_ok=True)
    building = pathlib.Path(tempfile.mkdtemp(dir=folder.absolute().parent, prefix=f".{folder.name}."))
  except OSError as error:
    raise UserError(
      f"{folder}: the folder cannot be made ({error}). Choose one where you may write."
    ) from None
  try:
    yield building
    building.chmod(0o755)
    try:
      os.replace(building, folder)
    except OSError as error:  # another process was there first
      raise UserError(
        f"{folder}: cannot be put in its place ({error.strerror}). Choose another folder."
      ) from None
  except BaseException:
    shutil.rmtree(building, ignore_errors=True)
    raise
