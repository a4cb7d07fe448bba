"""The Batcher interface: the rows of step t are a pure function of (plan, t), so a resume replays nothing."""

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float, Int

PADDING = -1  # the row number of an empty place in a batch


class Plan(NamedTuple):
  """All that decides the order of the examples, as plain data: it goes into checkpoints.

  num_examples: how many examples the data hold; rows are 0 .. num_examples - 1.
  seed: the run's data seed.
  state: whatever else the policy needs (JSON values and small numpy arrays); empty for a shuffle.
  """

  num_examples: int
  seed: int
  state: Mapping[str, Any]


@runtime_checkable
class Batcher(Protocol):
  """Forms batches of a fixed size. Every method is pure: equal arguments, equal result, in any order of calls."""

  @property
  def batch_size(self) -> int:
    """Returns the global batch size q."""
    ...

  def plan(self, *, num_examples: int, seed: int) -> Plan:
    """Returns the plan for a new run. Raises UserError when no batch can be formed."""
    ...

  def rows(self, plan: Plan, step: int) -> Int[np.ndarray, "q"]:
    """Returns the example rows of batch `step` (counted from 0 over all epochs); always q of them, -1 pads."""
    ...

  def steps_per_epoch(self, plan: Plan) -> int:
    """Returns the number of batches of one epoch, at least 1."""
    ...

  def epoch_of(self, plan: Plan, step: int) -> int:
    """Returns the epoch (from 0) that batch `step` belongs to."""
    ...

  def refresh(self, plan: Plan, embeddings: Float[np.ndarray, "e d"]) -> Plan:
    """Returns the plan after a look at the current embeddings; the same plan for all policies but NGAME."""
    ...
