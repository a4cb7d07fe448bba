"""Folders of derived files: built once, published whole, checked against their manifest, rebuilt when they differ."""

import contextlib
import errno
import hashlib
import json
import logging
import os
import pathlib
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from retrieval_jax.errors import UserError
from retrieval_jax.paths import atomic_write

MANIFEST = "manifest.json"
NO_ROOM = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EROFS))
LITTLE = 2**20  # bytes
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

  Raises: UserError if the file system refuses (a file in the way, no rights, no room), and what `build` raises.

  Args:
    target: the folder; its parents are made.
    definition: JSON data that says what is in the folder; written readable into its manifest.json.
    build: fills a folder.

  Example: `built_folder(cache / "squares", definition={"upto": 9}, build=write_squares)`.
  """
  plain = json.loads(json.dumps(definition))
  if _problem(target, plain) is None:
    return target
  try:
    _build_in_turn(target, plain, build)
  except OSError as error:
    if not _is_of_the_cache(error, target.parent):
      raise
    raise UserError(
      f"cannot write derived data to {target}: {error}. Make room there or correct the rights, or set the environment "
      "variable RETRIEVAL_JAX_CACHE to a folder of your own."
    ) from error
  return target


@contextlib.contextmanager
def reading(folder: pathlib.Path) -> Iterator[None]:
  """Turns what numpy says of a damaged file in `folder` (of unchanged size, or it were built again) to a UserError."""
  try:
    yield
  except MemoryError:
    raise
  except Exception as error:  # numpy, zipfile, zlib and the parser of headers each have kinds of their own
    raise UserError(
      f"{folder} is damaged ({type(error).__name__}: {error}): delete it, then it is built again."
    ) from error


def _is_of_the_cache(error: OSError, parent: pathlib.Path) -> bool:
  """Returns whether writing the cache failed, not the reading of a source by `build`."""
  if error.errno in NO_ROOM:
    return True
  if error.filename is not None:
    path = pathlib.Path(os.fsdecode(error.filename))
    return path.is_relative_to(parent) or parent.is_relative_to(path)
  return shutil.disk_usage(parent).free < LITTLE  # numpy reports a full disk without a number or a name


def _build_in_turn(
  target: pathlib.Path, plain: Mapping[str, Any], build: Callable[[pathlib.Path], None]
) -> None:
  target.parent.mkdir(parents=True, exist_ok=True)
  with _turn(target.parent / f".{target.name}.lock") as locked:
    problem = _problem(target, plain)
    if problem is None:
      return
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
