"""Ways in which a checkpoint can be damaged: what a copy that broke off, a bad disk or a careless hand leaves."""

import pathlib
import shutil
from collections.abc import Callable


def _files(folder: pathlib.Path) -> list[pathlib.Path]:
  return sorted(path for path in folder.rglob("*") if path.is_file())


def _cut(path: pathlib.Path) -> None:
  path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def cut_the_arrays(checkpoint: pathlib.Path) -> None:
  """The largest file of the state ends in the middle."""
  _cut(max(_files(checkpoint / "state"), key=lambda path: path.stat().st_size))


def cut_everything(checkpoint: pathlib.Path) -> None:
  """Every file of the state ends in the middle."""
  for path in _files(checkpoint / "state"):
    _cut(path)


def empty_everything(checkpoint: pathlib.Path) -> None:
  """Every file is there and has no bytes: what a machine that lost its power can leave."""
  for path in _files(checkpoint):
    path.write_bytes(b"")


def delete_the_manifest(checkpoint: pathlib.Path) -> None:
  """The manifest is missing."""
  shutil.rmtree(checkpoint / "manifest")


def cut_the_manifest(checkpoint: pathlib.Path) -> None:
  """The manifest ends in the middle."""
  for path in _files(checkpoint / "manifest"):
    _cut(path)


def delete_the_state(checkpoint: pathlib.Path) -> None:
  """The state is missing."""
  shutil.rmtree(checkpoint / "state")


def delete_half(checkpoint: pathlib.Path) -> None:
  """Every other file is missing: a deletion that broke off."""
  for path in _files(checkpoint)[::2]:
    path.unlink()


def delete_all(checkpoint: pathlib.Path) -> None:
  """The folder is empty."""
  shutil.rmtree(checkpoint)
  checkpoint.mkdir()


WAYS: dict[str, Callable[[pathlib.Path], None]] = {
  "arrays cut": cut_the_arrays,
  "state cut": cut_everything,
  "all files empty": empty_everything,
  "manifest missing": delete_the_manifest,
  "manifest cut": cut_the_manifest,
  "state missing": delete_the_state,
  "half deleted": delete_half,
  "folder empty": delete_all,
}
