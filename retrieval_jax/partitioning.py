"""The mesh, the rules that map logical axes to it, and the jitted step: the one place that knows about devices."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import PyTree

from retrieval_jax import sharding
from retrieval_jax.errors import UserError, nearest
from retrieval_jax.records import Batch

DATA_AXIS = "data"
MODEL_AXIS = "model"
Rules = Sequence[tuple[str, str | None]]

# T5X's standard rules at one-dimensional parameter and activation partitioning, and one for caches.
STANDARD_RULES: Rules = (
  (sharding.BATCH, DATA_AXIS),
  (sharding.VOCAB, MODEL_AXIS),
  (sharding.MLP, MODEL_AXIS),
  (sharding.HEADS, MODEL_AXIS),
  (sharding.JOINED_KV, MODEL_AXIS),
  (sharding.KV, None),
  (sharding.EMBED, None),
  (sharding.AFFINITY, None),
  (sharding.RELPOS_BUCKETS, None),
  (sharding.POSITION, None),
  (sharding.LAYERS, None),
  (sharding.LENGTH, None),
  (sharding.CACHE_ROWS, DATA_AXIS),
)


class Partitioner(NamedTuple):
  """A mesh ('data', 'model') and the rules logical axis -> mesh axis (None: not split)."""

  mesh: Mesh
  rules: Rules

  @property
  def data_size(self) -> int:
    """Number of pieces the batch is split into."""
    return self.mesh.shape[DATA_AXIS]

  @property
  def replicated(self) -> NamedSharding:
    return NamedSharding(self.mesh, PartitionSpec())

  @property
  def rows(self) -> NamedSharding:
    """Sharding of anything whose first axis is the batch."""
    return NamedSharding(self.mesh, PartitionSpec(DATA_AXIS))

  def spec(self, axes: Sequence[str | None]) -> PartitionSpec:
    """Returns the PartitionSpec of a parameter with these logical axes, whatever its sizes (`shardings` checks them).

    Rules are applied in their order: the first one of an axis wins, unless its mesh axis splits another axis of the array
    already; then the axis's next rule is tried, and without one it stays whole. Source: T5X's logical axis rules.

    Raises: UserError for an axis without a rule.

    Example: `partitioner().spec(("vocab", "embed"))` is `PartitionSpec("model", None)`.
    """
    return PartitionSpec(*self._mesh_axes(axes, lambda dimension, mesh_axis: True))

  def constrain(self, x: jax.Array, axes: Sequence[str | None]) -> jax.Array:
    """Returns the activation x laid out by its logical axes: the meaning of sharding.constrain on this mesh.

    As `spec`, but a rule whose mesh axis does not divide the dimension is passed over too. Inside shard_map the axes that
    are manual there are laid out already and only the others are constrained.

    Raises: UserError for an axis without a rule.
    """
    spec = self._mesh_axes(
      axes, lambda dimension, mesh_axis: x.shape[dimension] % self.mesh.shape[mesh_axis] == 0
    )
    here = jax.sharding.get_abstract_mesh()
    mesh = here if here.manual_axes else self.mesh
    spec = [None if axis in here.manual_axes else axis for axis in spec]
    return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, PartitionSpec(*spec)))

  def _mesh_axes(self, axes: Sequence[str | None], fits: Callable[[int, str], bool]) -> list[str | None]:
    """Returns the mesh axis of each dimension. fits: (dimension, mesh axis) -> whether it may be split so."""
    names = {name for name, _ in self.rules}
    for axis in axes:
      if axis is not None and axis not in names:
        raise UserError(f"logical axis {axis!r} has no partitioning rule{nearest(axis, names) or '.'}")
    found: dict[int, str | None] = {}
    for name, mesh_axis in self.rules:
      for dimension, axis in enumerate(axes):
        if axis != name or dimension in found:
          continue
        if mesh_axis is None or (mesh_axis not in found.values() and fits(dimension, mesh_axis)):
          found[dimension] = mesh_axis
    return [found.get(dimension) for dimension in range(len(axes))]

  def traced(self, function: Callable) -> Callable:
    """Returns `function`, whose activations are constrained to this mesh when it is traced. Jit the result."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
      with sharding.constraining(self.constrain, sharding.DataMesh(self.mesh, DATA_AXIS)):
        return function(*args, **kwargs)

    return wrapper

  def shardings(self, abstract: PyTree, logical_axes: PyTree) -> PyTree[NamedSharding]:
    """Returns the NamedSharding of every parameter; a dimension that does not divide is a UserError."""

    def one(path: Any, leaf: jax.ShapeDtypeStruct, axes: Sequence[str | None]) -> NamedSharding:
      spec = self.spec(axes)
      for size, name, mesh_axis in zip(leaf.shape, axes, spec, strict=True):
        parts = 1 if mesh_axis is None else self.mesh.shape[mesh_axis]
        if size % parts:
          raise UserError(
            f"parameter {jax.tree_util.keystr(path, simple=True, separator='/')}: axis {name!r} has {size} entries, "
            f"which {parts} {mesh_axis!r} partitions do not divide. Choose NUM_PARTITIONS among the divisors of {size}."
          )
      return NamedSharding(self.mesh, spec)

    return jax.tree_util.tree_map_with_path(one, abstract, logical_axes)

  def check_batch_size(self, batch_size: int, macro: str = "BATCH_SIZE") -> None:
    """Raises UserError, naming the macro, unless every data shard gets the same number of rows."""
    if batch_size % self.data_size:
      below = batch_size // self.data_size * self.data_size
      valid = [size for size in (below, below + self.data_size) if size > 0]
      raise UserError(
        f"{macro}={batch_size} is not divisible by the {self.data_size} data shards of the mesh "
        f"{dict(self.mesh.shape)}. Nearest valid values: {' or '.join(map(str, valid))}."
      )

  def put_batch(self, batch: Batch) -> Batch:
    """Places the host arrays of a batch on the mesh, rows split over 'data'."""
    return jax.device_put(batch, self.rows)  # in one call: one an array takes twice as long

  def jit_step(self, step: Callable, state_shardings: PyTree[NamedSharding]) -> Callable:
    """Returns jit(step: (state, batch) -> (state, metrics)); the old state's buffers are donated."""
    return jax.jit(
      self.traced(step),
      in_shardings=(state_shardings, self.rows),
      out_shardings=(state_shardings, self.replicated),
      donate_argnums=0,
    )


