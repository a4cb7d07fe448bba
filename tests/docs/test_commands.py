"""Every command that README and docs/ show is run by a test, or read as its program reads it, or marked with what it needs."""

import importlib.util
import pathlib
import re
import sys

import gin
import pytest

from retrieval_jax import configuration, launch
from tests.docs.pages import NEEDS, PAGES, ROOT, Command, commands
from tests.test_configs import REQUIRED

CONFIGS = str(launch.configs_dir())
COMMANDS = [command for page in PAGES for command in commands(page)]
SHOWN = [command for command in COMMANDS if command.shown]
PROGRAMS = [command for command in COMMANDS if "-m" in command.words and "retrieval_jax." in command.text]
SCRIPTS = [command for command in COMMANDS if any(word.startswith("scripts/") for word in command.words)]
OWN_FILES = ("/", ".", "<")  # paths of the reader's own; so are names without a folder
# Pages whose commands a test runs, one after the other.
RUN_BY = {
  "docs/own_data.md": "test_own_data.py",
  "docs/add_a_loss.md": "test_add_a_loss.py",
  "docs/add_a_batcher.md": "test_add_a_batcher.py",
  "docs/add_a_task.md": "test_add_a_task.py",
}
SHELL = ("source .venv/bin/activate", "export RETRIEVAL_JAX_DATA=~/data")  # they do nothing that could fail
# What some commands always need: words at the beginning of one, or the name of its script.
ALWAYS = {
  "pip install": "the network",
  "python -m venv": "the network",
  "bash scripts/quickstart.sh": "the network",
  "bash scripts/test.sh": "the network",  # the first time: it installs
  "python scripts/download_": "the network",
  "bash scripts/multi_gpu.sh": "a GPU",
  "sbatch": "a GPU",
  "bash scripts/benchmarks/gpu.sh": "a GPU",
  "bash scripts/tpu_pod.sh": "a pod",
  "kubectl": "a pod",
  "xpk": "a pod",
  "docker": "the network",
}
# What the page's next words, a MODEL_DIR or a file of the reader's own bring, before the command's own files.
EXTRA = {
  "train": ("models/minilm.gin", "losses/samtone.gin", "data/tsv.gin"),
  "plan": (),
  "eval": ("models/minilm.gin", "data/tsv.gin"),
}
EXTRA |= dict.fromkeys(("encode", "search", "mine", "fuse", "train_classifiers"), EXTRA["eval"])


@pytest.fixture(autouse=True)
def _clean_gin():
  gin.clear_config()
  yield
  gin.clear_config()


def where(command: Command) -> str:
  return command.where


def test_commands_are_found_on_every_page_that_shows_some():
  assert len(SHOWN) > 60
  assert {"README.md", "docs/evaluation.md", "docs/data.md", *RUN_BY} <= {command.page for command in SHOWN}


def test_a_mark_is_one_of_three():
  assert [c.where for c in COMMANDS if c.needs and not c.needs.startswith(NEEDS)] == []


@pytest.mark.parametrize("command", SHOWN, ids=where)
def test_a_shown_command_is_run_or_read_or_marked(command):
  always = next((need for words, need in ALWAYS.items() if command.text.startswith(words)), None)
  always = "the network" if "gs://" in command.text else always
  always = None if "--platform=cpu" in command.words else always
  if always is not None:
    assert (command.needs or "").startswith(always), f"{command.where}: needs {always}, and is not marked so"
  if command.needs or command.text.startswith(SHELL) or command in PROGRAMS:  # programs are read below
    return
  if command.page in RUN_BY:
    assert (ROOT / "tests" / "docs" / RUN_BY[command.page]).is_file()
    return
  assert command in SCRIPTS, (
    f"{command.where}: nothing runs this, and no `# needs ...` says why: {command.text}"
  )
  name = pathlib.Path(script_of(command)).name
  tests = [path for path in (ROOT / "tests").rglob("test_*.py") if path.parent.name != "docs"]
  run = any(name in path.read_text(encoding="utf-8") for path in tests)
  assert run, f"{command.where}: no test runs {name}, and no `# needs ...` says why"


@pytest.mark.parametrize("command", SCRIPTS, ids=where)
def test_a_script_is_there_and_has_the_options_that_are_shown(command):
  script = ROOT / script_of(command)
  assert script.is_file()
  text = script.read_text(encoding="utf-8")
  text += "".join(  # a shell script hands its options on, a Python one may take them from another file
    path.read_text(encoding="utf-8")
    for path in (*ROOT.glob("scripts/**/*.py"), *ROOT.glob("retrieval_jax/data/*.py"))
    if path.stem in re.findall(r"\w+", text) and path != script
  )
  words = command.words[command.words.index(script_of(command)) + 1 :]
  if (program := next((word for word in words if word in launch.PROGRAMS), None)) is not None:
    words = words[: words.index(program)]  # what follows is the program's own
  if "--" in words:
    words = words[: words.index("--")]
  for word in words:
    if word.startswith("--"):
      option = word.partition("=")[0]
      assert re.search(rf"{option}\b|\b{option[2:]}\b", text), (
        f"{command.where}: {script.name} has no {option}"
      )


def script_of(command: Command) -> str:
  """Returns the path of the script that a command starts."""
  return next(word for word in command.words if word.startswith("scripts/"))


@pytest.mark.parametrize("command", PROGRAMS, ids=where)
def test_a_command_is_one_that_the_programs_take(command):
  words = command.words
  module = words[words.index("-m") + 1]
  assert importlib.util.find_spec(module) is not None, f"{command.where}: no program {module}"
  program = module.removeprefix("retrieval_jax.")
  arguments = words[words.index(module) + 1 :]
  if program not in launch.PROGRAMS:
    check_options(command, module, arguments)
  elif arguments and "--compare" not in arguments:
    check_configuration(command, program, arguments)


def check_options(command: Command, module: str, arguments: list[str]) -> None:
  """Asserts that a program without gin files has the options that are shown."""
  spec = importlib.util.find_spec(module)
  assert spec is not None
  text = pathlib.Path(str(spec.origin)).read_text(encoding="utf-8")
  for word in arguments:
    if word.startswith("--"):
      option = word.partition("=")[0]
      assert re.search(rf'"{option}"', text), f"{command.where}: {module} has no {option}"


def check_configuration(command: Command, program: str, arguments: list[str]) -> None:
  """Asserts that a program finds its files and macros, down to the check that comes before it starts.

  A command that is cut short with "..." or names a file of the reader's own gets the rest from EXTRA and REQUIRED.
  """
  whole = "..." not in arguments
  flags, bindings = launch.parse_flags(program, [word for word in arguments if word != "..."] or ["x"])
  shipped = [name for name in flags.gin_file if "/" in name and not name.startswith(OWN_FILES)]
  whole &= shipped == flags.gin_file
  for name in shipped:
    assert (pathlib.Path(CONFIGS) / name).is_file(), f"{command.where}: no {name} in configs/"
  reads_model = launch.PROGRAMS[program].reads_model
  extra = () if whole and not reads_model else EXTRA[program]
  files = configuration.collect([f"runs/{program}.gin", *extra, *shipped], [CONFIGS])
  given = set(configuration.macros_set((), bindings))
  configuration.parse(files, bindings, [CONFIGS])
  if extra or not command.shown:
    for name, value in REQUIRED.items():
      if name not in given and name in configuration.macros_set(files, ()):
        gin.parse_config(f"{name} = {value}")
  sys.modules.pop("__main__.gin", None)
  configuration.check(f"{program}.{launch.PROGRAMS[program].function}", files, bindings)
