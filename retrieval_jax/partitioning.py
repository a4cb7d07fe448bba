"""The mesh, the rules that map logical axes to it, and the jitted step: the one place that knows about devices."""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import PyTree

from retrieval_jax import sharding
from retrieval_jax.device_mesh import AXES, DATA_AXIS, MODEL_AXIS, REPLICA_AXIS, device_mesh
from retrieval_jax.errors import UserError, nearest
from retrieval_jax.records import Batch

MeshAxes = str | tuple[str, ...] | None
Rules = Sequence[tuple[str, MeshAxes]]
_NO_PARAMETERS: Final = (sharding.BATCH, sharding.LENGTH, sharding.CACHE_ROWS)
BATCH_AXES: Final = (REPLICA_AXIS, DATA_AXIS)


def _check_rules(rules: Any) -> None:
  """Raises UserError, naming the macro, unless these are pairs of a logical axis and mesh axes."""
  hint = "expected a list of pairs (logical axis, mesh axis, several or None), such as (('vocab', 'data'),)"
  if not isinstance(rules, tuple | list):
    raise UserError(f"ADDITIONAL_AXIS_RULES={rules!r}: {hint}.")
  for rule in rules:
    pair = isinstance(rule, tuple | list) and len(rule) == 2 and isinstance(rule[0], str)
    several = pair and isinstance(rule[1], tuple | list) and all(isinstance(axis, str) for axis in rule[1])
    if not pair or not (several or rule[1] is None or isinstance(rule[1], str)):
      raise UserError(f"ADDITIONAL_AXIS_RULES: {rule!r}: {hint}.")
    # A tower of one's own may have axes of its own, but not ones that read like these.
    if rule[0] not in sharding.ALL and (near := nearest(rule[0], sharding.ALL)):
      raise UserError(
        f"ADDITIONAL_AXIS_RULES: {rule!r}: {rule[0]!r} is no logical axis of these models{near}"
      )


def standard_rules(
  *, activation_partitioning_dims: int = 1, parameter_partitioning_dims: int = 1, additional_rules: Rules = ()
) -> Rules:
  """Returns the rules logical axis -> mesh axis, as T5X names them, and one for caches.

  The batch is split over 'replica' and 'data'; heads, MLP and vocabulary over 'model' (tensor parallelism, where the mesh
  has more than one there).
  parameter_partitioning_dims: 2 splits parameters and their optimizer state over 'data' too, by the embedding's axis (FSDP,
  ZeRO-3): each device holds its part, gathers a layer when it computes it and scatters its gradient. 1 keeps a copy on each
  data shard.
  activation_partitioning_dims: 2 splits the embedding's axis of activations over 'model' too.
  additional_rules: tried before the standard ones.

  Raises: UserError for another number of dimensions.

  Example: `partitioner(rules=standard_rules(parameter_partitioning_dims=2))`.
  """
  for name, value in (
    ("activation_partitioning_dims", activation_partitioning_dims),
    ("parameter_partitioning_dims", parameter_partitioning_dims),
  ):
    if value not in (1, 2):
      raise UserError(f"{name}={value!r}: expected 1 or 2.")
  _check_rules(additional_rules)
  embed: list[tuple[str, MeshAxes]] = []
  if activation_partitioning_dims == 2:
    embed.append((sharding.EMBED, MODEL_AXIS))
  if parameter_partitioning_dims == 2:
    embed.append((sharding.EMBED, DATA_AXIS))
  return (
    *additional_rules,
    (sharding.BATCH, BATCH_AXES),
    (sharding.VOCAB, MODEL_AXIS),
    (sharding.MLP, MODEL_AXIS),
    (sharding.HEADS, MODEL_AXIS),
    (sharding.JOINED_KV, MODEL_AXIS),
    (sharding.KV, None),
    *embed,
    (sharding.EMBED, None),
    (sharding.AFFINITY, None),
    (sharding.RELPOS_BUCKETS, None),
    (sharding.POSITION, None),
    (sharding.LAYERS, None),
    (sharding.LENGTH, None),
    (sharding.CACHE_ROWS, BATCH_AXES),
  )


