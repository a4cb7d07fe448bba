"""Imports go down only, TensorFlow stays out of the way, gin stays at the edge (design: layout)."""

import ast
import pathlib
import subprocess
import sys

import pytest

PACKAGE = pathlib.Path(__file__).parent.parent / "retrieval_jax"
L0 = {"errors", "exit_codes", "paths", "progress", "records", "scoring", "sharding", "watchdog"}
L1 = {"data", "batching", "models", "losses", "index", "metrics", "interop"}
L3 = {
  "train",
  "train_classifiers",
  "eval",
  "encode",
  "search",
  "mine",
  "fuse",
  "plan",
  "convert",
  "report",
  "dual_encoder",
  "adapters",
  "launch",
}
GIN = {"launch.py", "configuration.py"}
OPTIONAL = {
  "apache_beam",
  "bm25s",
  "Stemmer",
  "faiss",
  "torch",
  "transformers",
  "sentence_transformers",
  "scipy",
  "sklearn",
  "matplotlib",
  "huggingface_hub",
  "mteb",
  "beir",
}
HEAVY = {"tensorflow", "seqio", "tensorflow_datasets", "orbax", "grain", "tensorflow_text"}
FILES = sorted(PACKAGE.rglob("*.py"))


def imports(path: pathlib.Path, *, top_level_only: bool) -> set[str]:
  """Names of imported modules; `from a.b import c` counts as a.b and a.b.c."""
  tree = ast.parse(path.read_text(encoding="utf-8"))
  nodes = tree.body if top_level_only else ast.walk(tree)
  found = set()
  for node in nodes:
    if isinstance(node, ast.Import):
      found.update(alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module:
      found.add(node.module)
      found.update(f"{node.module}.{alias.name}" for alias in node.names)
  return found


def level(part: str) -> int:
  return 0 if part in L0 else 1 if part in L1 else 3 if part in L3 else 2


def part_of(path: pathlib.Path) -> str:
  return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_go_down(path):
  here = part_of(path)
  for name in imports(path, top_level_only=False):
    parts = name.split(".")
    if parts[0] != "retrieval_jax" or len(parts) < 2 or here == "__init__":
      continue
    there = parts[1]
    if not (PACKAGE / there).is_dir() and not (PACKAGE / f"{there}.py").is_file():
      continue
    assert level(there) <= level(here), f"{here} (level {level(here)}) imports {name}"
    assert not (level(there) == level(here) == 1 and there != here), f"{here} imports its sibling {name}"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_heavy_and_optional_packages_are_imported_inside_functions(path):
  top = {name.split(".")[0] for name in imports(path, top_level_only=True)}
  assert not top & (HEAVY | OPTIONAL)


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_gin_and_seqio_stay_where_they_belong(path):
  used = {name.split(".")[0] for name in imports(path, top_level_only=False)}
  if path.name not in GIN:
    assert not used & {"gin", "absl"}
  if part_of(path) != "data":
    assert not used & {"seqio", "tensorflow", "tensorflow_datasets"}


def modules_after(statement: str) -> set[str]:
  code = f"import sys\n{statement}\nprint(' '.join(m for m in sys.modules if '.' not in m))"
  done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
  return set(done.stdout.split())


def test_importing_the_package_loads_no_jax():
  assert not modules_after("import retrieval_jax") & {"jax", "tensorflow", "seqio", "orbax"}


def test_the_page_of_a_run_is_made_without_jax():
  loaded = modules_after("import retrieval_jax.report, retrieval_jax.reporting.page")
  assert not loaded & {"jax", "tensorflow", "seqio", "orbax", "matplotlib", "sklearn", "scipy", "gin"}


@pytest.mark.parametrize(
  "program", ["train", "eval", "encode", "search", "mine", "fuse", "plan", "convert", "report"]
)
def test_help_loads_no_tensorflow_and_shows_an_example(program):
  code = (
    "import runpy, sys\n"
    f"sys.argv = ['{program}', '--help']\n"
    "try:\n"
    f"  runpy.run_module('retrieval_jax.{program}', run_name='__main__')\n"
    "except SystemExit as stop:\n"
    "  assert stop.code == 0\n"
    "assert not {'tensorflow', 'seqio', 'orbax', 'tensorflow_datasets', 'torch', 'transformers'} & set(sys.modules)\n"
  )
  done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
  assert done.returncode == 0, done.stderr
  flag = {"convert": "--from SOURCE", "report": "--compare"}.get(program, "--gin_file FILE")
  assert flag in done.stdout
  assert f"python -m retrieval_jax.{program}" in done.stdout.split("example", 1)[1]
