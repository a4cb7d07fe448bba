"""The runs of scripts/reproduce/gramian.sh and their tables: MAP@10 by estimator, on graphs.

Every row is a call of retrieval_jax.train as a user would make it, whose last checkpoint is evaluated; a run whose numbers are
there is not repeated. Two run side by side, each on a core of its own.
"""

import argparse
import concurrent.futures
import hashlib
import json
import os
import pathlib
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from retrieval_jax.paths import atomic_write

MODEL = ("--gin_file=models/feature_bag_tiny.gin", "--gin_file=optimizers/sgd_adagrad_tables.gin")
SLOWER = (
  1.1  # an estimator whose step takes more than so many times the fastest one's is also cut to equal time
)
SHORT = 20  # with fewer steps a run says nothing

SAMPLING, SOGRAM = "sampling", "SOGram .05"
LOSSES = {
  SAMPLING: ("--gin_file=losses/batch_gravity.gin",),
  "sampling, one batch": ("--gin_file=losses/batch_gravity.gin", "--gin.GRAVITY_BATCHES='in_batch'"),
  SOGRAM: ("--gin_file=losses/sogram.gin", "--gin.GRAVITY_ALPHA=0.05"),
  "SOGram .05, two batches": (
    "--gin_file=losses/sogram.gin",
    "--gin.GRAVITY_ALPHA=0.05",
    "--gin.GRAVITY_BATCHES='two'",
  ),
  "SOGram .01": ("--gin_file=losses/sogram.gin", "--gin.GRAVITY_ALPHA=0.01"),
  "SAGram": ("--gin_file=losses/sagram.gin",),
}


class Part(NamedTuple):
  """A table: a graph, a setting, and the estimators compared in it. single: those that one seed does for."""

  title: str
  data: tuple[str, ...]
  steps: int
  weight: float
  estimators: tuple[str, ...]
  single: tuple[str, ...] = ()
  marginal: str = "frequency"
  seeds: int | None = None
  equal_time: bool = False


def parts_of(shared: pathlib.Path) -> dict[str, Part]:
  """Returns all tables by the names that --parts takes."""
  wiki = ("--gin_file=data/link_graph.gin", f"--gin.DATA_PATH={str(shared / 'graph_wikispeedia')!r}")
  packages = (
    "--gin_file=data/debian_packages.gin",
    f"--gin.DATA_PATH={str(shared / 'graph_debian')!r}",
    "--gin.BAG_FEATURES={'id': ('values', 'id'), 'ngrams': ('ngrams', 'title', 'text'), "
    "'categories': ('values', 'section', 'tags')}",
    "--gin.SAMPLE_QUERIES=2000",
  )
  planted = ("--gin_file=data/planted_graph.gin", "--gin.SAMPLE_QUERIES=2000")
  return {
    "wikispeedia": Part("wikispeedia, 4.6K pages", wiki, 8000, 10.0, (SAMPLING, SOGRAM)),
    "packages": Part(
      "Debian packages, 60K",
      packages,
      10_000,
      10.0,
      (SAMPLING, SOGRAM, "SOGram .05, two batches", "SOGram .01", "SAGram", "sampling, one batch"),
      single=("SOGram .05, two batches", "SOGram .01", "SAGram", "sampling, one batch"),
      equal_time=True,
    ),
    "uniform": Part(
      "Debian packages, uniform passages",
      packages,
      10_000,
      30.0,
      (SAMPLING, SOGRAM),
      marginal="uniform",
      seeds=1,
    ),
    "planted": Part(
      "planted, 300K items, uniform passages",
      planted,
      10_000,
      100.0,
      (SAMPLING, SOGRAM),
      marginal="uniform",
      seeds=2,
    ),
  }