STANDARD_RULES: Final[Rules] = standard_rules()


class Partitioner(NamedTuple):
  """A mesh ('replica', 'data', 'model') and the rules logical axis -> mesh axis, several, or None: not split."""

  mesh: Mesh
  rules: Rules

  @property
  def batch_axes(self) -> tuple[str, ...]:
    """The mesh axes that split the batch."""
    return _as_tuple(next((axes for name, axes in self.rules if name == sharding.BATCH), None))

  @property
  def data_size(self) -> int:
    """Number of pieces the batch is split into."""
    return self._size(self.batch_axes)

  @property
  def replicated(self) -> NamedSharding:
    return NamedSharding(self.mesh, PartitionSpec())

  @property
  def rows(self) -> NamedSharding:
    """Sharding of anything whose first axis is the batch."""
    return NamedSharding(self.mesh, PartitionSpec(self.batch_axes))

  @property
  def _data_mesh(self) -> sharding.DataMesh:
    axes = {axis for name, axes in self.rules if name not in _NO_PARAMETERS for axis in _as_tuple(axes)}
    return sharding.DataMesh(
      self.mesh, self.batch_axes, splits_parameters=not axes.isdisjoint(self.batch_axes)
    )

  def _size(self, axes: MeshAxes) -> int:
    return math.prod(self.mesh.shape[axis] for axis in _as_tuple(axes))

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
    spec = self._mesh_axes(axes, lambda dimension, mesh_axes: x.shape[dimension] % self._size(mesh_axes) == 0)
    here = jax.sharding.get_abstract_mesh()
    mesh = here if here.manual_axes else self.mesh
    spec = [tuple(axis for axis in _as_tuple(axes) if axis not in here.manual_axes) or None for axes in spec]
    return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, PartitionSpec(*spec)))

  def _mesh_axes(self, axes: Sequence[str | None], fits: Callable[[int, MeshAxes], bool]) -> list[MeshAxes]:
    """Returns the mesh axes of each dimension. fits: (dimension, mesh axes) -> whether it may be split so."""
    names = {name for name, _ in self.rules}
    for axis in axes:
      if axis is not None and axis not in names:
        raise UserError(f"logical axis {axis!r} has no partitioning rule{nearest(axis, names) or '.'}")
    found: dict[int, MeshAxes] = {}
    taken: set[str] = set()
    for name, mesh_axes in self.rules:
      for dimension, axis in enumerate(axes):
        if axis != name or dimension in found:
          continue
        if mesh_axes is None or (taken.isdisjoint(_as_tuple(mesh_axes)) and fits(dimension, mesh_axes)):
          found[dimension] = mesh_axes
          taken.update(_as_tuple(mesh_axes))
    return [found.get(dimension) for dimension in range(len(axes))]

  def traced(self, function: Callable) -> Callable:
    """Returns `function`, whose activations are constrained to this mesh when it is traced. Jit the result."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
      with sharding.constraining(self.constrain, self._data_mesh):
        return function(*args, **kwargs)

    return wrapper

  def shardings(self, abstract: PyTree, logical_axes: PyTree) -> PyTree[NamedSharding]:
    """Returns the NamedSharding of every parameter; a dimension that does not divide is a UserError."""

    def one(path: Any, leaf: jax.ShapeDtypeStruct, axes: Sequence[str | None]) -> NamedSharding:
      spec = self.spec(axes)
      for size, name, mesh_axes in zip(leaf.shape, axes, spec, strict=True):
        parts = self._size(mesh_axes)
        if size % parts:
          where = jax.tree_util.keystr(path, simple=True, separator="/")
          raise UserError(_indivisible(where, leaf.shape, axes, name, size, mesh_axes, parts))
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
    """Places the host arrays of a batch on the mesh, split by rows.

    Of several processes each reads of the arrays, which are of the global batch on all of them, the rows of its own devices
    and no others: those of data.row_tokens.RowTokens come from the disk only then.
    """
    return self.put_rows(batch)

  def put_rows(self, arrays: Any) -> Any:
    """Places host arrays, all of the same first axis, on the mesh, split by rows; as `put_batch`."""
    if jax.process_count() == 1:
      return jax.device_put(arrays, self.rows)  # in one call: one an array takes twice as long
    return jax.tree.map(self._own_rows, arrays)

  def _own_rows(self, array: Any) -> jax.Array:
    pieces: dict[tuple, Any] = {}

    def piece(index: Any) -> Any:
      span = index[0].indices(array.shape[0])
      if span not in pieces:  # devices along 'model' share their rows
        pieces[span] = array[slice(*span)]
      return pieces[span]

    return jax.make_array_from_callback(array.shape, self.rows, piece, dtype=array.dtype)

  def jit_step(self, step: Callable, state_shardings: PyTree[NamedSharding]) -> Callable:
    """Returns jit(step: (state, batch) -> (state, metrics)); the old state's buffers are donated."""
    return jax.jit(
      self.traced(step),
      in_shardings=(state_shardings, self.rows),
      out_shardings=(state_shardings, self.replicated),
      donate_argnums=0,
    )


