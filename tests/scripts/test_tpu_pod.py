"""scripts/tpu_pod.sh: the exact commands, and what they do on a worker that is a folder of this machine."""

import json
import os
import pathlib
import shlex
import subprocess
import sys
import time

import pytest

ROOT = pathlib.Path(__file__).parents[2]
POD = ("--name=pod", "--zone=us-west4-a")
HARD = ("--gin.A=('x y', 2)", '--gin.B="it\'s"', "--gin.C=$HOME `id` \\n", "--gin.D=", "a\nb", "~", "*")


def tpu_pod(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
  command = ["bash", str(ROOT / "scripts" / "tpu_pod.sh"), *map(str, arguments)]
  environ = {**os.environ, **environment}
  return subprocess.run(command, capture_output=True, text=True, env=environ, timeout=300, check=False)


def dry(*arguments: object) -> list[list[str]]:
  """Returns the words of each command of a dry run."""
  done = tpu_pod(*arguments, "--dry-run")
  assert done.returncode == 0, done.stderr
  return [shlex.split(line) for line in done.stdout.splitlines()]


def test_a_tpu_vm_is_made_with_the_usual_software_of_its_type():
  assert dry("create", *POD, "--type=v5litepod-16", "--spot", "--create_arg=--network=mine") == [
    [
      *("gcloud", "compute", "tpus", "tpu-vm", "create", "pod", "--zone=us-west4-a"),
      *("--accelerator-type=v5litepod-16", "--version=v2-alpha-tpuv5-lite", "--spot", "--network=mine"),
    ]
  ]


def test_several_slices_are_a_queued_resource():
  place = ("--zone=us-west4-a", "--project=mine")
  tpu = ("gcloud", "compute", "tpus", "queued-resources")
  assert dry("create", *POD, "--project=mine", "--type=v6e-256", "--version=own", "--slices=2") == [
    [
      *(*tpu, "create", "pod", *place, "--accelerator-type=v6e-256", "--runtime-version=own"),
      *("--node-count=2", "--node-prefix=pod"),
    ]
  ]
  assert dry("create", *POD, "--type=v5p-8", "--queued")[0][-1] == "--node-id=pod"
  assert dry("delete", *POD, "--project=mine", "--slices=2") == [
    [*tpu, "delete", "pod", *place, "--force", "--quiet"]
  ]
  assert dry("install", *POD, "--slices=2")[0][3:9] == [
    *("queued-resources", "ssh", "pod", "--zone=us-west4-a", "--node=all", "--worker=all")
  ]


def test_up_creates_copies_and_installs():
  commands = dry("up", *POD, "--type=v4-8", "--extras=tpu,gcs")
  assert [words[4] if words[0] == "gcloud" else words[0] for words in commands] == [
    *("create", "tar", "scp", "ssh", "ssh")
  ]
  assert commands[-1][-1] == "--command=bash retrieval_jax/scripts/tpu_worker.sh install tpu,gcs"


def test_arguments_reach_the_worker_as_they_are():
  done = tpu_pod("run", *POD, "--dry-run", "--restarts=3", "train", *HARD)
  command = shlex.split(done.stdout)  # what the shell here makes of the printed line
  assert command[:-1] == [
    *("gcloud", "compute", "tpus", "tpu-vm", "ssh", "pod", "--zone=us-west4-a", "--worker=all")
  ]
  there = shlex.split(command[-1].removeprefix("--command="))  # what the worker's shell makes of it
  assert there == ["bash", "retrieval_jax/scripts/tpu_worker.sh", "run", "3", "train", *HARD]


@pytest.mark.parametrize(
  "arguments, message",
  [
    ((), "a command is missing"),
    (("rum", *POD), "no command is called rum"),
    (("copy", "--zone=z"), "--name=NAME is missing"),
    (("copy", "--name=n"), "--zone=ZONE is missing"),
    (("create", *POD), "--type=TYPE is missing"),
    (("create", *POD, "--type=v9-8"), "name one with --version"),
    (("create", *POD, "--type=tpu7x-8"), "use GKE"),
    (("run", *POD), "a PROGRAM is missing"),
    (("run", *POD, "--slices=0", "train"), "expected a whole number of at least 1"),
    (("copy", *POD, "train"), "copy takes no PROGRAM: train"),
    (("copy", *POD, "--include=/no/such/file"), "--include=/no/such/file: no such file"),
    (("up", *POD, "--type=v5litepod-16", "--include=/no/such/file"), "--include=/no/such/file: no such file"),
    (("run", *POD, "trian"), "no program is called trian"),
    (("up", *POD, "--slices=2", "--type=v4-8"), "a queued resource is not there at once"),
    (("run", *POD, "--zones=1"), "unknown option --zones=1"),
  ],
)
def test_what_is_missing_or_wrong_is_said(arguments, message):
  done = tpu_pod(*arguments, "--dry-run")
  assert (done.returncode, done.stdout) == (2, "")
  assert message in done.stderr


def test_without_gcloud_only_a_dry_run_works(tmp_path):
  for tool in ("bash", "dirname", "cat"):
    found = subprocess.run(["which", tool], capture_output=True, text=True, check=True).stdout.strip()
    (tmp_path / tool).symlink_to(found)
  assert "gcloud is not installed here" in tpu_pod("copy", *POD, PATH=str(tmp_path)).stderr


def test_help_shows_how_to_call_it():
  assert tpu_pod("--help").stdout.startswith("usage: bash scripts/tpu_pod.sh")


# A gcloud whose only worker is a folder of this machine: ssh runs the command there, scp copies.
GCLOUD = """#!/usr/bin/env bash
cd "$WORKER"
for argument in "$@"; do
  case "$argument" in
    --command=*) exec bash -c "${argument#--command=}" ;;
  esac
done
if [ "$4" = scp ]; then
  cp "$5" "$WORKER/${6#*:}"
fi
"""
# A Python that says what it was called with, and waits for SIGTERM when asked to.
PYTHON = """#!{python}
import json, signal, sys, time
print(json.dumps(sys.argv[1:]), flush=True)
if "wait" in sys.argv:
  signal.signal(signal.SIGTERM, lambda *_: (print("saved", flush=True), sys.exit(0)))
  print("ready", flush=True)
  time.sleep(60)
"""


@pytest.fixture(scope="module")
def worker(tmp_path_factory):
  """Returns (folder of the worker, the environment of a gcloud that has it), the code copied there."""
  home, tools = tmp_path_factory.mktemp("worker"), tmp_path_factory.mktemp("bin")
  (tools / "gcloud").write_text(GCLOUD)
  (tools / "gcloud").chmod(0o755)
  environment = {"PATH": f"{tools}:{os.environ['PATH']}", "WORKER": str(home)}
  own = tools / "my run.gin"
  own.write_text("A = 1\n")
  done = tpu_pod("copy", *POD, f"--include={own}", **environment)
  assert done.returncode == 0, done.stderr
  python = home / "retrieval_jax" / ".venv" / "bin" / "python"
  python.parent.mkdir(parents=True)
  python.write_text(PYTHON.format(python=sys.executable))
  python.chmod(0o755)
  return home, environment


def test_the_code_and_what_is_included_are_copied(worker):
  home, environment = worker
  copied = home / "retrieval_jax"
  for name in ("setup.py", "retrieval_jax/train.py", "configs/runs/train.gin", "scripts/tpu_worker.sh"):
    assert (copied / name).read_bytes() == (ROOT / name).read_bytes()
  assert (copied / "my run.gin").read_text() == "A = 1\n"
  assert not list(copied.rglob("__pycache__"))
  (copied / "retrieval_jax" / "gone.py").touch()
  assert tpu_pod("copy", *POD, **environment).returncode == 0
  assert not (copied / "retrieval_jax" / "gone.py").exists()  # what is deleted here goes there
  assert (copied / ".venv").exists()


def test_a_program_runs_on_the_worker_with_its_arguments(worker):
  done = tpu_pod("run", *POD, "train", *HARD, **worker[1])
  assert done.returncode == 0, done.stderr
  assert json.loads(done.stdout) == ["-m", "retrieval_jax.train", *HARD]


def test_a_program_in_the_background_is_shown_and_stopped(worker):
  home, environment = worker
  assert "started" in tpu_pod("run", *POD, "--background", "train", "wait", **environment).stdout
  log = home / "retrieval_jax" / "run.log"
  while not log.exists() or "ready" not in log.read_text():
    time.sleep(0.05)
  assert "still running" in tpu_pod("logs", *POD, **environment).stdout
  again = tpu_pod("run", *POD, "--background", "train", **environment)
  assert "is running here: tpu_pod.sh stop ends it" in again.stderr
  assert tpu_pod("stop", *POD, **environment).returncode == 0
  shown = tpu_pod("logs", *POD, **environment).stdout
  assert "saved" in shown
  assert "ended" in shown
  assert "nothing is running" in tpu_pod("stop", *POD, **environment).stdout