class Run(NamedTuple):
  """One training: its flags and its folder, which a hash of them names, so that no other settings' result is taken for it."""

  part: Part
  estimator: str
  steps: int
  seed: int
  root: pathlib.Path

  @property
  def folder(self) -> pathlib.Path:
    """Where the model and its numbers go."""
    settings = hashlib.sha256(" ".join(self.flags).encode()).hexdigest()[:8]
    return self.root / f"{slug(self.estimator)}_{self.steps}_{self.seed}_{settings}"

  @property
  def command(self) -> list[str]:
    """The call of the program."""
    return [*self.flags, f"--gin.MODEL_DIR={self.folder}"]

  @property
  def flags(self) -> list[str]:
    """The call but for its folder."""
    return [
      sys.executable,
      "-m",
      "retrieval_jax.train",
      *MODEL,
      *LOSSES[self.estimator],
      *self.part.data,
      "--gin_file=evaluators/retrieval.gin",
      "--gin.METRICS=('map@10',)",
      "--gin.TRAIN_EXAMPLES='pairs'",
      f"--gin.PASSAGE_MARGINAL={self.part.marginal!r}",
      f"--gin.GRAVITY_WEIGHT={self.part.weight}",
      f"--gin.TRAIN_STEPS={self.steps}",
      f"--gin.CHECKPOINT_PERIOD={self.steps}",
      "--gin.LOG_PERIOD=100",
      f"--gin.SEED={self.seed}",
    ]


class Result(NamedTuple):
  """What a run gave: MAP@10, and the time of a step where nothing else disturbs it: what nine in ten stretches exceed."""

  map10: float
  milliseconds: float


CORES = threading.local()


def result_of(run: Run) -> Result:
  """Returns the numbers of a run, training if they are not there. Its output goes to log.txt in its folder."""
  record = run.folder / "result.json"
  if not record.exists():
    run.folder.mkdir(parents=True, exist_ok=True)
    with open(run.folder / "log.txt", "w", encoding="utf-8") as log:
      core = getattr(CORES, "number", None)
      pin = None if core is None else (lambda: os.sched_setaffinity(0, {core}))
      done = subprocess.run(run.command, stdout=log, stderr=subprocess.STDOUT, preexec_fn=pin)
    if done.returncode:
      tail = (run.folder / "log.txt").read_text(encoding="utf-8")[-1500:]
      raise SystemExit(
        f"{run.folder / 'log.txt'}: the training failed with status {done.returncode}:\n{tail}"
      )
    with atomic_write(record) as file:
      json.dump(_read(run.folder)._asdict(), file)
  return Result(**json.loads(record.read_text(encoding="utf-8")))


def _read(folder: pathlib.Path) -> Result:
  lines = [
    json.loads(line) for line in (folder / "train" / "log.jsonl").read_text(encoding="utf-8").splitlines()
  ]
  scores = [value for line in lines for name, value in line.items() if name.endswith("/map@10")]
  rates = [line["examples_per_second"] for line in lines if "examples_per_second" in line]
  return Result(scores[-1], 1000 * 128 / float(np.percentile(rates, 90)))


def slug(text: str) -> str:
  """Returns a text as the name of a folder."""
  return "".join(c if c.isalnum() else "_" for c in text.lower())


def table(name: str, part: Part, root: pathlib.Path, seeds: int) -> None:
  """Trains what a table needs and prints it."""

  def runs_of(estimator: str, steps: int) -> list[Run]:
    count = 1 if estimator in part.single else (part.seeds or seeds)
    return [Run(part, estimator, steps, seed, root / name) for seed in range(count)]

  rows = together({estimator: runs_of(estimator, part.steps) for estimator in part.estimators})
  if part.equal_time:
    times = {estimator: min(r.milliseconds for r in rows[estimator]) for estimator in part.estimators[:2]}
    fewer = {}
    for estimator in part.estimators[:2]:
      steps = round(part.steps * min(times.values()) / times[estimator])
      if SHORT < steps < part.steps / SLOWER:
        fewer[f"{estimator}, {steps:,} steps: equal time"] = runs_of(estimator, steps)
    rows |= together(fewer)
  print(
    f"\n{part.title}: lambda {part.weight:g}, {part.marginal} marginal, batches of 128, {part.steps:,} steps"
  )
  print(f"{'':44} {'MAP@10':>16} {'seeds':>6} {'gain':>7} {'ms a step':>10}")
  base = float(np.mean([r.map10 for r in rows[SAMPLING]]))
  for estimator, results in rows.items():
    values = np.array([r.map10 for r in results])
    spread = f" ±{values.std(ddof=1):.4f}" if len(values) > 1 else ""
    gain = "" if estimator == SAMPLING else f"{100 * (values.mean() / base - 1):+.1f}%"
    times = min(r.milliseconds for r in results)
    print(
      f"{estimator:44} {f'{values.mean():.4f}{spread}':>16} {len(values):>6} {gain:>7} {times:>10.2f}",
      flush=True,
    )


