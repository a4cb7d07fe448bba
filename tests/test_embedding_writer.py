"""Shards on disk: kept where they are of the same, replaced where not, whole after every kind of end."""

import errno
import json
import os
import threading

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from retrieval_jax import embedding_writer
from retrieval_jax.embedding_writer import Manifest, is_complete, writing
from retrieval_jax.embeddings import Layout, open_embeddings
from retrieval_jax.errors import UserError

WHOLE = np.linspace(-1, 1, 20, dtype=np.float32).reshape(10, 2)
MANIFEST = Manifest(
  {"model": "m", "parameters": "p"}, Layout(10, 2, 4), {"checkpoint": "/tmp/run/checkpoint_1"}
)


def fill(folder, manifest=MANIFEST, *, only=None, rows=WHOLE):
  """Writes the missing shards (`only` these); returns the numbers of those written."""
  with writing(folder, manifest) as writer:
    written = [number for number in writer.missing() if only is None or number in only]
    for number in written:
      span = writer.layout.span(number)
      writer.write(number, rows[span.start : span.stop], [f"id {row}" for row in span])
  return written


def names(folder):
  return sorted(path.name for path in folder.iterdir())


def stamps(folder):
  return {path.name: path.stat().st_mtime_ns for path in folder.glob("*.npy")}


def test_what_is_missing_is_written_and_nothing_else(tmp_path):
  folder = tmp_path / "passages"
  assert fill(folder, only=[0, 2]) == [0, 2]
  assert not is_complete(folder, MANIFEST)
  before = stamps(folder)
  assert fill(folder) == [1]
  assert is_complete(folder, MANIFEST)
  assert {name: stamp for name, stamp in stamps(folder).items() if name != "00001.npy"} == before
  assert_array_equal(open_embeddings(folder)[:], WHOLE)
  assert fill(folder) == []


def test_the_files_of_a_finished_folder(tmp_path):
  fill(tmp_path / "passages")
  assert names(tmp_path / "passages") == [
    *("00000.ids.jsonl", "00000.npy", "00001.ids.jsonl", "00001.npy", "00002.ids.jsonl", "00002.npy"),
    "manifest.json",
  ]


@pytest.mark.parametrize("count", [0, 100])
def test_half_written_files_of_a_killed_process_are_removed(tmp_path, count):
  folder = tmp_path / "passages"
  fill(folder, only=[0])
  for name in (".00001.npy.x1y2", ".00001.ids.jsonl.abc", ".manifest.json.tmp"):
    (folder / name).write_bytes(b"x" * count)
  (folder / "00001.ids.jsonl").write_text('"a"\n', encoding="utf-8")  # killed between the two renames
  assert fill(folder) == [1, 2]
  assert not [name for name in names(folder) if name.startswith(".")]
  assert_array_equal(open_embeddings(folder)[:], WHOLE)


def test_a_damaged_shard_is_named_and_made_again(tmp_path, capsys):
  folder = tmp_path / "passages"
  fill(folder)
  (folder / "00001.npy").write_bytes((folder / "00001.npy").read_bytes()[:-5])
  assert not is_complete(folder, MANIFEST)
  assert fill(folder) == [1]
  assert "00001.npy is damaged" in capsys.readouterr().err
  assert_array_equal(open_embeddings(folder)[:], WHOLE)


@pytest.mark.parametrize(
  "other, said",
  [
    (MANIFEST._replace(of={"model": "m", "parameters": "q"}), "parameters was 'p', is 'q'"),
    (
      MANIFEST._replace(of={**MANIFEST.of, "activation_dtype": "bfloat16"}),
      "activation_dtype was None, is 'bfloat16'",
    ),
    (MANIFEST._replace(layout=Layout(10, 2, 4, "float16")), "embedding_dtype was 'float32', is 'float16'"),
    (MANIFEST._replace(layout=Layout(9, 2, 4)), "rows was 10, is 9"),
  ],
)
def test_shards_of_something_else_are_replaced_and_never_mixed(tmp_path, capsys, other, said):
  folder = tmp_path / "passages"
  fill(folder)
  (folder / "notes.txt").write_text("mine", encoding="utf-8")
  (folder / "00000.npy.bak").write_text("mine", encoding="utf-8")
  assert not is_complete(folder, other)
  assert fill(folder, other, only=[1], rows=-WHOLE[: other.layout.rows]) == [1]
  assert said in capsys.readouterr().err
  assert names(folder) == ["00000.npy.bak", "00001.ids.jsonl", "00001.npy", "manifest.json", "notes.txt"]
  assert fill(folder, other, rows=-WHOLE[: other.layout.rows]) == [0, 2]
  assert_array_equal(open_embeddings(folder)[:], (-WHOLE[: other.layout.rows]).astype(other.layout.dtype))


