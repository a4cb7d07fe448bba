"""Deciles from head to tail as a file, as plain text and as a plot of one or several runs."""

import os
import pathlib
import sys
from collections.abc import Mapping, Sequence

from retrieval_jax.errors import UserError
from retrieval_jax.metrics.deciles import Decile
from retrieval_jax.paths import atomic_write

DECILES_FILE, PLOT_FILE = "deciles.tsv", "deciles.png"
COLUMNS = ("decile", "labels", "unseen", "most", "least", "pairs", "share")
SHOWN = "p@5"

Runs = Mapping[str, Sequence[Decile]]  # name of a run -> its deciles


def write_deciles(path: str | os.PathLike[str], deciles: Sequence[Decile]) -> None:
  """Writes one line a decile under a header, tab-separated, whole or not at all: the fields of Decile, 1 the head.

  Example: `write_deciles("deciles.tsv", result.deciles)`.
  """
  names = list(deciles[0].values)
  with atomic_write(path) as file:
    file.write("\t".join([*COLUMNS, *names]) + "\n")
    for number, decile in enumerate(deciles, start=1):
      numbers = [number, *decile[:-1], *(decile.values[name] for name in names)]
      file.write("\t".join(map(repr, numbers)) + "\n")


def read_deciles(path: str | os.PathLike[str]) -> list[Decile]:
  """Returns what `write_deciles` wrote.

  Raises: UserError, with the line, for a file that is not there, is cut off or is no such table.
  """
  if not pathlib.Path(path).is_file():
    raise UserError(f"{path}: no such file. Evaluate a task with label counts first; eval writes it.")
  *lines, rest = pathlib.Path(path).read_bytes().decode(errors="replace").split("\n")
  header = lines[0].split("\t") if lines else []
  if rest or len(lines) < 2 or tuple(header[: len(COLUMNS)]) != COLUMNS:
    raise UserError(f"{path}:1: not a whole table of deciles; its columns must begin {', '.join(COLUMNS)}.")
  deciles = []
  for number, line in enumerate(lines[1:], start=2):
    try:
      _, *numbers = line.split("\t")
      values = dict(zip(header[len(COLUMNS) :], map(float, numbers[6:]), strict=True))
      labels, unseen, most, least, pairs = map(int, numbers[:5])
      deciles.append(Decile(labels, unseen, most, least, pairs, float(numbers[5]), values))
    except (ValueError, IndexError) as error:
      raise UserError(f"{path}:{number}: not a line of a table of deciles: {error}.") from error
  return deciles


def report_deciles(folder: pathlib.Path, run: str, deciles: Sequence[Decile]) -> None:
  """Writes deciles.tsv and deciles.png into a folder; says so if there is no matplotlib to draw with."""
  write_deciles(folder / DECILES_FILE, deciles)
  try:
    plot_deciles(folder / PLOT_FILE, {run: deciles})
  except UserError as error:  # no matplotlib
    print(f"warning: {PLOT_FILE} is not drawn; {DECILES_FILE} has its numbers. {error}", file=sys.stderr)


def deciles_text(runs: Runs, metric: str = SHOWN) -> str:
  """Returns a table for people: a line a decile, a column a run, the metric in percent and for "p@K" its sum below.

  Raises: UserError for runs of other deciles, and for a metric that one does not have.
  """
  _check(runs, metric)
  width = max(12, *(len(name) + 2 for name in runs))
  first = next(iter(runs.values()))
  names = "".join(f"{name:>{width}}" for name in runs)
  lines = [f"decile  {'labels':>10}{'trained on':>16}{'pairs':>8}{names}"]
  for number, decile in enumerate(first):
    span = f"{decile.most:,} .. {decile.least:,}"
    cells = "".join(f"{100 * deciles[number].values[metric]:>{width}.2f}" for deciles in runs.values())
    lines.append(f"{number + 1:>6}  {decile.labels:>10,}{span:>16}{100 * decile.share:>7.1f}%{cells}")
  unseen = sum(decile.unseen for decile in first)
  if metric.startswith("p@"):
    sums = (100 * sum(decile.values[metric] for decile in deciles) for deciles in runs.values())
    lines.append(f"{metric:<42}" + "".join(f"{value:>{width}.2f}" for value in sums))
  lines.append(f"{unseen:,} labels have no training point.")
  return "\n".join(lines)


def plot_deciles(path: str | os.PathLike[str], runs: Runs, metric: str = SHOWN) -> None:
  """Draws the metric of every decile, a group of bars each with one bar a run, as a PNG file, whole or not at all.

  Raises: UserError if matplotlib is not installed, for runs of other deciles, and for a metric that one does not have.

  Example: `plot_deciles("deciles.png", {"zero-shot": read_deciles("a/deciles.tsv"), "ngame": deciles})`.
  """
  _check(runs, metric)
  try:
    from matplotlib.figure import Figure
  except ImportError as error:
    raise UserError(
      f"Plots need the package matplotlib ({error}). Install it with `pip install 'retrieval-jax[plots]'`."
    ) from error
  first = next(iter(runs.values()))
  figure = Figure(figsize=(8, 4), layout="constrained")
  axes = figure.add_subplot()
  width = 0.8 / len(runs)
  for number, (name, deciles) in enumerate(runs.items()):
    places = [place + (number - (len(runs) - 1) / 2) * width for place in range(len(first))]
    axes.bar(places, [100 * decile.values[metric] for decile in deciles], width, label=name)
  axes.set_xticks(
    range(len(first)), [f"{number + 1}\n{d.most:,}\n.. {d.least:,}" for number, d in enumerate(first)]
  )
  axes.set_xlabel("decile of labels, head to tail, and their training points")
  axes.set_ylabel(f"contribution to {metric}, %" if metric.startswith("p@") else f"{metric}, %")
  figure.legend(loc="outside upper center", ncols=len(runs))
  with atomic_write(path, "wb") as file:
    figure.savefig(file, format="png", dpi=120)


def _check(runs: Runs, metric: str) -> None:
  shapes = {name: [decile[:5] for decile in deciles] for name, deciles in runs.items()}
  first, *others = shapes
  for name in others:
    if shapes[name] != shapes[first]:
      raise UserError(f"{first} and {name} have other deciles: they are not of one task and split.")
  for name, deciles in runs.items():
    if metric not in deciles[0].values:
      raise UserError(f"{name}: no {metric!r} in its deciles; there are {', '.join(deciles[0].values)}.")
