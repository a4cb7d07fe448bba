"""The package index of a Debian or Ubuntu machine: its files, plain or compressed, and the packages in them."""

import bz2
import contextlib
import gzip
import importlib
import lzma
import pathlib
import re
import subprocess
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import IO, Any, NamedTuple

from retrieval_jax.data.lines import open_bytes
from retrieval_jax.errors import UserError

LISTS, STATUS = "var/lib/apt/lists", "var/lib/dpkg/status"  # below the root
HELPER = pathlib.Path("/usr/lib/apt/apt-helper")  # reads what apt has written, in whatever form it did
INDEX_FILE = re.compile(r"(?:.*_)?Packages(?:\.(?:gz|xz|bz2|lz4|zst))?")
LINKS = ("depends", "pre-depends", "recommends", "suggests", "enhances")  # fields that name other packages
TEXTS = ("package", "section", "tag", "description", "status")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9+.\-]*")


class Package(NamedTuple):
  """A package: its short description, and the names of packages that its fields name, real and virtual, itself too."""

  name: str
  section: str
  tags: Sequence[str]
  description: str
  links: Sequence[str]


class Field(NamedTuple):
  """A field of a paragraph: its text, lines that continue it after "\\n", and its line in the file."""

  text: str
  line: int


ABSENT = Field("", 0)


def index_files(root: pathlib.Path = pathlib.Path("/")) -> list[pathlib.Path]:
  """Returns the files of the machine's package index: apt's lists, or else the packages that are installed.

  Raises: UserError if there are none, as on a machine of another system.
  """
  lists = root / LISTS
  found = (
    sorted(file for file in lists.iterdir() if INDEX_FILE.fullmatch(file.name)) if lists.is_dir() else []
  )
  found = [file for file in found if file.is_file()]
  if not found and (root / STATUS).is_file():
    found = [root / STATUS]
  if not found:
    raise UserError(
      f"this machine has no package index: looked for {lists}/*_Packages and {root / STATUS}, which Debian and Ubuntu have "
      "(`apt-get update` writes the first). Elsewhere name a file Packages.gz of an archive, or a folder with the graph: "
      "--gin_file=data/debian_packages.gin --gin.DATA_PATH=..."
    )
  return found


def read_packages(path: pathlib.Path, links: Sequence[str] = LINKS) -> Iterator[Package]:
  """Yields the packages of an index file in its order; of the file of installed ones, those that are installed.

  A package comes once for each of its versions. Of alternatives "a | b" each is a link; versions and architectures that
  a link is restricted to are left out. Memory: one package. Time: 1.5 s for 60,000 packages.

  links: the fields that are read as links, in lower case.

  Raises: UserError with file and line number for a line that is no field, a field that comes twice in a paragraph, a package
  without a name, names that are none, and a section or tag of several words; for a file that is damaged or cannot be unpacked
  here.

  Example: `{package.name for file in index_files() for package in read_packages(file)}`.
  """
  for fields, begin in _stanzas(path, {*TEXTS, *links}):
    if "package" not in fields:
      raise UserError(
        f"{path}:{begin}: the paragraph that begins here names no package. Is it a package index?"
      )
    status = fields.get("status", ABSENT).text.split()
    if not status or status[-1] == "installed":
      yield Package(
        _name(fields["package"], path),
        _word(fields.get("section", ABSENT), path),
        sorted(_tags(fields.get("tag", ABSENT), path)),
        " ".join(fields.get("description", ABSENT).text.split("\n")[0].split()),
        [name for field in links for name in _names(field, fields.get(field, ABSENT), path)],
      )


def _name(field: Field, path: pathlib.Path) -> str:
  if not NAME.fullmatch(field.text):
    raise UserError(
      f"{path}:{field.line}: package is {field.text!r:.80}; expected a name of letters, digits and + - . on one line."
    )
  return field.text


