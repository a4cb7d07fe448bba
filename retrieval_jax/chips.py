"""What is published of the TPU generations: memory, arithmetic, links and the shapes that slices come in."""

import itertools
import math
from typing import Final, NamedTuple

GIB: Final = 2**30
Shape = tuple[int, ...]


class Chip(NamedTuple):
  """One chip of a generation; a step's costs are measured against these.

  hbm_bytes: memory. flops: products and sums of bfloat16 a second. hbm_bandwidth: bytes a second. ici_bandwidth: bytes a
  second that all links of a chip send together, half of what is published for both directions.
  devices: what JAX shows of a chip: 1, or 2 where its two cores are devices of their own. config: libtpu's name of the mode in
  which the two cores of a chip are one device. shapes: of the slices on offer.
  """

  generation: str
  hbm_bytes: int
  flops: float
  hbm_bandwidth: float
  ici_bandwidth: float
  shapes: tuple[Shape, ...]
  devices: int = 1
  config: str | None = None

  @property
  def name(self) -> str:
    """What the memory and the devices are, in words."""
    share = "" if self.devices == 1 else f", {self.devices} devices a chip"
    return f"TPU {self.generation} ({self.hbm_bytes / GIB:.0f} GiB{share})"


_FLAT: Final = ((1, 1), (2, 2), (2, 4), (4, 4), (4, 8), (8, 8), (8, 16), (16, 16))


def _cubes(most: int) -> tuple[Shape, ...]:
  """Returns the shapes of three axes: parts of a cube of 4 x 4 x 4 chips, and whole cubes up to this many chips."""
  parts = ((2, 2, 1), (2, 2, 2), (2, 2, 4), (2, 4, 4))
  edges = range(4, 25, 4)
  cubes = [s for s in itertools.combinations_with_replacement(edges, 3) if math.prod(s) <= most]
  return (*parts, *sorted(cubes, key=lambda shape: (math.prod(shape), shape)))


# From Google Cloud's pages on each generation (system architecture: peak compute, HBM capacity and bandwidth, bidirectional
# inter-chip bandwidth a chip, supported topologies), read in November 2026. v4's links, which its page leaves out, are
# from Jouppi et al. 2023 (arXiv 2304.01433, table 4): 6 of 50 GB/s.
CHIPS: Final[dict[str, Chip]] = {
  chip.generation: chip
  for chip in (
    Chip("v4", 32 * GIB, 275e12, 1200e9, 300e9, _cubes(4096), config="megacore"),
    Chip("v5e", 16 * GIB, 197e12, 819e9, 200e9, _FLAT),
    Chip("v5p", 95 * GIB, 459e12, 2765e9, 600e9, _cubes(6144)),
    Chip("v6e", 32 * GIB, 918e12, 1638e9, 400e9, _FLAT),
    Chip("tpu7x", 192 * GIB, 2307e12, 7380e9, 600e9, _cubes(9216), devices=2),
  )
}
