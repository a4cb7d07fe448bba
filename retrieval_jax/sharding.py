"""Logical axis names of parameters and activations. No mesh here: partitioning.py maps these to mesh axes.

The names are T5X's, so that its users' axis rules keep their meaning.
"""

import contextlib
import contextvars
from collections.abc import Callable, Iterator, Sequence
from typing import Final

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
)

# Of the activations inside an encoder.
HIDDEN: Final = (BATCH, LENGTH, EMBED)
MLP_HIDDEN: Final = (BATCH, LENGTH, MLP)
PER_HEAD: Final = (BATCH, HEADS, LENGTH, KV)
POOLED: Final = (BATCH, EMBED)

Axes = Sequence[str | None]
Constraint = Callable[[Array, Axes], Array]
_CONSTRAINT: contextvars.ContextVar[Constraint | None] = contextvars.ContextVar("constraint", default=None)


def constrain(x: Float[Array, "..."], axes: Axes) -> Float[Array, "..."]:
  """Returns the activation x, laid out on the mesh by its logical axes where `constraining` is in force.

  Example: `constrain(hidden, (BATCH, LENGTH, EMBED))`.
  """
  constraint = _CONSTRAINT.get()
  return x if constraint is None else constraint(x, axes)


@contextlib.contextmanager
def constraining(constraint: Constraint) -> Iterator[None]:
  """Gives every `constrain` traced inside the block its meaning: Partitioner.constrain of the mesh in use."""
  token = _CONSTRAINT.set(constraint)
  try:
    yield
  finally:
    _CONSTRAINT.reset(token)
