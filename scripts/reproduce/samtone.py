"""The runs of scripts/reproduce/samtone.sh, one training each, their table, the claims that held, and the figures.

Every row is a call of retrieval_jax.train as a user would make it, whose last checkpoint is evaluated; a run whose numbers are
there is not repeated. All towers start from MiniLM and have a projection, as the paper's have, that starts at random.
"""

import argparse
import hashlib
import json
import pathlib
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from retrieval_jax.embedding_sample import EmbeddingSample, read_sample
from retrieval_jax.errors import UserError
from retrieval_jax.metrics.geometry import tower_ratios
from retrieval_jax.paths import atomic_write

ARCHITECTURES = {"ADE": "ade", "ADE-SPL": "ade_spl", "SDE": "sde"}
STANDARD, PAIR, QUERY, BOTH = "standard", "PAIR", "SamToNe", "SamToNe, both towers"
LOSSES = {STANDARD: "in_batch", PAIR: "pair", QUERY: "samtone", BOTH: "samtone_both"}
NGAME = ("--gin_file=batching/ngame.gin", "--gin.CLUSTER_SIZES=((0, 1), (1, 8))", "--gin.REFRESH_EPOCHS=1")
COMPOSED = "SamToNe + NGAME batches + SOGram"
# What nobody has run: the loss of one paper on the batches of another, beside the gravity of a third.
COMPOSITIONS = {COMPOSED: ("--gin_file=losses/samtone_sogram.gin", *NGAME)}
# Of six layers the lower ones stay as they are, as does the token table: a third less time. --all_layers trains all.
LOWER_HALF = "('.*token_embedder/.*', '.*embedding_layer_norm/.*', '.*layers_[0-2]/.*')"
COLUMNS = ("p@1", "mrr", "ndcg@10")
PASSAGES = 2000  # that a row is measured among: those of the test queries, and others at random
# The paper's Table 1: P@1 and MRR, means over five tasks, T5 1.1 base.
PAPER = {
  ("ADE", STANDARD): (42.3, 54.7),
  ("ADE", QUERY): (44.0, 55.5),
  ("ADE-SPL", STANDARD): (45.9, 58.3),
  ("ADE-SPL", PAIR): (47.2, 59.2),
  ("ADE-SPL", QUERY): (47.9, 59.7),
  ("SDE", STANDARD): (44.7, 57.5),
  ("SDE", PAIR): (44.7, 57.5),
  ("SDE", QUERY): (46.4, 58.7),
}


class Settings(NamedTuple):
  """What the flags say. data: flags that name it. task: its name in MODEL_DIR/eval."""

  data: tuple[str, ...]
  task: str
  run: pathlib.Path
  steps: int
  batch: int
  seeds: int
  all_layers: bool


class Geometry(NamedTuple):
  """Of one evaluation's sample: the mean cosine of a query with its first result, the median of cos(q_i, q_j) / cos(q_i, p_j), and
  the distance between the two towers' mean directions."""

  top_cosine: float
  ratio: float
  gap: float

  @classmethod
  def of(cls, sample: EmbeddingSample) -> "Geometry":
    queries, passages = sample.queries.astype(np.float64), sample.passages.astype(np.float64)
    gap = np.linalg.norm(queries.mean(axis=0) - passages.mean(axis=0))
    ratio = np.median(tower_ratios(queries, passages))
    return cls(float(np.mean(sample.top_cosines)), float(ratio), float(gap))


class Row(NamedTuple):
  """A line of the table: what each seed found."""

  metrics: list[dict[str, float]]
  geometry: list[Geometry]
  samples: list[EmbeddingSample]

  def values(self, column: str) -> np.ndarray:
    """Returns one metric of all seeds, in percent."""
    return 100 * np.array([found[column] for found in self.metrics])

  def mean(self, part: str) -> float:
    """Returns the mean over the seeds of one number of the geometry."""
    return float(np.mean([getattr(found, part) for found in self.geometry]))


Rows = Mapping[tuple[str, str], Row]


def trained(settings: Settings, architecture: str, parts: Sequence[str], seed: int) -> pathlib.Path:
  """Returns the folder of the evaluation of a training, running it if it is not there."""
  flags = [
    "--gin_file=models/minilm.gin",
    f"--gin_file=sharing/{ARCHITECTURES[architecture]}.gin",
    *parts,
    *settings.data,
    "--gin_file=evaluators/retrieval.gin",
    f"--gin.METRICS={COLUMNS}",
    f"--gin.SAMPLE_PASSAGES={PASSAGES}",  # encoding all would take as long as the training
    "--gin.PROJECTION_DIM=384",
    "--gin.QUERY_LENGTH=24",
    "--gin.PASSAGE_LENGTH=48",
    f"--gin.BATCH_SIZE={settings.batch}",
    f"--gin.TRAIN_STEPS={settings.steps}",
    f"--gin.CHECKPOINT_PERIOD={settings.steps}",
    f"--gin.WARMUP_STEPS={max(1, settings.steps // 10)}",
    "--gin.LEARNING_RATE=5e-4",
    "--gin.TEMPERATURE=0.05",
    "--gin.DROPOUT_RATE=0.0",
    f"--gin.FROZEN={'()' if settings.all_layers else LOWER_HALF}",
    f"--gin.SEED={seed}",
  ]
  # A hash of the flags names the folder, so that no other settings' result is taken for it.
  folder = settings.run / hashlib.sha256(" ".join(flags).encode()).hexdigest()[:12]
  evaluation = folder / "eval" / f"{settings.task}_sample" / f"step_{settings.steps}"
  if not (evaluation / "metrics.json").exists():
    command = [sys.executable, "-m", "retrieval_jax.train", *flags, f"--gin.MODEL_DIR={folder}"]
    print("+ " + " ".join(command[1:]), flush=True)
    subprocess.run(command, check=True)
  return evaluation