def partitioner(
  *, num_partitions: int = 1, rules: Rules = STANDARD_RULES, devices: Sequence[Any] | None = None
) -> Partitioner:
  """Returns the Partitioner over all devices: num_partitions on 'model', the rest on 'data'.

  The default is plain data parallelism on whatever is there: one CPU, 8 fake CPU devices, GPUs, a TPU slice.
  rules: (logical axis, "data", "model" or None), in the order in which they are tried (Partitioner.spec).

  Raises: UserError for a num_partitions that does not divide the devices, or a rule to another mesh axis.

  Example: `partitioner(num_partitions=2)` on 8 devices gives the mesh {'data': 4, 'model': 2}.
  """
  for rule in rules:
    if rule[1] not in (DATA_AXIS, MODEL_AXIS, None):
      raise UserError(
        f"partitioning rule {rule!r}: expected {DATA_AXIS!r}, {MODEL_AXIS!r} or None as its mesh axis"
        f"{nearest(str(rule[1]), (DATA_AXIS, MODEL_AXIS)) or '.'}"
      )
  found = list(devices) if devices is not None else jax.devices()
  if num_partitions < 1 or len(found) % num_partitions:
    divisors = [n for n in range(1, len(found) + 1) if len(found) % n == 0]
    raise UserError(
      f"NUM_PARTITIONS={num_partitions} does not divide the {len(found)} devices. Valid values: {divisors}."
    )
  grid = np.asarray(found).reshape(-1, num_partitions)
  # jax.make_mesh defaults to Explicit axes, under which q @ p.T with both sides sharded raises.
  mesh = Mesh(grid, (DATA_AXIS, MODEL_AXIS), axis_types=(AxisType.Auto, AxisType.Auto))
  return Partitioner(mesh, tuple(rules))
