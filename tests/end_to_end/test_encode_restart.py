"""The encoding program is killed at work, as by a full machine or an impatient user, and started again."""

import json
import pathlib
import signal
import subprocess
import time

import numpy as np
import pytest

from retrieval_jax.embeddings import open_embeddings
from retrieval_jax.errors import UserError
from tests.end_to_end.conftest import command, environment

ROWS, SHARD = 1200, 100


@pytest.fixture(scope="module")
def flags(tiny, tmp_path_factory):
  """Flags of an encoding, in small batches so that it takes a second or two, with a model that was trained one step."""
  import gin

  from retrieval_jax import launch as launcher

  folder = tmp_path_factory.mktemp("encode")
  gin.clear_config()
  launcher.run("train", [*tiny, "--gin.TRAIN_STEPS=1", f"--gin.MODEL_DIR={folder / 'run'}"])
  gin.clear_config()
  (folder / "corpus.tsv").write_text(
    "".join(f"query {i % 7}\tpassage {i} {'word ' * (i % 9)}\n" for i in range(ROWS)), encoding="utf-8"
  )
  return (
    "--gin_file=data/tsv.gin",
    f"--gin.DATA_PATH={folder / 'corpus.tsv'}",
    f"--gin.TEST_PATH={folder / 'corpus.tsv'}",
    f"--gin.MODEL_DIR={folder / 'run'}",
    f"--gin.ROWS_PER_SHARD={SHARD}",
  )


def killed(program: list[str], first: pathlib.Path) -> None:
  """Runs a program and kills it as soon as the file `first` is there."""
  running = subprocess.Popen(program, env=environment(8))
  try:
    while not first.exists():
      assert running.poll() is None, "it ended before it wrote a shard"
      time.sleep(0.002)
  finally:
    running.kill()
    running.wait()
  assert running.returncode == -signal.SIGKILL


def test_sharded_encoding_goes_on_after_kill_9(flags, launch, tmp_path, capsys):
  flags, output = (*flags, "--gin.TOKENS_PER_BATCH=16"), tmp_path / "out"
  passages = output / "corpus" / "step_1" / "passages"
  killed(command("encode", *flags, f"--gin.OUTPUT_DIR={output}"), passages / "00000.npy")
  finished = {path: path.stat().st_mtime_ns for path in passages.glob("[0-9]*.npy")}
  assert 1 <= len(finished) < ROWS // SHARD, "it was killed before its end"
  content = {path: path.read_bytes() for path in finished}

  capsys.readouterr()
  launch("encode", *flags, f"--gin.OUTPUT_DIR={output}")
  left = ROWS - SHARD * len(finished)
  assert f"; {left:,} encoded in " in capsys.readouterr().out
  assert {path: path.stat().st_mtime_ns for path in finished} == finished
  assert not list(passages.glob(".*"))

  launch("encode", *flags, f"--gin.OUTPUT_DIR={tmp_path / 'whole'}")
  uninterrupted = tmp_path / "whole" / "corpus" / "step_1" / "passages"
  for path in sorted(uninterrupted.iterdir()):
    assert (passages / path.name).read_bytes() == path.read_bytes(), path.name
  for path, kept in content.items():
    assert path.read_bytes() == kept

  found = open_embeddings(passages)
  assert found.shape == (ROWS, 64)
  ids = [
    json.loads(line)
    for number in range(ROWS // SHARD)
    for line in (passages / f"{number:05d}.ids.jsonl").read_bytes().split(b"\n")[:-1]
  ]
  assert len(set(ids)) == ROWS
  np.testing.assert_allclose(np.linalg.norm(found[:], axis=1), 1, atol=1e-5)


def test_float16_is_kept_and_searched(flags, launch):
  flags = (*flags, "--gin.EMBEDDING_DTYPE=float16")
  folder = launch("encode", *flags) / "passages"
  shards = {path: path.stat().st_mtime_ns for path in folder.glob("[0-9]*.npy")}
  assert len(shards) == ROWS // SHARD
  assert {np.load(path, mmap_mode="r").dtype for path in shards} == {np.dtype(np.float16)}
  ranking = launch("search", *flags, "--gin.K=3", "word word")
  assert ranking.rows.shape == (1, 3)
  assert {path: path.stat().st_mtime_ns for path in shards} == shards


@pytest.mark.parametrize(
  "flag, message",
  [
    ("ROWS_PER_SHARD=0", "ROWS_PER_SHARD=0: expected a whole number of at least 1"),
    ("EMBEDDING_DTYPE=float8", "EMBEDDING_DTYPE='float8': expected 'float32' or 'float16'"),
    ("TOKENS_PER_BATCH=0", "TOKENS_PER_BATCH=0: expected a whole number"),
  ],
)
def test_flags_that_cannot_be(flags, launch, tmp_path, flag, message):
  with pytest.raises(UserError, match=message):
    launch("encode", *flags, f"--gin.{flag}", f"--gin.OUTPUT_DIR={tmp_path / 'out'}")
  assert not list(tmp_path.rglob("*.npy"))
