"""What the devices of a kernel tell each other: the collectives of some mesh axes, or nothing on one device."""

from typing import Any, NamedTuple

import jax
from jaxtyping import Array, Int, PyTree


class Exchange(NamedTuple):
  """Collectives over the mesh axes together, for use inside shard_map; without axes every one is the identity."""

  axes: tuple[str, ...] | None

  def index(self) -> Int[Array, ""] | int:
    """Returns this device's position on the axes."""
    return 0 if self.axes is None else jax.lax.axis_index(self.axes)

  def gather(self, tree: PyTree[Array]) -> Any:
    """Returns all devices' rows, in order, on every device."""
    if self.axes is None:
      return tree
    return jax.tree.map(lambda x: jax.lax.all_gather(x, self.axes, tiled=True), tree)

  def scatter(self, x: Array) -> Array:
    """Returns this device's rows of the sum over devices."""
    return x if self.axes is None else jax.lax.psum_scatter(x, self.axes, tiled=True)

  def sum(self, tree: PyTree[Array]) -> Any:
    """Returns the sum over devices, the same on each."""
    return tree if self.axes is None else jax.lax.psum(tree, self.axes)

  def max(self, x: Array) -> Array:
    """Returns the largest over devices, the same on each."""
    return x if self.axes is None else jax.lax.pmax(x, self.axes)

  def varying(self, tree: PyTree[Array]) -> Any:
    """Returns the same values, the same on each device until here, marked as each device's own: what a loop carries has to be so from the start."""
    if self.axes is None:
      return tree
    return jax.tree.map(lambda x: jax.lax.pcast(x, self.axes, to="varying"), tree)
