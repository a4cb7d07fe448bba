"""The Loss interface, in optax's manner: an (init, apply) pair with explicit parameters and state, even when empty."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
from jaxtyping import Array, PyTree

from retrieval_jax.records import EmbeddedBatch, LossOutput


class DataSizes(NamedTuple):
  """Global sizes of the training data that a stateful loss needs to allocate its caches."""

  num_queries: int
  num_passages: int


@runtime_checkable
class LossInit(Protocol):
  def __call__(
    self, rng: Array, *, embed_dim: int, data: DataSizes
  ) -> tuple[PyTree[Array], PyTree[Array]]: ...


@runtime_checkable
class LossApply(Protocol):
  def __call__(
    self, params: PyTree[Array], state: PyTree[Array], batch: EmbeddedBatch, *, rng: Array | None, train: bool
  ) -> tuple[LossOutput, PyTree[Array]]: ...


@runtime_checkable
class LossBefore(Protocol):
  def __call__(self, state: PyTree[Array], estimation: EmbeddedBatch | None) -> PyTree[Array]: ...


@runtime_checkable
class LossAfter(Protocol):
  def __call__(self, state: PyTree[Array]) -> PyTree[Array]: ...


class Loss(NamedTuple):
  """One component.

  init: (rng, *, embed_dim, data) -> (params, state).
  apply: (params, state, batch, *, rng, train) -> (LossOutput, state); the loss is a float32 scalar, the weighted
    mean over the queries whose weight is not 0, and 0 (with finite gradients) when all weights are 0.
  requires: the optional EmbeddedBatch fields it reads; checked before anything compiles.
  target_range: lowest and highest target that it can take, of a loss that requires them; checked likewise.
  before, after: what a loss with a state does once a training step, whatever the number of microbatches that `apply` sees:
    `before` them with the step's estimation batch, embedded without dropout (None unless the loss requires "estimation"),
    and `after` them. None: nothing.
  state_axes: state -> its logical axes, a tuple of names (sharding.py) for each array; None: every device holds it whole.
  """

  init: LossInit
  apply: LossApply
  requires: frozenset[str] = frozenset()
  target_range: tuple[float, float] | None = None
  before: LossBefore | None = None
  after: LossAfter | None = None
  state_axes: Callable[[PyTree], PyTree] | None = None


def replicated(state: PyTree) -> Any:
  """Returns the logical axes of a state that every device holds whole.

  Example: of `{"step": a scalar, "gramian": [d, d]}` they are `{"step": (), "gramian": (None, None)}`.
  """
  return jax.tree.map(lambda x: (None,) * len(x.shape), state)


def stateless(
  compute: Callable[[EmbeddedBatch], LossOutput], *, requires: frozenset[str] = frozenset()
) -> Loss:
  """Returns the Loss of a pure function of the batch: no parameters, no state."""
  return parametric(dict, lambda params, batch: compute(batch), requires=requires)


def parametric(
  initial: Callable[[], Mapping[str, Array]],
  compute: Callable[[Any, EmbeddedBatch], LossOutput],
  *,
  requires: frozenset[str] = frozenset(),
  target_range: tuple[float, float] | None = None,
) -> Loss:
  """Returns the Loss of a pure function of (parameters, batch), with the parameters that `initial` makes, and no state."""

  def init(rng: Array, *, embed_dim: int, data: DataSizes) -> tuple[Mapping[str, Array], Mapping[str, Any]]:
    del rng, embed_dim, data
    return initial(), {}

  def apply(
    params: Any, state: Any, batch: EmbeddedBatch, *, rng: Array | None, train: bool
  ) -> tuple[LossOutput, Any]:
    del rng, train
    return compute(params, batch), state

  return Loss(init, apply, requires, target_range)
