"""The parameter report: what became of every parameter when a model changes frameworks."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final, Literal, NamedTuple

Status = Literal["taken", "reshaped", "left", "missing"]
STATUSES: Final[tuple[Status, ...]] = ("taken", "reshaped", "left", "missing")


class Parameter(NamedTuple):
  """One line. source, target: its name on either side, "" where it has none. shape: as it is in the source ("missing":
  as it would have to be). note: why it was left, or how it was reshaped.
  """

  source: str
  target: str
  status: Status
  shape: tuple[int, ...]
  note: str = ""


class ParameterReport(tuple[Parameter, ...]):
  """All parameters: "taken" as they are, "reshaped" (transposed, unstacked, rows added), "left" behind, "missing".

  Example: `print(ParameterReport([Parameter("wte.weight", "token_embedder/embedding", "taken", (32128, 512))]))`.
  """

  __slots__ = ()

  def __new__(cls, parameters: Iterable[Parameter] = ()) -> "ParameterReport":
    return super().__new__(cls, parameters)

  def of(self, status: Status) -> Sequence[Parameter]:
    """Returns the parameters with this status."""
    return [parameter for parameter in self if parameter.status == status]

  @property
  def summary(self) -> str:
    """One line of counts, such as "101 taken, 0 reshaped, 2 left, 0 missing"."""
    counts = Counter(parameter.status for parameter in self)
    return ", ".join(f"{counts[status]} {status}" for status in STATUSES)

  def __str__(self) -> str:
    """One line a parameter, then the counts."""
    if not self:
      return self.summary
    rows = [(p.status, p.source or "-", p.target or "-", "x".join(map(str, p.shape)), p.note) for p in self]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    lines = [
      "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[4]]).rstrip()
      for row in rows
    ]
    return "\n".join([*lines, self.summary])
