"""How a run ends and who may run: SIGTERM and Ctrl-C as a request to finish the step and save; one training a folder."""

import contextlib
import fcntl
import os
import pathlib
import signal
import sys
import types
from collections.abc import Iterator

import jax

from retrieval_jax.errors import UserError


class StopRequest:
  """Within the `with` block, the first SIGTERM or SIGINT is a request to stop after a step; a second one acts as usual.

  Of several processes the signal may come to any one: jax's coordination service, which takes SIGTERM for a notice of
  preemption, then agrees on a step with all of them, one to three steps on.

  Attributes:
    requested: whether to stop now, as `after` found last.

  Example:
    with StopRequest() as stop:
      while not stop.after(step): ...
      with stop.leaving("the evaluation"): evaluate()
  """

  def __init__(self) -> None:
    self.requested = False
    self._signalled = self._leaves = False
    self._several = jax.process_count() > 1
    self._previous: dict[int, object] = {}

  def __enter__(self) -> "StopRequest":
    # Of several processes SIGTERM is jax's, whose handler was there first.
    for number in (signal.SIGINT,) if self._several else (signal.SIGTERM, signal.SIGINT):
      self._previous[number] = signal.signal(number, self._handle)
    return self

  def after(self, step: int) -> bool:
    """Returns whether to stop after this step, the same on all processes; each must ask after every step."""
    if self._several:
      from jax.experimental import multihost_utils

      self.requested = self.requested or multihost_utils.reached_preemption_sync_point(step)
    else:
      self.requested = self._signalled
    return self.requested

  @contextlib.contextmanager
  def leaving(self, work: str) -> Iterator[None]:
    """A request leaves the block at once, and `requested` is then set: for long work that nothing is lost without.

    Of several processes, which must all be at the same place, nothing is left.
    """
    try:
      self._leaves = not self._several
      if self._leaves and self._signalled:
        raise _Leave
      yield
    except _Leave:
      self.requested = True
      print(f"left unfinished: {work}", file=sys.stderr)
    finally:
      self._leaves = False

  def __exit__(self, *_: object) -> None:
    for number, handler in self._previous.items():
      signal.signal(number, handler)  # pyright: ignore[reportArgumentType]  (what signal.signal returned)

  def _handle(self, number: int, frame: types.FrameType | None) -> None:
    del frame
    self._signalled = True
    signal.signal(number, signal.SIG_DFL if number == signal.SIGTERM else signal.default_int_handler)
    if self._several:
      os.kill(os.getpid(), signal.SIGTERM)
    if self._leaves:
      self._leaves = False
      raise _Leave


class _Leave(BaseException):
  """Ends a block of `leaving`; no library takes it for an error of its own."""


@contextlib.contextmanager
def exclusive(folder: pathlib.Path) -> Iterator[None]:
  """Holds a lock on a folder, made if missing, so that two trainings do not write into one another's checkpoints.

  The lock goes with the process, however it ends. Raises: UserError when another process holds it.
  """
  folder.mkdir(parents=True, exist_ok=True)
  with open(folder / ".lock", "w") as file:
    try:
      fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
      raise UserError(
        f"MODEL_DIR={folder}: another training is writing to this folder. Choose another MODEL_DIR."
      ) from None
    yield
