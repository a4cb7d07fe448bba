"""The report program: its file, its flags, its exit codes."""

import subprocess
import sys

import pytest

from retrieval_jax import report
from retrieval_jax.errors import UserError
from tests.reporting.run_files import check_page, write_run


def test_the_file_lies_in_the_run_or_where_it_is_said(tmp_path, capsys):
  folder = write_run(tmp_path / "run")
  report.main([str(folder)])
  assert "report.html (0." in capsys.readouterr().out
  check_page((folder / "report.html").read_text(encoding="utf-8"))
  other = write_run(tmp_path / "b" / "run", shift=-0.25)
  file = report.report(str(folder), compare=[str(other)], output=str(tmp_path / "both.html"))
  assert file == tmp_path / "both.html"
  text = check_page(file.read_text(encoding="utf-8")).text
  assert "b/run" in text  # the folders above tell the two apart


def test_mistakes_end_with_a_message_and_2(tmp_path, capsys):
  with pytest.raises(SystemExit) as stop:
    report.main([str(tmp_path)])
  assert stop.value.code == 2
  assert "error: " in (said := capsys.readouterr().err)
  assert "there is no config.gin" in said
  folder = write_run(tmp_path / "run")
  with pytest.raises(UserError, match=r"--output .*: there is no folder"):
    report.report(str(folder), output=str(tmp_path / "gone" / "x.html"))
  with pytest.raises(UserError, match="--compare: one run comes twice"):
    report.report(str(folder), compare=[str(folder)])
  assert not (folder / "report.html").exists()


def test_a_missing_matplotlib_is_named(tmp_path, monkeypatch):
  monkeypatch.setitem(sys.modules, "matplotlib", None)
  with pytest.raises(UserError, match=r"pip install 'retrieval-jax\[plots\]'"):
    report.report(str(write_run(tmp_path / "run")))


def test_the_program_runs_on_a_copied_folder_without_jax(tmp_path):
  folder = write_run(tmp_path / "run")
  code = (
    "import sys\n"
    "from retrieval_jax import report\n"
    f"report.main([{str(folder)!r}])\n"
    "assert not {'jax', 'tensorflow', 'gin', 'sklearn', 'scipy'} & set(sys.modules)\n"
  )
  done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
  assert done.returncode == 0, done.stderr