def partitioner(
  *,
  num_partitions: int = 1,
  ici_mesh_shape: Sequence[int] | None = None,
  dcn_mesh_shape: Sequence[int] | None = None,
  rules: Rules = STANDARD_RULES,
  devices: Sequence[Any] | None = None,
) -> Partitioner:
  """Returns the Partitioner over all devices: num_partitions on 'model', the rest on 'data', each slice a 'replica'.

  The default is plain data parallelism on whatever is there: one CPU, 8 fake CPU devices, GPUs, a TPU slice, several slices.
  ici_mesh_shape, dcn_mesh_shape: the mesh in full instead (device_mesh.py).
  rules: (logical axis, mesh axis, several or None), in the order in which they are tried (Partitioner.spec).

  Raises: UserError for a mesh that does not make up the devices, or a rule to a mesh axis that is not there.

  Example: `partitioner(num_partitions=2)` on 8 devices gives the mesh {'replica': 1, 'data': 4, 'model': 2}.
  """
  for rule in rules:
    unknown = [axis for axis in _as_tuple(rule[1]) if axis not in AXES]
    if unknown:
      raise UserError(
        f"partitioning rule {rule!r}: expected {', '.join(map(repr, AXES))}, several of them or None as its mesh axis"
        f"{nearest(str(unknown[0]), AXES) or '.'}"
      )
  mesh = device_mesh(
    list(devices) if devices is not None else jax.devices(),
    num_partitions=num_partitions,
    ici_mesh_shape=ici_mesh_shape,
    dcn_mesh_shape=dcn_mesh_shape,
  )
  return Partitioner(mesh, tuple(rules))


def _as_tuple(axes: MeshAxes) -> tuple[str, ...]:
  if axes is None:
    return ()
  return (axes,) if isinstance(axes, str) else tuple(axes)


def _indivisible(
  where: str,
  shape: Sequence[int],
  axes: Sequence[str | None],
  name: str | None,
  size: int,
  mesh_axes: MeshAxes,
  parts: int,
) -> str:
  """Returns what is said of a dimension that its pieces do not divide."""
  below = size // parts * parts
  sizes = " or ".join(f"{n:,}" for n in (below, below + parts) if n)
  divisors = [n for n in range(1, size + 1) if size % n == 0]
  near = sorted(sorted(divisors, key=lambda n: abs(n - parts))[:3])
  mesh_axis = " x ".join(map(repr, _as_tuple(mesh_axes)))
  return (
    f"parameter {where}, shape {tuple(shape)}, axes {tuple(axes)}: axis {name!r} has {size:,} entries, which {parts} {mesh_axis} "
    f"partitions do not divide. Nearest valid values: {sizes} entries, or {', '.join(map(str, near))} partitions "
    f"(NUM_PARTITIONS, ICI_MESH_SHAPE); or a rule ({name!r}, None), which keeps the axis whole."
  )
