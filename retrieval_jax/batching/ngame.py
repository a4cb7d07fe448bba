"""NGAME batches: whole clusters of like data points, so that the positives of the one are hard negatives of the others."""

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from jax.sharding import Mesh
from jaxtyping import Float, Int

from retrieval_jax.batching.base import (
  PADDING,
  Batcher,
  Group,
  Plan,
  Texts,
  check_alike,
  check_batch_size,
  check_plan,
)
from retrieval_jax.batching.clustering import balanced_clusters
from retrieval_jax.batching.permutation import permutation
from retrieval_jax.errors import UserError

ClusterSizes = Sequence[tuple[int, int]]  # (from this epoch on, this many examples in a cluster)


@dataclasses.dataclass(frozen=True)
class Ngame:
  """The Batcher of `ngame`; see there.

  A plan's state: cluster_size, and since, the step from which it holds. Clustered plans have two arrays as well: the
  examples, cluster after cluster (members), and where each cluster begins (offsets).
  """

  batch_size: int
  cluster_sizes: tuple[tuple[int, int], ...]
  refresh_epochs: int | None

  def __post_init__(self) -> None:
    if self.refresh_epochs is not None and (type(self.refresh_epochs) is not int or self.refresh_epochs < 1):
      raise UserError(
        f"ngame: REFRESH_EPOCHS={self.refresh_epochs!r}; expected a whole number of at least 1, or None: never."
      )

  def plan(
    self,
    *,
    num_examples: int,
    seed: int,
    groups: Sequence[Group] = (),
    texts: Callable[[], Texts] | None = None,
  ) -> Plan:
    del texts
    check_plan("ngame", num_examples, seed)
    check_alike("ngame", groups)
    return Plan(num_examples, seed, {"cluster_size": 1, "since": 0})

  def rows(self, plan: Plan, step: int) -> Int[np.ndarray, "q"]:
    epoch, index = divmod(step, self.steps_per_epoch(plan))
    count = self.batch_size // plan.state["cluster_size"]  # clusters in a batch
    order = permutation(_num_clusters(plan), plan.seed, epoch)
    batch = _members(plan.state, order[index * count : (index + 1) * count])
    return np.pad(batch, (0, self.batch_size - len(batch)), constant_values=PADDING)

  def steps_per_epoch(self, plan: Plan) -> int:
    return max(1, plan.num_examples // self.batch_size)

  def epoch_of(self, plan: Plan, step: int) -> int:
    return step // self.steps_per_epoch(plan)

  def epochs(self, plan: Plan, step: int) -> Int[np.ndarray, "q"]:
    return np.full(self.batch_size, self.epoch_of(plan, step))

  @property
  def refreshes(self) -> bool:
    return any(size > 1 for _, size in self.cluster_sizes)

  def refresh_due(self, plan: Plan, step: int) -> bool:
    steps = self.steps_per_epoch(plan)
    if step % steps:
      return False
    size = self.cluster_size(step // steps)
    if size != plan.state["cluster_size"]:
      return True
    if size == 1 or self.refresh_epochs is None:
      return False
    return step - plan.state["since"] >= self.refresh_epochs * steps

  def refresh(
    self, plan: Plan, embeddings: Float[np.ndarray, "e d"], *, step: int, mesh: Mesh | None = None
  ) -> Plan:
    epoch = self.epoch_of(plan, step)
    size = self.cluster_size(epoch)
    state = {"cluster_size": size, "since": step}
    if size == 1:
      return plan._replace(state=state)
    if len(embeddings) != plan.num_examples:
      raise ValueError(f"{len(embeddings)} embeddings, expected one for each of {plan.num_examples} examples")
    count = -(-plan.num_examples // size)  # so that none has more than `size`
    clusters = balanced_clusters(embeddings, num_clusters=count, seed=_mixed(plan.seed, epoch), mesh=mesh)
    offsets = np.concatenate([[0], np.cumsum(np.bincount(clusters, minlength=count))])
    members = np.argsort(clusters, kind="stable").astype(np.int32)
    return plan._replace(state={**state, "members": members, "offsets": offsets})

  def cluster_size(self, epoch: int) -> int:
    """Returns the examples in a cluster that the schedule has for an epoch."""
    return next(size for start, size in reversed(self.cluster_sizes) if start <= epoch)


def _mixed(seed: int, epoch: int) -> int:
  """Returns a seed of the clustering that no other epoch has."""
  return int(np.random.SeedSequence([seed, epoch]).generate_state(1)[0])


def _num_clusters(plan: Plan) -> int:
  return len(plan.state["offsets"]) - 1 if "offsets" in plan.state else plan.num_examples


def _members(state: Mapping, clusters: Int[np.ndarray, "s"]) -> Int[np.ndarray, "n"]:
  """Returns the examples of some clusters, one cluster after the other."""
  if "offsets" not in state:
    return clusters
  offsets = np.asarray(state["offsets"])
  sizes = offsets[clusters + 1] - offsets[clusters]
  within = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
  return np.asarray(state["members"])[np.repeat(offsets[clusters], sizes) + within].astype(np.int64)


def _check_sizes(cluster_sizes: Any, batch_size: int) -> None:
  """Raises UserError, with the value that is wrong, for a schedule that cannot be."""
  if not isinstance(cluster_sizes, Sequence) or isinstance(cluster_sizes, str):
    raise UserError(
      f"ngame: CLUSTER_SIZES={cluster_sizes!r}; expected pairs (epoch, size), as in ((0, 1), (10, 8)), or ((0, 16),) for "
      "clusters of 16 from the first epoch on."
    )
  epochs = []
  for entry in cluster_sizes:
    if not isinstance(entry, Sequence) or len(entry) != 2 or any(type(x) is not int for x in entry):
      raise UserError(
        f"ngame: CLUSTER_SIZES has {entry!r}; expected pairs (epoch, size), as in ((0, 1), (10, 8))."
      )
    epoch, size = entry
    epochs.append(epoch)
    if not 1 <= size <= batch_size or batch_size % size:
      valid = [n for n in range(1, batch_size + 1) if batch_size % n == 0]
      below, above = [n for n in valid if n < size], [n for n in valid if n > size]
      near = [*below[-1:], *above[:1]]
      raise UserError(
        f"ngame: CLUSTER_SIZES has {size} examples in a cluster from epoch {epoch} on, and a batch of {batch_size} is made of "
        f"whole clusters: {size} does not divide it. Nearest valid sizes: {' or '.join(map(str, near))}. (tas.gin sets it by "
        "TOPIC_SIZE, ngame_curriculum.gin by FIRST_CLUSTER_SIZE and LARGEST_CLUSTER_SIZE.)"
      )
  if not epochs or epochs[0] != 0 or any(a >= b for a, b in itertools.pairwise(epochs)):
    raise UserError(
      f"ngame: CLUSTER_SIZES is {tuple(cluster_sizes)!r}; expected epochs that rise from 0, as in ((0, 1), (10, 8))."
    )


def ngame(
  batch_size: int, *, cluster_sizes: Any = ((0, 1), (1, 16)), refresh_epochs: int | None = 5
) -> Batcher:
  """Returns the Batcher whose batches are whole clusters of examples with like queries (NGAME's mini-batches).

  In-batch negatives of a query are the positives of the others in its batch. Where the others are like it, these
  negatives are hard, at the price of random batches and a clustering now and then.

  cluster_sizes: the schedule, pairs (epoch, C): from that epoch on clusters hold C examples, and a batch batch_size / C
    clusters. C = 1 is the batches of `shuffled`; larger ones are harder. C must divide batch_size, so that no cluster
    lies across two batches. `doubling` makes NGAME's curriculum.
  refresh_epochs: the examples are clustered anew when C changes and so many epochs later, again and again; None: only
    when C changes. A refresh holds from the very epoch before which it is made (the published code is one epoch late).

  ceil(examples / C) clusters have C examples or, fewer than C of them, one less: there the batch is padded with -1. The
  order of the clusters is new in each epoch, by (seed, epoch). An epoch has as many batches as one of `shuffled`; the
  clusters that are left over come no more in it, others in each epoch.
  Examples of the same query text lie in one cluster as a rule; losses mask their positives.

  Cost: O(batch_size) a step; 4 + 8 / C bytes an example, and 8 / C for each of up to four epochs' orders; a refresh is one balanced clustering (clustering.py) of the queries'
  embeddings.

  Source: Dahiya et al. (2023), "NGAME: Negative Mining-aware Mini-batching for Extreme Classification", Algorithm 1.

  Raises: UserError for a schedule that cannot be; from `plan`, for empty data and mixtures; from `refresh`, what
    `balanced_clusters` refuses.

  Example: `b = ngame(128, cluster_sizes=((0, 1), (1, 8)))`; `b.refresh(plan, embeddings, step=100)`.
  """
  check_batch_size("ngame", batch_size)
  _check_sizes(cluster_sizes, batch_size)
  return Ngame(batch_size, tuple((epoch, size) for epoch, size in cluster_sizes), refresh_epochs)


def fixed(*, size: int) -> ClusterSizes:
  """Returns the schedule of clusters of one size from the first epoch on, by embeddings that are there before training.

  Example: `fixed(size=16)` is `((0, 16),)`.
  """
  return ((0, size),)


def doubling(*, start: int, every: int, first: int = 2, largest: int = 512) -> ClusterSizes:
  """Returns the schedule of random batches until epoch `start`, then clusters of `first` examples, and of twice as many
  `every` epochs later, up to `largest`.

  Raises: UserError for numbers that cannot be.

  Example: `doubling(start=10, every=25, first=8, largest=32)` is `((0, 1), (10, 8), (35, 16), (60, 32))`.
  """
  numbers = (("CURRICULUM_START", start), ("CURRICULUM_EPOCHS", every), ("FIRST_CLUSTER_SIZE", first))
  for name, value in numbers:
    if type(value) is not int or value < 1:
      raise UserError(f"ngame: {name}={value!r}; expected a whole number of at least 1.")
  if type(largest) is not int or largest < first:
    raise UserError(
      f"ngame: LARGEST_CLUSTER_SIZE={largest!r}; expected a whole number of at least FIRST_CLUSTER_SIZE={first}."
    )
  sizes = [(0, 1)]
  epoch, size = start, first
  while size <= largest:
    sizes.append((epoch, size))
    epoch, size = epoch + every, 2 * size
  return tuple(sizes)
