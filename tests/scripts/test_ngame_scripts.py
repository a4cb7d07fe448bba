"""The scripts that measure NGAME and its clustering: what they are called with wrongly is one message and status 2."""

import pathlib
import re
import subprocess
import sys

import pytest

SCRIPTS = pathlib.Path(__file__).parents[2] / "scripts"
RUNS, EPOCH, CLUSTERING = "reproduce/ngame.py", "benchmarks/ngame_epoch.py", "benchmarks/clustering.py"


def called(script: str, *flags: str, cwd: pathlib.Path) -> subprocess.CompletedProcess[str]:
  return subprocess.run(
    [sys.executable, str(SCRIPTS / script), *flags], capture_output=True, text=True, cwd=cwd, check=False
  )


@pytest.mark.parametrize("script, flags, message", [
  (RUNS, ["--data=missing"], "missing: no such file"),
  (RUNS, ["--data=empty"], "empty: expected the labels, lbl.json or Y.txt, and points"),
  (RUNS, ["--data=empty", "--seeds=0"], "--seeds 0: expected a whole number of at least 1."),
  (RUNS, ["--data=empty", "--epochs=0"], "--epochs 0: expected a whole number of at least 1."),
  (RUNS, ["--data=empty", "--learning_rate=nan"], "--learning_rate nan: expected a number above 0."),
  (EPOCH, ["missing"], "missing: no such file"),
  (EPOCH, ["empty", "--rounds=0"], "--rounds 0: expected a whole number of at least 1."),
  (CLUSTERING, ["--count=0"], "--count 0: expected at least 67,209 rows"),
  (CLUSTERING, ["--count=8191", "--parts", "table", "growth"], "--count 8191: expected at least 8,192 rows"),
  (CLUSTERING, ["--threads=0"], "--threads 0: expected a whole number of at least 1."),
  (CLUSTERING, ["--only=ours"], "--only needs --rows and --clusters."),
])  # fmt: skip
def test_what_is_refused(tmp_path: pathlib.Path, script: str, flags: list[str], message: str):
  (tmp_path / "empty").mkdir()
  done = called(script, *flags, cwd=tmp_path)
  assert (done.returncode, done.stdout) == (2, "")
  assert "Traceback" not in done.stderr
  assert f"error: {message}" in done.stderr.splitlines()[-1].replace(f"{tmp_path}/", "")
  assert [path.name for path in tmp_path.iterdir()] == ["empty"]


def test_every_option_of_the_runs_is_explained(tmp_path: pathlib.Path):
  text = called(RUNS, "--help", cwd=tmp_path).stdout
  options = dict(re.findall(r"^  (--\w+)(?: [A-Z_]+)?\s+([^\n]*\S)", text.split("options:")[1], re.MULTILINE))
  assert set(options) == {"--data", "--run", "--epochs", "--seeds", "--learning_rate", "--all_layers"}
  assert all(re.match("[a-z]", said) for said in options.values()), options
