"""One of two processes of a training is killed, frozen or stopped: the other ends in time, and both go on together."""

import pathlib
import random
import signal
import socket
import subprocess
import time
from typing import Final, NamedTuple

from retrieval_jax import exit_codes
from scripts.soak.deaths import reach_of_log
from scripts.soak.line import Line
from scripts.soak.model_dir import differences, last_logged, steps_on_disk, stopped_at
from scripts.soak.tally import Row
from scripts.soak.trainings import SAMTONE, Life, Workshop

TRAINING: Final = SAMTONE._replace(steps=80, period=8)
TIMEOUT: Final = 12  # STEP_TIMEOUT, seconds
# Seconds for an end to be in time: jax's heartbeat notices a frozen process after 100 s where the other one is not in a step.
BOUND: Final = 300.0
LOST: Final = (exit_codes.PEER_DIED,)
# With process 0 goes jax's coordination service, and jax may abort the others before they can say what they saw.
HEADLESS: Final = (exit_codes.PEER_DIED, -signal.SIGABRT)
STUCK: Final = (exit_codes.HUNG, exit_codes.PEER_DIED)
STUCK_HEADLESS: Final = (*STUCK, -signal.SIGABRT)


class Fault(NamedTuple):
  """number: the signal to one process, `of`. others: exit codes that the other one may end with."""

  name: str
  number: signal.Signals
  of: int
  others: tuple[int, ...]


FAULTS: Final = (
  Fault("kill -9 of process 0", signal.SIGKILL, 0, HEADLESS),
  Fault("kill -9 of process 1", signal.SIGKILL, 1, LOST),
  Fault("SIGSTOP of process 0", signal.SIGSTOP, 0, STUCK_HEADLESS),
  Fault("SIGSTOP of process 1", signal.SIGSTOP, 1, STUCK),
  Fault("SIGTERM of process 0", signal.SIGTERM, 0, (exit_codes.DONE,)),
  Fault("SIGTERM of process 1", signal.SIGTERM, 1, (exit_codes.DONE,)),
)


class Pair:
  """A training of two processes that nothing disturbed, and others that suffer.

  Raises: RuntimeError if it does not train.

  Example: `Pair(workshop).suffer(FAULTS[0], line, seconds=0.5)`.
  """

  def __init__(self, workshop: Workshop):
    self._workshop, self._number = workshop, 0
    self._reference = workshop.folder / "undisturbed" / "pair"
    for life in self._start(self._reference, "pair"):
      if life.wait() != 0:
        raise RuntimeError(f"two processes ended with {life.process.returncode}: {life.last_words()}")

  def suffer(self, fault: Fault, line: Line, *, seconds: float) -> None:
    """Starts a training, lets the fault happen so long after the first step, and starts it again."""
    self._number += 1
    name = f"pair_{self._number}"
    folder = self._workshop.folder / "runs" / name
    lives = self._start(folder, name)
    reach_of_log(folder, lives[0])
    time.sleep(seconds)
    line.tried += 1
    took = _inflict(line, fault, lives, folder)
    line.notes.append(f"{fault.name}: the other ended after {took:.1f} s")
    newest = max(steps_on_disk(folder), default=0)
    again = self._start(folder, f"{name}_again")
    codes = [life.wait() for life in again]
    line.check(codes == [0, 0], f"{fault.name}: then ended with {codes}: {again[0].last_words()}")
    line.check(
      again[0].begun_at() == newest, f"{fault.name}: went on from {again[0].begun_at()}, had {newest}"
    )
    if codes == [0, 0]:
      found = differences(folder, self._reference, TRAINING.steps)
      line.check(not found, f"{fault.name}: differs from the undisturbed training: {found[:5]}")

  def _start(self, folder: pathlib.Path, name: str) -> list[Life]:
    with socket.socket() as free:
      free.bind(("localhost", 0))
      port = free.getsockname()[1]
    command = self._workshop.command(TRAINING, folder, f"--gin.STEP_TIMEOUT={TIMEOUT}")
    where = (f"--coordinator_address=localhost:{port}", "--num_processes=2")
    return [
      self._workshop.start([*command, *where, f"--process_id={own}"], f"{name}_{own}") for own in range(2)
    ]


def faults(workshop: Workshop, rng: random.Random, *, quick: bool) -> Row:
  """Each of the faults once."""
  line = Line("one of two processes")
  pair = Pair(workshop)
  for fault in FAULTS[1::4] if quick else FAULTS:
    pair.suffer(fault, line, seconds=rng.uniform(0, 0.5))
  return line.row()


def _inflict(line: Line, fault: Fault, lives: list[Life], folder: pathlib.Path) -> float:
  """Sends the signal and checks how both end; returns the seconds that the other one took."""
  hit, other = lives[fault.of], lives[1 - fault.of]
  begun = time.monotonic()
  hit.process.send_signal(fault.number)
  try:
    code = other.wait(BOUND)
  except subprocess.TimeoutExpired:
    line.check(False, f"{fault.name}: the other still ran after {BOUND:.0f} s")
    other.process.kill()
    code = other.wait()
  seconds = time.monotonic() - begun
  line.check(code in fault.others, f"{fault.name}: the other ended with {code}: {other.last_words()}")
  said = f"Exit code {code}" if code > 0 else "distributed service" if code < 0 else ""
  line.check(said in other.err, f"{fault.name}: the other said: {other.last_words()}")
  if fault.number == signal.SIGSTOP:
    hit.process.kill()
  own = hit.wait(BOUND)
  if fault.number == signal.SIGTERM:
    done = last_logged(folder)
    line.check(own == 0, f"{fault.name}: it ended with {own}: {hit.last_words()}")
    line.check(
      stopped_at(folder) == done == max(steps_on_disk(folder), default=0),
      f"{fault.name}: {done} steps done, {steps_on_disk(folder)} saved, STOPPED says {stopped_at(folder)}",
    )
  return seconds