def row_of(folders: Sequence[pathlib.Path]) -> Row:
  """Returns what the evaluations of one row's seeds found."""
  metrics, samples = [], []
  for folder in folders:
    record = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
    metrics.append({name: record[name] for name in COLUMNS})
    samples.append(read_sample(folder / "geometry.npz"))
  return Row(metrics, [Geometry.of(sample) for sample in samples], samples)


def all_rows(settings: Settings) -> dict[tuple[str, str], Row]:
  """Returns the rows of every architecture with every loss, and of the compositions, seed by seed."""
  jobs = {
    (a, name): (f"--gin_file=losses/{file}.gin",) for a in ARCHITECTURES for name, file in LOSSES.items()
  }
  jobs |= {("SDE", name): parts for name, parts in COMPOSITIONS.items()}
  found: dict[tuple[str, str], list[pathlib.Path]] = {job: [] for job in jobs}
  for seed in range(settings.seeds):
    for job, parts in jobs.items():
      found[job].append(trained(settings, job[0], parts, seed))
  return {job: row_of(folders) for job, folders in found.items()}


def table(rows: Rows) -> str:
  """Returns the table: percent, mean and deviation over the seeds, the paper's P@1 and MRR beside them."""
  lines = [
    f"{'':9}{'':34}"
    + "".join(name.rjust(12) for name in COLUMNS)
    + f"{'cos top 1':>11}{'ratio':>8}{'gap':>7}{'paper p@1':>11}{'mrr':>6}"
  ]
  for (architecture, name), row in rows.items():
    cells = []
    for column in COLUMNS:
      values = row.values(column)
      spread = f" ±{values.std(ddof=1):.1f}" if len(values) > 1 else ""
      cells.append(f"{values.mean():.1f}{spread}".rjust(12))
    theirs = PAPER.get((architecture, name))
    shown = f"{'-':>11}{'-':>6}" if theirs is None else f"{theirs[0]:>11.1f}{theirs[1]:>6.1f}"
    geometry = f"{row.mean('top_cosine'):>11.3f}{row.mean('ratio'):>8.2f}{row.mean('gap'):>7.2f}"
    lines.append(f"{architecture:9}{name:34}" + "".join(cells) + geometry + shown)
  return "\n".join(lines)


def claims(rows: Rows) -> list[str]:
  """Returns a line for each of the paper's claims, saying whether it held here and by how much."""
  found = []

  def better(architecture: str, first: str, second: str, source: str) -> None:
    ours, theirs = rows[architecture, first].values("mrr"), rows[architecture, second].values("mrr")
    gain = ours - theirs  # of the same seed: the same batches
    spread = f" ±{gain.std(ddof=1):.1f}" if len(gain) > 1 else ""
    found.append(
      _line(
        gain.mean() > 0, f"{architecture}: {first} above {second}, MRR {gain.mean():+.1f}{spread} ({source})"
      )
    )

  for architecture in ARCHITECTURES:
    better(architecture, QUERY, STANDARD, "Table 1")
  for architecture in ("ADE-SPL", "SDE"):
    better(architecture, QUERY, PAIR, "Table 1")
  better("SDE", BOTH, QUERY, "Table 3, where the passages differ; here equal ones are masked")
  for architecture in ARCHITECTURES:
    plain, ours, other = (rows[architecture, name] for name in (STANDARD, QUERY, PAIR))
    found.append(
      _line(
        ours.mean("top_cosine") > plain.mean("top_cosine"),
        f"{architecture}: cosines of queries and first results move towards 1, {plain.mean('top_cosine'):.3f} to "
        f"{ours.mean('top_cosine'):.3f} (Figure 5)",
      )
    )
    off = [abs(row.mean("ratio") - 1) for row in (ours, plain, other)]
    found.append(
      _line(
        off[0] < min(off[1:]),
        f"{architecture}: the ratio of same-tower to cross-tower cosines is nearest to 1 with SamToNe, {ours.mean('ratio'):.2f} "
        f"(standard {plain.mean('ratio'):.2f}, PAIR {other.mean('ratio'):.2f}; Figure 6)",
      )
    )
    found.append(
      _line(
        ours.mean("gap") < plain.mean("gap"),
        f"{architecture}: the towers' means come nearer, {plain.mean('gap'):.2f} to {ours.mean('gap'):.2f} (Figure 1)",
      )
    )
  return found


