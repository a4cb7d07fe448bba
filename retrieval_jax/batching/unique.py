"""Random batches in which no text stands twice: no query, and no passage that answers another query of the batch."""

import collections
import dataclasses
import functools
import hashlib
import itertools
import logging
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from jax.sharding import Mesh
from jaxtyping import Bool, Float, Int

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
from retrieval_jax.errors import UserError

LOOKS = 8  # how many examples that wait are tried for a batch that is not full otherwise, in batch sizes
LOG = logging.getLogger(__name__)


class _Held:
  """The texts of all examples, known by a digest of them: what an epoch's batches are cached by."""

  def __init__(self, texts: Texts, digest: str):
    self.offsets, self.numbers, self._digest = texts.offsets, texts.numbers, digest

  def __hash__(self) -> int:
    return hash(self._digest)

  def __eq__(self, other: object) -> bool:
    return isinstance(other, _Held) and other._digest == self._digest


class _Room:
  """The batch that is being filled: which texts are in it."""

  def __init__(self, held: _Held):
    self._held = held
    size = int(held.numbers.max(initial=-1)) + 1
    self._last = np.full(size, -1, np.int32)  # the number of the last batch that has each text
    self._first = np.zeros(size, np.int32)  # scratch: the first candidate that has it

  def fitting(self, candidates: Int[np.ndarray, "n"], batch: int) -> Bool[np.ndarray, "n"]:
    """Returns which candidates share no text with the batch nor with an earlier candidate, and puts these into it.

    A candidate that shares one with an earlier one that does not fit itself is not taken either: it waits, and all of
    it is a few passes over arrays.
    """
    starts = self._held.offsets[candidates]
    counts = self._held.offsets[candidates + 1] - starts
    firsts = np.cumsum(counts) - counts
    owner = np.repeat(np.arange(len(candidates), dtype=np.int32), counts)
    numbers = self._held.numbers[np.arange(len(owner)) + np.repeat(starts - firsts, counts)]
    self._first[numbers[::-1]] = owner[
      ::-1
    ]  # of equal numbers the last assignment stays: the first candidate
    free = (self._first[numbers] == owner) & (self._last[numbers] != batch)
    fits = np.logical_and.reduceat(free, firsts)
    self._last[numbers[fits[owner]]] = batch
    return fits


class _Waiting:
  """Examples that did not fit, in the order they came."""

  def __init__(self) -> None:
    self._parts: collections.deque[np.ndarray] = collections.deque()

  def add(self, examples: Int[np.ndarray, "n"]) -> None:
    """Appends examples."""
    if len(examples):
      self._parts.append(examples)

  def take(self, count: int) -> Int[np.ndarray, "n"]:
    """Removes and returns the first `count` examples, or all."""
    found = [np.zeros(0, np.int64)]
    while count and self._parts:
      part = self._parts.popleft()
      if len(part) > count:
        self._parts.appendleft(part[count:])
      found.append(part[:count])
      count -= len(found[-1])
    return np.concatenate(found)


def batches(
  texts: Texts | _Held, order: Int[np.ndarray, "e"], batch_size: int
) -> Iterator[Int[np.ndarray, "_"]]:
  """Yields batches of examples, from an order of all, until none is left: each without a text twice.

  An example that does not fit waits, and is tried first for the next batch. A batch that is not full once the order
  is at its end takes of those that wait; it is short if LOOKS * batch_size of them do not fill it. Each example is so
  tried once from the order, and LOOKS * batch_size that wait at most for a batch: O(1) an example, however long it goes.
  """
  held = texts if isinstance(texts, _Held) else _Held(texts, "")
  room, waiting, start = _Room(held), _Waiting(), 0
  for number in itertools.count():
    chosen, later, tried = [], [], 0
    need = batch_size
    candidates = waiting.take(need)
    while need:
      if not len(candidates):
        candidates = order[start : start + need]
        start += len(candidates)
      if not len(candidates):
        candidates = waiting.take(min(need, LOOKS * batch_size - tried))
        tried += len(candidates)
      if not len(candidates):
        break
      fits = room.fitting(candidates, number)
      chosen.append(candidates[fits])
      later.append(candidates[~fits])
      need -= len(chosen[-1])
      candidates = candidates[:0]
    for examples in later:
      waiting.add(examples)
    if need == batch_size:
      return
    yield np.concatenate(chosen)


def _order(num_examples: int, seed: int, epoch: int) -> Int[np.ndarray, "e"]:
  return np.random.Generator(np.random.Philox(key=np.array([seed, epoch], np.uint64))).permutation(
    num_examples
  )


