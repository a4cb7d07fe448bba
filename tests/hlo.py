"""Reads the text of a compiled program: its collectives, whether they stand in a loop, and the arrays it holds."""

import re
from typing import NamedTuple

KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")


class Collective(NamedTuple):
  """One instruction. shapes: of its results, of one device. in_loop: inside the body of a while loop."""

  kind: str
  shapes: tuple[tuple[int, ...], ...]
  floats: bool
  in_loop: bool


def collectives(text: str) -> list[Collective]:
  """Returns every collective of the program."""
  computations = _computations(text)
  looped = _in_loops(computations)
  pattern = re.compile(r"= (.*?) (" + "|".join(KINDS) + r")(?:-start)?\(")
  found = []
  for name, lines in computations.items():
    for line in lines:
      match = pattern.search(line)
      if match:
        result, kind = match.groups()
        found.append(
          Collective(kind, _shapes(result), bool(re.search(r"\b[bf]f?\d+\[", result)), name in looped)
        )
  return found


def arrays(text: str) -> set[tuple[int, ...]]:
  """Returns the shapes of all arrays that the program names."""
  return set(_shapes(text))


def _shapes(text: str) -> tuple[tuple[int, ...], ...]:
  return tuple(
    tuple(int(n) for n in dimensions.split(",") if n)
    for dimensions in re.findall(r"\b[a-z]\w*\[([\d,]*)\]", text)
  )


def _computations(text: str) -> dict[str, list[str]]:
  found: dict[str, list[str]] = {}
  lines: list[str] = []
  for line in text.splitlines():
    head = re.match(r"(?:ENTRY )?%?([\w.\-]+) .*\{$", line)
    if head and not line.startswith(" "):
      lines = found.setdefault(head.group(1), [])
    else:
      lines.append(line)
  return found


def _in_loops(computations: dict[str, list[str]]) -> set[str]:
  def named(pattern: str, lines: list[str]) -> set[str]:
    return {name for line in lines for name in re.findall(pattern, line)} & computations.keys()

  todo = {name for lines in computations.values() for name in named(r"body=%?([\w.\-]+)", lines)}
  seen: set[str] = set()
  while todo:
    name = todo.pop()
    seen.add(name)
    todo |= named(r"%([\w.\-]+)", computations[name]) - seen
  return seen
