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


@contextlib.contextmanager
def whole_folder(target: pathlib.Path) -> Iterator[pathlib.Path]:
  """Yields a temporary folder beside `target` that becomes it on success and vanishes on an exception.

  Raises: UserError that names `target` if the system refuses a write: no room, no right, a read-only disk.
  """
  temporary = None
  try:
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = pathlib.Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}."))
    yield temporary
    os.chmod(temporary, 0o755)
    os.rename(temporary, target)  # onto nothing, or an empty folder
  except OSError as error:
    raise UserError(
      f"{target}: the folder cannot be written ({error.strerror}). Make room there, correct the rights, or name another "
      "folder."
    ) from error
  finally:
    if temporary is not None:
      shutil.rmtree(temporary, ignore_errors=True)


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
