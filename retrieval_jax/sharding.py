"""Logical axis names of parameters and activations, and the mesh that the code being traced runs on.

partitioning.py makes the mesh and maps the names to its axes.

The names are T5X's, so that its users' axis rules keep their meaning.
"""

import contextlib
import contextvars
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from jax.sharding import Mesh
from jaxtyping import Array, Float

BATCH: Final = "batch"
LENGTH: Final = "length"
VOCAB: Final = "vocab"
EMBED: Final = "embed"
MLP: Final = "mlp"
HEADS: Final = "heads"
KV: Final = "kv"
JOINED_KV: Final = "joined_kv"
AFFINITY: Final = "affinity"  # the projection's output
RELPOS_BUCKETS: Final = "relpos_buckets"
POSITION: Final = "abspos_buckets"
LAYERS: Final = "layers"
CACHE_ROWS: Final = "cache_rows"  # of a loss's cache of all queries or passages

ALL: Final = (
  BATCH,
  LENGTH,
  VOCAB,
  EMBED,
  MLP,
  HEADS,
  KV,
  JOINED_KV,
  AFFINITY,
  RELPOS_BUCKETS,
  POSITION,
  LAYERS,
  CACHE_ROWS,
)

# Of the activations inside an encoder.
HIDDEN: Final = (BATCH, LENGTH, EMBED)
MLP_HIDDEN: Final = (BATCH, LENGTH, MLP)
PER_HEAD: Final = (BATCH, HEADS, LENGTH, KV)
POOLED: Final = (BATCH, EMBED)

Axes = Sequence[str | None]
Constraint = Callable[[Array, Axes], Array]


class DataMesh(NamedTuple):
  """The mesh in use and its axes that split the batch, together.

  splits_parameters: whether these axes split parameters too (FSDP): a device then never holds all of them.
  """

  mesh: Mesh
  axes: tuple[str, ...]
  splits_parameters: bool = False

  @property
  def size(self) -> int:
    """Number of pieces the batch is split into."""
    return math.prod(self.mesh.shape[axis] for axis in self.axes)


_MESH: contextvars.ContextVar[DataMesh | None] = contextvars.ContextVar("mesh", default=None)
_CONSTRAINT: contextvars.ContextVar[Constraint | None] = contextvars.ContextVar("constraint", default=None)


def constrain(x: Float[Array, "..."], axes: Axes) -> Float[Array, "..."]:
  """Returns the activation x, laid out on the mesh by its logical axes where `constraining` is in force.

  Example: `constrain(hidden, (BATCH, LENGTH, EMBED))`.
  """
  constraint = _CONSTRAINT.get()
  return x if constraint is None else constraint(x, axes)


def data_mesh() -> DataMesh | None:
  """Returns the mesh that the function being traced runs on, or None outside `constraining`.

  For the few kernels that need shard_map; everything else leaves the collectives to XLA.
  """
  return _MESH.get()


@contextlib.contextmanager
def constraining(constraint: Constraint | None, mesh: DataMesh | None = None) -> Iterator[None]:
  """Gives every `constrain` traced inside the block its meaning, and `data_mesh` its value.

  constraint: Partitioner.constrain of the mesh in use; None where axes are already manual (inside shard_map).
  """
  tokens = _CONSTRAINT.set(constraint), _MESH.set(mesh)
  try:
    yield
  finally:
    _CONSTRAINT.reset(tokens[0])
    _MESH.reset(tokens[1])
