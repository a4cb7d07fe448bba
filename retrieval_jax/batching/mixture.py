"""Batches of several tasks: each task comes up at its rate and walks through its own examples, pass after pass."""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from jax.sharding import Mesh
from jaxtyping import Float, Int

from retrieval_jax.batching.base import PADDING, Batcher, Group, Plan, Texts, check_batch_size, check_plan
from retrieval_jax.errors import UserError

LEAST_RATE = 1e-6
_SHUFFLED_AT_ONCE = 4096  # examples: the passes of a small task are shuffled together


class _Mix(NamedTuple):
  """What decides the batches, hashable."""

  sizes: tuple[int, ...]
  rates: tuple[float, ...]  # their sum is 1
  seed: int
  batch_size: int
  one_task_per_batch: bool

  @property
  def steps(self) -> int:
    """The batches of an epoch: as many examples as the tasks hold, but enough for each task to come up."""
    places = 1 if self.one_task_per_batch else self.batch_size
    return max(sum(self.sizes) // self.batch_size, math.ceil(1 / (places * min(self.rates))))

  @property
  def shares(self) -> tuple[int, ...]:
    """The batches, or places in batches, that each task has in an epoch: its rate, by largest remainder."""
    total = self.steps * (1 if self.one_task_per_batch else self.batch_size)
    exact = total * np.array(self.rates)
    shares = np.floor(exact).astype(np.int64)
    order = np.argsort(-(exact - shares), kind="stable")
    shares[order[: total - shares.sum()]] += 1
    return tuple(shares.tolist())


class _Batch(NamedTuple):
  rows: Int[np.ndarray, "q"]
  epochs: Int[np.ndarray, "q"]


class _Walk:
  """The order in which a task's examples come: a permutation of all of them, then another."""

  def __init__(self, size: int, seed: int, task: int):
    self._size, self._seed, self._task = size, seed, task
    self._together = math.ceil(_SHUFFLED_AT_ONCE / size)
    # The current passes, and those that a prefetching reader has already begun.
    self._orders = functools.lru_cache(maxsize=2)(self._shuffled)

  def at(self, places: Int[np.ndarray, "n"]) -> _Batch:
    """Returns the examples at these places of the walk (from 0 on, over all passes), and the passes they are in."""
    passes, within = np.divmod(places, self._size)
    found = np.empty_like(places)
    chunks = passes // self._together
    for chunk in np.unique(chunks).tolist():
      here = chunks == chunk
      found[here] = self._orders(chunk)[passes[here] - chunk * self._together, within[here]]
    return _Batch(found, passes)

  def _shuffled(self, chunk: int) -> Int[np.ndarray, "n e"]:
    generator = _generator(self._seed, chunk, 1 + self._task)
    return generator.permuted(np.tile(np.arange(self._size), (self._together, 1)), axis=1)


def _generator(seed: int, number: int, stream: int) -> np.random.Generator:
  """Returns random access to the draws of (seed, number): stream 0 is the order of tasks, 1 + k that of task k."""
  key = np.array([seed, number], np.uint64)
  return np.random.Generator(np.random.Philox(key=key, counter=np.array([0, 0, 0, stream], np.uint64)))


@functools.lru_cache(maxsize=512)
def _walk(size: int, seed: int, task: int) -> _Walk:
  return _Walk(size, seed, task)


@functools.lru_cache(maxsize=2)
def _order(shares: tuple[int, ...], seed: int, epoch: int) -> tuple[np.ndarray, np.ndarray]:
  """Returns the task of each batch (or place) of an epoch, and how often the task came in the epoch before it."""
  tasks = np.repeat(np.arange(len(shares), dtype=np.int16), shares)
  tasks = _generator(seed, epoch, 0).permutation(tasks)
  firsts = np.repeat(np.cumsum((0, *shares[:-1])), shares)
  before = np.empty(len(tasks), np.int64)
  before[np.argsort(tasks, kind="stable")] = np.arange(len(tasks)) - firsts
  return tasks, before


@functools.lru_cache(maxsize=2)
def _batch(mix: _Mix, step: int) -> _Batch:
  offsets = np.cumsum((0, *mix.sizes))
  shares, size = mix.shares, mix.batch_size
  epoch, index = divmod(step, mix.steps)
  tasks, before = _order(shares, mix.seed, epoch)
  if mix.one_task_per_batch:
    task = int(tasks[index])
    batch = _of_one_task(mix, task, epoch * shares[task] + int(before[index]))
    return _Batch(np.where(batch.rows < 0, PADDING, batch.rows + offsets[task]), batch.epochs)
  span = slice(index * size, (index + 1) * size)
  tasks, before = tasks[span], before[span]
  rows, epochs = np.empty(size, np.int64), np.empty(size, np.int64)
  for task in np.unique(tasks).tolist():
    here = tasks == task
    found = _walk(mix.sizes[task], mix.seed, task).at(epoch * shares[task] + before[here])
    rows[here], epochs[here] = found.rows + offsets[task], found.epochs
  again = np.ones(size, bool)
  again[np.unique(rows, return_index=True)[1]] = False
  return _Batch(np.where(again, PADDING, rows), epochs)


def _of_one_task(mix: _Mix, task: int, number: int) -> _Batch:
  """Returns the batch `number` of one task alone; -1 pads."""
  size = mix.sizes[task]
  epoch, index = divmod(number, max(1, size // mix.batch_size))
  within = index * mix.batch_size + np.arange(mix.batch_size)
  found = _walk(size, mix.seed, task).at(epoch * size + np.minimum(within, size - 1))
  return _Batch(np.where(within < size, found.rows, PADDING), found.epochs)


@dataclasses.dataclass(frozen=True)
class Mixture:
  """The Batcher of `mixture`; see there."""

  batch_size: int
  one_task_per_batch: bool

  def __post_init__(self) -> None:
    check_batch_size("mixture", self.batch_size)

  def plan(
    self,
    *,
    num_examples: int,
    seed: int,
    groups: Sequence[Group] = (),
    texts: Callable[[], Texts] | None = None,
  ) -> Plan:
    del texts
    check_plan("mixture", num_examples, seed)
    groups = groups or [Group("all", num_examples, 1.0)]
    _check_groups(groups, num_examples)
    total = math.fsum(group.rate for group in groups)
    rates = [group.rate / total for group in groups]
    for group, rate in zip(groups, rates, strict=True):
      self._check_rate(group, rate, len(groups))
    return Plan(num_examples, seed, {"sizes": [group.size for group in groups], "rates": rates})

  def rows(self, plan: Plan, step: int) -> Int[np.ndarray, "q"]:
    return _batch(self._mix(plan), step).rows.copy()

  def steps_per_epoch(self, plan: Plan) -> int:
    return self._mix(plan).steps

  def epoch_of(self, plan: Plan, step: int) -> int:
    return step // self.steps_per_epoch(plan)

  def epochs(self, plan: Plan, step: int) -> Int[np.ndarray, "q"]:
    return _batch(self._mix(plan), step).epochs.copy()

  @property
  def refreshes(self) -> bool:
    return False

  def refresh_due(self, plan: Plan, step: int) -> bool:
    del plan, step
    return False

  def refresh(
    self, plan: Plan, embeddings: Float[np.ndarray, "e d"], *, step: int, mesh: Mesh | None = None
  ) -> Plan:
    del embeddings, step, mesh
    return plan

  def _mix(self, plan: Plan) -> _Mix:
    sizes, rates = tuple(plan.state["sizes"]), tuple(plan.state["rates"])
    return _Mix(sizes, rates, plan.seed, self.batch_size, self.one_task_per_batch)

  def _check_rate(self, group: Group, rate: float, count: int) -> None:
    if rate < LEAST_RATE:
      raise UserError(
        f"mixture: the rate of {group.name} is {rate:.2g} of all; below {LEAST_RATE:g} it would hardly ever come up. "
        "Leave it out, or raise its rate."
      )
    share = rate * self.batch_size
    if count > 1 and not self.one_task_per_batch and share > max(group.size, 1):
      raise UserError(
        f"mixture: {group.name} has {group.size} examples and, by its rate, {share:.0f} places in a batch of "
        f"{self.batch_size}. Lower its rate or BATCH_SIZE, or set one_task_per_batch."
      )


def _check_groups(groups: Sequence[Group], num_examples: int) -> None:
  if sum(group.size for group in groups) != num_examples:
    sizes = ", ".join(f"{group.name} {group.size}" for group in groups)
    raise UserError(f"mixture: {num_examples} examples in groups of {sizes}: the sizes must add up.")
  for group in groups:
    if group.size < 1:
      raise UserError(f"mixture: {group.name} holds no examples. Leave it out, or check its split.")
    if not (math.isfinite(group.rate) and group.rate > 0):
      raise UserError(f"mixture: the rate of {group.name} is {group.rate}; expected a finite number above 0.")


def mixture(batch_size: int, *, one_task_per_batch: bool = False) -> Batcher:
  """Returns the Batcher of several tasks, each of which comes up at the rate that the data declare for it.

  An epoch of the mixture has as many batches as the tasks' examples fill, or as many as it takes for each task to come
  up. In it each task has the places of its rate, exactly (rounded by largest remainder), in an order at random. With
  one_task_per_batch a batch is of one task alone, and each task has the batches of its rate.

  A task walks through its own examples, whatever the others do: pass k is a permutation by (seed, task, k), and goes on
  over the epochs of the mixture. `epochs` are these passes. An example that would stand twice in one batch, where a pass
  ends in it, leaves its second place empty (-1). Batches of one task are those of `shuffled`: what remains of a pass
  after its last full batch is left out, and a task smaller than a batch is padded with -1.

  Data of one task are a mixture of one. Cost: 10 bytes an example and an epoch, O(batch_size log batch_size) per step.

  Raises: UserError for batch_size < 1 and, from `plan`, for empty data or tasks, a rate that is not above 0 or below a
  millionth of all, and a task with more places in a batch than it has examples.

  Example: `b = mixture(4)`; `b.plan(num_examples=30, seed=0, groups=[Group("a", 20, 3.0), Group("b", 10, 1.0)])` takes
  21 of the 28 examples of an epoch from a.
  """
  return Mixture(batch_size, one_task_per_batch)
