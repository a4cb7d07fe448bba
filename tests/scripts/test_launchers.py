"""scripts/keep_running.sh, multi_gpu.sh and slurm.sbatch with programs that end in every way; jax on two real processes."""

import functools
import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time

import pytest

ROOT = pathlib.Path(__file__).parents[2]
SCRIPTS = ROOT / "scripts"

# Ends with the next of the codes in the file that its first argument names, one line a start, and appends its arguments to `seen`.
PROGRAM = """
import os, pathlib, sys, time
codes = pathlib.Path(sys.argv[1])
left = codes.read_text().split()
codes.write_text(" ".join(left[1:]))
print("start with", sys.argv[2:], flush=True)
if left[0] == "killed":
  os.kill(os.getpid(), 9)
if left[0].startswith("stopped"):
  pathlib.Path(left[0].partition(":")[2]).write_text('{"step": 3}')
  sys.exit(0)
sys.exit(int(left[0]))
"""


@pytest.fixture
def program(tmp_path):
  file = tmp_path / "program.py"
  file.write_text(PROGRAM)
  return file


def bash(script: str, *arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
  command = ["bash", str(SCRIPTS / script), *map(str, arguments)]
  environ = {**os.environ, "PYTHON": sys.executable, **environment}
  return subprocess.run(command, capture_output=True, text=True, env=environ, timeout=300, check=False)


def keep_running(tmp_path, program, codes: str, *options: str) -> subprocess.CompletedProcess[str]:
  (tmp_path / "codes").write_text(codes)
  return bash("keep_running.sh", "--wait=0", *options, sys.executable, program, tmp_path / "codes")


@pytest.mark.parametrize("codes, starts, code", [("0", 1, 0), ("2", 1, 2), ("1", 1, 1), ("75 76 0", 3, 0)])
def test_a_command_runs_again_after_a_hang_and_a_lost_peer_and_after_nothing_else(
  tmp_path, program, codes, starts, code
):
  done = keep_running(tmp_path, program, codes)
  assert (done.stdout.count("start with"), done.returncode) == (starts, code)


def test_a_command_that_was_killed_runs_again(tmp_path, program):
  done = keep_running(tmp_path, program, "killed 0")
  assert (done.stdout.count("start with"), done.returncode) == (2, 0)
  assert "exit code 137; start 1 of at most 10 anew" in done.stderr


def test_starts_anew_end_at_their_limit_with_the_last_code(tmp_path, program):
  done = keep_running(tmp_path, program, "75 75 75 75", "--restarts=2")
  assert (done.stdout.count("start with"), done.returncode) == (3, 75)
  assert "giving up" in done.stderr


def test_a_training_that_was_stopped_is_told_from_one_that_is_done(tmp_path, program):
  options = (f"--stopped_file={tmp_path / 'STOPPED'}", "--stopped_code=99")
  assert keep_running(tmp_path, program, "0", *options).returncode == 0
  assert keep_running(tmp_path, program, f"stopped:{tmp_path / 'STOPPED'}", *options).returncode == 99
  # The file is there from before: this training had nothing to do.
  os.utime(tmp_path / "STOPPED", (time.time() - 10, time.time() - 10))
  assert keep_running(tmp_path, program, "0", *options).returncode == 0


SAVES = """
import signal, sys, time
def save(*_):
  time.sleep(0.5)
  print("saved", flush=True)
  sys.exit(0)
signal.signal(signal.SIGTERM, save)
print("ready", sys.argv[1:], flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_goes_to_the_command_which_has_its_time_to_save(tmp_path, number):
  (tmp_path / "saves.py").write_text(SAVES)
  command = ["bash", SCRIPTS / "keep_running.sh", "--stopped_code=99", sys.executable, tmp_path / "saves.py"]
  # Tests that run in the background have SIGINT ignored, which children inherit and bash cannot trap.
  heard = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
  with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, preexec_fn=heard) as process:
    assert process.stdout is not None
    assert process.stdout.readline().startswith("ready")
    process.send_signal(number)
    assert process.stdout.read() == "saved\n"
    assert process.wait(timeout=30) == 99


def test_wrong_options_are_refused():
  assert "expected a whole number" in bash("keep_running.sh", "--restarts=many", "true").stderr
  assert "a COMMAND is missing" in bash("keep_running.sh", "--wait=1").stderr
  assert (
    "--restarts needs its value after an equals sign: --restarts=1"
    in bash("keep_running.sh", "--restarts", "1", "true").stderr
  )
  assert (
    "--stopped_code=300: expected at most 255" in bash("keep_running.sh", "--stopped_code=300", "true").stderr
  )
  assert "unknown option --restart" in bash("keep_running.sh", "--restart=1", "true").stderr


@pytest.mark.parametrize("script", ["keep_running.sh", "multi_gpu.sh"])
def test_help_shows_how_to_call_it(script):
  done = bash(script, "--help")
  assert done.returncode == 0
  assert done.stdout.startswith(f"usage: bash scripts/{script}")


HARD = ("--gin.A=('x y', 2)", '--gin.B="it\'s"', "--gin.C=$HOME `id`")


def words(line: str) -> list[str]:
  return shlex.split(line)


def test_a_dry_run_prints_what_each_process_would_be():
  done = bash("multi_gpu.sh", "--dry-run", "--gpus=4,5,6,7", "--processes=2", "train", *HARD)
  first, second = map(words, done.stdout.splitlines())
  assert first[:5] == ["env", "CUDA_VISIBLE_DEVICES=4,5", sys.executable, "-m", "retrieval_jax.train"]
  assert tuple(first[5:8]) == HARD
  assert first[8:] == ["--coordinator_address=127.0.0.1:PORT", "--num_processes=2", "--process_id=0"]
  assert second[1] == "CUDA_VISIBLE_DEVICES=6,7"
  assert second[-1] == "--process_id=1"


def test_one_process_is_told_of_no_other():
  done = bash("multi_gpu.sh", "--dry-run", "--gpus=0,1", "eval", "--gin_file=run.gin")
  assert words(done.stdout) == [
    *("env", "CUDA_VISIBLE_DEVICES=0,1", sys.executable, "-m", "retrieval_jax.eval", "--gin_file=run.gin")
  ]


@pytest.mark.parametrize(
  "options, message",
  [
    (("--gpus=0,1,2", "--processes=2", "train"), "--processes=2 does not divide the 3 GPUs (0,1,2)"),
    (("--processes=none", "train"), "expected a whole number of at least 1"),
    (("--devices=4", "train"), "fake devices need --platform=cpu"),
    (("--platform=tpu", "train"), "expected cpu, or nothing for GPUs"),
    (("--platform=cpu", "--gpus=1", "train"), "leave one of them out"),
    (("--proceses=2", "train"), "unknown option --proceses=2"),
    (("--platform=cpu", "trian"), "no program is called trian; expected train, eval"),
    (("--platform=cpu", "--processes=2", "convert"), "convert runs in one process: leave out --processes=2"),
    (("--processes", "2", "train"), "--processes needs its value after an equals sign: --processes=2"),
    (("--platform=cpu",), "a PROGRAM is missing"),
  ],
)
def test_options_that_do_not_go_together_are_refused(options, message):
  done = bash("multi_gpu.sh", *options)
  assert done.returncode == 2
  assert message in done.stderr


def test_without_nvidia_smi_the_gpus_must_be_named(tmp_path):
  (tmp_path / "dirname").symlink_to("/usr/bin/dirname")
  bash_path = subprocess.run(["which", "bash"], capture_output=True, text=True, check=True).stdout.strip()
  done = subprocess.run(
    [bash_path, SCRIPTS / "multi_gpu.sh", "train"],
    env={"PATH": str(tmp_path), "PYTHON": sys.executable},
    capture_output=True,
    text=True,
    check=False,
  )
  assert "name them with --gpus=0,1" in done.stderr


# What its process does is in the file <id> of the folder that its first argument names: an exit code, or seconds to sleep.
PART = """
import os, pathlib, sys, time
own = [a for a in sys.argv if a.startswith("--process_id=")][0].partition("=")[2]
what = (pathlib.Path(sys.argv[1]) / own).read_text().split()
print("process", own, "of", os.environ["JAX_NUM_CPU_DEVICES"], "devices", flush=True)
time.sleep(float(what[0]))
if what[1] == "killed":
  os.kill(os.getpid(), 9)
sys.exit(int(what[1]))
"""


def parts(tmp_path, *whats: str, options: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
  (tmp_path / "part.py").write_text(PART)
  for number, what in enumerate(whats):
    (tmp_path / str(number)).write_text(what)
  grace = 1 if "600 0" in whats else 60  # a machine under load needs its time to start the others
  return bash(
    "multi_gpu.sh",
    *("--platform=cpu", f"--processes={len(whats)}", "--devices=4", f"--grace={grace}"),
    f"--logs={tmp_path / 'logs'}",
    *(*options, tmp_path / "part.py", tmp_path),
  )


def test_process_0_is_shown_and_the_others_write_to_files(tmp_path):
  done = parts(tmp_path, "0 0", "0.2 0", "0 0")
  assert (done.returncode, done.stdout) == (0, "process 0 of 4 devices\n")
  logs = {file.name: file.read_text() for file in (tmp_path / "logs").iterdir()}
  assert logs == {f"process_{i}.log": f"process {i} of 4 devices\n" for i in (1, 2)}


@pytest.mark.parametrize(
  "whats, code",
  [
    (("600 0", "0 2"), 2),  # the first that ends
    (("0 1", "600 0"), 1),
    (("0 0", "0.5 3"), 3),  # not hidden by a process that ended well
    (("0.5 76", "0 killed"), 76),  # a death that another process noticed
    (("600 0", "0 killed"), 137),
  ],
)
def test_when_one_process_ends_all_end_and_its_code_is_passed_on(tmp_path, whats, code):
  began = time.monotonic()
  done = parts(tmp_path, *whats)
  assert done.returncode == code
  assert time.monotonic() - began < 60
  assert "exit codes of the processes" in done.stderr


def test_the_end_of_the_log_of_a_process_that_failed_is_shown(tmp_path):
  assert "process 1 of 4 devices" in parts(tmp_path, "600 0", "0 2").stderr


def test_all_processes_start_again_after_a_hang(tmp_path):
  done = parts(tmp_path, "0 0", "0 75", options=("--restarts=1",))
  assert done.returncode == 75
  assert done.stdout.count("process 0 of 4 devices") == 2
  assert "start 1 of at most 1 anew" in done.stderr


def test_a_signal_goes_to_all_processes(tmp_path):
  (tmp_path / "saves.py").write_text(SAVES)
  command = [
    *("bash", SCRIPTS / "multi_gpu.sh", "--platform=cpu", "--processes=2", f"--logs={tmp_path}"),
    tmp_path / "saves.py",
  ]
  environ = {**os.environ, "PYTHON": sys.executable}
  with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environ) as process:
    assert process.stdout is not None
    assert process.stdout.readline().startswith("ready")
    log = tmp_path / "process_1.log"
    while not log.exists() or "ready" not in log.read_text():
      time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    assert process.stdout.read() == "saved\n"
    assert process.wait(timeout=30) == 0
  assert log.read_text().endswith("saved\n")


JAX = """
import argparse, json
parser = argparse.ArgumentParser()
parser.add_argument("--coordinator_address")
parser.add_argument("--num_processes", type=int)
parser.add_argument("--process_id", type=int)
from retrieval_jax import processes
processes.start(processes.ProcessOptions(**vars(parser.parse_args())))
import jax
found = processes.agree([jax.process_count(), jax.local_device_count(), jax.device_count()])
print(json.dumps(found), flush=True)
"""


def test_two_processes_of_four_devices_are_one_run_of_eight(tmp_path):
  (tmp_path / "devices.py").write_text(JAX)
  options = ("--platform=cpu", "--processes=2", "--devices=4", f"--logs={tmp_path}")
  done = bash("multi_gpu.sh", *options, tmp_path / "devices.py", PYTHONPATH=str(ROOT), XLA_FLAGS="")
  assert done.returncode == 0, done.stderr
  assert json.loads(done.stdout.splitlines()[-1]) == [2, 4, 8]
  assert json.loads((tmp_path / "process_1.log").read_text().splitlines()[-1]) == [2, 4, 8]


@pytest.fixture
def slurm(tmp_path, program):
  """Returns what runs slurm.sbatch in a copy of the checkout, with an srun that runs one task here and a scontrol that notes."""
  folder = tmp_path / "checkout"
  (folder / "scripts").mkdir(parents=True)
  (folder / "scripts" / "keep_running.sh").symlink_to(SCRIPTS / "keep_running.sh")
  tools = tmp_path / "bin"
  tools.mkdir()
  srun = '#!/usr/bin/env bash\nwhile [[ "$1" == --* ]]; do shift; done\nshift; shift\n'
  (tools / "srun").write_text(
    f'{srun}echo "task: $*"\nexec {sys.executable} {program} {tmp_path / "codes"} "$@"\n'
  )
  (tools / "scontrol").write_text(f'#!/usr/bin/env bash\necho "$*" >> {tmp_path / "scontrol.log"}\n')
  for tool in tools.iterdir():
    tool.chmod(0o755)

  def run(codes: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "codes").write_text(codes)
    return bash(
      "slurm.sbatch",
      *arguments,
      PATH=f"{tools}:{os.environ['PATH']}",
      SLURM_JOB_ID="42",
      SLURM_SUBMIT_DIR=str(folder),
      REQUEUE_WAIT="0",
      RESTART_WAIT="0",
      **environment,
    )

  return run


def requeued(tmp_path) -> str:
  log = tmp_path / "scontrol.log"
  return log.read_text() if log.exists() else ""


def test_a_job_that_is_done_is_not_queued_again(slurm, tmp_path):
  done = slurm("0", "train", f"--gin.MODEL_DIR={tmp_path}", *HARD)
  assert done.returncode == 0, done.stderr
  assert f"start with {['retrieval_jax.train', f'--gin.MODEL_DIR={tmp_path}', *HARD]}" in done.stdout
  assert requeued(tmp_path) == ""


@pytest.mark.parametrize("written", ["{}", "'{}'", '"{}"'])
def test_a_job_whose_training_was_stopped_is_queued_again(slurm, tmp_path, written):
  done = slurm(f"stopped:{tmp_path / 'STOPPED'}", "train", f"--gin.MODEL_DIR={written.format(tmp_path)}")
  assert done.returncode == 0, done.stderr
  assert requeued(tmp_path) == "requeue 42\n"


def test_tasks_start_again_within_the_job_and_bad_input_ends_it(slurm, tmp_path):
  done = slurm("76 75 2", "train", f"--gin.MODEL_DIR={tmp_path}")
  assert (done.returncode, done.stdout.count("start with")) == (2, 3)
  assert requeued(tmp_path) == ""


def test_an_evaluation_beside_a_stopped_training_is_not_queued_again(slurm, tmp_path):
  assert slurm(f"stopped:{tmp_path / 'STOPPED'}", "eval", f"--gin.MODEL_DIR={tmp_path}").returncode == 0
  assert requeued(tmp_path) == ""


def test_a_job_says_what_is_missing(slurm):
  assert "give --gin.MODEL_DIR=" in slurm("0", "train", "--gin_file=run.gin").stderr
  assert "a program is missing" in slurm("0").stderr
  assert "no virtual environment there" in slurm("0", "eval", RETRIEVAL_JAX_VENV="nowhere").stderr
  assert "this runs under SLURM" in bash("slurm.sbatch", "train").stderr


def shown_commands() -> list[list[str]]:
  """Returns the words of every call of a launcher with a dry run that docs/pods.md shows."""
  text = (ROOT / "docs" / "pods.md").read_text(encoding="utf-8").replace("\\\n", " ")
  lines = re.findall(r"^ {4}bash scripts/((?:multi_gpu|tpu_pod)\.sh .*)$", text, re.MULTILINE)
  return [shlex.split(line, comments=True) for line in lines]


def test_the_calls_that_the_docs_show_are_ones_that_the_scripts_take(tmp_path):
  (tmp_path / "run.gin").touch()
  assert {words[0] for words in shown_commands()} == {"multi_gpu.sh", "tpu_pod.sh"}
  for script, *words in shown_commands():
    done = subprocess.run(
      ["bash", SCRIPTS / script, "--dry-run", *words],
      env={**os.environ, "CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7"},
      cwd=tmp_path,
      capture_output=True,
      text=True,
      check=False,
    )
    assert done.returncode == 0, f"{script} {words}: {done.stderr}"
    assert done.stdout


@pytest.mark.parametrize(
  "script", ["soak.sh", "reproduce/ngame.sh", "reproduce/gramian.sh", "reproduce/samtone.sh"]
)
def test_help_installs_nothing(tmp_path, script):
  shutil.copytree(SCRIPTS, tmp_path / "scripts")
  command = ["bash", f"scripts/{script}", "--help"]
  done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
  assert done.returncode == 0, done.stderr
  assert "2 cores" in done.stdout or "two cores" in done.stdout or script in done.stdout
  assert [path.name for path in tmp_path.iterdir()] == ["scripts"]
