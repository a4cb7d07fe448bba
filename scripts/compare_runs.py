"""Prints the newest metrics.json of several MODEL_DIRs as one table: `compare_runs.py TASK LABEL=MODEL_DIR ...`."""

import argparse
import json
import pathlib
import sys

from retrieval_jax.data.features import TaskInfo
from retrieval_jax.reporting import table


def newest_metrics(model_dir: pathlib.Path, task: str) -> dict[str, float]:
  """Returns the metrics of the highest step that was evaluated; exits with a message when there is none."""
  steps = sorted(
    (model_dir / "eval" / task).glob("*step_*/metrics.json"),
    key=lambda p: int(p.parent.name.rsplit("_", 1)[1]),
  )
  if not steps:
    sys.exit(f"error: no {model_dir}/eval/{task}/step_*/metrics.json; run retrieval_jax.eval first")
  record = json.loads(steps[-1].read_text(encoding="utf-8"))
  return {name: record[name] for name in TaskInfo().metrics if name in record}


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument("task")
  parser.add_argument("runs", nargs="+", metavar="LABEL=MODEL_DIR")
  flags = parser.parse_args()
  rows = {}
  for run in flags.runs:
    label, _, folder = run.partition("=")
    rows[label] = newest_metrics(pathlib.Path(folder or label), flags.task)
  print(table(rows))


if __name__ == "__main__":
  main()
