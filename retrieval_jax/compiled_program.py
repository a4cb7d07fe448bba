"""Reads the text of a compiled program: what its devices send each other and read from memory, loops counted as often as
they run."""

import math
import re
from typing import Final, NamedTuple

from retrieval_jax.program_text import Instruction, Program, array_bytes, array_shapes, read

KINDS: Final = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
_STARTS: Final = {f"{kind}-start": kind for kind in KINDS} | {kind: kind for kind in KINDS}
# What moves no bytes of its own: names for what is there, and control flow, whose computations are counted by themselves.
_FREE: Final = frozenset(
  [
    "parameter",
    "constant",
    "tuple",
    "get-tuple-element",
    "bitcast",
    "while",
    "conditional",
    "call",
    "after-all",
    "partition-id",
    "replica-id",
    "async-start",
    "async-update",
    "async-done",
    "opt-barrier",
    "add-dependency",
  ]
)
_SLICES: Final = frozenset(("dynamic-slice", "gather", "slice"))


class Collective(NamedTuple):
  """One instruction. shapes: of its results, of one device. in_loop: inside the body of a while loop.

  runs: how often a step executes it. devices: how many take part. sent: bytes that a device sends each time, if all pass
  rings: of b bytes on each of n devices b (n - 1) for an all-gather, b (n - 1) / n for a reduce-scatter or all-to-all, twice
  that for an all-reduce, b for a permutation.
  """

  kind: str
  shapes: tuple[tuple[int, ...], ...]
  floats: bool
  in_loop: bool
  runs: int = 1
  devices: int = 1
  sent: float = 0.0


def collectives(text: str) -> list[Collective]:
  """Returns every collective of the program."""
  return collectives_of(read(text))


def collectives_of(program: Program) -> list[Collective]:
  """Returns every collective of a program that was read already."""
  looped = program.in_loops()
  found = []
  chains: dict[str, int] = {}
  for name, instructions in program.computations.items():
    types = {one.name: one.type for one in instructions}
    for one in instructions:
      kind = _STARTS.get(one.opcode)
      if kind is None:
        continue
      # On TPUs a sum of which each device keeps its piece is a fusion of this name.
      if kind == "all-reduce" and name.startswith("all-reduce-scatter"):
        kind = "reduce-scatter"
      devices = _devices(one, program.devices)
      size = sum(array_bytes(types.get(operand, "")) for operand in one.operands)
      floats = bool(re.search(r"\b[bf]f?\d+\w*\[", one.type))
      runs = program.runs.get(name, 0)
      new = Collective(
        kind, array_shapes(one.type), floats, name in looped, runs, devices, _sent(kind, size, devices)
      )
      chain = _chain(one)
      if chain is None:
        found.append(new)
      elif chain not in chains:
        chains[chain] = len(found)
        found.append(new)
      elif runs < found[chains[chain]].runs:  # its beginning and end are executed once each
        found[chains[chain]] = new
  return found


def _chain(one: Instruction) -> str | None:
  """Returns what steps of one collective have in common: TPUs' compiler lets one go on beside the fusions of other work, and
  writes it into each of them."""
  channel = re.search(r"channel_id=(\d+)", one.rest)
  return channel[1] if channel is not None and "chain_id=" in one.rest else None


def arrays(text: str) -> set[tuple[int, ...]]:
  """Returns the shapes of all arrays that the program names."""
  return set(array_shapes(text))


def largest_array(program: Program) -> tuple[int, ...] | None:
  """Returns the shape of the largest array that an instruction makes, what has an argument's shape left out."""
  everything = [one for body in program.computations.values() for one in body]
  entry = program.computations[program.executed[-1]]
  given = {shape for one in entry if one.opcode == "parameter" for shape in array_shapes(one.type)}
  made = {shape for one in everything for shape in array_shapes(one.type)} - given
  return max(made, key=math.prod, default=None)


def hbm_bytes(program: Program) -> float:
  """Returns the bytes that a step reads from and writes to a device's main memory.

  Every instruction outside a fusion reads its operands and writes its results once; a fusion of a slice of an operand
  reads the slice alone, and an update in place writes the update alone. What lies in on-chip memory is not counted.
  """
  total = 0.0
  for name in program.executed:
    instructions = program.computations[name]
    types = {one.name: one.type for one in instructions}
    total += program.runs[name] * sum(_moved(one, types, program) for one in instructions)
  return total


