"""gin files: found, parsed and checked. With launch.py the only place that knows gin.

gin accepts a misspelt macro silently, reports one missing macro at a time and does not say where anything was set; the
checks here close these gaps before a program starts.
"""

import ast
import io
import os
import pathlib
import re
import threading
import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from retrieval_jax.errors import UserError, nearest

# A file may offer a component that a program does not use (TRAIN_DATA in eval); any other unread macro is a mistake.
COMPONENTS = {
  "MODEL": "models/",
  "INPUTS": "models/",
  "PRETRAINED": "models/",
  "LOSS": "losses/",
  "BATCHER": "batching/",
  "OPTIMIZER": "optimizers/",
  "TRAIN_DATA": "data/",
  "EVAL_DATA": "data/",
  "EVALUATORS": "evaluators/",
  "SEARCHER": "searchers/",
  "INDEX": "indexes/",
  "FUSION": "fusion/",
}
MACRO = "gin.macro"
_ASSIGNMENT = re.compile(r"^\s*([A-Za-z_]\w*)\s*=\s*(.*)$")
_MENTION = re.compile(r"%(\w+)")
# `NAME_PATH = 'here:rest'` or `x.path = 'here:rest'`: text elsewhere, such as a prefix, is nobody's path.
_HERE = re.compile(
  r"""^(\s*(?:\S+\.path|\w*_PATH)\s*=\s*(?:\\\n\s*)?)(['"])here:([^'"\n]*)\2""", re.MULTILINE
)
_EVALUATING = threading.Lock()  # gin's configuration is one for all threads
_INCLUDE = re.compile(r"""^\s*include\s+(['"])(.+?)\1""")


class GinFile(NamedTuple):
  """A file with everything it includes, in the order in which gin reads them."""

  path: pathlib.Path
  includes: tuple["GinFile", ...]

  def flat(self) -> Iterator[pathlib.Path]:
    for included in self.includes:
      yield from included.flat()
    yield self.path


class Macro(NamedTuple):
  """Where a macro is set: the last assignment wins."""

  value: str
  where: str


def collect(names: Iterable[str], search_paths: Sequence[str]) -> list[GinFile]:
  """Returns the files by name, their includes resolved; an unknown one is a UserError with the nearest names."""
  return [read(_find(name, search_paths, "--gin_file"), search_paths) for name in names]


def read(
  path: pathlib.Path, search_paths: Sequence[str] = (), *, open_files: tuple[pathlib.Path, ...] = ()
) -> GinFile:
  """Returns one file with its includes. open_files: those that include it; one of them again is a UserError."""
  if path in open_files:
    chain = " -> ".join(str(p) for p in (*open_files, path))
    raise UserError(f"{path} includes itself: {chain}")
  includes = []
  for number, line in enumerate(_lines(path), start=1):
    match = _INCLUDE.match(line)
    if match:
      found = _find(match.group(2), search_paths, f"{path}:{number}: include")
      includes.append(read(found, search_paths, open_files=(*open_files, path)))
  return GinFile(path, tuple(includes))


def _lines(path: pathlib.Path) -> list[str]:
  try:
    text = path.read_text(encoding="utf-8")
  except (OSError, UnicodeDecodeError) as error:
    raise UserError(f"{path}: cannot be read as a gin file ({error})") from error
  if text.startswith("\ufeff"):
    raise UserError(
      f"{path}: starts with a byte order mark, which gin cannot read. Save it as UTF-8 without one."
    )
  return text.split("\n")


def _find(name: str, search_paths: Sequence[str], where: str) -> pathlib.Path:
  candidates = [pathlib.Path(name)] if os.path.isabs(name) else [pathlib.Path(p) / name for p in search_paths]
  for candidate in candidates:
    if candidate.is_file():
      return candidate.absolute()
  shipped = pathlib.Path(search_paths[-1]) if search_paths else pathlib.Path()
  known = [str(p.relative_to(shipped)) for p in shipped.rglob("*.gin")]
  looked = ", ".join(str(p) for p in search_paths)
  raise UserError(f"{where} {name}: no such file in {looked}{nearest(name, known) or '.'}")


