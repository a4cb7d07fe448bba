"""kill -9 and SIGTERM at random moments, each followed by the same command, until the training is over."""

import pathlib
import random
import signal
import time
from collections import Counter

from scripts.soak.model_dir import (
  WRITING,
  differences,
  half_deleted,
  half_written,
  last_logged,
  steps_on_disk,
  stopped_at,
)
from scripts.soak.tally import Row, say
from scripts.soak.trainings import Life, Training, Workshop

PATIENCE = 900.0  # seconds
MOMENTS = ("in a save", "in training", "at any time")


class Reference:
  """A training that nothing disturbed. startup, whole: seconds to its first step, and to its end."""

  def __init__(self, workshop: Workshop, training: Training, name: str):
    self.training, self.folder = training, workshop.folder / "undisturbed" / name
    warm = workshop.run(workshop.command(training, workshop.folder / "warm" / name), f"{name}_warm")
    if warm.process.returncode != 0:
      raise RuntimeError(f"{training.name} does not train: {warm.last_words()}")
    life = workshop.start(workshop.command(training, self.folder), f"{name}_undisturbed")
    _wait_for_growth(self.folder, life, 0)
    self.startup = life.age
    life.wait()
    self.whole = life.age
    say(f"{training.name}: {self.startup:.1f} s to the first step, {self.whole:.1f} s in all")

  def differences(self, folder: pathlib.Path) -> list[str]:
    """Returns how a training that has ended differs from this one."""
    return differences(folder, self.folder, self.training.steps)


def reach(moment: str, folder: pathlib.Path, life: Life, reference: Reference, rng: random.Random) -> bool:
  """Waits for a random moment of this kind; returns whether the process still runs then."""
  if moment == "in a save":
    _wait_for_saves(folder, life, rng.randint(1, 4))
    time.sleep(rng.uniform(0, 0.06))
  elif moment == "in training":
    reach_of_log(folder, life)
    time.sleep(rng.uniform(0, 0.7 * (reference.whole - reference.startup)))
  else:
    time.sleep(rng.uniform(0, reference.whole))
  return life.process.poll() is None


def kills(workshop: Workshop, reference: Reference, name: str, count: int, rng: random.Random) -> Row:
  """kill -9 `count` times; whenever a training reaches its end, the next one begins in an empty folder."""
  return _Deaths(workshop, reference, f"{name}_kill", rng).until(count, signal.SIGKILL)


def stops(workshop: Workshop, reference: Reference, name: str, count: int, rng: random.Random) -> Row:
  """SIGTERM `count` times, likewise."""
  return _Deaths(workshop, reference, f"{name}_stop", rng).until(count, signal.SIGTERM)