def test_a_folder_of_the_older_format_is_encoded_again(tmp_path):
  folder = tmp_path / "passages"
  folder.mkdir()
  np.save(folder / "embeddings.npy", WHOLE)
  (folder / "ids.jsonl").write_text('"a"\n' * 10, encoding="utf-8")
  (folder / "manifest.json").write_text('{"model": "m", "rows": 10, "embed_dim": 2}', encoding="utf-8")
  assert not is_complete(folder, MANIFEST)
  assert fill(folder) == [0, 1, 2]
  assert "embeddings.npy" not in names(folder)
  assert "ids.jsonl" not in names(folder)


def test_killed_after_the_old_manifest_went(tmp_path):
  """The shards that are left mean nothing then."""
  folder = tmp_path / "passages"
  fill(folder)
  (folder / "manifest.json").unlink()
  assert fill(folder, rows=-WHOLE) == [0, 1, 2]
  assert_array_equal(open_embeddings(folder)[:], -WHOLE)


def test_neither_shard_size_nor_where_it_comes_from_asks_for_new_embeddings(tmp_path):
  folder = tmp_path / "passages"
  fill(folder, only=[0])
  moved = MANIFEST._replace(layout=Layout(10, 2, 3), note={"checkpoint": "/elsewhere"})
  assert fill(folder, moved) == [1, 2]
  assert is_complete(folder, moved)
  assert [len(shard) for shard in open_embeddings(folder).shards] == [4, 4, 2]


def test_float16(tmp_path):
  manifest = MANIFEST._replace(layout=Layout(10, 2, 4, "float16"))
  fill(tmp_path / "passages", manifest)
  found = open_embeddings(tmp_path / "passages")
  assert found.dtype == np.float16
  assert_array_equal(found[:], WHOLE.astype(np.float16))
  header = 128
  assert (tmp_path / "passages" / "00000.npy").stat().st_size == header + 4 * 2 * 2


def test_ids_are_any_strings(tmp_path):
  ids = ["1", "01", " a ", "\U0001f642", 'a"b', "a\u2028b", "a\nb", "\\"]
  manifest = MANIFEST._replace(layout=Layout(8, 2, 8))
  with writing(tmp_path / "passages", manifest) as writer:
    writer.write(0, WHOLE[:8], ids)
  lines = (tmp_path / "passages" / "00000.ids.jsonl").read_bytes().split(b"\n")
  assert [json.loads(line) for line in lines[:-1]] == ids


def test_two_processes_take_turns(tmp_path, capsys, monkeypatch):
  folder = tmp_path / "passages"
  done, waits, take = [], threading.Event(), embedding_writer.fcntl.flock

  def flock(file, operation):
    if operation == embedding_writer.fcntl.LOCK_EX:
      waits.set()
    return take(file, operation)

  monkeypatch.setattr(embedding_writer.fcntl, "flock", flock)
  with writing(folder, MANIFEST) as writer:
    other = threading.Thread(target=lambda: done.append(fill(folder)))
    other.start()
    assert waits.wait(60)
    # Read once: a message that comes while capsys empties its buffer is lost.
    assert "waiting for its end" in capsys.readouterr().err
    for number in (0, 1):
      span = writer.layout.span(number)
      writer.write(number, WHOLE[span.start : span.stop], ["a"] * len(span))
    assert not done
  other.join()
  assert done == [[2]]


def test_without_locks_it_goes_on_and_leaves_the_files_of_others(tmp_path, monkeypatch):
  def no_locks(*_):
    raise OSError(errno.ENOLCK, "No locks available")

  monkeypatch.setattr(embedding_writer.fcntl, "flock", no_locks)
  folder = tmp_path / "passages"
  fill(folder, only=[0])
  (folder / ".00001.npy.x1y2").write_bytes(b"another process writes this")
  assert fill(folder) == [1, 2]
  assert ".00001.npy.x1y2" in names(folder)


def test_a_disk_that_refuses(tmp_path, monkeypatch):
  folder = tmp_path / "passages"
  fill(folder, only=[0])

  def full(handle):
    raise OSError(errno.ENOSPC, "No space left on device")

  with monkeypatch.context() as patch:
    patch.setattr(os, "fsync", full)
    with pytest.raises(
      UserError, match=r"cannot write embeddings to .*No space left on device.*finished shards are kept"
    ):
      fill(folder)
  assert names(folder) == ["00000.ids.jsonl", "00000.npy", "manifest.json"]
  assert fill(folder) == [1, 2]


def test_a_file_in_the_way(tmp_path):
  (tmp_path / "passages").write_text("", encoding="utf-8")
  with pytest.raises(UserError, match=r"cannot write embeddings to .*passages"):
    fill(tmp_path / "passages")