def parse(files: Sequence[GinFile], bindings: Sequence[str], search_paths: Sequence[str]) -> None:
  """Lets gin read the files and then the bindings; its errors become UserErrors. Not finalized: check() comes first."""
  import gin
  from gin import config as gin_config

  # gin's second reader takes `runs/x.gin` for a Python package and dies with a TypeError where a folder of that
  # name without __init__.py lies in the working directory (TensorBoard's usual `runs/`).
  readers: list[Any] = [(_opened, os.path.isfile)]
  gin_config._FILE_READERS[:] = readers
  for path in search_paths:
    gin.add_config_file_search_path(path)
  for file in files:
    with _translated(str(file.path)):
      gin.parse_config_file(str(file.path))
  for binding in bindings:
    with _translated(f"--gin.{binding.replace(' = ', '=', 1)}"):
      gin.parse_config(binding)


def _opened(path: str) -> io.StringIO:
  """Returns a gin file's text; `here:` at the beginning of a path is the folder of the file that says it."""
  folder = pathlib.Path(path).absolute().parent
  text = "\n".join(_lines(pathlib.Path(path)))
  return io.StringIO(_HERE.sub(lambda match: f"{match[1]}{str(folder / match[3])!r}", text))


class _translated:
  """Turns gin's many exception types into one UserError that names the file or flag."""

  def __init__(self, where: str):
    self._where = where

  def __enter__(self) -> None:
    return None

  def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
    if error is None or isinstance(error, UserError) or not isinstance(error, Exception):
      return
    from gin import config as gin_config

    message = str(error).strip() or type(error).__name__
    hint = ""
    match = re.search(r"No configurable matching '([^']+)'", message)
    if match:
      selectors = [selector for selector, _ in gin_config._REGISTRY.items()]
      known = {".".join(selector.split(".")[-n:]) for selector in selectors for n in (1, 2, 3)}
      hint = nearest(match.group(1).rsplit("/", 1)[-1], known)
    match = re.search(r"doesn't have a parameter named '([^']+)'", message)
    if match:
      message = message.splitlines()[0]
    if "malformed node" in message:
      message, hint = (
        "the value is not a Python literal, @reference or %macro",
        "; text needs quotes: NAME = 'text'",
      )
    raise UserError(f"{self._where}: {message}{hint}") from error


def macros_set(files: Sequence[GinFile], bindings: Sequence[str]) -> dict[str, Macro]:
  """Returns every macro that is assigned, with its last text and place."""
  found: dict[str, Macro] = {}
  for path in (path for file in files for path in file.flat()):
    for number, line in enumerate(_lines(path), start=1):
      match = _ASSIGNMENT.match(line)
      if match:
        found[match.group(1)] = Macro(match.group(2).split("  #")[0].strip(), f"{path}:{number}")
  for binding in bindings:
    match = _ASSIGNMENT.match(binding)
    if match:
      found[match.group(1)] = Macro(match.group(2), f"--gin.{match.group(1)}")
  return found


def literal_macro(name: str, files: Sequence[GinFile], bindings: Sequence[str]) -> Any:
  """Returns the Python value of a macro that is set to a literal, else None."""
  macro = macros_set(files, bindings).get(name)
  try:
    return None if macro is None else ast.literal_eval(macro.value)
  except (SyntaxError, ValueError):
    return None


def check(program: str, files: Sequence[GinFile], bindings: Sequence[str]) -> None:
  """Raises one UserError with everything that is missing (reachable from the program) and everything left over."""
  from gin import config as gin_config

  config = gin_config._CONFIG
  assigned = macros_set(files, bindings)
  read_macros = {name for value in config.values() for name in _macro_names(value)}
  # A reader that a later binding replaced (Tower.pooling = "max" for %POOLING) makes no mistake of the file's macro.
  mentioned = {
    name for file in files for path in file.flat() for line in _lines(path) for name in _MENTION.findall(line)
  }
  needed = _reachable(config, program)
  problems, required = [], _required(config)
  for name in sorted(needed):
    if (name, MACRO) not in config or name in required:
      problems.append(_missing(name, assigned))
  for name, macro in sorted(assigned.items()):
    from_flag = macro.where.startswith("--gin.")
    unread = name not in read_macros and (from_flag or name not in mentioned)
    if unread and (from_flag or name not in COMPONENTS):
      problems.append(
        f"  {name} is set ({macro.where}) but nothing reads it{nearest(name, read_macros) or '.'}"
      )
  problems += _wrong_values(config, assigned)
  if problems:
    raise UserError("the configuration is not complete:\n" + "\n".join(problems))