class _Deaths:
  """A training that is ended again and again, and what has to hold each time."""

  def __init__(self, workshop: Workshop, reference: Reference, name: str, rng: random.Random):
    self.workshop, self.reference, self.name, self.rng = workshop, reference, name, rng
    self.failures: list[str] = []
    self.seen: Counter[str] = Counter()
    self.redone = self.rounds = self.lives = 0
    self.newest = 0  # the newest whole checkpoint when the last process ended

  def until(self, count: int, number: signal.Signals) -> Row:
    begun, died = time.monotonic(), 0
    while died < count:
      died += self._life(number, MOMENTS[died % len(MOMENTS)])
    if self.newest or steps_on_disk(self._folder):
      self._life(None, "")
    return Row(
      f"{number.name}, {self.reference.training.name}",
      died,
      tuple(self.failures),
      self._notes(number),
      seconds=time.monotonic() - begun,
    )

  @property
  def _folder(self) -> pathlib.Path:
    return self.workshop.folder / "runs" / f"{self.name}_{self.rounds}"

  def _life(self, number: signal.Signals | None, moment: str) -> bool:
    """Lets one process live until the moment, or to its end; returns whether it was ended."""
    folder, training = self._folder, self.reference.training
    self.lives += 1
    life = self.workshop.start(self.workshop.command(training, folder), f"{self.name}_{self.lives}")
    ended = number is not None and reach(moment, folder, life, self.reference, self.rng)
    if ended:
      assert number is not None
      life.process.send_signal(number)
    code = life.wait(PATIENCE)
    self._check_begin(life)
    if training.steps in steps_on_disk(folder) and code in (0, -signal.SIGKILL, -signal.SIGTERM):
      self._check_end()
      return ended
    if not ended:
      self._fail(f"life {self.lives} ended with {code} of itself: {life.last_words()}")
      self._next_round()
      return True
    self._check_death(life, code, moment)
    return True

  def _check_begin(self, life: Life) -> None:
    """It went on from the newest checkpoint, and found no damage."""
    at = life.begun_at()
    if at is not None and at != self.newest:
      self._fail(f"life {self.lives} went on from {at}, and the newest checkpoint was {self.newest}")
    if "cannot be read" in life.err or "Traceback" in life.err:
      self._fail(f"life {self.lives} said: {life.last_words()}")

  def _check_death(self, life: Life, code: int, moment: str) -> None:
    folder, period = self._folder, self.reference.training.period
    steps, logged = steps_on_disk(folder), last_logged(folder)
    newest = max(steps, default=0)
    if newest < self.newest:
      self._fail(f"life {self.lives}: checkpoint {self.newest} is gone, {steps} are there")
    if code == 0:  # asked to stop, and did
      if not newest == logged == stopped_at(folder):
        self._fail(f"life {self.lives} stopped after {logged}, saved {newest}, said {stopped_at(folder)}")
      self.seen["saved the step it was at"] += 1
    elif code in (-signal.SIGKILL, -signal.SIGTERM):
      if code == -signal.SIGTERM and life.begun_at() is not None and logged > newest:
        self._fail(
          f"life {self.lives} died of SIGTERM at step {logged}, and the newest checkpoint is {newest}"
        )
      # The step of a save is logged before the save waits for the one before it, which may be half written.
      if logged - newest > 2 * period:
        self._fail(f"life {self.lives}: {logged} steps done, and the newest checkpoint is {newest}")
    else:
      self._fail(f"life {self.lives} ended with {code}: {life.last_words()}")
    self.redone = max(self.redone, logged - newest)
    self.seen["before the first step"] += life.begun_at() is None or logged <= self.newest
    self.seen["half a checkpoint left"] += bool(half_written(folder))
    self.seen["half deleted"] += bool(half_deleted(folder))
    self.newest = newest
    say(f"  {moment}: step {logged}, checkpoints {steps} {' '.join(half_written(folder))}")

  def _check_end(self) -> None:
    found = self.reference.differences(self._folder)
    if found:
      self._fail(f"{self._folder.name} differs from the undisturbed training: {found[:5]}")
    else:
      self.seen["bit-equal at the end"] += 1
    self._next_round()

  def _next_round(self) -> None:
    self.rounds, self.newest = self.rounds + 1, 0

  def _fail(self, message: str) -> None:
    say(f"FAILED: {message}")
    self.failures.append(message)

  def _notes(self, number: signal.Signals) -> str:
    seen = [f"{times} {what}" for what, times in sorted(self.seen.items()) if times]
    redone = [f"at most {self.redone} steps to do again"] if number == signal.SIGKILL else []
    return "; ".join([*seen, *redone])


def _size(folder: pathlib.Path) -> int:
  file = folder / "train" / "log.jsonl"
  return file.stat().st_size if file.exists() else 0


def reach_of_log(folder: pathlib.Path, life: Life) -> None:
  """Waits until a training that has just been started logs a step, or ends."""
  _wait_for_growth(folder, life, _size(folder))


def _wait_for_growth(folder: pathlib.Path, life: Life, size: int) -> None:
  while life.process.poll() is None and _size(folder) <= size and life.age < PATIENCE:
    time.sleep(0.002)


def _wait_for_saves(folder: pathlib.Path, life: Life, count: int) -> None:
  """Returns when the process has begun so many saves; what an earlier one left is gone before."""
  seen: set[str] = set()
  before = set(half_written(folder))
  while life.process.poll() is None and life.age < PATIENCE:
    names = {path.name for path in folder.glob(WRITING)}
    before &= names
    seen |= names - before
    if len(seen) >= count:
      return
    time.sleep(0.001)
