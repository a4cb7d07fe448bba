"""What the devices of a kernel tell each other: the collectives of one mesh axis, or nothing on one device."""

from typing import Any, NamedTuple

import jax
from jaxtyping import Array, Int, PyTree


class Exchange(NamedTuple):
  """Collectives over the mesh axis `axis`, for use inside shard_map; without an axis every one is the identity."""

  axis: str | None

  def index(self) -> Int[Array, ""] | int:
    """Returns this device's position on the axis."""
    return 0 if self.axis is None else jax.lax.axis_index(self.axis)

  def gather(self, tree: PyTree[Array]) -> Any:
    """Returns all devices' rows, in order, on every device."""
    if self.axis is None:
      return tree
    return jax.tree.map(lambda x: jax.lax.all_gather(x, self.axis, tiled=True), tree)

  def scatter(self, x: Array) -> Array:
    """Returns this device's rows of the sum over devices."""
    return x if self.axis is None else jax.lax.psum_scatter(x, self.axis, tiled=True)

  def sum(self, tree: PyTree[Array]) -> Any:
    """Returns the sum over devices, the same on each."""
    return tree if self.axis is None else jax.lax.psum(tree, self.axis)

  def max(self, x: Array) -> Array:
    """Returns the largest over devices, the same on each."""
    return x if self.axis is None else jax.lax.pmax(x, self.axis)

  def varying(self, tree: PyTree[Array]) -> Any:
    """Returns the same values, the same on each device until here, marked as each device's own: what a loop carries has to be so from the start."""
    if self.axis is None:
      return tree
    return jax.tree.map(lambda x: jax.lax.pcast(x, self.axis, to="varying"), tree)
