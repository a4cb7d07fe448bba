"""Lines of text files, plain or compressed, each with the place where it stands.

Lines end at the byte "\\n" and nowhere else: U+2028, U+0085 and a carriage return inside a text are text.
"""

import contextlib
import gzip
import io
import json
import os
import pathlib
import zlib
from collections.abc import Iterator, Sequence
from typing import IO, Any, NamedTuple

from retrieval_jax.data.zstd_file import ZstdFile
from retrieval_jax.errors import UserError
from retrieval_jax.paths import resolve

Path = str | os.PathLike[str]

LONGEST = 2**28  # bytes of a line: a file without line ends would fill the memory
BUFFER = 2**18  # bytes read at once
ENDINGS = ("", ".gz", ".zst")  # of a file's name: as it is, or compressed
ARCHIVES = (".tar", ".tar.gz", ".tgz", ".tar.zst", ".zip")


class Line(NamedTuple):
  """One line without its end, and where it stands: `path:number`, from 1."""

  text: str
  where: str


def read_lines(path: Path, *, empty: bool = False, encoding: str = "utf-8") -> Iterator[Line]:
  """Yields the lines of a UTF-8 file that are not empty; names ending in .gz and .zst are decompressed on the way.

  A byte order mark is dropped. A carriage return at a line's end is dropped if the first line has one too. Files of
  several gzip members or zstd frames are read to their end. Memory: one line, and a buffer of 256 KiB.

  empty: whether empty lines are yielded too. encoding: of another file, one in which "\n" is the byte of ASCII.

  Raises: UserError with file and line number if the file is missing, damaged, cut short or of another encoding, or
  a line is longer than 256 MiB, or for an archive, which is to be unpacked first.

  Example: `[line.text for line in read_lines("queries.tsv.gz")]`.
  """
  found = resolve(path)
  if found.name.endswith(ARCHIVES):
    raise UserError(f"{found}: an archive, which is not read. Unpack it and name the file inside.")
  number, line_end = 0, b"\n"
  try:
    with open_bytes(found) as file:
      while line := file.readline(LONGEST + 1):
        number += 1
        if len(line) > LONGEST:
          raise UserError(
            f"{found}:{number}: a line of more than {LONGEST >> 20} MiB. Lines must end with the byte \\n: is the file "
            "one JSON document, or of another kind?"
          )
        if number == 1:
          line = line.removeprefix(b"\xef\xbb\xbf")
          line_end = b"\r\n" if line.endswith(b"\r\n") else b"\n"
        text = line.removesuffix(line_end) if line.endswith(line_end) else line.removesuffix(b"\n")
        if text or empty:
          yield Line(text.decode(encoding), f"{found}:{number}")
  except UnicodeDecodeError as error:
    raise UserError(
      f"{found}:{number}: not {encoding.upper()} ({error.reason}). Convert the file to UTF-8."
    ) from error
  except (EOFError, OSError, zlib.error) as error:
    raise UserError(f"{found}:{number + 1}: cannot be read ({error}). Get the file anew.") from error


@contextlib.contextmanager
def open_bytes(path: pathlib.Path) -> Iterator[IO[bytes]]:
  """Opens a file for reading; the bytes of a name ending in .gz or .zst are those inside it."""
  with contextlib.ExitStack() as stack:
    file: Any = stack.enter_context(open(path, "rb", buffering=BUFFER))
    if path.suffix == ".gz":
      file = stack.enter_context(io.BufferedReader(gzip.GzipFile(fileobj=file), BUFFER))
    elif path.suffix == ".zst":
      file = stack.enter_context(io.BufferedReader(ZstdFile(file), BUFFER))
    yield file


def json_lines(
  path: Path, texts: Sequence[str], *, encoding: str = "utf-8"
) -> Iterator[tuple[dict[str, Any], str]]:
  """Yields the JSON object of each line that is not empty, and where it stands.

  Args:
    path: a file as `read_lines` takes it.
    texts: the keys that every object must have, with strings as their values.
    encoding: of the file.

  Raises: UserError with file and line number for a line that is no such object.
  """
  expected = f"a JSON object with {' and '.join(texts)}" if texts else "a JSON object"
  for line in read_lines(path, encoding=encoding):
    try:
      record = json.loads(line.text)
    except (ValueError, RecursionError) as error:
      raise UserError(
        f"{line.where}: expected {expected}; {type(error).__name__}: {error}. One object a line."
      ) from error
    if not isinstance(record, dict):
      raise UserError(f"{line.where}: expected {expected}; got {type(record).__name__}.")
    for name in texts:
      if name not in record:
        raise UserError(f"{line.where}: expected {expected}; {name!r} is not in it ({_shown(list(record))}).")
      if not isinstance(record[name], str):
        raise UserError(
          f"{line.where}: {' and '.join(texts)} must be strings; {name} is {_shown(record[name])}."
        )
    yield record, line.where


def found_file(folder: Path, name: str) -> pathlib.Path:
  """Returns a folder's file `name`, or the one with .gz or .zst behind it.

  Of several, the plain one. Raises: UserError if there is none.
  """
  root = resolve(folder)
  found = [root / f"{name}{ending}" for ending in ENDINGS if (root / f"{name}{ending}").is_file()]
  if not found:
    raise UserError(f"{root}: neither {name} nor {name}.gz nor {name}.zst is in it.")
  return found[0]


def stem(path: Path) -> str:
  """Returns a file's name without .gz or .zst and without the ending before it.

  Example: `stem("data/pairs.tsv.gz")` is `"pairs"`.
  """
  name = pathlib.Path(path).name
  for ending in ENDINGS[1:]:
    name = name.removesuffix(ending)
  return pathlib.Path(name).stem


def _shown(value: Any) -> str:
  text = repr(value)
  return text if len(text) <= 80 else f"{text[:80]}..."
