"""Docstrings of installed packages, read from their source files without importing them."""

import ast
import importlib.util
import inspect
import pathlib
import sysconfig
from collections.abc import Iterator
from typing import NamedTuple

from retrieval_jax.errors import UserError

STDLIB = "python"
# Tests, programs, tables, other people's code inside a package (scipy/_lib), and what is deprecated (distutils).
SKIPPED_FOLDERS = frozenset(
  (
    *("tests", "test", "testing", "_testing", "idlelib", "lib2to3", "turtledemo", "pydoc_data", "ensurepip"),
    *("site-packages", "dist-packages", "__pycache__", "__phello__", "code_generators"),
    *("_lib", "_external", "_vendor", "vendored", "deprecated", "distutils"),
  )
)


class Docstring(NamedTuple):
  """One docstring: the qualified name of what it documents, and its text as `inspect.cleandoc` leaves it."""

  name: str
  text: str


def source_files(package: str) -> list[tuple[str, pathlib.Path]]:
  """Returns (module name, file) of a package's Python files, sorted; `"python"` is the standard library.

  Raises: UserError if the package is not installed.
  """
  if package == STDLIB:
    root, prefix = pathlib.Path(sysconfig.get_paths()["stdlib"]), ()
  else:
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
      raise UserError(
        f"the package {package!r} is not installed here. Install it with `pip install {package}`."
      )
    root, prefix = pathlib.Path(next(iter(spec.submodule_search_locations))), (package,)
  found = []
  for path in root.rglob("*.py"):
    parts = path.relative_to(root).with_suffix("").parts
    if SKIPPED_FOLDERS.isdisjoint(parts) and not parts[-1].startswith(("test_", "conftest")):
      module = ".".join(prefix + (parts[:-1] if parts[-1] == "__init__" else parts))
      found.append((module, path))
  return sorted(found)


def read_docstrings(module: str, source: bytes) -> Iterator[Docstring]:
  """Yields the docstrings of a module's public functions, classes and methods, and of its add_newdoc calls.

  A name with a leading underscore hides what is below it, except a module's: numpy and jax define their public
  functions in private modules. A file of another Python version (a syntax error) yields nothing.
  """
  try:
    tree = ast.parse(source)
  except SyntaxError:
    return
  yield from _definitions(tree, module)
  for node in ast.walk(tree):
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "add_newdoc":
      yield from _newdoc(node, module)


def _definitions(parent: ast.AST, prefix: str) -> Iterator[Docstring]:
  for node in ast.iter_child_nodes(parent):
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
      if node.name.startswith("_"):
        continue
      name = f"{prefix}.{node.name}"
      text = ast.get_docstring(node)
      if text:
        yield Docstring(name, text)
      if isinstance(node, ast.ClassDef):
        yield from _definitions(node, name)
    elif isinstance(node, ast.If | ast.Try | ast.With):
      yield from _definitions(node, prefix)


def _newdoc(call: ast.Call, module: str) -> Iterator[Docstring]:
  """Reads `add_newdoc(place, name, doc)` (numpy; doc may be a (method, doc) pair or a list of them)
  and `add_newdoc(name, doc)` (scipy)."""
  try:
    values = [ast.literal_eval(argument) for argument in call.args]
  except ValueError:
    return  # the text is computed
  if len(values) == 2 and isinstance(values[0], str):
    values = [module.rpartition(".")[0], *values]
  if len(values) != 3 or not (isinstance(values[0], str) and isinstance(values[1], str)):
    return
  place, name, documents = values
  if isinstance(documents, str):
    documents = [("", documents)]
  elif isinstance(documents, tuple):
    documents = [documents]
  if name.startswith("_") or not isinstance(documents, list):
    return
  for method, text in documents:
    if not method.startswith("_") and text:
      qualified = f"{place}.{name}.{method}" if method else f"{place}.{name}"
      yield Docstring(qualified, inspect.cleandoc(text))
