"""Unpacking: whole folders, and archives that are damaged or reach out of their folder."""

import io
import pathlib
import tarfile
import zipfile

import pytest
from file_server import leftovers

from retrieval_jax.data.archives import unpack
from retrieval_jax.errors import UserError


def zipped(path: pathlib.Path, files: dict[str, str]) -> pathlib.Path:
  with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
    for name, text in files.items():
      archive.writestr(name, text)
  return path


def tarred(path: pathlib.Path, files: dict[str, str], *, kind: bytes = tarfile.REGTYPE) -> pathlib.Path:
  with tarfile.open(path, "w:gz") as archive:
    for name, text in files.items():
      entry = tarfile.TarInfo(name)
      entry.size, entry.type, entry.linkname = len(text), kind, "/etc/hostname"
      archive.addfile(entry, io.BytesIO(text.encode()))
  return path


@pytest.mark.parametrize("make, name", [(zipped, "a.zip"), (tarred, "a.tar.gz")])
def test_one_folder_of_the_archive_is_the_folder(make, name: str, tmp_path: pathlib.Path):
  files = {
    "toy/corpus.jsonl": "c",
    "toy/qrels/test.tsv": "q",
    "__MACOSX/toy/._corpus.jsonl": "x",
    "toy/.DS_Store": "x",
  }
  folder = unpack(make(tmp_path / name, files), tmp_path / "beir" / "toy", notes={"note": "n"})
  assert leftovers(folder) == ["corpus.jsonl", "note", "qrels/test.tsv"]
  assert (folder / "qrels/test.tsv").read_text() == "q"
  assert leftovers(tmp_path / "beir") == ["toy/corpus.jsonl", "toy/note", "toy/qrels/test.tsv"]


def test_files_without_a_folder_join_what_is_there(tmp_path: pathlib.Path):
  folder = tmp_path / "msmarco"
  folder.mkdir()
  (folder / "kept.tsv").write_text("k")
  (folder / "a.tsv").write_text("old")
  unpack(tarred(tmp_path / "a.tar.gz", {"a.tsv": "a", "sub/b.tsv": "b"}), folder)
  assert leftovers(folder) == ["a.tsv", "kept.tsv", "sub/b.tsv"]
  assert (folder / "a.tsv").read_text() == "a"


@pytest.mark.parametrize("name", ["../evil", "a/../../evil", "/evil", "..\\evil", "c:/evil"])
@pytest.mark.parametrize("make, archive", [(zipped, "a.zip"), (tarred, "a.tar.gz")])
def test_names_that_lead_out(make, archive: str, name: str, tmp_path: pathlib.Path):
  folder = tmp_path / "in" / "toy"
  with pytest.raises(UserError, match="leads out of the folder, so nothing of the archive is unpacked"):
    unpack(make(tmp_path / archive, {"toy/good": "g", name: "e"}), folder)
  assert leftovers(tmp_path) == [archive]
  assert not folder.exists()


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE])
def test_links_and_devices(kind: bytes, tmp_path: pathlib.Path):
  with pytest.raises(UserError, match="'toy/x' is a link or a device"):
    unpack(tarred(tmp_path / "a.tar.gz", {"toy/x": ""}, kind=kind), tmp_path / "toy")
  assert leftovers(tmp_path) == ["a.tar.gz"]


def test_a_link_in_a_zip_file(tmp_path: pathlib.Path):
  entry = zipfile.ZipInfo("toy/x")
  entry.external_attr = 0o120777 << 16
  with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
    archive.writestr(entry, "/etc/hostname")
  with pytest.raises(UserError, match="'toy/x' is a link"):
    unpack(tmp_path / "a.zip", tmp_path / "toy")


@pytest.mark.parametrize("make, name", [(zipped, "a.zip"), (tarred, "a.tar.gz")])
@pytest.mark.parametrize("damage", [lambda data: data[:-30], lambda data: b"<html>", lambda data: b""])
def test_a_damaged_archive(make, name: str, damage, tmp_path: pathlib.Path):
  archive = make(tmp_path / name, {"toy/a": "text" * 1000})
  archive.write_bytes(damage(archive.read_bytes()))
  with pytest.raises(UserError, match=f"{name}: cannot be unpacked .*Delete it and download it again"):
    unpack(archive, tmp_path / "toy")
  assert leftovers(tmp_path) == [name]


def test_a_zip_file_with_a_wrong_inner_checksum(tmp_path: pathlib.Path):
  archive = tmp_path / "a.zip"
  with zipfile.ZipFile(archive, "w") as file:
    file.writestr("toy/a", "text")
  archive.write_bytes(archive.read_bytes().replace(b"text", b"tent"))
  with pytest.raises(UserError, match=r"cannot be unpacked .*CRC"):
    unpack(archive, tmp_path / "toy")
