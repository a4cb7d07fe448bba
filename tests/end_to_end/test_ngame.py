"""Batches that are made anew during a training: NGAME's clusters, TAS's, ANCE's negatives; stopped and resumed."""

import json
import pathlib
import shutil
import signal
import socket
import subprocess
import sys

import numpy as np
import pytest

from retrieval_jax.errors import UserError
from tests.end_to_end.conftest import assert_equal_states, environment, state_of

STEPS = 10  # 4 steps an epoch
COMMON = (f"--gin.TRAIN_STEPS={STEPS}", "--gin.CHECKPOINT_PERIOD=1", "--gin.KEEP_CHECKPOINTS=3")
NGAME = ("--gin_file=batching/ngame.gin", "--gin.CLUSTER_SIZES=((0, 1), (1, 4))", "--gin.REFRESH_EPOCHS=1")
ANCE = (
  "--gin_file=negatives/ance.gin",
  "--gin.NEGATIVES_DEPTH=8",
  "--gin.HARD_NEGATIVES=2",
  "--gin.NEGATIVES_FROM_EPOCH=1",
)
BOTH = (*NGAME, *ANCE)


# A thread of the training's own waits for the file: it sees it at once, however busy the machine is.
KILLED = """
import os, signal, sys, threading, time
def watch():
  while not os.path.exists(sys.argv[1]):
    time.sleep(0.0005)
  os.kill(os.getpid(), signal.SIGKILL)
threading.Thread(target=watch, daemon=True).start()
from retrieval_jax import launch
launch.run("train", sys.argv[2:])
"""


def log_of(folder: pathlib.Path) -> list[dict]:
  return [
    json.loads(line) for line in (folder / "train" / "log.jsonl").read_text(encoding="utf-8").splitlines()
  ]


@pytest.fixture(scope="module")
def uninterrupted(process, tiny, tmp_path_factory) -> pathlib.Path:
  folder = tmp_path_factory.mktemp("ngame")
  done = process("train", *tiny, *COMMON, *BOTH, f"--gin.MODEL_DIR={folder}")
  assert done.returncode == 0, done.stderr
  assert "batches are made of clusters of 4 of 64 examples" in done.stdout + done.stderr
  return folder


def test_clusters_and_negatives_are_written_once_and_logged(uninterrupted):
  found = sorted(path.name for path in (uninterrupted / "batches").iterdir())
  assert [name for name in found if name.startswith("clusters")] == [
    "clusters_00000004.npz",
    "clusters_00000008.npz",
  ]
  assert [name for name in found if name.startswith("negatives")] == [
    "negatives_00000004.npz",
    "negatives_00000008.npz",
  ]
  kept = sorted(int(path.name.removeprefix("checkpoint_")) for path in uninterrupted.glob("checkpoint_*"))
  assert [name for name in found if name.startswith("bank_")] == [f"bank_{step:08d}.npy" for step in kept]
  with np.load(uninterrupted / "batches" / "clusters_00000004.npz") as file:
    assert sorted(file["members"].tolist()) == list(range(64))
    assert np.diff(file["offsets"]).tolist() == [4] * 16
  log = log_of(uninterrupted)
  refreshes = [record for record in log if "refresh_seconds" in record]
  assert [(record["step"], record["cluster_size"]) for record in refreshes] == [(4, 4.0), (8, 4.0)]
  steps = [record for record in log if "loss" in record]
  assert [record.get("clusters_age") for record in steps] == [None] * 4 + [0, 1, 2, 3, 0, 1]
  assert all(-1 <= record["in_batch_hardness"] <= 1 for record in steps)
  first, later = steps[:4], steps[4:8]
  assert np.mean([r["in_batch_hardness"] for r in later]) > np.mean([r["in_batch_hardness"] for r in first])


@pytest.mark.parametrize("marker", ["batches/clusters_00000004.npz", "checkpoint_6"])
def test_resume_after_kill_equals_an_uninterrupted_run(process, tiny, tmp_path, uninterrupted, marker):
  folder = tmp_path / "run"
  flags = (*tiny, *COMMON, *BOTH)
  killed = subprocess.run(
    [sys.executable, "-c", KILLED, str(folder / marker), *flags, f"--gin.MODEL_DIR={folder}"],
    env=environment(),
    capture_output=True,
    text=True,
    check=False,
  )
  assert killed.returncode == -signal.SIGKILL, killed.stderr
  again = process("train", *flags, f"--gin.MODEL_DIR={folder}")
  assert again.returncode == 0, again.stderr
  assert_equal_states(state_of(folder, STEPS), state_of(uninterrupted, STEPS))