def _line(held: bool, text: str) -> str:
  return f"{'held    ' if held else 'NOT held'}  {text}"


def draw(rows: Rows, folder: pathlib.Path) -> list[pathlib.Path]:
  """Draws the paper's figures 1, 5 and 6 of the first seed: both towers on a plane, cosines and ratios; returns the files."""
  return [
    _draw(folder / "towers.png", rows, _towers),
    _draw(
      folder / "top_cosines.png",
      rows,
      _histograms(lambda sample: sample.top_cosines, (0, 1), "cosine of query and result"),
    ),
    _draw(folder / "ratios.png", rows, _histograms(_ratios, (-1, 3), "cos(q_i, q_j) / cos(q_i, p_j)")),
  ]


def _ratios(sample: EmbeddingSample) -> np.ndarray:
  return tower_ratios(sample.queries.astype(np.float64), sample.passages.astype(np.float64))


def _towers(axes, sample: EmbeddingSample) -> None:
  """Queries and their passages in the plane of their two largest principal components."""
  both = np.concatenate([sample.queries, sample.passages]).astype(np.float64)
  centred = both - both.mean(axis=0)
  _, _, directions = np.linalg.svd(centred, full_matrices=False)
  places = centred @ directions[:2].T
  for name, part in (("queries", places[: len(sample.queries)]), ("passages", places[len(sample.queries) :])):
    axes.scatter(*part.T, s=4, label=name)
  axes.set_xticks([])
  axes.set_yticks([])


def _histograms(
  values: Callable[[EmbeddingSample], np.ndarray], limits: tuple[float, float], label: str
) -> Callable:
  def one(axes, sample: EmbeddingSample) -> None:
    axes.hist(np.clip(values(sample), *limits), bins=60, range=limits, density=True)
    axes.set_xlabel(label, fontsize=8)
    axes.set_yticks([])

  return one


def _draw(path: pathlib.Path, rows: Rows, one: Callable) -> pathlib.Path:
  """Draws one panel a row of the table, architectures below each other, and writes a PNG file."""
  from matplotlib.figure import Figure

  figure = Figure(figsize=(12, 8), layout="constrained")
  grid = figure.subplots(len(ARCHITECTURES), len(LOSSES), squeeze=False)
  for line, architecture in zip(grid, ARCHITECTURES, strict=True):
    for axes, name in zip(line, LOSSES, strict=True):
      one(axes, rows[architecture, name].samples[0])
      axes.set_title(f"{architecture}, {name}", fontsize=9)
  if handles := grid[0][0].get_legend_handles_labels()[0]:
    figure.legend(handles=handles, loc="outside upper right")
  with atomic_write(path, "wb") as file:
    figure.savefig(file, format="png", dpi=110)
  return path


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--data", type=pathlib.Path, help="a folder in BEIR's layout; default: pydocs")
  parser.add_argument(
    "--run",
    type=pathlib.Path,
    default=pathlib.Path("runs/samtone"),
    help="the folder of all; default runs/samtone",
  )
  parser.add_argument(
    "--seeds", type=int, default=2, help="trainings of each row, with the seeds 0, 1, ...; default 2"
  )
  parser.add_argument("--steps", type=int, default=30, help="of each training; default 30")
  parser.add_argument("--batch", type=int, default=64, help="pairs in a batch; default 64")
  parser.add_argument(
    "--all_layers", action="store_true", help="train all layers and the token table, not the upper half alone"
  )
  flags = parser.parse_args()
  for name, least in (("seeds", 1), ("steps", 1), ("batch", 2)):
    if getattr(flags, name) < least:
      parser.error(f"--{name} {getattr(flags, name)}: expected a whole number of at least {least}.")
  data, task = ("--gin_file=data/pydocs.gin",), "pydocs"
  if flags.data is not None:
    folder = flags.data.absolute()
    if not (folder / "qrels").is_dir():
      parser.error(
        f"--data {flags.data}: expected a folder in BEIR's layout, with qrels/train.tsv and qrels/test.tsv."
      )
    data, task = ("--gin_file=data/beir_folder.gin", f"--gin.DATA_PATH={str(folder)!r}"), folder.name
  settings = Settings(data, task, flags.run, flags.steps, flags.batch, flags.seeds, flags.all_layers)
  start = time.monotonic()
  try:
    rows = all_rows(settings)
    files = draw(rows, settings.run)
  except UserError as error:
    sys.exit(f"error: {error}")
  except subprocess.CalledProcessError as error:
    sys.exit(f"error: a training ended with exit code {error.returncode}; its message is above.")
  print(f"\n{table(rows)}\n\n" + "\n".join(claims(rows)))
  print("\n" + "\n".join(map(str, files)) + f"\ntook {time.monotonic() - start:.0f} s")


if __name__ == "__main__":
  main()