def _word(field: Field, path: pathlib.Path) -> str:
  if len(field.text.split()) > 1:
    raise UserError(f"{path}:{field.line}: section is {field.text!r:.80}; expected one word.")
  return field.text


def _tags(field: Field, path: pathlib.Path) -> Iterator[str]:
  for part in field.text.split(","):
    if len(part.split()) > 1:
      raise UserError(f"{path}:{field.line}: tag has {part.strip()!r:.80}; expected words, split by commas.")
    if tag := part.strip():
      yield tag


def _names(name: str, field: Field, path: pathlib.Path) -> Iterator[str]:
  for part in re.split(r"[,|]", field.text):
    text = part.strip()
    if found := NAME.match(text):
      yield found[0]
    elif text:
      raise UserError(
        f"{path}:{field.line}: {name} has {text!r:.80}; expected names of packages, split by commas."
      )


def _stanzas(path: pathlib.Path, wanted: Iterable[str]) -> Iterator[tuple[Mapping[str, Field], int]]:
  """Yields the wanted fields of each paragraph, their names in lower case, and the line where the paragraph begins."""
  names = frozenset(wanted)
  fields: dict[str, Field] = {}
  key, begin = "", 0
  for number, line in enumerate(_lines(path), start=1):
    if not line.strip():
      if begin:
        yield fields, begin
      fields, key, begin = {}, "", 0
      continue
    if line[0] in " \t":
      if not begin:
        raise UserError(f"{path}:{number}: {line!r:.80} continues no field. Is it a package index?")
      if key in names:
        text, first = fields[key]
        fields[key] = Field(f"{text}\n{line.strip()}", first)
      continue
    key, colon, value = line.partition(":")
    if not colon:
      raise UserError(f"{path}:{number}: {line!r:.80}; expected `Field: value`. Is it a package index?")
    begin, key = begin or number, key.lower()
    if key in fields:
      raise UserError(
        f"{path}:{number}: a second {key} in the paragraph that begins in line {begin}; expected an empty line between "
        "packages, and each field once."
      )
    if key in names:
      fields[key] = Field(value.strip(), number)
  if begin:
    yield fields, begin


def _lines(path: pathlib.Path) -> Iterator[str]:
  number = 0
  try:
    with _open(path) as file:
      for number, line in enumerate(file, start=1):  # noqa: B007  (named in the messages)
        yield line.decode().rstrip("\n")
  except UnicodeDecodeError as error:
    raise UserError(f"{path}:{number}: not UTF-8 ({error.reason}). Is it a package index?") from error
  except (EOFError, OSError, RuntimeError, lzma.LZMAError, zlib.error, gzip.BadGzipFile) as error:
    raise UserError(f"{path}:{number + 1}: cannot be read ({error}). Get the file anew.") from error


@contextlib.contextmanager
def _open(path: pathlib.Path) -> Iterator[IO[bytes] | Any]:
  if path.suffix == ".xz":
    with lzma.open(path) as file:
      yield file
  elif path.suffix == ".bz2":
    with bz2.open(path) as file:
      yield file
  elif path.suffix == ".lz4":
    with _open_lz4(path) as file:
      yield file
  else:
    with open_bytes(path) as file:
      yield file


@contextlib.contextmanager
def _open_lz4(path: pathlib.Path) -> Iterator[IO[bytes] | Any]:
  if HELPER.is_file():
    command = [HELPER, "cat-file", path]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
      assert process.stdout is not None
      yield process.stdout
    if process.returncode:
      raise UserError(f"{path}: `{HELPER} cat-file` cannot read it. Get the file anew: `apt-get update`.")
    return
  try:
    lz4 = importlib.import_module("lz4.frame")
  except ImportError:
    raise UserError(
      f"{path} is compressed with lz4, and neither {HELPER} nor the Python package lz4 is here. `pip install lz4`, or unpack "
      "the file and name it: --gin.DATA_PATH=..."
    ) from None
  with lz4.open(path) as file:
    yield file
