"""Compares runs from common to rare labels: `plot_deciles.py LABEL=EVAL_FOLDER ... --out deciles.png`."""

import argparse
import os
import pathlib
import sys
from collections.abc import Sequence

from retrieval_jax.decile_report import DECILES_FILE, SHOWN, Runs, deciles_text, plot_deciles, read_deciles
from retrieval_jax.errors import UserError
from retrieval_jax.paths import output_file


def main(argv: Sequence[str] | None = None) -> int:
  """Parses the command line, draws and prints; returns the exit status."""
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument(
    "runs",
    nargs="+",
    metavar="LABEL=EVAL_FOLDER",
    help="MODEL_DIR/eval/<task>/step_<n> of each; without LABEL= it is called by the folder's last name",
  )
  parser.add_argument("--metric", default=SHOWN, help="a column of deciles.tsv")
  parser.add_argument("--out", help="a PNG file; without it the table alone is printed")
  flags = parser.parse_args(argv)
  try:
    out = flags.out and _png(flags.out)
    runs = _read(flags.runs)
    text = deciles_text(runs, flags.metric)
    if out:
      plot_deciles(out, runs, flags.metric)
  except (UserError, OSError) as error:
    print(f"error: {error}", file=sys.stderr)
    return 2
  try:
    print(text, flush=True)
  except BrokenPipeError:  # the reader, such as head, has seen enough
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
  return 0


def _png(path: str) -> pathlib.Path:
  if pathlib.Path(path).suffix.lower() != ".png":
    raise UserError(f"--out {path}: expected a name that ends in .png; the plot is a PNG file.")
  return output_file(path, "--out")


def _read(named: Sequence[str]) -> Runs:
  """Returns the deciles of each run by its label."""
  runs, folders = {}, {}
  for run in named:
    label, _, folder = run.rpartition("=")
    label = label or pathlib.Path(folder).name
    if label in runs:
      raise UserError(
        f"two runs are called {label!r} ({folders[label]} and {folder}). Give each a label of its own: LABEL=EVAL_FOLDER."
      )
    runs[label], folders[label] = read_deciles(pathlib.Path(folder) / DECILES_FILE), folder
  return runs


if __name__ == "__main__":
  sys.exit(main())
