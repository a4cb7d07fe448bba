"""Small folders in the LF layout, in each of its forms."""

import gzip
import json
import pathlib
from collections.abc import Mapping, Sequence

PACK = {"": bytes, ".gz": gzip.compress}
LABELS = ("red", "green", "blue", "a b")
# Text and labels of each point: the second has none, the last has labels in no order.
POINTS = {
  "trn": (("red ?", [0]), ("c", []), ("green a", [1, 3]), ("red green", [0, 1])),
  "tst": (("blue ?", [2]), ("a a", [3, 0])),
}
Points = Sequence[tuple[str, list[int]]]


def write(path: pathlib.Path, lines: Sequence[str], ending: str = "") -> pathlib.Path:
  """Writes lines of UTF-8, plain or compressed by the name's ending."""
  path.parent.mkdir(parents=True, exist_ok=True)
  file = path.with_name(path.name + ending)
  file.write_bytes(PACK[ending]("".join(f"{line}\n" for line in lines).encode()))
  return file


def sparse(rows: Sequence[list[int]], columns: int) -> list[str]:
  """Returns the lines of a sparse file."""
  return [f"{len(rows)} {columns}", *(" ".join(f"{label}:1.00000" for label in row) for row in rows)]


def write_json(
  folder: pathlib.Path,
  points: Mapping[str, Points] = POINTS,
  labels: Sequence[str] = LABELS,
  ending: str = ".gz",
) -> pathlib.Path:
  """Writes the layout of JSON lines."""
  write(folder / "lbl.json", [json.dumps({"title": label}) for label in labels], ending)
  for prefix, rows in points.items():
    records = ({"uid": f"x{len(row)}", "title": text, "target_ind": row} for text, row in rows)
    write(folder / f"{prefix}.json", [json.dumps(record) for record in records], ending)
  return folder


def write_text(
  folder: pathlib.Path,
  points: Mapping[str, Points] = POINTS,
  labels: Sequence[str] = LABELS,
  ending: str = "",
  names: tuple[str, str] = ("{}_X.txt", "Y.txt"),
) -> pathlib.Path:
  """Writes the layout of text and sparse files; `names` are those of points and labels."""
  write(folder / names[1], labels, ending)
  for prefix, rows in points.items():
    write(folder / names[0].format(prefix), [text for text, _ in rows], ending)
    write(folder / f"{prefix}_X_Y.txt", sparse([row for _, row in rows], len(labels)), ending)
  return folder
