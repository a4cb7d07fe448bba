"""scripts/plot_deciles.py: runs beside each other, each under a label of its own."""

import pathlib
import subprocess
import sys

import pytest

from retrieval_jax.decile_report import DECILES_FILE, write_deciles
from retrieval_jax.metrics.deciles import Decile

SCRIPT = pathlib.Path(__file__).parents[2] / "scripts" / "plot_deciles.py"
DECILES = [Decile(2, 0, 9, 5, 30, 0.75, {"p@5": 0.1}), Decile(2, 1, 4, 0, 10, 0.25, {"p@5": 0.02})]


@pytest.fixture
def runs(tmp_path: pathlib.Path) -> pathlib.Path:
  """The evaluations a/step_500 and b/step_500."""
  for name, factor in (("a", 1.0), ("b", 0.5)):
    (tmp_path / name / "step_500").mkdir(parents=True)
    scaled = [d._replace(values={"p@5": d.values["p@5"] * factor}) for d in DECILES]
    write_deciles(tmp_path / name / "step_500" / DECILES_FILE, scaled)
  return tmp_path


def called(folder: pathlib.Path, *flags: str) -> subprocess.CompletedProcess[str]:
  return subprocess.run(
    [sys.executable, str(SCRIPT), *flags], capture_output=True, text=True, cwd=folder, check=False
  )


def test_each_run_is_a_column(runs: pathlib.Path):
  done = called(runs, "zero=a/step_500", "b/step_500")
  assert (done.returncode, done.stderr) == (0, "")
  assert done.stdout.splitlines()[0].split()[-2:] == ["zero", "step_500"]
  assert done.stdout.splitlines()[-2].split() == ["p@5", "12.00", "6.00"]


def test_the_plot_is_drawn(runs: pathlib.Path):
  pytest.importorskip("matplotlib")
  done = called(runs, "a/step_500", "--out", "x.png")
  assert (done.returncode, done.stderr) == (0, "")
  assert (runs / "x.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("flags, message", [
  (["a/step_500", "b/step_500"], "two runs are called 'step_500' (a/step_500 and b/step_500). Give each a label of its "
   "own: LABEL=EVAL_FOLDER."),
  (["x=a/step_500", "x=b/step_500"], "two runs are called 'x' (a/step_500 and b/step_500)"),
  (["a/step_500/", "step_500=b/step_500"], "two runs are called 'step_500'"),
  (["c/step_500"], "c/step_500/deciles.tsv: no such file"),
  (["a/step_500", "--metric", "p@3"], "no 'p@3' in its deciles"),
  (["a/step_500", "--out", "x.pdf"], "--out x.pdf: expected a name that ends in .png; the plot is a PNG file."),
  (["a/step_500", "--out", "x"], "--out x: expected a name that ends in .png"),
  (["a/step_500", "--out", "none/x.png"], "--out none/x.png: there is no folder none. Make it first"),
  (["a/step_500", "--out", "/proc/x.png"], "--out /proc/x.png: "),
])  # fmt: skip
def test_what_is_refused_before_anything_is_printed(runs: pathlib.Path, flags: list[str], message: str):
  done = called(runs, *flags)
  assert (done.returncode, done.stdout) == (2, "")
  assert done.stderr.startswith("error: ")
  assert message in done.stderr
  assert sorted(path.name for path in runs.iterdir()) == ["a", "b"]


def test_a_reader_that_has_seen_enough_is_no_fault(runs: pathlib.Path):
  line = f"{sys.executable} {SCRIPT} a/step_500 | true; exit ${{PIPESTATUS[0]}}"
  done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, cwd=runs, check=False)
  assert (done.returncode, done.stderr) == (0, "")
