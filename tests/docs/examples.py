"""Pages that are worked examples: their files are written as the page has them, and their commands run one after the other."""

import pathlib
import re
import shlex
import subprocess
import sys

from tests.end_to_end.conftest import environment, pairs

FILE = re.compile(r"^`([^\s`]+)`\n\n```\w*\n(.*?)^```", re.MULTILINE | re.DOTALL)
BLOCK = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)


def write_files(page: pathlib.Path, folder: pathlib.Path) -> set[str]:
  """Writes the files that a page shows, a name above each, and pairs.tsv, 80 pairs; returns their names."""
  found = dict(FILE.findall(page.read_text(encoding="utf-8")))
  found["pairs.tsv"] = "".join(f"{query}\t{passage}\n" for query, passage in pairs())
  for name, text in found.items():
    (folder / name).write_text(text, encoding="utf-8")
  return set(found)


def shell_lines(page: pathlib.Path) -> list[str]:
  """Returns the commands of a page's shell blocks, continued lines joined."""
  text = "\n".join(BLOCK.findall(page.read_text(encoding="utf-8")))
  return [line for line in text.replace("\\\n", "").split("\n") if line.strip()]


def run_python(line: str, folder: pathlib.Path) -> str:
  """Runs a command that begins with `python` in a folder, in a process of its own, and returns what it printed."""
  python, *arguments = shlex.split(line)
  assert python == "python"
  done = subprocess.run(
    [sys.executable, *arguments],
    cwd=folder,
    env=environment(),
    capture_output=True,
    text=True,
    timeout=300,
    check=False,
  )
  assert done.returncode == 0, done.stdout + done.stderr
  return done.stdout
