"""Every command that README and docs/ show names programs, gin files and macros that exist."""

import importlib.util
import pathlib
import re
import shlex

import pytest

from retrieval_jax import configuration, launch

ROOT = pathlib.Path(__file__).parent.parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
OWN_FILES = ("/", ".", "<")  # paths of the reader's own; so are names without a folder


def commands() -> list[tuple[str, list[str]]]:
  """Returns (page, arguments) of every shown `python -m retrieval_jax....`, continued lines joined."""
  found = []
  for page in PAGES:
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    for line in text.split("\n"):
      match = re.match(r"^(?: {4,}|\s*`)?(python -m retrieval_jax[^`#]*)", line)
      if match:
        found.append((page.name, shlex.split(match[1])))
  return found


COMMANDS = commands()


def test_commands_are_found_on_every_page_that_shows_some():
  assert len(COMMANDS) > 15
  assert {"README.md", "evaluation.md", "data.md"} <= {page for page, _ in COMMANDS}


@pytest.mark.parametrize("page, words", COMMANDS, ids=lambda value: value if isinstance(value, str) else "")
def test_a_command_is_one_that_the_programs_take(page, words):
  module = words[2]
  assert importlib.util.find_spec(module) is not None, f"{page}: no program {module}"
  program = module.removeprefix("retrieval_jax.")
  if program not in launch.PROGRAMS or "--compare" in words:
    return
  configs = launch.configs_dir()
  names = [word.removeprefix("--gin_file=") for word in words if word.startswith("--gin_file=")]
  shipped = [name for name in names if "/" in name and not name.startswith(OWN_FILES)]
  for name in shipped:
    assert (configs / name).is_file(), f"{page}: no {name} in configs/"
  files = configuration.collect([f"runs/{program}.gin", *shipped, *EXTRA.get(program, ())], [str(configs)])
  text = "\n".join(path.read_text(encoding="utf-8") for file in files for path in file.flat())
  for word in words:
    name = word.removeprefix("--gin.").partition("=")[0]
    if word.startswith("--gin.") and "." not in name:
      assert re.search(rf"\b{name}\b", text), f"{page}: nothing reads {name} in {' '.join(words)}"


# A trained MODEL_DIR brings its model section, and a command that is cut short with "..." names a loss.
EXTRA = {
  "train": ("models/minilm.gin", "losses/samtone.gin"),
  "eval": ("models/minilm.gin",),
  "encode": ("models/minilm.gin",),
  "search": ("models/minilm.gin",),
  "mine": ("models/minilm.gin",),
}
