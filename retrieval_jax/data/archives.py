"""Unpacking zip and tar.gz archives: nothing outside the folder, and the folder whole or not there."""

import os
import pathlib
import shutil
import stat
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Collection, Mapping
from typing import IO, NamedTuple

from retrieval_jax.errors import UserError

JUNK = ("__MACOSX", ".DS_Store")
DAMAGED = (zipfile.BadZipFile, tarfile.TarError, EOFError, zlib.error, NotImplementedError)


class Member(NamedTuple):
  """A file of an archive."""

  name: str
  size: int


def unpack(
  archive: pathlib.Path, folder: pathlib.Path, *, notes: Mapping[str, str] | None = None
) -> pathlib.Path:
  """Returns `folder` with the files of a .zip, .tar.gz or .tgz archive in it.

  If all of them lie in one folder of the archive, that is `folder`. They are unpacked beside it; a folder that is not
  there yet then appears at once, one that is there gets file after file. `notes` are further files, name -> text: they
  are there only if all others are.

  Raises: UserError for a damaged archive, one with encrypted files, links or names that lead out of the folder, and if
  there is no room; nothing was written then.

  Example: `unpack(pathlib.Path("scifact.zip"), pathlib.Path("data/beir/scifact"))`.
  """
  folder.parent.mkdir(parents=True, exist_ok=True)
  temporary = pathlib.Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
  try:
    _extract(archive, temporary)
    inner = list(temporary.iterdir())
    source = inner[0] if len(inner) == 1 and inner[0].is_dir() else temporary
    os.chmod(source, 0o755)
    for name, text in (notes or {}).items():
      (source / name).write_text(text, encoding="utf-8")
    if folder.exists():
      _move_files(source, folder, last=notes or {})
    else:
      os.rename(source, folder)
  except DAMAGED as error:
    raise UserError(
      f"{archive}: cannot be unpacked ({error or type(error).__name__}). Delete it and download it again."
    ) from error
  except OSError as error:
    raise UserError(f"{archive}: cannot be unpacked to {folder} ({error}).") from error
  finally:
    shutil.rmtree(temporary, ignore_errors=True)
  return folder


def _extract(archive: pathlib.Path, folder: pathlib.Path) -> None:
  if archive.suffix == ".zip":
    with zipfile.ZipFile(archive) as file:
      entries = [entry for entry in file.infolist() if not entry.is_dir()]
      for entry in entries:
        if stat.S_ISLNK(entry.external_attr >> 16):
          raise _refused(archive, entry.filename, "is a link")
        if entry.flag_bits & 1:
          raise _refused(archive, entry.filename, "is encrypted")
      _check(archive, folder, [Member(entry.filename, entry.file_size) for entry in entries])
      for entry in entries:
        with file.open(entry) as source:
          _write(source, entry.filename, folder)
    return
  with tarfile.open(archive, "r:gz") as file:
    entries = [entry for entry in file.getmembers() if not entry.isdir()]
    for entry in entries:
      if not entry.isfile():
        raise _refused(archive, entry.name, "is a link or a device")
    _check(archive, folder, [Member(entry.name, entry.size) for entry in entries])
    for entry in entries:
      source = file.extractfile(entry)
      assert source is not None  # a plain file
      with source:
        _write(source, entry.name, folder)


def _check(archive: pathlib.Path, folder: pathlib.Path, members: list[Member]) -> None:
  """Raises: UserError for a name that leads out of the folder, and if there is no room for all files."""
  for member in members:
    parts = pathlib.PurePosixPath(member.name).parts
    if not parts or parts[0] == "/" or ".." in parts or "\\" in member.name or ":" in parts[0]:
      raise _refused(archive, member.name, "leads out of the folder")
  needed, free = sum(member.size for member in members), shutil.disk_usage(folder).free
  if needed > free:
    raise UserError(
      f"{archive}: its files have {needed:,} bytes, and {free:,} are free at {folder.parent}. Make room."
    )


def _write(source: IO[bytes], name: str, folder: pathlib.Path) -> None:
  parts = pathlib.PurePosixPath(name).parts
  if any(part in JUNK or part.startswith("._") for part in parts):
    return
  target = folder.joinpath(*parts)
  target.parent.mkdir(parents=True, exist_ok=True)
  with open(target, "wb") as file:
    shutil.copyfileobj(source, file, 2**20)


def _move_files(source: pathlib.Path, folder: pathlib.Path, *, last: Collection[str]) -> None:
  files = [path for path in source.rglob("*") if path.is_file()]
  for path in sorted(files, key=lambda path: (path.name in last, path)):
    target = folder / path.relative_to(source)
    target.parent.mkdir(parents=True, exist_ok=True)
    os.replace(path, target)


def _refused(archive: pathlib.Path, name: str, why: str) -> UserError:
  return UserError(f"{archive}: its file {name!r} {why}, so nothing of the archive is unpacked.")