def together(rows: dict[str, list[Run]]) -> dict[str, list[Result]]:
  """Returns the results of all runs, two side by side where the machine has two cores. The first run goes alone: it fills the
  cache that the others read."""
  runs = [run for row in rows.values() for run in row]
  if not runs:
    return {}
  cores = sorted(os.sched_getaffinity(0))[:2]
  free = list(cores)

  def take() -> None:
    CORES.number = free.pop()

  print(f"{runs[0].part.title}: {len(runs)} runs in {runs[0].root}", flush=True)
  done = {run: result for run in runs[:1] for result in [result_of(run)]}
  with concurrent.futures.ThreadPoolExecutor(len(cores), initializer=take) as pool:
    done |= dict(zip(runs[1:], pool.map(result_of, runs[1:]), strict=True))
  return {estimator: [done[run] for run in row] for estimator, row in rows.items()}


def main(argv: Sequence[str] | None = None) -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  shared = os.environ.get("RETRIEVAL_JAX_DATA")
  parser.add_argument(
    "--data",
    type=pathlib.Path,
    default=pathlib.Path(shared) if shared else None,
    help="the folder of graph_wikispeedia and graph_debian; default RETRIEVAL_JAX_DATA",
  )
  parser.add_argument(
    "--run", type=pathlib.Path, default=pathlib.Path("runs/gramian"), help="the folder of all results"
  )
  names = ["trajectory", "wikispeedia", "packages", "uniform", "planted"]
  parser.add_argument(
    "--parts", nargs="+", default=names, choices=names, metavar="PART", help=", ".join(names)
  )
  parser.add_argument("--seeds", type=int, default=3, help="of the two estimators compared first; default 3")
  parser.add_argument(
    "--planted_items", type=int, default=300_000, help="of the planted graph; default 300,000"
  )
  flags = parser.parse_args(argv)
  if flags.seeds < 1:
    parser.error(f"--seeds {flags.seeds}: expected at least 1")
  if flags.planted_items < 1000:
    parser.error(
      f"--planted_items {flags.planted_items}: expected at least 1,000, five for each of 200 topics"
    )
  if (
    flags.data is not None
    and set(flags.parts) - {"planted"}
    and not (flags.data / "graph_wikispeedia").is_dir()
  ):
    parser.error(f"--data {flags.data}: there is no folder graph_wikispeedia in it")
  if flags.data is None and set(flags.parts) - {"planted"}:
    parser.error(
      "--data: name the folder of graph_wikispeedia and graph_debian, or set RETRIEVAL_JAX_DATA to it"
    )
  start = time.monotonic()
  data = pathlib.Path(flags.data or ".").absolute()
  parts = parts_of(data)
  title = f"planted, {flags.planted_items:,} items, uniform passages"
  sized = (*parts["planted"].data, f"--gin.PLANTED_ITEMS={flags.planted_items}")
  parts["planted"] = parts["planted"]._replace(title=title, data=sized)
  if "trajectory" in flags.parts:
    script = pathlib.Path(__file__).with_name("gramian_trajectory.py")
    folder = flags.run / "trajectory"
    subprocess.run(
      [sys.executable, script, f"--data={data / 'graph_wikispeedia'}", f"--run={folder}"], check=True
    )
  for name in flags.parts:
    if name in parts:
      table(name, parts[name], flags.run.absolute(), flags.seeds)
  print(f"\ntook {time.monotonic() - start:.0f} s")


if __name__ == "__main__":
  main()
