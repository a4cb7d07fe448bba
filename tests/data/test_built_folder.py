"""Folders that appear whole, once, and are rebuilt when they are damaged or mean something else."""

import errno
import json
import logging
import multiprocessing
import pathlib
import time

import pytest

from retrieval_jax.data.built_folder import built_folder
from retrieval_jax.errors import UserError

DEFINITION = {"upto": 3}


def build(folder: pathlib.Path) -> None:
  (folder / "part").mkdir()
  (folder / "part/squares.txt").write_text("0 1 4")


def slow_build(folder: pathlib.Path) -> None:
  with open(folder.parent / "builds.log", "a") as log:
    log.write("build\n")
  time.sleep(1.0)
  build(folder)


def ask_slowly(target: pathlib.Path, barrier) -> None:
  barrier.wait()
  folder = built_folder(target, definition=DEFINITION, build=slow_build)
  assert (folder / "part/squares.txt").read_text() == "0 1 4"


def never(folder: pathlib.Path) -> None:
  raise AssertionError("built again")


def test_built_once_with_a_readable_manifest(tmp_path: pathlib.Path):
  target = built_folder(tmp_path / "deep/x", definition=DEFINITION, build=build)
  assert json.loads((target / "manifest.json").read_text()) == {
    "definition": {"upto": 3},
    "files": {"part/squares.txt": 5},
  }
  assert built_folder(target, definition=DEFINITION, build=never) == target
  assert sorted(path.name for path in target.parent.iterdir()) == [".x.lock", "x"]


@pytest.mark.parametrize(
  "damage, words",
  [
    (lambda x: (x / "part/squares.txt").unlink(), "part/squares.txt is missing"),
    (lambda x: (x / "part/squares.txt").write_text("0 1"), "part/squares.txt has 3 bytes, not 5"),
    (lambda x: (x / "manifest.json").unlink(), "no readable manifest.json: FileNotFoundError"),
    (lambda x: (x / "manifest.json").write_text('{"files":'), "no readable manifest.json: JSONDecodeError"),
    (lambda x: (x / "manifest.json").write_text("[]"), "no readable manifest.json: TypeError"),
  ],
)
def test_damage_is_said_once_and_mended(tmp_path: pathlib.Path, caplog, damage, words: str):
  target = built_folder(tmp_path / "x", definition=DEFINITION, build=build)
  damage(target)
  with caplog.at_level(logging.WARNING):
    built_folder(target, definition=DEFINITION, build=build)
  assert [record.message for record in caplog.records] == [
    f"{target} is damaged ({words}): building it again."
  ]
  assert (target / "part/squares.txt").read_text() == "0 1 4"
  assert built_folder(target, definition=DEFINITION, build=never) == target
  assert sorted(path.name for path in tmp_path.iterdir()) == [".x.lock", "x"]


def test_another_definition_under_the_same_name_is_built_anew(tmp_path: pathlib.Path):
  target = built_folder(tmp_path / "x", definition=DEFINITION, build=build)
  built_folder(target, definition={"upto": 2}, build=lambda folder: (folder / "n").write_text("0 1"))
  assert sorted(path.name for path in target.iterdir()) == ["manifest.json", "n"]


def test_a_build_that_fails_leaves_nothing(tmp_path: pathlib.Path):
  with pytest.raises(AssertionError, match="built again"):
    built_folder(tmp_path / "x", definition=DEFINITION, build=never)
  assert [path.name for path in tmp_path.iterdir()] == [".x.lock"]


def test_what_a_killed_process_left_is_removed(tmp_path: pathlib.Path):
  build_here = tmp_path / ".x.abcd1234"
  build_here.mkdir()
  build(build_here)
  built_folder(tmp_path / "x", definition=DEFINITION, build=build)
  assert sorted(path.name for path in tmp_path.iterdir()) == [".x.lock", "x"]


def test_two_processes_at_once_build_once(tmp_path: pathlib.Path):
  spawn = multiprocessing.get_context("spawn")
  barrier = spawn.Barrier(2)
  workers = [spawn.Process(target=ask_slowly, args=(tmp_path / "x", barrier)) for _ in range(2)]
  for worker in workers:
    worker.start()
  for worker in workers:
    worker.join(60)
  assert [worker.exitcode for worker in workers] == [0, 0]
  assert (tmp_path / "builds.log").read_text() == "build\n"
  assert sorted(path.name for path in tmp_path.iterdir()) == [".x.lock", "builds.log", "x"]


def test_without_locks_the_slower_one_discards_its_own(tmp_path: pathlib.Path):
  target = tmp_path / "x"

  def outrun(folder: pathlib.Path) -> None:
    build(folder)
    other = pathlib.Path(str(folder) + ".other")
    other.mkdir()
    build(other)
    (other / "manifest.json").write_text(
      json.dumps({"definition": DEFINITION, "files": {"part/squares.txt": 5}})
    )
    (other / "faster").touch()
    other.rename(target)

  assert built_folder(target, definition=DEFINITION, build=outrun) == target
  assert (target / "faster").exists()
  assert sorted(path.name for path in tmp_path.iterdir()) == [".x.lock", "x"]


def test_a_file_in_the_way_of_the_cache(tmp_path: pathlib.Path):
  (tmp_path / "file").touch()
  with pytest.raises(UserError, match=f"{tmp_path}/file.*RETRIEVAL_JAX_CACHE"):
    built_folder(tmp_path / "file/texts/x", definition=DEFINITION, build=build)
  (tmp_path / ".y.lock").mkdir()
  with pytest.raises(UserError, match=r"\.y\.lock.*RETRIEVAL_JAX_CACHE"):
    built_folder(tmp_path / "y", definition=DEFINITION, build=build)


def test_no_space_is_the_caches_error_and_a_missing_source_is_not(tmp_path: pathlib.Path):
  def full(folder: pathlib.Path) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")

  def sourceless(folder: pathlib.Path) -> None:
    (tmp_path / "source").read_text()

  with pytest.raises(UserError, match=r"No space left on device.*RETRIEVAL_JAX_CACHE"):
    built_folder(tmp_path / "cache/x", definition=DEFINITION, build=full)
  with pytest.raises(FileNotFoundError, match="source"):
    built_folder(tmp_path / "cache/x", definition=DEFINITION, build=sourceless)
  assert [path.name for path in (tmp_path / "cache").iterdir()] == [".x.lock"]
