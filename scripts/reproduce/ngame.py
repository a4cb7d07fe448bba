"""The runs of scripts/reproduce/ngame.sh, one program call each, and their table.

Every row is a call of retrieval_jax.train or retrieval_jax.eval as a user would make it; the CPU seconds are those of the
training's process. A run whose results are there is not repeated.
"""

import argparse
import json
import os
import pathlib
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

COLUMNS = ("p@1", "p@5", "psp@1", "psp@5", "ndcg@5")
BATCH = 128
LENGTHS = (
  "--gin.QUERY_LENGTH=24",
  "--gin.PASSAGE_LENGTH=8",
)  # of nine titles in ten and nearly all labels; the rest is cut
EVAL_LENGTHS = ("--gin.QUERY_LENGTH=64", "--gin.PASSAGE_LENGTH=16")
# Of six layers the lower ones stay as they are, as does the token table: a third less time. --all_layers trains all.
LOWER_HALF = "('token_embedder/.*', 'encoder/embedding_layer_norm/.*', 'encoder/layers_[0-2]/.*')"
# A rival whose training takes more CPU time than this share of the random batches' is also cut to equal time. What one training
# takes varies by a tenth from run to run (458 and 497 s were measured), so less than a fifth is equal time already.
SLOWER = 1.2

# In epochs: clusters of 16 from the first on; a curriculum of 4, then 32.
RIVALS = {
  "random in-batch": ("--gin.IN_BATCH_HARDNESS=10",),
  "TAS-like": ("--gin_file=batching/tas.gin", "--gin.TOPIC_SIZE=16"),
  "ANCE-like": ("--gin_file=negatives/ance.gin", "--gin.IN_BATCH_HARDNESS=10"),
  "NGAME, C = 16": (
    "--gin_file=batching/ngame.gin",
    "--gin.CLUSTER_SIZES=((0, 16),)",
    "--gin.REFRESH_EPOCHS=1",
  ),
  "NGAME, curriculum": (
    "--gin_file=batching/ngame.gin",
    "--gin.CLUSTER_SIZES={curriculum}",
    "--gin.REFRESH_EPOCHS=1",
  ),
}


class Settings(NamedTuple):
  """What the flags say."""

  data: pathlib.Path
  run: pathlib.Path
  epochs: int
  seeds: int
  learning_rate: float
  all_layers: bool

  @property
  def task(self) -> tuple[str, ...]:
    return ("--gin_file=data/extreme.gin", f"--gin.DATA_PATH={str(self.data)!r}", "--gin.HELD_OUT=0.05")

  @property
  def curriculum(self) -> str:
    """Random batches of like titles get harder over the epochs."""
    sizes = (4, 32) if self.epochs < 4 else (1, 4, 8, 16, 32)
    starts = [round(i * self.epochs / len(sizes)) for i in range(len(sizes))]
    return str(tuple(zip(starts, sizes, strict=True)))


class Row(NamedTuple):
  """A line of the table: the metrics of each seed, the CPU seconds and the steps of the training."""

  metrics: list[dict[str, float]]
  cpu_seconds: float | None = None
  steps: int | None = None
  hardness: float | None = None


def program(name: str, *flags: str) -> float:
  """Runs a program and returns its CPU seconds; its output goes to the terminal."""
  command = [sys.executable, "-m", f"retrieval_jax.{name}", *flags]
  print("+ " + " ".join(command[1:]), flush=True)
  before = resource.getrusage(resource.RUSAGE_CHILDREN)
  subprocess.run(command, check=True)
  after = resource.getrusage(resource.RUSAGE_CHILDREN)
  return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def evaluated(settings: Settings, folder: pathlib.Path, *flags: str, kind: str = "") -> dict[str, float]:
  """Returns the test metrics of a MODEL_DIR, computing them if they are not there. kind: the searcher's name."""
  pattern = f"eval/{settings.data.name}/{kind}step_*/metrics.json"
  if not list(folder.glob(pattern)):
    program("eval", *settings.task, *EVAL_LENGTHS, *flags, f"--gin.MODEL_DIR={folder}")
  newest = max(folder.glob(pattern), key=lambda path: int(path.parent.name.rsplit("_", 1)[1]))
  record = json.loads(newest.read_text(encoding="utf-8"))
  return {name: record[name] for name in COLUMNS}


