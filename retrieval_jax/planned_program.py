"""A program compiled ahead of time and measured: its memory, products, traffic, and the least time that a chip takes."""

import re
import time
from collections import defaultdict
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from retrieval_jax.chips import GIB
from retrieval_jax.compiled_program import collectives_of, hbm_bytes, largest_array
from retrieval_jax.errors import UserError
from retrieval_jax.program_text import read
from retrieval_jax.step_costs import Products, products
from retrieval_jax.topologies import Topology

_UNITS: Final = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40, "": 1}
_SIZE: Final = r"([\d.]+)([KMGT]?)"


class Traffic(NamedTuple):
  """count: executions a step. sent: bytes that a device sends in them (Collective.sent)."""

  count: int
  sent: float


class Times(NamedTuple):
  """Seconds that a step takes at least, by each of what it needs, if it had a chip's published rate."""

  compute: float
  hbm: float
  ici: float

  @property
  def bound(self) -> float:
    """The largest: all that overlaps overlaps."""
    return max(self)

  @property
  def bounded_by(self) -> str:
    """Which one it is."""
    return self._fields[self.index(self.bound)]


class PlannedProgram(NamedTuple):
  """One program on one topology. Bytes are of one device.

  total: what it holds at its fullest. temporaries: activations, gradients, whatever lives within the step. output: results that
  take no argument's place. limit: of the compiler, where it refused; fits: whether it did not.
  products: of all devices. collectives: kind -> Traffic. unknown_loops: loops that were counted once. seconds: of the compilation.
  largest: the shape of the largest array that a device handles, arguments apart: what a step must not let grow with the batch squared.
  """

  fits: bool
  total: float
  arguments: float
  temporaries: float
  output: float
  limit: float | None
  products: Products
  hbm_bytes: float | None
  collectives: Mapping[str, Traffic]
  unknown_loops: int
  seconds: float
  largest: tuple[int, ...] | None = None

  def times(self, topology: Topology, needed: Products | None = None) -> Times | None:
    """Returns the roofline times; None without a chip's numbers or a program."""
    chip = topology.chip
    if chip is None or self.hbm_bytes is None:
      return None
    whole = self.products if needed is None else needed
    sent = sum(one.sent for one in self.collectives.values())
    return Times(
      whole.passes / topology.chips / chip.flops,
      self.hbm_bytes * chip.devices / chip.hbm_bandwidth,
      sent * chip.devices / chip.ici_bandwidth,
    )


def plan_program(traced: Any, topology: Topology, argument_bytes: float) -> PlannedProgram:
  """Returns what a traced function (jax.jit(f).trace(...)) becomes on a topology; nothing is allocated or run.

  argument_bytes: of one device, for a program that the compiler refuses and therefore does not measure.

  Example: `plan_program(step.trace(state, batch), topology("v5e:4x4"), 1e9).fits`.
  """
  needed = products(traced.jaxpr)
  start = time.perf_counter()
  try:
    compiled = traced.lower().compile()
  except jax.errors.JaxRuntimeError as error:
    seconds = time.perf_counter() - start
    return _refused(str(error), argument_bytes, needed, seconds)
  seconds = time.perf_counter() - start
  memory = compiled.memory_analysis()
  program = read(compiled.as_text() or "")
  traffic: dict[str, Traffic] = defaultdict(lambda: Traffic(0, 0.0))
  for one in collectives_of(program):
    before = traffic[one.kind]
    traffic[one.kind] = Traffic(before.count + one.runs, before.sent + one.runs * one.sent)
  output = max(memory.output_size_in_bytes - memory.alias_size_in_bytes, 0)
  total = memory.argument_size_in_bytes + memory.temp_size_in_bytes + output
  total += memory.generated_code_size_in_bytes
  limit = topology.hbm_bytes
  return PlannedProgram(
    limit is None or total <= limit,
    total,
    memory.argument_size_in_bytes,
    memory.temp_size_in_bytes,
    output,
    limit,
    needed,
    hbm_bytes(program),
    dict(traffic),
    program.unknown,
    seconds,
    largest_array(program),
  )


def _refused(message: str, argument_bytes: float, needed: Products, seconds: float) -> PlannedProgram:
  """Returns what the compiler said of a program that is too large.

  Raises: UserError for another error of the compiler.
  """
  if "RESOURCE_EXHAUSTED" not in message:
    raise UserError(f"the compiler failed: {message:.2000}")
  whole = re.search(rf"Used {_SIZE} of {_SIZE} hbm", message)
  parts = re.search(rf"temporaries \({_SIZE}\) exceeds available HBM \({_SIZE}\)", message)
  found = whole or parts
  if found is None:
    raise UserError(
      f"the program is too large for a device, and the compiler does not say by how much: {message:.2000}"
    )
  size, limit = (float(found[i]) * _UNITS[found[i + 1]] for i in (1, 3))
  total = size if whole else size + argument_bytes
  temporaries = max(total - argument_bytes, 0)
  return PlannedProgram(False, total, argument_bytes, temporaries, 0.0, limit, needed, None, {}, 0, seconds)


def device_bytes(abstract: PyTree, shardings: PyTree) -> float:
  """Returns the bytes of one device's pieces of arrays: by their shapes, without a device's padding.

  Example: of 1,024 float32 split over 8 devices it is 512.
  """

  def one(leaf: Any, sharding: Any) -> float:
    if jnp.issubdtype(leaf.dtype, jax.dtypes.extended):
      return 0.0  # random keys
    return float(np.prod(sharding.shard_shape(leaf.shape), dtype=np.float64) * leaf.dtype.itemsize)

  return float(sum(jax.tree.leaves(jax.tree.map(one, abstract, shardings))))


def gib(size: float) -> str:
  """Returns bytes in words.

  Example: `gib(2**30)` is "1.00 GiB".
  """
  return f"{size / GIB:.2f} GiB" if size >= GIB / 100 else f"{size / 2**20:.2f} MiB"
