"""Several processes as one run, for real: they find each other, learn what one process learns, evaluate and encode together."""

import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import pytest

from tests import three_trainings
from tests.end_to_end.conftest import command, environment

Results = list[tuple[int, str]]
OFTEN = ("--gin.CHECKPOINT_PERIOD=4", "--gin.KEEP_CHECKPOINTS=3")


def free_port() -> int:
  with socket.socket() as free:
    free.bind(("localhost", 0))
    return free.getsockname()[1]


def begin(
  program: str, *flags: str, processes: int, devices: int, each: dict[int, tuple[str, ...]] | None = None
) -> list[subprocess.Popen]:
  """Starts a program in several processes with so many devices each. each: flags of single processes."""
  joint = (f"--coordinator_address=localhost:{free_port()}", f"--num_processes={processes}")
  return [
    subprocess.Popen(
      command(program, *flags, *(each or {}).get(number, ()), *joint, f"--process_id={number}"),
      env=environment(devices),
      stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT,
      text=True,
    )
    for number in range(processes)
  ]


def finish(running: list[subprocess.Popen], timeout: int = 240) -> Results:
  """Returns the exit code and the output of each."""
  try:
    outputs = [process.communicate(timeout=timeout)[0] for process in running]
  finally:
    for process in running:
      process.kill()
  return [(process.returncode, output) for process, output in zip(running, outputs, strict=True)]


def together(program: str, *flags: str, processes: int = 2, devices: int = 2) -> Results:
  return finish(begin(program, *flags, processes=processes, devices=devices))


def assert_done(results: Results) -> None:
  assert [code for code, _ in results] == [0] * len(results), "\n\n".join(output for _, output in results)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
  return three_trainings.write_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def trained(data: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, pathlib.Path]:
  """The three trainings, each by 2 processes with 4 devices, the first with FSDP and the second tensor parallel too."""
  folder = tmp_path_factory.mktemp("two")
  more = {
    "sde_samtone": ("--gin_file=partitioning/fsdp.gin",),
    "ade_spl_ngame": ("--gin.NUM_PARTITIONS=2",),
    "bags_sogram": (),
  }
  for name in three_trainings.NAMES:
    flags = (*three_trainings.flags(name, data), *OFTEN, *more[name], f"--gin.MODEL_DIR={folder / name}")
    assert_done(together("train", *flags, processes=2, devices=4))
  return {name: folder / name for name in three_trainings.NAMES}


@pytest.fixture(scope="module")
def alone(data: pathlib.Path, process, tmp_path_factory: pytest.TempPathFactory) -> dict[str, pathlib.Path]:
  """The three trainings, each by one process with one device."""
  folder = tmp_path_factory.mktemp("one")
  for name in three_trainings.NAMES:
    flags = (*three_trainings.flags(name, data), *OFTEN, f"--gin.MODEL_DIR={folder / name}")
    done = process("train", *flags)
    assert done.returncode == 0, done.stderr
  return {name: folder / name for name in three_trainings.NAMES}


@pytest.mark.parametrize("name", three_trainings.NAMES)
def test_two_processes_of_four_devices_learn_what_one_device_learns(name, trained, alone):
  found, expected = three_trainings.losses(trained[name]), three_trainings.losses(alone[name])
  assert len(found) == three_trainings.STEPS
  np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def from_step_4(folder: pathlib.Path, copy: pathlib.Path) -> tuple[str, ...]:
  """Copies a run as it was after 4 steps; returns the flag of its MODEL_DIR."""
  shutil.copytree(folder, copy)
  for step in (8, 10):
    shutil.rmtree(copy / f"checkpoint_{step}")
  return (f"--gin.MODEL_DIR={copy}",)


@pytest.mark.parametrize("name", ["sde_samtone", "ade_spl_ngame"])
def test_a_run_of_two_processes_goes_on_with_one_and_the_other_way_round(
  name, data, trained, alone, process, tmp_path
):
  flags = (*three_trainings.flags(name, data), *OFTEN)
  one = process("train", *flags, *from_step_4(trained[name], tmp_path / "one"), devices=2)
  assert one.returncode == 0, one.stderr
  assert_done(together("train", *flags, *from_step_4(alone[name], tmp_path / "two"), devices=1))
  expected = three_trainings.losses(alone[name])
  for copy in ("one", "two"):
    after = three_trainings.losses(tmp_path / copy)[three_trainings.STEPS :]
    np.testing.assert_allclose(after, expected[4:], rtol=1e-5, atol=1e-5)


