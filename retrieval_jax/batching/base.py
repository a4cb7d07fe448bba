"""The Batcher interface: the rows of step t are a pure function of (plan, t), so a resume replays nothing."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from jax.sharding import Mesh
from jaxtyping import Float, Int

from retrieval_jax.errors import UserError

_MAX_SEED = 2**64 - 1
PADDING = -1  # the row number of an empty place in a batch


class Group(NamedTuple):
  """One task of a mixture. The rows of a group follow those of the group before it.

  rate: the share of the training's examples that are to be of this group, in the unit of the other groups' rates.
  """

  name: str
  size: int
  rate: float


class Texts(NamedTuple):
  """Which texts an example brings to a batch: example i has the texts `numbers[offsets[i]:offsets[i + 1]]`.

  A number is a text: those of its query and of every passage that is known to answer it.
  """

  offsets: Int[np.ndarray, "e+1"]
  numbers: Int[np.ndarray, "t"]


class Plan(NamedTuple):
  """All that decides the order of the examples, as plain data: it goes into checkpoints.

  num_examples: how many examples the data hold; rows are 0 .. num_examples - 1.
  seed: the run's data seed.
  state: whatever else the policy needs (JSON values and numpy arrays); empty for a shuffle.
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

  def plan(
    self,
    *,
    num_examples: int,
    seed: int,
    groups: Sequence[Group] = (),
    texts: Callable[[], Texts] | None = None,
  ) -> Plan:
    """Returns the plan for a new run.

    groups: the tasks of a mixture; none: all examples are alike. texts: what the examples hold, for a policy that asks.

    Raises: UserError when no batch can be formed, or for groups that the policy would mix otherwise than they say.
    """
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

  def epochs(self, plan: Plan, step: int) -> Int[np.ndarray, "q"]:
    """Returns how often each example of batch `step` has come up before: its own epoch, by which a batch draws one of
    its positives. That of the batch, but where the tasks of a mixture go through their examples at different rates."""
    ...

  @property
  def refreshes(self) -> bool:
    """Returns whether `refresh` is ever due; False for all policies but NGAME."""
    ...

  def refresh_due(self, plan: Plan, step: int) -> bool:
    """Returns whether batch `step` and those after it want a plan that `refresh` has made anew."""
    ...

  def refresh(
    self, plan: Plan, embeddings: Float[np.ndarray, "e d"], *, step: int, mesh: Mesh | None = None
  ) -> Plan:
    """Returns the plan from batch `step` on, after a look at the current embeddings of the examples' queries; the same
    plan for all policies but NGAME. mesh: the devices that the work is spread over; None: this process's CPU."""
    ...


def check_plan(name: str, num_examples: int, seed: int) -> None:
  """Raises UserError, naming the policy, for empty data and a seed that no generator takes."""
  if num_examples < 1:
    raise UserError(
      f"{name}: the training data hold {num_examples} examples, so there is nothing to train on. "
      "Check the split's name and that the data folder is complete."
    )
  if not 0 <= seed <= _MAX_SEED:
    raise UserError(f"{name}: the seed is {seed}; it must lie in 0 .. 2**64 - 1.")


def check_batch_size(name: str, batch_size: int) -> None:
  """Raises UserError, naming the policy, for a batch size below 1."""
  if batch_size < 1:
    raise UserError(f"{name}: batch_size is {batch_size}; it must be at least 1. Set --gin.BATCH_SIZE.")


def check_alike(name: str, groups: Sequence[Group]) -> None:
  """Raises UserError, naming the policy, for more than one group: it would take no notice of their rates."""
  if len(groups) > 1:
    raise UserError(
      f"{name}: the training data are a mixture of {', '.join(group.name for group in groups)}, whose rates this batcher "
      "does not keep. Add --gin_file=batching/mixture.gin after the file of the data."
    )