def _required(config: Mapping[tuple[str, str], Mapping[str, Any]]) -> set[str]:
  """Returns the macros that are declared to be set by the user and were not."""
  required = ("gin.constant", ("gin.REQUIRED",))
  return {name for (name, kind), value in config.items() if kind == MACRO and required in _references(value)}


def _missing(name: str, assigned: Mapping[str, Macro]) -> str:
  if name in COMPONENTS:
    return f"  {name} is not set: add a file of {COMPONENTS[name]}, for example --gin_file={COMPONENTS[name]}...gin"
  where = f"declared in {assigned[name].where}" if name in assigned else "read, but declared nowhere"
  return f"  {name} is not set ({where}): add --gin.{name}=..."


def _wrong_values(
  config: Mapping[tuple[str, str], Mapping[str, Any]], assigned: Mapping[str, Macro]
) -> list[str]:
  """Returns a line for every literal that is not of the type its parameter is annotated with."""
  from gin import config as gin_config

  problems = []
  for name in sorted(COMPONENTS.keys() & assigned.keys()):
    value = config[name, MACRO]["value"]
    if isinstance(value, int | float | str):
      problems.append(f"  {name} = {value!r} ({assigned[name].where}): expected a component, @name()")
  for (_, selector), parameters in config.items():
    if selector == MACRO:
      continue
    annotations = _annotations(gin_config._REGISTRY[selector].wrapped)
    for parameter, value in parameters.items():
      names = [scopes[-1] for target, scopes in _references(value) if target == MACRO]
      if isinstance(value, gin_config.ConfigurableReference):
        if not names or (names[0], MACRO) not in config:
          continue
        value = config[names[0], MACRO]["value"]
      expected = annotations.get(parameter)
      literal = value is None or isinstance(value, bool | int | float | str)
      if expected is not None and literal and not _fits(value, expected):
        where = (
          f"{names[0]} = {value!r} ({assigned[names[0]].where})"
          if names
          else f"{selector}.{parameter} = {value!r}"
        )
        problems.append(f"  {where}: expected {' or '.join(t.__name__ for t in expected)}")
  return sorted(set(problems))


def _annotations(function: Any) -> dict[str, tuple[type, ...]]:
  """Returns the parameters annotated with plain types (int, float, str, bool, None and their unions)."""
  try:
    hints = typing.get_type_hints(function if not isinstance(function, type) else _constructor(function))
  except Exception:  # annotations that name what is only imported for type checking
    return {}
  plain = {}
  for name, hint in hints.items():
    kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    if all(kind in (int, float, str, bool, type(None)) for kind in kinds):
      plain[name] = kinds
  return plain


def _constructor(cls: type) -> Any:
  return cls if cls.__annotations__ else cls.__init__


def _fits(value: object, expected: tuple[type, ...]) -> bool:
  if isinstance(value, bool):
    return bool in expected
  if isinstance(value, int):
    return int in expected or float in expected
  return type(value) in expected


def _registered(name: str) -> str:
  """Returns the full selector of a configurable."""
  from gin import config as gin_config

  found = gin_config._REGISTRY.get_match(name)
  if found is None:
    raise UserError(
      f"no gin file binds {name}{nearest(name, [selector for selector, _ in gin_config._REGISTRY.items()]) or '.'}"
    )
  return found.selector


def _references(value: Any) -> Iterator[tuple[str, tuple[str, ...]]]:
  """Yields (selector, scopes) of everything a value refers to; a macro NAME is ("gin.macro", ("NAME",))."""
  from gin import config as gin_config

  for reference in gin_config.iterate_references(value):
    if reference.configurable is not None:
      yield reference.configurable.selector, tuple(reference.scopes)


def _macro_names(value: Any) -> Iterator[str]:
  return (scopes[-1] for selector, scopes in _references(value) if selector == MACRO)


