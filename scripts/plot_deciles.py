"""Compares runs from common to rare labels: `plot_deciles.py LABEL=EVAL_FOLDER ... --out deciles.png`."""

import argparse
import pathlib
import sys

from retrieval_jax.decile_report import DECILES_FILE, SHOWN, deciles_text, plot_deciles, read_deciles
from retrieval_jax.errors import UserError


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument(
    "runs", nargs="+", metavar="LABEL=EVAL_FOLDER", help="MODEL_DIR/eval/<task>/step_<n> of each"
  )
  parser.add_argument("--metric", default=SHOWN, help="a column of deciles.tsv")
  parser.add_argument("--out", help="a PNG file; without it the table alone is printed")
  flags = parser.parse_args()
  runs = {}
  try:
    for run in flags.runs:
      label, _, folder = run.rpartition("=")
      runs[label or pathlib.Path(folder).name] = read_deciles(pathlib.Path(folder) / DECILES_FILE)
    print(deciles_text(runs, flags.metric))
    if flags.out:
      plot_deciles(flags.out, runs, flags.metric)
  except UserError as error:
    sys.exit(f"error: {error}")


if __name__ == "__main__":
  main()
