"""Folders of derived files: built once, published whole, checked against their manifest, rebuilt when they differ."""

import contextlib
import hashlib
import json
import logging
import os
import pathlib
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from retrieval_jax.paths import atomic_write

MANIFEST = "manifest.json"
LOG = logging.getLogger(__name__)


def built_folder(
  target: pathlib.Path,
  *,
  definition: Mapping[str, Any],
  build: Callable[[pathlib.Path], None],
) -> pathlib.Path:
  """Returns `target`, a folder that `build` filled for this `definition`.

  `build` gets an empty temporary folder beside `target`, which is renamed to `target` when it is complete: a
  reader never sees half of it. Two processes that ask at once take turns where the file system has locks
  (flock, freed by the kernel when its owner dies); where it has none, both build and the slower one discards
  its own. A folder that is damaged (a file missing or of another size) is said so once and built again.

  Args:
    target: the folder; its parents are made.
    definition: JSON data that says what is in the folder; written readable into its manifest.json.
    build: fills a folder.

  Example: `built_folder(cache / "squares", definition={"upto": 9}, build=write_squares)`.
  """
  plain = json.loads(json.dumps(definition))
  if _problem(target, plain) is None:
    return target
  target.parent.mkdir(parents=True, exist_ok=True)
  with _turn(target.parent / f".{target.name}.lock") as locked:
    problem = _problem(target, plain)
    if problem is None:
      return target
    if locked:  # nobody else is building, so these were left by processes that were killed
      for stale in target.parent.glob(f".{target.name}.*/"):
        shutil.rmtree(stale, ignore_errors=True)
    if target.exists():
      LOG.warning("%s is damaged (%s): building it again.", target, problem)
    temporary = pathlib.Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}."))
    try:
      build(temporary)
      _write_manifest(temporary, plain)
      os.chmod(temporary, 0o755)
      _publish(temporary, target, plain)
    finally:
      shutil.rmtree(temporary, ignore_errors=True)
  return target


def short_hash(definition: Mapping[str, Any]) -> str:
  """Returns 16 hexadecimal digits that stand for the definition: the usual name of its folder."""
  return hashlib.sha256(json.dumps(definition, sort_keys=True).encode()).hexdigest()[:16]


def _problem(target: pathlib.Path, definition: Mapping[str, Any]) -> str | None:
  """Returns what is wrong with the folder, or None."""
  try:
    manifest = json.loads((target / MANIFEST).read_bytes())
    sizes = manifest["files"]
    if manifest["definition"] != definition:
      return "its manifest describes something else"
  except (OSError, ValueError, KeyError, TypeError) as error:
    return f"no readable {MANIFEST}: {type(error).__name__}"
  for name, size in sizes.items():
    path = target / name
    if not path.is_file():
      return f"{name} is missing"
    if path.stat().st_size != size:
      return f"{name} has {path.stat().st_size} bytes, not {size}"
  return None


def _write_manifest(folder: pathlib.Path, definition: Mapping[str, Any]) -> None:
  files = sorted(path for path in folder.rglob("*") if path.is_file())
  sizes = {path.relative_to(folder).as_posix(): path.stat().st_size for path in files}
  with atomic_write(folder / MANIFEST) as file:
    json.dump({"definition": definition, "files": sizes}, file, indent=2, ensure_ascii=False)
    file.write("\n")


def _publish(temporary: pathlib.Path, target: pathlib.Path, definition: Mapping[str, Any]) -> None:
  """Renames `temporary` to `target`; a good folder that is there already stays, a damaged one is moved away."""
  while True:
    try:
      os.rename(temporary, target)
      return
    except OSError:
      if not target.exists():
        raise
    if _problem(target, definition) is None:
      return  # another process was faster
    away = pathlib.Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}.damaged."))
    with contextlib.suppress(FileNotFoundError):
      os.rename(target, away / target.name)
    shutil.rmtree(away, ignore_errors=True)


@contextlib.contextmanager
def _turn(path: pathlib.Path) -> Iterator[bool]:
  """Holds an advisory lock on `path` and yields True, or yields False where the file system knows no locks."""
  import fcntl  # not on Windows

  with open(path, "w") as file:
    try:
      fcntl.flock(file, fcntl.LOCK_EX)
      locked = True
    except OSError:
      locked = False
    yield locked