@functools.lru_cache(maxsize=2)  # the current epoch, and the one a prefetching reader has already begun
def _epoch(held: _Held, batch_size: int, steps: int, seed: int, epoch: int) -> Int[np.ndarray, "n q"]:
  """Returns the batches of an epoch; -1 pads the last ones where this epoch's order fills fewer than it has steps."""
  found = np.full((steps, batch_size), PADDING, np.int64)
  order = _order(len(held.offsets) - 1, seed, epoch)
  for row, batch in zip(found, batches(held, order, batch_size), strict=False):
    row[: len(batch)] = batch
  return found


@functools.lru_cache(maxsize=2)
def _all_different(num_examples: int) -> _Held:
  return _Held(Texts(np.arange(num_examples + 1), np.arange(num_examples)), f"{num_examples} different")


def _held(plan: Plan) -> _Held:
  state = plan.state
  if "numbers" not in state:
    return _all_different(plan.num_examples)
  return _Held(Texts(state["offsets"], state["numbers"]), state["digest"])


@dataclasses.dataclass(frozen=True)
class Unique:
  """The Batcher of `unique`; see there."""

  batch_size: int

  def __post_init__(self) -> None:
    check_batch_size("unique", self.batch_size)

  def plan(
    self,
    *,
    num_examples: int,
    seed: int,
    groups: Sequence[Group] = (),
    texts: Callable[[], Texts] | None = None,
  ) -> Plan:
    check_plan("unique", num_examples, seed)
    check_alike("unique", groups)
    state = {} if texts is None else _state(texts(), num_examples)
    return Plan(
      num_examples, seed, {**state, "steps": self._steps(_held(Plan(num_examples, seed, state)), seed)}
    )

  def rows(self, plan: Plan, step: int) -> Int[np.ndarray, "q"]:
    steps = self.steps_per_epoch(plan)
    epoch, index = divmod(step, steps)
    return _epoch(_held(plan), self.batch_size, steps, plan.seed, epoch)[index].copy()

  def steps_per_epoch(self, plan: Plan) -> int:
    return plan.state["steps"]

  def epoch_of(self, plan: Plan, step: int) -> int:
    return step // self.steps_per_epoch(plan)

  def epochs(self, plan: Plan, step: int) -> Int[np.ndarray, "q"]:
    return np.full(self.batch_size, self.epoch_of(plan, step))

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

  def _steps(self, held: _Held, seed: int) -> int:
    """Returns the number of full batches that the first epoch's order gives, but 1 for fewer examples than one holds."""
    count, size = len(held.offsets) - 1, self.batch_size
    steps, largest = 0, 0
    for batch in batches(held, _order(count, seed, 0), size):
      largest = max(largest, len(batch))
      if len(batch) < size:
        break
      steps += 1
    if count < size:
      return 1
    if not steps:
      raise UserError(
        f"unique: a batch of {size} examples without a text twice cannot be formed of these {count}: {largest} fit in "
        "one. Lower BATCH_SIZE, or use batching/shuffled.gin: the losses mask what is no negative."
      )
    left = count - steps * size
    if left >= max(size, count // 10):
      LOG.warning(
        "unique: an epoch leaves out %s of %s examples, whose texts stand in too many others for a batch of %s.",
        f"{left:,}",
        f"{count:,}",
        size,
      )
    return steps


def _state(texts: Texts, num_examples: int) -> dict[str, object]:
  """Returns the texts as a plan holds them, with their digest."""
  offsets, numbers = texts
  if len(offsets) != num_examples + 1 or (np.diff(offsets) < 1).any() or numbers.min(initial=0) < 0:
    raise UserError(
      f"unique: the texts of {len(offsets) - 1} examples came for {num_examples}; each has at least one, from 0 on."
    )
  digest = hashlib.sha256(offsets.tobytes() + numbers.tobytes()).hexdigest()
  return {"offsets": offsets, "numbers": numbers, "digest": digest}


def unique(batch_size: int) -> Batcher:
  """Returns the Batcher whose batches are random but for this: no text stands twice in one.

  The texts of an example are its query and every passage that is known to answer it, drawn for the batch or not. So no
  query comes twice, and no example's passage answers another one's query. Hard negatives are not looked at: losses mask
  those that answer a query of the batch.

  An epoch goes through a random permutation of all examples, that of `shuffled`. An example that does not fit into a
  batch waits, and comes first for the next. An epoch has as many batches as the first one fills; what remains, or waits
  in vain, is left out of it, and each epoch leaves out other examples. Where another epoch fills fewer, its last batches
  are padded with -1, as is the single batch of data that do not fill one.

  Cost: O(1) an example whatever the texts, as an epoch's batches are formed at its first step (0.2 s for a million
  examples of two texts), O(batch_size) per step after it. Memory: 16 bytes an example and 8 a text, and while an epoch
  is formed 8 bytes for each row of either side.

  Raises: UserError for batch_size < 1 and, from `plan`, for empty data, a mixture of tasks, and examples of which no
  batch can be formed.

  Example: of three examples of which two have one passage, `unique(2)` never puts these two together.
  """
  return Unique(batch_size)