def trained(settings: Settings, name: str, steps: int, seed: int) -> tuple[pathlib.Path, float, float]:
  """Returns the MODEL_DIR of a rival after so many steps, the CPU seconds, and the mean in-batch hardness."""
  slug = "".join(c if c.isalnum() else "_" for c in name.lower())
  folder = settings.run / f"{slug}_{steps}_{seed}"
  record = folder / "cpu_seconds.json"
  if not record.exists():
    rival = [flag.format(curriculum=settings.curriculum) for flag in RIVALS[name]]
    flags = (
      "--gin_file=models/minilm.gin",
      "--gin_file=losses/triplet_ngame.gin",
      *settings.task,
      *LENGTHS,
      *rival,
      f"--gin.BATCH_SIZE={BATCH}",
      f"--gin.TRAIN_STEPS={steps}",
      f"--gin.WARMUP_STEPS={max(1, steps // 10)}",
      f"--gin.LEARNING_RATE={settings.learning_rate}",
      "--gin.DROPOUT_RATE=0.0",
      f"--gin.FROZEN={'()' if settings.all_layers else LOWER_HALF}",
      f"--gin.SEED={seed}",
      f"--gin.MODEL_DIR={folder}",
    )
    if not (folder / f"checkpoint_{steps}").exists():
      program("train", *flags, "--gin.DRY_RUN=True")  # tokenises, so that no run pays for all
    seconds = program("train", *flags)
    record.write_text(json.dumps({"cpu_seconds": seconds}), encoding="utf-8")
  seconds = json.loads(record.read_text(encoding="utf-8"))["cpu_seconds"]
  lines = map(json.loads, (folder / "train" / "log.jsonl").read_text(encoding="utf-8").splitlines())
  hardness = [line["in_batch_hardness"] for line in lines if "in_batch_hardness" in line]
  return folder, seconds, float(np.mean(hardness))


def rivals(settings: Settings, steps: int, only: Sequence[str]) -> dict[str, Row]:
  """Returns a row for each rival, trained for `steps` steps with every seed."""
  rows = {}
  for name in only:
    runs = [trained(settings, name, steps, seed) for seed in range(settings.seeds)]
    metrics = [evaluated(settings, folder) for folder, _, _ in runs]
    rows[name] = Row(
      metrics, float(np.mean([r[1] for r in runs])), steps, float(np.mean([r[2] for r in runs]))
    )
    show(name, rows[name])
  return rows


def heads(settings: Settings, name: str, steps: int) -> dict[str, Row]:
  """Returns the rows of label classifiers and of fusion on top of a rival's encoder."""
  classifiers, fused = [], []
  seconds = 0.0
  for seed in range(settings.seeds):
    folder, _, _ = trained(settings, name, steps, seed)
    if not list(folder.glob("classifiers/fusion_done")):
      seconds += program(
        "train_classifiers",
        *settings.task,
        *EVAL_LENGTHS,
        "--gin.TRAIN_STEPS=200",
        "--gin.WARMUP_STEPS=20",
        f"--gin.SEED={seed}",
        f"--gin.MODEL_DIR={folder}",
      )
      program("fuse", *settings.task, *EVAL_LENGTHS, f"--gin.MODEL_DIR={folder}")
      (folder / "classifiers" / "fusion_done").write_text(f"{seconds}\n", encoding="utf-8")
    flag = "--gin_file=searchers/heads.gin"
    classifiers.append(evaluated(settings, folder, flag, kind="classifiers_"))
    fused.append(evaluated(settings, folder, flag, kind="fused_"))
  return {f"{name} + classifiers (M2)": Row(classifiers), f"{name} + fusion": Row(fused)}


def show(name: str, row: Row) -> None:
  """Prints one line of the table: percent, with the spread of the seeds where there are several."""
  cells = []
  for column in COLUMNS:
    values = 100 * np.array([metrics[column] for metrics in row.metrics])
    spread = f"±{values.std(ddof=1):.1f}" if len(values) > 1 else ""
    cells.append(f"{values.mean():.1f}{spread}".rjust(9))
  extra = [
    "" if row.steps is None else f"{row.steps}",
    "" if row.cpu_seconds is None else f"{row.cpu_seconds:.0f}",
    "" if row.hardness is None else f"{row.hardness:.3f}",
  ]
  print(f"{name:36}" + "".join(cells) + "".join(x.rjust(9) for x in extra), flush=True)


