"""The files of configs/papers, their head comments, and their settings as the programs read them."""

import pathlib
import re
import shlex
from typing import Any

import gin

from retrieval_jax import configuration, launch
from retrieval_jax.abstract_batch import AssumedData
from retrieval_jax.recipe import Recipe

ROOT = pathlib.Path(__file__).parent.parent
CONFIGS = launch.configs_dir()
FILES = sorted(str(p.relative_to(CONFIGS)) for p in (CONFIGS / "papers").rglob("*.gin"))
SHARED = [name for name in FILES if name.endswith("/shared.gin")]
CLASSIFIERS = "papers/ngame/classifiers.gin"
TRAININGS = [name for name in FILES if name not in (*SHARED, CLASSIFIERS)]
FIELDS = ("Table", "Command", "Hardware", "Expected", "Source")

# What stands in a command's place where the file leaves it to the user.
OWN = ("DATA_PATH = 'somewhere'", "MODEL_DIR = '/tmp/none'")
BAGS = f"BAG_VOCABULARY_PATH = {str(ROOT / 'tests' / 'models' / 'bags.json')!r}"


@gin.configurable
def retrieval_jax_papers_probe(value):
  return value


def built(macro: str) -> Any:
  """Returns what a macro of the files that were read stands for."""
  gin.parse_config(f"retrieval_jax_papers_probe.value = %{macro}")
  return gin.get_configurable("retrieval_jax_papers_probe")()


def head(name: str) -> list[str]:
  """Returns the lines of the comment that a file begins with, without their signs."""
  lines = (CONFIGS / name).read_text(encoding="utf-8").split("\n")
  end = next(number for number, line in enumerate(lines) if not line.startswith("#"))
  return [line.removeprefix("#").removeprefix(" ") for line in lines[:end]]


def fields(name: str) -> dict[str, str]:
  """Returns the named parts of a head comment, lines joined."""
  found, key = {}, None
  for line in head(name):
    start = re.match(rf"({'|'.join(FIELDS)}):\s*(.*)", line)
    if start:
      key = start[1]
      found[key] = start[2]
    elif key is not None:
      found[key] += "\n" + line
  return found


def commands(name: str) -> list[list[str]]:
  """Returns the words of each command of a head comment, continued lines joined."""
  text = "\n".join(head(name)).replace("\\\n", " ")
  return [shlex.split(line) for line in text.split("\n") if line.lstrip().startswith("python ")]


def configure(program: str, names: list[str], bindings: list[str]) -> None:
  """Reads and checks files as a program does."""
  paths = [str(CONFIGS)]
  files = configuration.collect([f"runs/{program}.gin", *names], paths)
  configuration.parse(files, bindings, paths)
  configuration.check(f"{program}.{launch.PROGRAMS[program].function}", files, bindings)


def planned(name: str) -> tuple[Recipe, AssumedData]:
  """Returns (recipe, assumed data) of a training, as `plan` has them."""
  own = [*OWN, BAGS] if "gramian" in name else list(OWN[:1]) if "ngame" in name else []
  configure("plan", [name], own)
  return gin.get_configurable("recipe.Recipe")(), gin.get_configurable("abstract_batch.AssumedData")()


def literal(name: str, macro: str) -> Any:
  """Returns the value of a macro that a file, or one that it includes, sets to a literal."""
  return configuration.literal_macro(macro, configuration.collect([name], [str(CONFIGS)]), [])
