"""The table at the end: what was tried how often, how often all of it held, and what was seen on the way."""

import sys
from typing import NamedTuple


class Row(NamedTuple):
  """One kind of fault. tried: how often it happened; failures: what did not hold, empty is what is wanted; notes: what was
  seen. skipped: why it could not be tried here, or None."""

  fault: str
  tried: int
  failures: tuple[str, ...] = ()
  notes: str = ""
  skipped: str | None = None
  seconds: float = 0.0

  @property
  def holds(self) -> bool:
    return not self.failures and (self.tried > 0 or self.skipped is not None)


def table(rows: list[Row]) -> str:
  """Returns the rows as text, widest first column first."""
  width = max(len(row.fault) for row in rows)
  lines = [f"{'fault':<{width}}  tried   held  seconds  what was seen"]
  for row in rows:
    held = "-" if row.skipped else str(row.tried - min(len(row.failures), row.tried))
    notes = f"skipped: {row.skipped}" if row.skipped else row.notes
    lines.append(f"{row.fault:<{width}}  {row.tried:>5}  {held:>5}  {row.seconds:>7.0f}  {notes}")
    lines += [f"  FAILED: {failure}" for failure in row.failures]
  return "\n".join(lines)


def say(message: str) -> None:
  """Prints what is going on."""
  print(message, file=sys.stderr, flush=True)