def _moved(one: Instruction, types: dict[str, str], program: Program) -> float:
  if one.opcode in _FREE or one.opcode.endswith("-done"):
    return 0.0
  if one.opcode == "fusion":
    return _fusion_moved(one, types, program)
  own = array_bytes(one.type, on_chip=False)
  if one.opcode in _SLICES:
    return 2 * own
  if one.opcode == "dynamic-update-slice":
    return 2.0 * array_bytes(types.get(one.operands[1], ""), on_chip=False)
  if one.opcode == "scatter":
    return 3.0 * array_bytes(types.get(one.operands[-1], ""), on_chip=False)
  if one.opcode == "copy-start":  # (destination, source, context)
    own -= array_bytes(types.get(one.operands[0], ""), on_chip=False)
  return max(own, 0) + sum(array_bytes(types.get(x, ""), on_chip=False) for x in one.operands)


def _fusion_moved(one: Instruction, types: dict[str, str], program: Program) -> float:
  body = program.computations.get(one.called[0] if one.called else "", ())
  inner = {x.name: x for x in body}
  passing = _passing(body)
  total = float(array_bytes(one.type, on_chip=False))
  total -= sum(array_bytes(x.type, on_chip=False) for x in _results(body, inner) if x.name in passing)
  in_place = set()
  for update in (x for x in _results(body, inner) if x.opcode == "dynamic-update-slice"):
    # The array that is updated is the result: nothing of it moves but the update.
    target = _source(update.operands[0], inner)
    size = array_bytes(inner[update.operands[1]].type) if update.operands[1] in inner else 0
    if array_bytes(one.type, on_chip=False):
      total += size - array_bytes(update.type)
    in_place.add(target)
  for number, operand in enumerate(one.operands):
    size = array_bytes(types.get(operand, ""), on_chip=False)
    parameter = next((x for x in body if x.opcode == "parameter" and x.number == number), None)
    if parameter is None:
      total += size
      continue
    if not size or parameter.name in in_place or parameter.name in passing:
      continue
    users = _users(parameter.name, body)
    if users and all(x.opcode in _SLICES for x in users):
      size = min(size, sum(array_bytes(x.type) for x in users))
    total += size
  return max(total, 0.0)


def _passing(body: tuple[Instruction, ...]) -> set[str]:
  """Returns what belongs to a collective that goes on beside a fusion: its traffic is not the fusion's."""
  found: set[str] = set()
  if any(_chain(one) is not None for one in body if one.opcode in _STARTS):
    for one in body:
      from_it = one.opcode == "get-tuple-element" and not found.isdisjoint(one.operands)
      if one.opcode in _STARTS or one.opcode == "custom-call" or from_it:
        found |= {one.name, *one.operands}
  return found


def _results(body: tuple[Instruction, ...], inner: dict[str, Instruction]) -> list[Instruction]:
  roots = [x for x in body if x.root]
  if roots and roots[0].opcode == "tuple":
    roots = [inner[x] for x in roots[0].operands if x in inner]
  return [inner.get(_source(x.name, inner), x) for x in roots]


def _source(name: str, inner: dict[str, Instruction]) -> str:
  """Returns what a chain of bitcasts and conversions began with."""
  while name in inner and inner[name].opcode in ("bitcast", "convert", "copy") and inner[name].operands:
    name = inner[name].operands[0]
  return name


def _users(name: str, body: tuple[Instruction, ...]) -> list[Instruction]:
  """Returns what reads a value, seen through bitcasts."""
  found = []
  for one in body:
    if name in one.operands:
      found += _users(one.name, body) if one.opcode == "bitcast" else [one]
  return found


def _devices(one: Instruction, total: int) -> int:
  """Returns how many devices take part in one group of a collective."""
  if one.opcode.startswith("collective-permute"):
    return total
  groups = re.search(r"replica_groups=(mesh\[[^\]]*\] ?\{[^}]*\}|\{\{[\d,]*\}|\[[\d,]*\]|\{\})", one.rest)
  if groups is None or groups[1] == "{}":
    return total
  found = groups[1]
  if found.startswith("mesh"):
    sizes = dict(re.findall(r"'([^']+)'=(\d+)", found))
    return math.prod(int(sizes.get(axis, 1)) for axis in re.findall(r"'([^']+)'", found.rpartition("{")[2]))
  if found.startswith("["):
    return int(found[1:-1].split(",")[-1])
  return found.count(",") + 1


def _sent(kind: str, size: int, devices: int) -> float:
  if kind == "all-gather":
    return size * (devices - 1.0)
  if kind == "collective-permute":
    return float(size)
  return (2 if kind == "all-reduce" else 1) * size * (devices - 1) / devices