def test_two_processes_evaluate_encode_and_mine_as_one_does(data, trained, process, tmp_path):
  task = ("--gin_file=data/tsv.gin", f"--gin.DATA_PATH={data / 'train.tsv'}", "--gin.EVAL_SPLIT='train'")
  model = (f"--gin.MODEL_DIR={trained['sde_samtone']}",)
  results = together(
    "encode", *task, *model, f"--gin.OUTPUT_DIR={tmp_path / 'two'}", "--gin.ROWS_PER_SHARD=20"
  )
  assert_done(results)
  assert "64 rows" in results[0][1]
  assert "rows in" not in results[1][1]  # one speaks
  one = process("encode", *task, *model, f"--gin.OUTPUT_DIR={tmp_path / 'one'}", "--gin.ROWS_PER_SHARD=20")
  assert one.returncode == 0, one.stderr
  for side in ("passages", "queries"):
    ((first, second),) = zip(*(sorted(tmp_path.glob(f"{n}/*/*/{side}")) for n in ("one", "two")), strict=True)
    names = sorted(path.name for path in first.iterdir() if path.suffix in (".npy", ".jsonl"))
    assert names == sorted(path.name for path in second.iterdir() if path.suffix in (".npy", ".jsonl"))
    assert len([name for name in names if name.endswith(".npy")]) == 4
    for name in names:
      if name.endswith(".npy"):
        np.testing.assert_allclose(np.load(first / name), np.load(second / name), atol=2e-6)
      else:
        assert (first / name).read_bytes() == (second / name).read_bytes()

  measured = ("--gin_file=evaluators/retrieval.gin",)
  assert_done(together("eval", *task, *model, *measured))
  metrics = next(trained["sde_samtone"].glob("eval/*/step_10/metrics.json"))
  by_two = json.loads(metrics.read_text(encoding="utf-8"))
  assert process("eval", *task, *model, *measured).returncode == 0
  by_one = json.loads(metrics.read_text(encoding="utf-8"))
  assert by_two["mrr"] == pytest.approx(by_one["mrr"], abs=1e-6)

  negatives = tmp_path / "negatives.tsv"
  assert_done(together("mine", *task, *model, f"--gin.OUTPUT_PATH={negatives}", "--gin.LAST_RANK=10"))
  assert len(negatives.read_text(encoding="utf-8").splitlines()) >= 64


def test_other_data_on_one_process_is_refused(data, tmp_path):
  other = tmp_path / "other.tsv"
  other.write_text((data / "train.tsv").read_text(encoding="utf-8").replace("red", "pink"), encoding="utf-8")
  flags = (*three_trainings.flags("sde_samtone", data), f"--gin.MODEL_DIR={tmp_path / 'run'}")
  results = finish(begin("train", *flags, processes=2, devices=1, each={1: (f"--gin.DATA_PATH={other}",)}))
  assert [code for code, _ in results] == [2, 2], results
  assert "process 1 of 2: the model and data of this run are not the same on all processes" in results[1][1]


@pytest.mark.parametrize("flag", ["--gin.TRAIN_STEPS=7", "--gin_file=losses/in_batch.gin"])
def test_other_settings_on_one_process_are_refused(data, tmp_path, flag):
  flags = (*three_trainings.flags("sde_samtone", data), f"--gin.MODEL_DIR={tmp_path / 'run'}")
  results = finish(begin("train", *flags, processes=2, devices=1, each={1: (flag,)}))
  assert [code for code, _ in results] == [2, 2], results
  assert "the processes of this run have different settings" in results[0][1]
  said = results[1][1]
  assert (
    "TRAIN_STEPS: here 7, on process 0 10" in said or "LOSS: here @in_batch.in_batch_softmax()" in said
  ), said
  assert not (tmp_path / "run").exists()


