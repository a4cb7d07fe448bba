"""A watchdog: ends this process when a run of several has stood still for too long, because one of them hangs."""

import contextlib
import faulthandler
import os
import sys
import threading
import time
from collections.abc import Iterator
from typing import Final

from retrieval_jax import exit_codes
from retrieval_jax.errors import UserError

# Seconds that what is not a step may take longer.
LONG: Final = 3600.0


class Watchdog:
  """Ends the process with exit code 75 unless `beat` comes every `timeout` seconds within the `with` block.

  A process that waits in a collective for one that hangs waits for ever: the other still answers heartbeats, and no
  library ends it (gloo and NCCL have no effective timeout there). The thread sleeps meanwhile, at no cost.
  What it ends at is said on stderr, with what every thread was doing. Nothing is saved: the last checkpoint is whole.

  timeout: seconds, or None: nothing is watched.
  name: what to call this process in the message, such as "process 1 of 4".

  Example:
    with Watchdog(600.0, "process 0 of 2") as watchdog:
      with watchdog.aside():
        first_step()  # compiles
      while step(): watchdog.beat()
  """

  def __init__(self, timeout: float | None, name: str):
    self._timeout, self._name = timeout, name
    self._deadline, self._extra = float("inf"), 0.0
    self._end = threading.Event()
    self._thread: threading.Thread | None = None

  def __enter__(self) -> "Watchdog":
    if self._timeout is not None:
      self.beat()
      self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
      self._thread.start()
      _ACTIVE.append(self)
    return self

  def __exit__(self, *_: object) -> None:
    self._end.set()
    if self._thread is not None:
      _ACTIVE.remove(self)
      self._thread.join()

  def beat(self) -> None:
    """Says that the run goes on."""
    if self._timeout is not None:
      self._deadline = time.monotonic() + self._timeout + self._extra

  @contextlib.contextmanager
  def aside(self) -> Iterator[None]:
    """What is done inside the block is no step and may take an hour longer: compiling, saving, clustering."""
    self._extra = LONG
    self.beat()
    try:
      yield
    finally:
      self._extra = 0.0
      self.beat()

  def _watch(self) -> None:
    while not self._end.wait(min(1.0, (self._timeout or 1.0) / 4)):
      if time.monotonic() > self._deadline:
        self._stop()

  def _stop(self) -> None:
    print(
      f"\nerror: {self._name}: nothing went on for {self._timeout:g} s (STEP_TIMEOUT), so this process ends. It, or one that it "
      f"waits for, hangs; below is what it was doing. Start all processes again with the same command: training goes on from "
      f"the last checkpoint. If a step takes longer than that, raise STEP_TIMEOUT. Exit code {exit_codes.HUNG}.",
      file=sys.stderr,
      flush=True,
    )
    faulthandler.dump_traceback(all_threads=True)
    os._exit(exit_codes.HUNG)


_ACTIVE: list[Watchdog] = []


def beat() -> None:
  """Says to the watchdog in force, if any, that this process goes on: for long work that has steps of its own."""
  for watchdog in _ACTIVE:
    watchdog.beat()


def check_timeout(timeout: float | None) -> None:
  """Raises UserError, naming the macro, unless the timeout is None or a positive number of seconds."""
  if timeout is None:
    return
  if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout > 0:
    raise UserError(f"STEP_TIMEOUT={timeout!r}: expected seconds above 0, or None: nothing is watched.")
