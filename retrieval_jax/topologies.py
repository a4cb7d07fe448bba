"""Topologies to compile for without owning one: a slice of a TPU generation by libtpu, or so many CPU devices."""

import contextlib
import importlib.util
import math
import os
from typing import Any, Final, NamedTuple

import jax

from retrieval_jax.chips import CHIPS, GIB, Chip, Shape
from retrieval_jax.errors import UserError, nearest

CPU: Final = "cpu"
MOST_CPU: Final = 1024
# libtpu looks for the machine's own TPU, for a server that knows it, and refuses a second process, unless these are set.
_ENVIRONMENT: Final = {
  "TPU_SKIP_MDS_QUERY": "1",
  "TPU_ACCELERATOR_TYPE": "v5litepod-16",
  "TPU_WORKER_HOSTNAMES": "localhost",
  "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}


class Topology(NamedTuple):
  """name: as given, such as "v5e:4x4". chip: of its generation; None: CPU devices. devices: what a mesh is made of."""

  name: str
  chip: Chip | None
  devices: tuple[Any, ...]

  @property
  def chips(self) -> int:
    """The number of chips; a CPU device counts as one."""
    return len(self.devices) // (1 if self.chip is None else self.chip.devices)

  @property
  def hbm_bytes(self) -> int | None:
    """The memory of one device; None for a CPU, which shares the machine's."""
    return None if self.chip is None else self.chip.hbm_bytes // self.chip.devices

  def describe(self) -> str:
    """Returns the topology in words.

    Example: "v5e:4x4: 16 chips of 16 GiB".
    """
    if self.chip is None:
      return f"{self.name}: {len(self.devices)} CPU devices"
    devices = "" if self.chip.devices == 1 else f", {len(self.devices)} devices"
    return f"{self.name}: {self.chips} chips of {self.chip.hbm_bytes / GIB:.0f} GiB{devices}"


def prepare(name: str) -> None:
  """Sets what must stand before JAX starts its backend: no search for a TPU, and the CPU devices of "cpu:8".

  Raises: UserError for a topology that there is not.

  Example: `prepare("cpu:8")`, then `topology("cpu:8")`.
  """
  _, shape = _parse(name)
  for variable, value in _ENVIRONMENT.items():
    os.environ.setdefault(variable, value)
  with contextlib.suppress(RuntimeError):  # a backend that runs already has the devices that it has
    jax.config.update("jax_platforms", CPU)
    if name.startswith(CPU) and "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
      jax.config.update("jax_num_cpu_devices", shape[0])
  if not name.startswith(CPU):  # programs of a TPU that is not there cannot be read back from the cache
    jax.config.update("jax_enable_compilation_cache", False)


def topology(name: str) -> Topology:
  """Returns the topology of a name: "<generation>:<shape>", or "cpu:<devices>" for a try on this machine.

  Raises: UserError for a generation or shape that there is not, with the nearest; without libtpu; and for more CPU devices
    than JAX was started with.

  Example: `topology("v5e:4x4").chips` is 16.
  """
  chip, shape = _parse(name)
  if chip is None:
    devices = jax.devices(CPU)
    if len(devices) < shape[0]:
      raise UserError(
        f"--topology={name}: JAX was started with {len(devices)} CPU devices. Set "
        f"XLA_FLAGS=--xla_force_host_platform_device_count={shape[0]}."
      )
    return Topology(name, None, tuple(devices[: shape[0]]))
  return Topology(name, chip, _tpu_devices(name, chip, shape))


def _tpu_devices(name: str, chip: Chip, shape: Shape) -> tuple[Any, ...]:
  if importlib.util.find_spec("libtpu") is None and not os.environ.get("TPU_LIBRARY_PATH"):
    raise UserError(
      f"--topology={name} is compiled by libtpu, which is not installed: pip install 'retrieval-jax[plan]' (no TPU is needed). "
      "--topology=cpu:8 needs nothing."
    )
  from jax.experimental import topologies

  options: dict[str, Any] = {}
  if chip.config is not None:
    options["chip_config_name"] = chip.config
  if math.prod(shape) == 1:
    options["chips_per_host_bounds"] = (1, 1, 1)
  # Links that close a ring: of whole cubes on three axes, of a whole side of 16 on two.
  closed = 4 if len(shape) == 3 else 16
  around = [size % closed == 0 for size in shape]
  if all(around) or (len(shape) == 2 and any(around)):
    options["wrap"] = (*around, *[False] * (3 - len(shape)))
  try:
    found = topologies.get_topology_desc(platform="tpu", topology_name=name, **options)
  except (RuntimeError, ValueError) as error:
    raise UserError(
      f"--topology={name}: libtpu does not know it ({str(error).splitlines()[0]:.200}). Install the libtpu that belongs to "
      "this JAX: pip install 'retrieval-jax[plan]'."
    ) from error
  return tuple(found.devices)


def _parse(name: str) -> tuple[Chip | None, Shape]:
  """Returns (chip or None, shape) of a name that is valid."""
  generation, separator, rest = name.partition(":")
  if generation not in (*CHIPS, CPU):
    known = ", ".join((*CHIPS, CPU))
    raise UserError(
      f"--topology={name}: no generation {generation!r}{nearest(generation, (*CHIPS, CPU)) or '.'} Known: {known}; for "
      "example --topology=v5e:4x4."
    )
  sizes = rest.split("x") if separator else []
  numbers = tuple(int(size) for size in sizes if size.isascii() and size.isdigit())
  whole = len(numbers) == len(sizes) > 0 and all(numbers)
  if generation == CPU:
    if not whole or len(numbers) != 1:
      raise UserError(f"--topology={name}: expected cpu:<number of devices>, such as cpu:8.")
    if numbers[0] > MOST_CPU:
      raise UserError(
        f"--topology={name}: expected at most {MOST_CPU:,} devices, each of which takes memory and threads of this machine."
      )
    return None, numbers
  chip = CHIPS[generation]
  if not whole or numbers not in chip.shapes:
    near = " or ".join("x".join(map(str, shape)) for shape in _near(numbers if whole else (), chip))
    raise UserError(f"--topology={name}: no such shape. Nearest valid ones of {generation}: {near}.")
  return chip, numbers


def _near(wanted: Shape, chip: Chip) -> list[Shape]:
  """Returns the three shapes nearest to `wanted`, its axes in any order; of none, small ones."""
  if not wanted:
    return list(chip.shapes[:4])

  def distance(shape: Shape) -> float:
    padded = sorted((*wanted, *[1] * (len(shape) - len(wanted))))
    apart = sum(abs(math.log2(a / b)) for a, b in zip(padded, sorted(shape), strict=False))
    return apart + abs(math.log2(math.prod(wanted) / math.prod(shape)))

  return sorted(chip.shapes, key=distance)[:3]
