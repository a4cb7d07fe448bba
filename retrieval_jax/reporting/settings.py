"""What a run was told: its settings that differ from the defaults of its program, and from those of other runs."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from retrieval_jax.reporting.gin_text import assignments, normal, with_includes

FLAG = "--gin."


class Setting(NamedTuple):
  """A setting of a run.

  default: what it would be without `source`; None: nothing says. source: "--gin." of the command, or the gin file that set it.
  named: whether the command or a file that it names set it; a setting of a file that such a file includes is not.
  """

  name: str
  value: str
  default: str | None
  source: str
  named: bool


Layer = tuple[str, Mapping[str, str]]  # a gin file and what it sets


def base_file(command: Sequence[str]) -> str:
  """Returns the file that the program reads first, whose values are the defaults."""
  return f"runs/{command[0] if command else 'train'}.gin"


def changed_from_base(config: str, command: Sequence[str]) -> list[Setting]:
  """Returns the settings of config.gin that are not those of runs/<program>.gin, the command's first, then file by file.

  config: what gin wrote. command: the program's name and its flags, as versions.json has them.

  A macro (NAME) has no value but those that files and flags give, so every other one counts. A parameter
  (module.function.name) counts if a flag or a shipped file that the command names gives it a value: that of a file of your own
  cannot be told from a default of the code, since the file is not in MODEL_DIR. What only passes a macro on (`x.y = %NAME`) or
  puts parts together (`x.y = @z()`) is left out.
  """
  base, given = with_includes(base_file(command)), gin_files(command)
  layers = [*base, *(part for name in given for part in with_includes(name))]
  flags = {_key(word.removeprefix(FLAG).partition("=")[0]) for word in command if word.startswith(FLAG)}
  included = {file for file, _ in layers}
  own = " or ".join(name for name in given if not with_includes(name))
  found = []
  for name, value in assignments(config).items():
    if name == "MODEL_DIR" or _is_wiring(name, value):
      continue
    history = [(file, values[_key(name)]) for file, values in map(_keyed, layers) if _key(name) in values]
    setting = _setting(name, value, history, by_flag=_key(name) in flags, own=own)
    if setting is not None and setting.source not in {file for file, _ in base}:
      found.append(setting._replace(named=setting.source in given or setting.source not in included))
  order = [FLAG, *(name for name, _ in layers)]
  return sorted(found, key=lambda s: (order.index(s.source) if s.source in order else len(order), s.name))


def _setting(
  name: str, value: str, history: Sequence[tuple[str, str]], *, by_flag: bool, own: str
) -> Setting | None:
  """Returns who gave a setting its value, and the value before; None where nobody did, or it is the one before.

  history: the shipped files that set it and their values, in the order in which they are read.
  """
  before = list(history)
  source = FLAG if by_flag else None
  while before and source is None and normal(before[-1][1]) == normal(value):
    earlier = before[:-1]
    if earlier and normal(earlier[-1][1]) == normal(value):
      before = earlier  # it was so already
      continue
    source, before = before[-1][0], earlier
  if source is None:
    if "." in name:
      return None
    source = own or ("another version of its file" if history else "not known")
  default = before[-1][1] if before else None
  if default is not None and normal(default) == normal(value):
    return None
  return Setting(name, value, default, source, True)


def gin_files(command: Sequence[str]) -> list[str]:
  """Returns the files that the command names, in its order."""
  given, words = [], list(command)
  for place, word in enumerate(words):
    if word.startswith("--gin_file="):
      given.append(word.partition("=")[2])
    elif word == "--gin_file" and place + 1 < len(words):
      given.append(words[place + 1])
  return given


def differing(configs: Mapping[str, str]) -> list[tuple[str, list[str | None]]]:
  """Returns (name, its value in each run or None) of the settings that the runs do not have alike, in the order of names.

  configs: run -> the text of its config.gin. Left out are MODEL_DIR, what passes a macro on (`x.y = %NAME`) and what puts parts
  together (`x.y = @z()`).
  """
  tables = [assignments(text) for text in configs.values()]
  names = sorted({name for table in tables for name in table})
  rows = [(name, [table.get(name) for table in tables]) for name in names]
  return [
    (name, values)
    for name, values in rows
    if len({None if value is None else normal(value) for value in values}) > 1
    and name != "MODEL_DIR"
    and not all(value is None or _is_wiring(name, value) for value in values)
  ]


def _is_wiring(name: str, value: str) -> bool:
  return "." in name and value.startswith(("%", "@"))


def _keyed(layer: Layer) -> Layer:
  file, values = layer
  return file, {_key(name): value for name, value in values.items()}


def _key(name: str) -> str:
  """Returns a macro's name, or a parameter's without scope and modules, as files and gin spell it differently.

  Example: `_key("MODEL/bert.BertEncoder.num_layers")` is `"BertEncoder.num_layers"`.
  """
  return ".".join(name.rpartition("/")[2].split(".")[-2:]) if "." in name else name
