"""A folder in the LF layout as it is written: labels, and points with their labels and filter pairs."""

import contextlib
import gzip
import io
import json
import os
import pathlib
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import IO

from retrieval_jax.data import features
from retrieval_jax.data.extreme_files import FILTERS, PREFIXES
from retrieval_jax.data.extreme_sparse import Shape
from retrieval_jax.data.extreme_texts import id_of
from retrieval_jax.errors import UserError


def free_folder(output: str | os.PathLike[str]) -> pathlib.Path:
  """Returns the folder that is to be written, `~` expanded; of a link to an empty folder that folder.

  Raises: UserError if something is there, and for a link to nothing.

  Example: `free_folder("data/mine")`.
  """
  folder = pathlib.Path(output).expanduser()
  if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
    raise UserError(f"{folder} is there already. Name another folder, or remove it first.")
  if folder.is_symlink() and not folder.exists():
    raise UserError(
      f"{folder} is a link to {os.readlink(folder)}, which is not there. Make that folder, or name another one."
    )
  return folder.resolve() if folder.exists() else folder  # a folder can be renamed to a folder, not to a link


@contextlib.contextmanager
def whole_folder(target: pathlib.Path) -> Iterator[pathlib.Path]:
  """Yields a temporary folder beside `target` that becomes it on success and vanishes on an exception.

  What a process that was killed left is removed by the next one with this target, where the file system has locks.

  Raises: UserError that names `target` if the system refuses a write: no room, no right, a read-only disk.
  """
  try:
    target.parent.mkdir(parents=True, exist_ok=True)
    with _temporary(target) as folder:
      yield folder
      os.chmod(folder, 0o755)
      os.rename(folder, target)  # onto nothing, or an empty folder
  except OSError as error:
    raise UserError(
      f"{target}: the folder cannot be written ({error.strerror}). Make room there, correct the rights, or name another "
      "folder."
    ) from error


@contextlib.contextmanager
def _temporary(target: pathlib.Path) -> Iterator[pathlib.Path]:
  """Yields a new folder beside `target` which this process holds, and removes those that nobody holds any more."""
  prefix = f".{target.name}.partial."
  for left in [path for path in target.parent.iterdir() if path.name.startswith(prefix)]:
    with _held(left) as held:
      if held:
        shutil.rmtree(left, ignore_errors=True)
  with contextlib.ExitStack() as stack:
    while True:
      folder = pathlib.Path(tempfile.mkdtemp(dir=target.parent, prefix=prefix))
      stack.callback(shutil.rmtree, folder, ignore_errors=True)
      stack.enter_context(_held(folder, wait=True))
      if folder.exists():  # else another process took it for one that was left, before it was held
        break
    yield folder


@contextlib.contextmanager
def _held(folder: pathlib.Path, *, wait: bool = False) -> Iterator[bool]:
  """Holds an advisory lock on a folder and yields True; False if another process does, or the file system has no locks."""
  import fcntl  # not on Windows

  with contextlib.ExitStack() as stack:
    held = False
    with contextlib.suppress(OSError):
      handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
      stack.callback(os.close, handle)
      fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
      held = True
    yield held


class SplitWriter:
  """Writes the points of a split, a row each. shape: the numbers of points and labels. Closed by `stack`."""

  def __init__(self, folder: pathlib.Path, split: str, shape: Shape, stack: contextlib.ExitStack):
    prefix = PREFIXES[split]
    self._points = stack.enter_context(_gzip_text(folder / f"{prefix}.json.gz"))
    self._pairs = stack.enter_context(_plain_text(folder / f"{prefix}_X_Y.txt"))
    self._filter = stack.enter_context(_plain_text(folder / FILTERS[split][0]))
    self._row = 0
    self._pairs.write(f"{shape.rows} {shape.columns}\n")

  def add(self, text: features.Example, labels: Sequence[int], filtered: Sequence[int]) -> None:
    """Appends a point with its labels, and the labels that are no results of it."""
    self._points.write(_json_line(text, {"target_ind": list(labels), "target_rel": [1.0] * len(labels)}))
    self._pairs.write(" ".join(f"{label}:1.0" for label in labels) + "\n")
    self._filter.writelines(f"{self._row} {label}\n" for label in filtered)
    self._row += 1


def write_labels(labels: Iterator[features.Example], folder: pathlib.Path) -> None:
  """Writes the texts of all labels, in the order they come."""
  with _gzip_text(folder / "lbl.json.gz") as file:
    file.writelines(_json_line(label, {}) for label in labels)


def _json_line(text: features.Example, more: Mapping[str, object]) -> str:
  """Returns a point or label as JSON: a text without a title is the title, as in sets that have titles alone."""
  title, content = str(text.get(features.TITLE, "")), str(text[features.PASSAGE])
  if not title:
    title, content = content, ""
  return json.dumps({"uid": id_of(text), "title": title, "content": content, **more}) + "\n"


@contextlib.contextmanager
def _gzip_text(path: pathlib.Path) -> Iterator[IO[str]]:
  """Opens a compressed file, which is the same bytes whenever it is written."""
  with (
    open(path, "wb") as raw,
    gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as packed,
    io.TextIOWrapper(packed, encoding="utf-8", newline="\n") as file,
  ):
    yield file


def _plain_text(path: pathlib.Path) -> contextlib.AbstractContextManager[IO[str]]:
  return open(path, "w", encoding="utf-8", newline="\n")