def _reachable(config: Mapping[tuple[str, str], Mapping[str, Any]], program: str) -> set[str]:
  """Returns the names of the macros that a call of `program` reads, directly or through what it refers to."""

  todo: list[tuple[str, str]] = [("", _registered(program))]
  seen: set[tuple[str, str]] = set()
  while todo:
    node = todo.pop()
    if node in seen:
      continue
    seen.add(node)
    name, selector = node
    for (scope, bound), parameters in config.items():
      if bound == selector and (bound != MACRO or scope == name):
        for target, scopes in _references(parameters):
          todo.append((scopes[-1] if target == MACRO else "", target))
  return {name for name, selector in seen if selector == MACRO}


def section_str(roots: Iterable[str], replaced: Mapping[str, str]) -> str:
  """Returns the operative configuration of these macros alone, as gin text that defines them.

  replaced: string values to write otherwise, wherever they stand: the paths of vocabularies that were copied.
  gin records what a macro's component was called with under the macro's name as scope; those scopes are taken off
  again, so that a later file or flag that binds the plain name still wins.
  """
  from gin import config as gin_config

  operative = gin_config._OPERATIVE_CONFIG
  roots = tuple(roots)
  wanted = set(roots)
  kept: dict[tuple[str, str], Any] = {}
  size = -1
  while len(kept) > size:
    size = len(kept)
    for (scope, selector), parameters in operative.items():
      if scope.split("/")[0] in wanted:
        plain = "" if scope in roots and selector != MACRO else scope
        kept[plain, selector] = parameters
        for _, scopes in _references(parameters):
          wanted.update(scopes)
  for key, parameters in kept.items():
    kept[key] = {
      name: replaced.get(value, value) if isinstance(value, str) else value
      for name, value in parameters.items()
    }
  lines = gin_config._config_str(kept).split("\n")
  body = "\n".join(line for line in lines if not line.startswith(("from ", "import ")))
  names = {*re.findall(r"(?<![\w.])(\w+)\.", body), "dynamic_registration"}
  return "\n".join(
    line for line in lines if not line.startswith(("from ", "import ")) or line.split()[-1] in names
  )


def evaluated(file: GinFile, macros: Sequence[str]) -> list[Any]:
  """Returns the values of macros of one file, in a configuration of its own: the one in use is put back afterwards.

  Raises: UserError for a file that gin cannot read, values of a wrong type, and what the components themselves refuse.
  """
  with _EVALUATING:
    return _evaluated(file, macros)


def _evaluated(file: GinFile, macros: Sequence[str]) -> list[Any]:
  import gin
  from gin import config as gin_config

  saved = {key: dict(value) for key, value in gin_config._CONFIG.items()}
  operative = {key: dict(value) for key, value in gin_config._OPERATIVE_CONFIG.items()}
  imports, singletons = set(gin_config._IMPORTS), dict(gin_config._SINGLETONS)
  locked = gin_config._CONFIG_IS_LOCKED
  gin.clear_config()
  try:
    parse([file], [], [])
    problems = _wrong_values(gin_config._CONFIG, macros_set([file], ()))
    if problems:
      raise UserError(f"{file.path}:\n" + "\n".join(problems))
    with _translated(str(file.path)):
      return [gin.get_configurable(f"{name}/{MACRO}")() for name in macros]
  except UserError as error:
    raise UserError(str(error).split("\n  In call to configurable")[0]) from None
  finally:
    gin.clear_config()
    gin_config._CONFIG.update(saved)
    gin_config._OPERATIVE_CONFIG.update(operative)
    gin_config._IMPORTS.update(imports)
    gin_config._SINGLETONS.update(singletons)
    gin_config._set_config_is_locked(locked)


def finalize() -> None:
  """Locks the configuration; what gin itself still finds wrong is a UserError.

  A macro that only replaced components read, such as EVAL_DATA where EVALUATORS are tasks by name, or VOCABULARY_PATH where
  nothing is tokenised, needs no value: after `check` nothing reaches it, but gin asks for one.
  """
  import gin
  from gin import config as gin_config

  config = gin_config._CONFIG
  required = _required(config)
  for name in {name for value in config.values() for name in _macro_names(value)} | required:
    if (name, MACRO) not in config or name in required:
      gin.parse_config(f"{name} = None")
  with _translated("configuration"):
    gin.finalize()