def print_table(rows: dict[str, Row]) -> None:
  print(f"\n{'':36}" + "".join(x.rjust(9) for x in (*COLUMNS, "steps", "CPU s", "hardness")))
  for name, row in rows.items():
    show(name, row)


def num_points(data: pathlib.Path) -> int:
  """Returns how many points are trained on: those with a label that are not held out."""
  from retrieval_jax.data import features
  from retrieval_jax.data.extreme import ExtremeFolder

  examples = ExtremeFolder(str(data), "train", held_out=0.05).examples("train")
  return len(
    {example[features.QUERY_ID] for example in examples if int(str(example[features.RELEVANCE])) > 0}
  )


def check(flags: argparse.Namespace) -> None:
  """Raises UserError for flags with which nothing could be run."""
  from retrieval_jax.data.extreme_files import PREFIXES, extreme_files
  from retrieval_jax.errors import UserError

  for name in ("epochs", "seeds"):
    if getattr(flags, name) < 1:
      raise UserError(f"--{name} {getattr(flags, name)}: expected a whole number of at least 1.")
  if not 0 < flags.learning_rate < float("inf"):
    raise UserError(f"--learning_rate {flags.learning_rate}: expected a number above 0.")
  points = extreme_files(flags.data).points
  for split, prefix in PREFIXES.items():
    if split not in points:
      raise UserError(f"{flags.data}: no points to {split} with, {prefix}.json or {prefix}_X.txt.")


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  shared = os.environ.get("RETRIEVAL_JAX_DATA")
  parser.add_argument(
    "--data",
    type=pathlib.Path,
    default=shared and pathlib.Path(shared) / "xc_yso_titles_small",
    help="a folder in the LF layout; default xc_yso_titles_small in RETRIEVAL_JAX_DATA",
  )
  parser.add_argument(
    "--run",
    type=pathlib.Path,
    default=pathlib.Path("runs/ngame"),
    help="the folder of all models and results; default runs/ngame",
  )
  parser.add_argument("--epochs", type=int, default=2, help="of each training; default 2")
  parser.add_argument(
    "--seeds", type=int, default=1, help="trainings of each rival, with the seeds 0, 1, ...; default 1"
  )
  parser.add_argument("--learning_rate", type=float, default=2e-4, help="of each training; default 2e-4")
  parser.add_argument(
    "--all_layers", action="store_true", help="train all layers and the token table, not the upper half alone"
  )
  flags = parser.parse_args()
  if flags.data is None:
    parser.error(
      "--data: name a folder in the LF layout, or set RETRIEVAL_JAX_DATA to the folder of xc_yso_titles_small"
    )
  try:
    check(flags)
  except ValueError as error:  # a UserError
    print(f"error: {error}", file=sys.stderr)
    sys.exit(2)
  start = time.monotonic()
  data = flags.data.absolute()
  settings = Settings(
    data, flags.run / data.name, flags.epochs, flags.seeds, flags.learning_rate, flags.all_layers
  )
  steps = settings.epochs * (num_points(settings.data) // BATCH)
  model = "--gin_file=models/minilm.gin"
  rows = {
    "BM25": Row(
      [evaluated(settings, settings.run / "bm25", model, "--gin_file=searchers/bm25.gin", kind="bm25_")]
    ),
    "MiniLM as it is": Row([evaluated(settings, settings.run / "zero_shot", model)]),
  }
  rows |= rivals(settings, steps, list(RIVALS))
  base = rows["random in-batch"].cpu_seconds or 1.0
  equal = {
    name: round(steps * base / (row.cpu_seconds or base)) for name, row in rows.items() if name in RIVALS
  }
  for name, fewer in equal.items():
    if fewer * SLOWER < steps:
      rows |= {f"{name}, equal CPU time": row for row in rivals(settings, fewer, [name]).values()}
  rows |= heads(settings, "NGAME, curriculum", steps)
  print_table(rows)
  print(f"\ntook {time.monotonic() - start:.0f} s")


if __name__ == "__main__":
  main()