def test_other_embeddings_do_not_change_the_clusters_of_a_resumed_run(launch, tiny, tmp_path, uninterrupted):
  """The clusters of step 8 were decided once; a bank that says otherwise after a resume at step 9 changes nothing."""
  folder = tmp_path / "run"
  shutil.copytree(uninterrupted, folder)
  shutil.rmtree(folder / "checkpoint_10")
  bank = folder / "batches" / "bank_00000009.npy"
  rows = np.load(bank)
  np.save(bank, np.random.default_rng(0).permutation(rows))
  launch("train", *tiny, *COMMON, *BOTH, f"--gin.MODEL_DIR={folder}")
  a, b = (np.load(f / "batches" / "clusters_00000008.npz")["members"] for f in (folder, uninterrupted))
  assert a.tolist() == b.tolist()


def test_clusters_that_a_checkpoint_needs_and_that_are_gone_are_an_error(
  launch, tiny, tmp_path, uninterrupted
):
  folder = tmp_path / "run"
  shutil.copytree(uninterrupted, folder)
  (folder / "batches" / "clusters_00000008.npz").unlink()
  with pytest.raises(
    UserError, match=r"clusters_00000008.npz: the batches of this checkpoint cannot be read"
  ):
    launch("train", *tiny, *COMMON, *BOTH, "--gin.TRAIN_STEPS=12", f"--gin.MODEL_DIR={folder}")


def other_artefact(path: pathlib.Path, **arrays: np.ndarray) -> None:
  """Writes a file of clusters anew, with some of its arrays replaced."""
  with np.load(path) as file:
    found = {name: file[name] for name in file.files}
  np.savez(path, **{**found, **arrays})


@pytest.mark.parametrize(
  ("arrays", "message"),
  [
    (
      {"plain": np.array('{"cluster_size": 5, "since": 8}')},
      r"have 5 examples each, which does not divide BATCH_SIZE=16",
    ),
    ({"record": np.array('{"task_fingerprint": "another"}')}, "are of other data than the training's"),
  ],
)
def test_clusters_that_do_not_fit_the_resumed_training_are_left_for_random_batches(
  launch, tiny, tmp_path, uninterrupted, capsys, arrays, message
):
  folder = tmp_path / "run"
  shutil.copytree(uninterrupted, folder)
  other_artefact(folder / "batches" / "clusters_00000008.npz", **arrays)
  launch("train", *tiny, *COMMON, *BOTH, "--gin.TRAIN_STEPS=13", f"--gin.MODEL_DIR={folder}")
  assert f"{message}: batches are random until the next epoch begins" in capsys.readouterr().err
  steps = [record for record in log_of(folder) if "loss" in record and record["step"] > 10]
  assert [record.get("clusters_age") for record in steps] == [None, None, 0]
  assert all(record["negatives"] > 0 for record in steps)


def test_clusters_that_lack_an_example_are_an_error(launch, tiny, tmp_path, uninterrupted):
  folder = tmp_path / "run"
  shutil.copytree(uninterrupted, folder)
  other_artefact(folder / "batches" / "clusters_00000008.npz", members=np.zeros(64, np.int32))
  with pytest.raises(
    UserError, match=r"does not have each of 64 examples in one cluster. It is part of the checkpoint"
  ):
    launch("train", *tiny, *COMMON, *BOTH, "--gin.TRAIN_STEPS=12", f"--gin.MODEL_DIR={folder}")


def test_a_training_that_ends_before_the_first_clusters_is_warned_of(launch, tiny, tmp_path, capsys):
  flags = ("--gin_file=batching/ngame_curriculum.gin", "--gin.LARGEST_CLUSTER_SIZE=16", "--gin.DRY_RUN=True")
  launch("train", *tiny, *flags, "--gin.TRAIN_STEPS=40", f"--gin.MODEL_DIR={tmp_path / 'run'}")
  assert "TRAIN_STEPS=40 are 10.0 epochs, and the first clusters come later" in capsys.readouterr().out
  launch("train", *tiny, *flags, "--gin.TRAIN_STEPS=41", f"--gin.MODEL_DIR={tmp_path / 'run'}")
  out = capsys.readouterr().out
  assert "first clusters come later" not in out
  assert "a bank of 64 x" in out


