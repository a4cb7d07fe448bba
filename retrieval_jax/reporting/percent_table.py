"""Tables for people: metrics as percent in fixed columns."""

from collections.abc import Mapping


def table(rows: Mapping[str, Mapping[str, float]]) -> str:
  """Returns a plain-text table: one line a row, one column a metric, values in percent with one decimal.

  Columns are the metrics of all rows, in the order they first come; a missing value prints as "-".

  Example: `table({"bm25": {"p@1": 0.387}})`.
  """
  names = list(dict.fromkeys(name for values in rows.values() for name in values))
  width = max(len(label) for label in rows)
  lines = [" " * width + "".join(f"{name:>12}" for name in names)]
  for label, values in rows.items():
    cells = "".join(f"{100 * values[name]:>12.1f}" if name in values else f"{'-':>12}" for name in names)
    lines.append(f"{label:<{width}}{cells}")
  return "\n".join(lines)
