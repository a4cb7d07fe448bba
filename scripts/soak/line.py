"""Line: a row of the tally in the making, fault by fault."""

import pathlib
import time

from scripts.soak.deaths import Reference
from scripts.soak.tally import Row, say
from scripts.soak.trainings import Life


class Line:
  """Counts what is tried, keeps what does not hold.

  Attributes:
    tried: to be raised by one for each fault. notes: of what was seen.

  Example: `line = Line("disk full"); line.tried += 1; line.check(code == 2, "ended with 0"); line.row()`.
  """

  def __init__(self, fault: str):
    self.fault, self.tried = fault, 0
    self.failures: list[str] = []
    self.notes: list[str] = []
    self._begun = time.monotonic()

  def check(self, holds: bool, otherwise: str) -> None:
    if not holds:
      say(f"FAILED: {self.fault}: {otherwise}")
      self.failures.append(otherwise)

  def check_end(self, reference: Reference, folder: pathlib.Path, life: Life) -> None:
    """The training has ended well, in the undisturbed one's bits."""
    if life.process.returncode != 0:
      self.check(False, f"ended with {life.process.returncode}: {life.last_words()}")
      return
    found = reference.differences(folder)
    self.check(not found, f"differs from the undisturbed training: {found[:5]}")

  def row(self) -> Row:
    seconds = time.monotonic() - self._begun
    return Row(self.fault, self.tried, tuple(self.failures), "; ".join(self.notes), seconds=seconds)
