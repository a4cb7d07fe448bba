"""The text of a compiled program taken apart: computations, instructions, and how often each computation runs."""

import math
import re
from typing import Final, NamedTuple

_BITS: Final = {"pred": 8, "token": 0, "opaque": 0, "c64": 64, "c128": 128}
_ARRAY: Final = re.compile(r"\b([a-z]\w*)\[([\d,]*)\](\{[^}]*\})?")
_NAMES: Final = re.compile(r"%([\w.\-]+)")
_LOOP: Final = re.compile(r"\b(body|condition)=%?([\w.\-]+)")
_CALLED: Final = re.compile(
  r"\b(?:calls|to_apply|branch_computations|true_computation|false_computation|called_computations)=(\{[^}]*\}|%?[\w.\-]+)"
)


class Instruction(NamedTuple):
  """name = type opcode(operands), rest. called: computations that it names, loops' bodies apart (body, condition)."""

  name: str
  type: str
  opcode: str
  operands: tuple[str, ...]
  rest: str
  root: bool
  called: tuple[str, ...]
  body: str | None
  condition: str | None
  number: int | None  # of a parameter


class Program(NamedTuple):
  """computations: in the order of the text, each before what calls it. runs: how often a step executes each of them.

  executed: those whose instructions run one by one, as opposed to what is fused into one or applied to single elements.
  unknown: loops whose number of rounds the text does not say; their bodies count once.
  """

  computations: dict[str, tuple[Instruction, ...]]
  runs: dict[str, int]
  executed: tuple[str, ...]
  devices: int
  unknown: int

  def in_loops(self) -> set[str]:
    """Returns the computations that run inside the body of a loop."""
    todo = {one.body for body in self.computations.values() for one in body if one.body} & {
      *self.computations
    }
    seen: set[str] = set()
    while todo:
      name = todo.pop()
      seen.add(name)
      called = {
        x for one in self.computations[name] for x in (*one.called, one.body, one.condition) if x is not None
      }
      todo |= (called & {*self.computations}) - seen
    return seen


def read(text: str) -> Program:
  """Returns the program of an HLO module's text."""
  computations, entry = _computations(text)
  runs = dict.fromkeys(computations, 0)
  runs[entry] = 1
  executed = {entry}
  unknown = 0
  for name in reversed(computations):
    for one in computations[name]:
      rounds = 1
      if one.body is not None:
        found = _rounds(one, computations)
        rounds, unknown = found or 1, unknown + (found is None)
        executed |= {x for x in (one.body, one.condition) if x is not None and name in executed}
      elif one.opcode in ("call", "conditional", "async-start"):
        executed |= {*one.called} if name in executed else set()
      for callee in (*one.called, *[x for x in (one.body, one.condition) if x is not None]):
        if callee in runs:
          runs[callee] += runs[name] * rounds
  partitions = re.search(r"num_partitions=(\d+)", text)
  return Program(
    computations,
    runs,
    tuple(name for name in computations if name in executed),
    int(partitions[1]) if partitions else 1,
    unknown,
  )


def array_shapes(text: str) -> tuple[tuple[int, ...], ...]:
  """Returns the shapes of the arrays that a text names."""
  return tuple(tuple(int(n) for n in sizes.split(",") if n) for _, sizes, _ in _ARRAY.findall(text))


def array_bytes(text: str, *, on_chip: bool = True) -> int:
  """Returns the bytes of the arrays of a type. on_chip: whether those count that lie in a chip's own small memories."""
  total = 0.0
  for dtype, sizes, layout in _ARRAY.findall(text):
    if not on_chip and re.search(r"S\(\d+\)", layout):
      continue
    bits = _BITS.get(dtype)
    if bits is None:
      digits = re.search(r"\d+", dtype)
      bits = int(digits[0]) if digits else 0
    total += bits / 8 * math.prod(int(n) for n in sizes.split(",") if n)
  return int(total)


def _computations(text: str) -> tuple[dict[str, tuple[Instruction, ...]], str]:
  found: dict[str, list[Instruction]] = {}
  lines: list[Instruction] = []
  entry = ""
  for line in text.splitlines():
    head = re.match(r"(ENTRY )?%?([\w.\-]+) .*\{$", line)
    if head and not line.startswith(" "):
      lines = found.setdefault(head[2], [])
      entry = head[2] if head[1] else entry
    elif line.startswith("  "):
      one = _instruction(line)
      if one is not None:
        lines.append(one)
  return {name: tuple(body) for name, body in found.items()}, entry


def _instruction(line: str) -> Instruction | None:
  head = re.match(r"\s+(ROOT )?%?([\w.\-]+) = ", line)
  if head is None:
    return None
  text = line[head.end() :]
  end = _closing(text, 0) + 1 if text.startswith("(") else text.find(" ")
  kind, rest = text[:end], text[end:].lstrip()
  opcode = re.match(r"[\w\-]+", rest)
  if opcode is None or not rest[opcode.end() :].startswith("("):
    return None
  end = _closing(rest, opcode.end())
  inside, rest = rest[opcode.end() + 1 : end], rest[end + 1 :]
  loop = dict(_LOOP.findall(rest))
  called = tuple(name for group in _CALLED.findall(rest) for name in re.findall(r"[\w.\-]+", group))
  number = int(inside) if opcode[0] == "parameter" and inside.isdigit() else None
  # Only loops and constants are asked again for what stands inside or behind.
  kept = f"({inside}){rest}" if opcode[0] == "constant" else rest
  return Instruction(
    head[2],
    kind,
    opcode[0],
    tuple(_NAMES.findall(inside)),
    kept,
    bool(head[1]),
    called,
    loop.get("body"),
    loop.get("condition"),
    number,
  )


def _closing(text: str, start: int) -> int:
  """Returns the place of the parenthesis that closes the one at `start`."""
  depth = 0
  for place in range(start, len(text)):
    if text[place] == "(":
      depth += 1
    elif text[place] == ")":
      depth -= 1
      if not depth:
        return place
  return len(text) - 1


def _rounds(loop: Instruction, computations: dict[str, tuple[Instruction, ...]]) -> int | None:
  """Returns how often a loop's body runs: as the compiler notes it, or the number that its condition compares with."""
  known = re.search(r"known_trip_count\D+(\d+)", loop.rest)
  if known:
    return int(known[1])
  numbers: list[int] = []
  todo, seen = [loop.condition], set()
  while todo:
    name = todo.pop()
    if name is None or name in seen or name not in computations:
      continue
    seen.add(name)
    for one in computations[name]:
      value = re.match(r"\((\d+)\)", one.rest) if one.opcode == "constant" else None
      if value and re.match(r"[su]\d+\[\]", one.type):
        numbers.append(int(value[1]))
      todo.extend(one.called)
  return max(numbers) if numbers else None
