"""BatchesAhead: the batches of the next steps, made and placed on the devices while the step before is running."""

import collections
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from retrieval_jax.records import Batch


class BatchesAhead:
  """Makes the batches of the next steps in one thread of its own, in the order of the steps.

  A batch is a pure function of its step until the next refresh. No batch of a step at which a refresh is due, nor of a
  later one, is begun before `take` asks for that step; the trainer refreshes before it asks. So none is made of a plan
  that no longer holds.

  make: step -> its batch, placed on the devices; no collectives of several processes, whose order threads would mix up.
  due: step -> whether a refresh comes before it. ahead (BATCHES_AHEAD): so many batches are made beyond the one that is
  taken; 0: none, and no thread. end: the step after the last one.

  Cost: the memory of `ahead` more batches on the devices.

  Example:
    with contextlib.closing(BatchesAhead(make, due=due, ahead=2, end=100)) as batches:
      for step in range(100): batch = batches.take(step)
  """

  def __init__(self, make: Callable[[int], Batch], *, due: Callable[[int], bool], ahead: int, end: int):
    self._make, self._due, self._ahead, self._end = make, due, ahead, end
    self._thread = ThreadPoolExecutor(1, thread_name_prefix="batches_ahead") if ahead else None
    self._made: collections.deque[tuple[int, Future[Any]]] = collections.deque()

  def take(self, step: int) -> Batch:
    """Returns the batch of a step, and has the ones after it made meanwhile.

    Raises: what making this very batch raised in the thread, with its traceback.
    """
    if self._thread is None:
      return self._make(step)
    if self._made and self._made[0][0] != step:
      self.forget()  # another order than that of the steps
    if not self._made:
      self._ask(self._thread, step)
    for later in range(self._made[-1][0] + 1, min(step + self._ahead + 1, self._end)):
      if any(self._due(between) for between in range(step + 1, later + 1)):
        break
      self._ask(self._thread, later)
    return self._made.popleft()[1].result()

  def forget(self) -> None:
    """Leaves out what is made ahead: a refresh came. Waits for the batch that the thread is making."""
    while self._made:
      future = self._made.pop()[1]
      if not future.cancel():
        future.exception()

  def close(self) -> None:
    """Ends the thread, which first ends the batch that it is making."""
    if self._thread is not None:
      self._thread.shutdown(wait=True, cancel_futures=True)
    self._made.clear()

  def _ask(self, thread: ThreadPoolExecutor, step: int) -> None:
    self._made.append((step, thread.submit(self._make, step)))
