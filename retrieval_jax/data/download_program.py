"""What the download scripts share: the command line, the list of sets, and fetching and unpacking the named ones."""

import argparse
import json
import logging
import pathlib
import sys
import urllib.parse
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from retrieval_jax.data.archives import unpack
from retrieval_jax.data.benchmarks import ROOT_VARIABLE, data_root
from retrieval_jax.data.download import Retry, fetch
from retrieval_jax.errors import UserError, nearest
from retrieval_jax.paths import atomic_write

STAMP = ".downloads.json"  # in a folder: the archives that were unpacked into it, with their checksums
ALL = "all"


class Remote(NamedTuple):
  """A public file.

  path: where it lies below the data folder; with `unpacks`, the folder that its contents lie in.
  size: bytes, as far as published. headers: what its server wants to be sent.
  """

  url: str
  path: str
  md5: str = ""
  sha256: str = ""
  size: int | None = None
  unpacks: bool = False
  headers: Mapping[str, str] = {}


class DataSet(NamedTuple):
  """What one name stands for: files, or the reason why it cannot be downloaded and where it is to be had."""

  files: Sequence[Remote] = ()
  note: str = ""
  withheld: str = ""


def run(
  sets: Mapping[str, DataSet], *, doc: str, default: Sequence[str] = (), argv: Sequence[str] | None = None
) -> int:
  """Parses the command line, downloads and returns the exit status: 0, 2 after a message, or 130 if it was interrupted.

  Args:
    sets: by the names that --names takes.
    doc: the script's docstring: what --help says.
    default: the names meant without --names; none: they must be given.
    argv: sys.argv[1:] if None.

  Example: `sys.exit(run({"toy": DataSet((Remote(url, "toy", unpacks=True),))}, doc=__doc__))`.
  """
  logging.basicConfig(level=logging.WARNING, format="%(message)s")
  options = _parser(doc, default).parse_args(argv)
  root = pathlib.Path(options.output).expanduser() if options.output else data_root()
  if options.list:
    _list(sets, root)
    return 0
  try:
    for name in _chosen(options.names or list(default), sets):
      _get(name, sets[name], root, options)
  except (UserError, OSError) as error:
    print(f"error: {error}", file=sys.stderr)
    return 2
  except KeyboardInterrupt:
    print("stopped; the same command goes on from here", file=sys.stderr)
    return 130
  return 0


def _parser(doc: str, default: Sequence[str]) -> argparse.ArgumentParser:
  parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
  meant = f"; without it: {' '.join(default)}" if default else ""
  parser.add_argument("--names", nargs="+", metavar="NAME", help=f"the sets, or {ALL}{meant}")
  parser.add_argument(
    "--output", metavar="DIR", help=f"the data folder; without it ${ROOT_VARIABLE} or {data_root()}"
  )
  parser.add_argument(
    "--base_url", metavar="URL", help="a mirror: stands in place of https://host in every address"
  )
  parser.add_argument("--list", action="store_true", help="print the sets, their sizes and which are there")
  parser.add_argument("--dry_run", action="store_true", help="print what would be downloaded")
  parser.add_argument(
    "--keep_archives", action="store_true", help="keep a zip or tar.gz file after unpacking it"
  )
  parser.add_argument("--attempts", type=int, default=Retry().attempts, help="of a file that gets no further")
  return parser


def _chosen(names: Sequence[str], sets: Mapping[str, DataSet]) -> list[str]:
  if not names:
    raise UserError(
      f"name the sets, such as --names {next(iter(sets))}, or --names {ALL}; --list shows them."
    )
  for name in names:
    if name not in sets and name != ALL:
      raise UserError(f"no set is called {name!r}{nearest(name, sets)} (known: {', '.join(sets)}, {ALL}).")
    if name != ALL and sets[name].withheld:
      raise UserError(f"{name} cannot be downloaded: {sets[name].withheld}")
  if ALL in names:
    return [name for name in sets if not sets[name].withheld]
  return list(dict.fromkeys(names))


def _get(name: str, data_set: DataSet, root: pathlib.Path, options: argparse.Namespace) -> None:
  for remote in data_set.files:
    url = mirrored(remote.url, options.base_url)
    target = root / remote.path
    if _is_there(remote, root):
      print(f"{name}: {target} is there")
    elif options.dry_run:
      print(f"{name}: {url} ({_size(remote.size)}) -> {target}")
    else:
      _fetch_one(remote, url, root, options)
      print(f"{name}: {target}")


def _fetch_one(remote: Remote, url: str, root: pathlib.Path, options: argparse.Namespace) -> None:
  target = root / remote.path
  archive = root / pathlib.PurePosixPath(urllib.parse.urlsplit(remote.url).path).name
  if remote.unpacks and target.exists() and not (target / STAMP).exists() and any(target.glob("*")):
    raise UserError(
      f"{target} is there, but this program did not make it. Use it as it is, move it away, or name another --output."
    )
  fetch(
    url,
    archive if remote.unpacks else target,
    md5=remote.md5,
    sha256=remote.sha256,
    size=remote.size,
    headers=remote.headers,
    retry=Retry(attempts=options.attempts),
  )
  if not remote.unpacks:
    with atomic_write(_stamp(remote, root)) as file:
      file.write(_stamped(remote, root))
    return
  unpack(archive, target, notes={STAMP: _stamped(remote, root)})
  if not options.keep_archives:
    archive.unlink()


def mirrored(url: str, base_url: str | None) -> str:
  """Returns the address of a file at a mirror, which takes the place of https://host.

  Example: `mirrored("https://a.org/b/c.zip", "http://127.0.0.1:8000")` is `"http://127.0.0.1:8000/b/c.zip"`.
  """
  return base_url.rstrip("/") + urllib.parse.urlsplit(url).path if base_url else url


def _is_there(remote: Remote, root: pathlib.Path) -> bool:
  target = root / remote.path
  return target.exists() and _read_stamp(_stamp(remote, root)).get(_key(remote)) == _mark(remote)


def _stamp(remote: Remote, root: pathlib.Path) -> pathlib.Path:
  target = root / remote.path
  return (target if remote.unpacks else target.parent) / STAMP


def _key(remote: Remote) -> str:
  return urllib.parse.urlsplit(remote.url).path.strip("/")


def _mark(remote: Remote) -> str:
  return remote.sha256 or remote.md5 or "no published checksum"


def _read_stamp(path: pathlib.Path) -> dict[str, str]:
  try:
    return json.loads(path.read_bytes())
  except (OSError, ValueError):
    return {}


def _stamped(remote: Remote, root: pathlib.Path) -> str:
  """Returns the stamp's text with this file in it."""
  return json.dumps(_read_stamp(_stamp(remote, root)) | {_key(remote): _mark(remote)}, indent=2) + "\n"


def _list(sets: Mapping[str, DataSet], root: pathlib.Path) -> None:
  print(f"to {root}\n")
  width = max(map(len, sets))
  for name, data_set in sets.items():
    sizes = [remote.size for remote in data_set.files]
    known = [size for size in sizes if size is not None]
    size = "" if not sizes else _size(sum(known)) if len(known) == len(sizes) else "size unknown"
    there = bool(sizes) and all(_is_there(remote, root) for remote in data_set.files)
    state = "withheld" if data_set.withheld else "there" if there else ""
    print(f"{name:{width}}  {size:>12}  {state:8}  {data_set.withheld or data_set.note}".rstrip())


def _size(size: int | None) -> str:
  return "size unknown" if size is None else f"{size / 1e6:,.1f} MB"