def test_sigterm_to_one_process_stops_both_at_one_step_and_the_command_goes_on(data, trained, tmp_path):
  folder = tmp_path / "run"
  flags = (*three_trainings.flags("sde_samtone", data), f"--gin.MODEL_DIR={folder}")
  more = ("--gin.TRAIN_STEPS=100000", "--gin.CHECKPOINT_PERIOD=100000")
  running = begin("train", *flags, *more, processes=2, devices=1)
  log = folder / "train" / "log.jsonl"
  deadline = time.monotonic() + 120
  while not (log.is_file() and log.stat().st_size) and time.monotonic() < deadline:
    assert all(process.poll() is None for process in running), finish(running)
    time.sleep(0.1)
  running[1].send_signal(signal.SIGTERM)
  results = finish(running)
  assert_done(results)
  step = json.loads((folder / "STOPPED").read_text(encoding="utf-8"))["step"]
  assert [path.name for path in folder.glob("checkpoint_*")] == [f"checkpoint_{step}"]
  assert "stopped at step" in results[0][1]
  assert_done(
    together("train", *flags, f"--gin.TRAIN_STEPS={step + 2}", "--gin.CHECKPOINT_PERIOD=100000", devices=1)
  )
  assert not (folder / "STOPPED").exists()
  assert (folder / f"checkpoint_{step + 2}").is_dir()


def test_slurm_s_variables_are_enough(data, tmp_path):
  port = free_port()
  common = {
    **environment(1),
    **{"SLURM_JOB_ID": "17", "SLURM_STEP_NODELIST": "localhost", "SLURM_NTASKS": "2", "SLURM_LOCALID": "0"},
    "JAX_COORDINATOR_PORT": str(port),
  }
  flags = (
    *three_trainings.flags("bags_sogram", data),
    "--gin.TRAIN_STEPS=1",
    f"--gin.MODEL_DIR={tmp_path / 'run'}",
  )
  running = [
    subprocess.Popen(
      command("train", *flags),
      env={**common, "SLURM_PROCID": str(number)},
      stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT,
      text=True,
    )
    for number in range(2)
  ]
  results = finish(running)
  assert_done(results)
  assert "mesh: {'replica': 1, 'data': 2, 'model': 1}" in results[0][1]


def test_a_process_that_nobody_joins_says_so(data, tmp_path):
  flags = (*three_trainings.flags("bags_sogram", data), f"--gin.MODEL_DIR={tmp_path / 'run'}")
  done = subprocess.run(
    command(
      "train",
      *flags,
      *(f"--coordinator_address=localhost:{free_port()}", "--num_processes=2", "--process_id=1"),
      "--initialization_timeout=3",
    ),
    env=environment(1),
    capture_output=True,
    text=True,
    timeout=120,
    check=False,
  )
  assert done.returncode == 76, done.stderr
  assert "waiting for 2 processes at localhost:" in done.stderr
  assert "did not find each other" in done.stderr
  assert "stack trace" not in done.stderr


HANGS = """
import sys, time
from retrieval_jax import train, watchdog
from retrieval_jax.training_batches import TrainingBatches
make = TrainingBatches.make
def hanging(self, step):
  if step == 6:
    time.sleep(1000)
  return make(self, step)
TrainingBatches.make = hanging
from retrieval_jax import launch
launch.main("train", sys.argv[1:])
"""


def test_a_process_that_hangs_is_left_in_bounded_time(data, tmp_path):
  """Process 1 goes on answering, but makes no batch: the watchdog of one ends it, and the other by then or by its own."""
  flags = (*three_trainings.flags("sde_samtone", data), f"--gin.MODEL_DIR={tmp_path / 'run'}")
  joint = (f"--coordinator_address=localhost:{free_port()}", "--num_processes=2", "--gin.STEP_TIMEOUT=5")
  runs = (command("train"), [sys.executable, "-c", HANGS])
  running = [
    subprocess.Popen(
      [*run, *flags, *joint, f"--process_id={number}"],
      env={**os.environ, **environment(1)},
      stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT,
      text=True,
    )
    for number, run in enumerate(runs)
  ]
  results = finish(running)
  codes = [code for code, _ in results]
  assert 75 in codes, results
  assert set(codes) <= {75, 76}, results
  if codes[1] == 75:
    assert "process 1 of 2: nothing went on for 5 s (STEP_TIMEOUT)" in results[1][1]
    assert "in hanging" in results[1][1]  # where it hung