@pytest.mark.parametrize(
  "flags",
  [
    ("--gin_file=batching/tas.gin", "--gin.TOPIC_SIZE=4"),
    (*NGAME, "--gin.CLUSTER_EMBEDDINGS='encode'"),
    (*NGAME, "--gin.TRAIN_MICROBATCHES=2", "--gin.TRAIN_CHUNKS=2"),
    (*NGAME, "--gin_file=losses/triplet_ngame.gin", "--gin.CLUSTER_ON_DEVICES=True"),
  ],
  ids=["tas", "encode", "microbatches", "triplet on devices"],
)
def test_other_ways_to_cluster_train(launch, tiny, tmp_path, flags):
  launch("train", *tiny, "--gin.TRAIN_STEPS=6", *flags, f"--gin.MODEL_DIR={tmp_path / 'run'}")
  log = log_of(tmp_path / "run")
  assert [record["cluster_size"] for record in log if "cluster_size" in record] == [4.0]
  assert len([record for record in log if "loss" in record]) == 6


@pytest.mark.parametrize(
  ("flags", "message"),
  [
    ((*NGAME, "--gin.CLUSTER_EMBEDDINGS='banks'"), "CLUSTER_EMBEDDINGS='banks': expected 'bank' or 'encode'"),
    ((*NGAME, "--gin.BANK_DTYPE='float8'"), "BANK_DTYPE='float8'"),
    ((*NGAME, "--gin.CLUSTER_SIZES=((0, 1), (1, 5))"), "5 does not divide it. Nearest valid sizes: 4 or 8"),
    ((*ANCE, "--gin.NEGATIVES_DEPTH=0"), "NEGATIVES_DEPTH=0"),
    ((*ANCE, "--gin.HARD_NEGATIVES=0"), "HARD_NEGATIVES=0 and negatives are to be mined in the training"),
    ((*ANCE, "--gin.NEGATIVES_EPOCHS=0"), "NEGATIVES_EPOCHS=0"),
    ((*NGAME, "--gin.IN_BATCH_HARDNESS=-1"), "IN_BATCH_HARDNESS=-1"),
  ],
)
def test_settings_that_cannot_be(launch, tiny, tmp_path, flags, message):
  with pytest.raises(UserError, match=message):
    launch("train", *tiny, "--gin.TRAIN_STEPS=6", *flags, f"--gin.MODEL_DIR={tmp_path / 'run'}")
  assert not (tmp_path / "run" / "checkpoint_6").exists()


TWO = """
import sys, jax
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(f"localhost:{sys.argv[1]}", 2, int(sys.argv[2]))
from retrieval_jax import launch
launch.run("train", sys.argv[3:])
"""


def test_two_processes_form_the_same_batches(tiny, tmp_path):
  """A batch is put on the mesh of both processes, which JAX refuses where they disagree about it."""
  with socket.socket() as free:
    free.bind(("localhost", 0))
    port = free.getsockname()[1]
  flags = (
    *tiny,
    *NGAME,
    "--gin.TRAIN_STEPS=10",
    "--gin.CHECKPOINT_PERIOD=5",
    f"--gin.MODEL_DIR={tmp_path / 'run'}",
  )
  both = [
    subprocess.Popen(
      [sys.executable, "-c", TWO, str(port), str(number), *flags],
      env=environment(),
      stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT,
      text=True,
    )
    for number in range(2)
  ]
  outputs = [process.communicate(timeout=300)[0] for process in both]
  assert [process.returncode for process in both] == [0, 0], outputs
  assert [text.count("batches are made of clusters of 4") for text in outputs] == [2, 0]
  steps = [record["step"] for record in log_of(tmp_path / "run") if "loss" in record]
  assert steps == list(range(1, 11))
  with np.load(tmp_path / "run" / "batches" / "clusters_00000008.npz") as file:
    assert sorted(file["members"].tolist()) == list(range(64))


def test_several_processes_do_not_cluster_on_devices(monkeypatch, launch, tiny, tmp_path):
  monkeypatch.setattr("jax.process_count", lambda: 2)
  with pytest.raises(UserError, match="CLUSTER_ON_DEVICES: several processes cannot cluster together"):
    launch(
      "train",
      *(
        *tiny,
        *NGAME,
        "--gin.CLUSTER_ON_DEVICES=True",
        "--gin.TRAIN_STEPS=6",
        f"--gin.MODEL_DIR={tmp_path / 'run'}",
      ),
    )
