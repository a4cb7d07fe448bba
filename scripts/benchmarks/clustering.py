"""Balanced clusters of 200,000 x 384 rows: ours against halving at random points, as NGAME's own code clusters.

The rows are 200 topics of 6,250 groups, of sizes by a power law, and noise. Each clustering runs in a process of its own
on one thread (--threads). Three parts, all by default:

  table     4,096 clusters by both ways, and clusters of 6. CPU seconds, peak memory of the process (the mapped file of
            embeddings and the libraries included), sizes, cos (mean cosine of a row to its centroid), pair (mean cosine
            of two rows of a cluster), nn10 (share of a row's true 10 nearest neighbours in its cluster).
            Bars: sizes within 1, nn10 >= 0.60, pair >= 0.45, at most 22 CPU seconds and those of halving, at most
            1 GB, and clusters of 6 take at most 1.5 times those of 49.
  hardness  in batches of 1,600 rows, or what whole clusters of them hold: the mean cosine of a row to the 10 nearest.
            Bar: it rises with the size of the clusters.
  growth    50,000 to 800,000 rows, clusters of 49. Bars: four times the rows take at most 6 times the time, and
            4.4 times the memory that a process without rows does not have. --plot draws it.

  python scripts/benchmarks/clustering.py --parts table
  python scripts/benchmarks/clustering.py --plot clustering.png
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from typing import Any

import numpy as np

DIM = 384
SIZE = 49  # rows a cluster: 4,096 clusters of 200,000 rows
BATCH = 1600
BLOCK = 8192
# Rows without which a part has nothing to measure: two rows in each of 4,096 clusters, the largest clusters of hardness no
# larger than a batch, and 64 clusters of a quarter of the rows.
LEAST = {"table": 8192, "hardness": 67_209, "growth": 256}


def write_mixture(path: pathlib.Path, count: int) -> None:
  """Writes `count` unit vectors: a topic, 0.9 times a direction of the group, 1.08 times noise, from seed 0.

  So a row's cosine is about 0.6 to its group's rows and 0.3 to its topic's.
  """
  rng = np.random.default_rng(0)

  def unit(number: int) -> np.ndarray:
    vectors = rng.standard_normal((number, DIM), dtype=np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

  topics, groups = unit(200), 6250
  centres = topics[rng.integers(0, len(topics), groups)] + 0.9 * unit(groups)
  share = np.arange(1, groups + 1) ** -0.5
  group = rng.choice(groups, count, p=share / share.sum())
  rows = np.lib.format.open_memmap(path, "w+", np.float32, (count, DIM))
  for start in range(0, count, BLOCK):
    noise = rng.standard_normal((min(BLOCK, count - start), DIM), dtype=np.float32)
    block = centres[group[start : start + BLOCK]] + 1.08 / DIM**0.5 * noise
    rows[start : start + BLOCK] = block / np.linalg.norm(block, axis=1, keepdims=True)
  rows.flush()


def halving(rows: np.ndarray, clusters: int) -> np.ndarray:
  """Returns clusters as NGAME's own code makes them, a power of two of them, in one thread.

  Two random rows are the first centroids of a part. Rows sorted by the difference of their products are cut into equal
  halves, whose means are the next centroids, until the mean product gains less than 1e-4.
  """
  rng, parts = np.random.default_rng(0), [np.arange(len(rows))]
  while len(parts) < clusters:
    parts = [half for part in parts for half in halves(rows, part, rng)]
  found = np.empty(len(rows), np.int32)
  for number, part in enumerate(parts):
    found[part] = number
  return found


def halves(rows: np.ndarray, part: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
  mine, last = rows[part], -2.0
  mine /= np.linalg.norm(mine, axis=1, keepdims=True)
  centroids = mine[rng.choice(len(mine), 2, replace=False)]
  while True:
    products = mine @ centroids.T
    low, high = np.array_split(np.argsort(products[:, 1] - products[:, 0], kind="stable"), 2)
    mean = (products[low, 0].sum() + products[high, 1].sum()) / len(mine)
    if mean - last < 1e-4:
      return part[low], part[high]
    last = mean
    centroids = np.stack([mine[low].mean(axis=0), mine[high].mean(axis=0)])
    centroids /= np.linalg.norm(centroids, axis=1, keepdims=True)


def ours(rows: np.ndarray, clusters: int) -> np.ndarray:
  from retrieval_jax.batching.clustering import balanced_clusters

  return balanced_clusters(rows, num_clusters=clusters, seed=0)


WAYS = {"halving": halving, "ours": ours}


def peak() -> float:
  """Returns the most memory this process has had, in MB (resource's ru_maxrss counts that of the parent too)."""
  status = pathlib.Path("/proc/self/status").read_text(encoding="utf-8")
  return int(status.split("VmHWM:")[1].split()[0]) / 1024


def measure(way: str, path: pathlib.Path, clusters: int) -> None:
  """Clusters; writes the clusters and prints the cost."""
  rows = np.load(path, mmap_mode="r")
  WAYS[way](rows[:4096], 64)  # imports, and the threads of the library of products
  before, start = peak(), time.process_time()
  found = WAYS[way](rows, clusters)
  print(json.dumps({"seconds": time.process_time() - start, "mb": peak(), "mb_before": before}))
  np.save(path.with_name("clusters.npy"), found)


def run(way: str, path: pathlib.Path, clusters: int, threads: int) -> tuple[dict[str, float], np.ndarray]:
  """Returns the cost and the clusters, of a process of its own."""
  command = [sys.executable, __file__, "--only", way, "--rows", str(path), "--clusters", str(clusters)]
  names = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
  done = subprocess.run(
    command,
    env=os.environ | dict.fromkeys(names, str(threads)),
    check=True,
    stdout=subprocess.PIPE,
    text=True,
  )
  return json.loads(done.stdout), np.load(path.with_name("clusters.npy"))


def neighbours(rows: np.ndarray, queries: int = 2000) -> tuple[np.ndarray, np.ndarray, float]:
  """Returns random rows, the 10 rows nearest to each among all, and their mean cosine."""
  chosen = np.random.default_rng(1).choice(len(rows), queries, replace=False)
  nearest, cosines = [], []
  for some in np.array_split(chosen, 20):
    products = rows[some] @ rows.T
    products[np.arange(len(some)), some] = -2
    nearest.append(np.argpartition(-products, 10, axis=1)[:, :10])
    cosines.append(np.take_along_axis(products, nearest[-1], axis=1).mean())
  return chosen, np.concatenate(nearest), float(np.mean(cosines))


def quality(
  rows: np.ndarray, found: np.ndarray, near: tuple[np.ndarray, np.ndarray, float]
) -> dict[str, float]:
  """Returns the measures of the table. rows: of unit length."""
  sizes, order = np.bincount(found), np.argsort(found, kind="stable")
  parts = np.split(order, np.cumsum(sizes)[:-1])
  squares = np.array([np.square(rows[part].sum(axis=0)).sum() for part in parts])
  pair = (squares - sizes) / (sizes * (sizes - 1.0))
  return {
    "min": sizes.min(),
    "max": sizes.max(),
    "cos": np.sqrt(squares).sum() / len(rows),
    "pair": pair.mean(),
    "nn10": (found[near[1]] == found[near[0]][:, None]).mean(),
  }


def table(path: pathlib.Path, flags: argparse.Namespace) -> bool:
  rows = np.load(path)
  near = neighbours(rows)
  batches = in_batches(rows, np.arange(len(rows)))
  print(f"cosine to the 10 nearest of all {near[2]:.3f}, of a random batch of {BATCH} {batches:.3f}")
  print(
    f"{'':<22}{'CPU s':>8}{'/ ours':>8}{'MB':>7}{'sizes':>11}{'cos':>8}{'pair':>8}{'nn10':>8}", flush=True
  )
  contenders = {
    "ours": ("ours", 4096),
    "ours, clusters of 6": ("ours", len(rows) // 6),
    "halving": ("halving", 4096),
  }
  costs: dict[str, Any] = {}
  for name, (way, clusters) in contenders.items():
    cost, found = run(way, path, clusters, flags.threads)
    costs[name] = cost | quality(rows, found, near)
    one = costs[name]
    print(
      f"{name:<22}{one['seconds']:>8.1f}{one['seconds'] / costs['ours']['seconds']:>8.2f}{one['mb']:>7.0f}"
      f"{one['min']:>6}/{one['max']:<4}{one['cos']:>8.3f}{one['pair']:>8.3f}{one['nn10']:>8.3f}",
      flush=True,
    )
  us, small = costs["ours"], costs["ours, clusters of 6"]
  return bool(
    all(one["max"] - one["min"] <= 1 and one["mb"] <= 1000 for one in (us, small))
    and us["nn10"] >= 0.60
    and us["pair"] >= 0.45
    and us["seconds"] <= min(22, costs["halving"]["seconds"])
    and small["seconds"] <= 1.5 * us["seconds"]
  )


def in_batches(rows: np.ndarray, found: np.ndarray) -> float:
  """Returns the mean hardness of an epoch's batches, each of as many whole clusters, in random order, as fit in one."""
  sizes, order = np.bincount(found), np.argsort(found, kind="stable")
  parts = np.split(order, np.cumsum(sizes)[:-1])
  chosen = np.random.default_rng(2).permutation(len(parts))
  clusters, hardness = BATCH // sizes.max(), []
  for start in range(0, len(chosen) - clusters + 1, clusters):
    batch = rows[np.concatenate([parts[cluster] for cluster in chosen[start : start + clusters]])]
    products = batch @ batch.T
    np.fill_diagonal(products, -2)
    hardness.append(np.partition(products, -10, axis=1)[:, -10:].mean())
  return float(np.mean(hardness))


def hardness(path: pathlib.Path, flags: argparse.Namespace) -> bool:
  rows, values = np.load(path), []
  print(f"{'rows a cluster':>14}{'hardness':>10}{'CPU s':>8}")
  for size in (1, 6, 12, 24, 49, 98, 195, 391, 781, 1563):
    found, seconds = np.arange(len(rows)), 0.0
    if size > 1:
      cost, found = run("ours", path, len(rows) // size, flags.threads)
      seconds = cost["seconds"]
    values.append(in_batches(rows, found))
    print(f"{size:>14}{values[-1]:>10.3f}{seconds:>8.1f}", flush=True)
  return bool((np.diff(values) > 0).all())


def growth(folder: pathlib.Path, flags: argparse.Namespace) -> bool:
  counts = [flags.count * times // 4 for times in (1, 2, 4, 8, 16)]
  costs = []
  print(f"{'rows':>9}{'CPU s':>8}{'MB':>7}{'us a row':>10}")
  for count in counts:
    path = folder / "growing.npy"
    write_mixture(path, count)
    costs.append(run("ours", path, count // SIZE, flags.threads)[0])
    print(
      f"{count:>9,}{costs[-1]['seconds']:>8.1f}{costs[-1]['mb']:>7.0f}{1e6 * costs[-1]['seconds'] / count:>10.1f}",
      flush=True,
    )
    path.unlink()
  seconds, mb = np.array([(one["seconds"], one["mb"] - one["mb_before"]) for one in costs]).T
  if flags.plot:
    plot(flags.plot, counts, [one["seconds"] for one in costs], [one["mb"] for one in costs])
  return bool((seconds[2:] <= 6 * seconds[:-2]).all() and (mb[2:] <= 4.4 * mb[:-2]).all())


def plot(path: str, counts: list[int], seconds: list[float], mb: list[float]) -> None:
  from matplotlib.figure import Figure

  figure = Figure(figsize=(8, 3.5), layout="constrained")
  for axes, values, label in zip(
    figure.subplots(1, 2), (seconds, mb), ("CPU seconds", "peak MB"), strict=True
  ):
    axes.plot(counts, values, "o-")
    axes.set(xlabel="rows", ylabel=label, xlim=(0, None), ylim=(0, None))
    axes.grid(alpha=0.3)
  figure.savefig(path, dpi=150)
  print(f"wrote {path}")


def _wrong(flags: argparse.Namespace) -> str:
  """Returns what is wrong with the flags, or nothing."""
  if flags.only:
    return "" if flags.rows and flags.clusters else "--only needs --rows and --clusters."
  if flags.threads < 1:
    return f"--threads {flags.threads}: expected a whole number of at least 1."
  parts = flags.parts or list(LEAST)
  least = max(LEAST[part] for part in parts)
  if flags.count < least:
    return f"--count {flags.count}: expected at least {least:,} rows for {', '.join(parts)}."
  return ""


def main() -> None:
  parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
  parser.add_argument("--parts", nargs="+", choices=list(LEAST))
  parser.add_argument(
    "--count", type=int, default=200_000, help="rows of the table; growth goes to four times as many"
  )
  parser.add_argument("--threads", type=int, default=1, help="of the library of products")
  parser.add_argument("--plot", metavar="FILE.png", help="of growth")
  parser.add_argument("--only", choices=WAYS, help="one clustering of --rows, its cost as JSON")
  parser.add_argument("--rows", type=pathlib.Path)
  parser.add_argument("--clusters", type=int)
  flags = parser.parse_args()
  wrong = _wrong(flags)
  if wrong:
    parser.error(wrong)
  if flags.only:
    measure(flags.only, flags.rows, flags.clusters)
    return
  parts = flags.parts or list(LEAST)
  met = {}
  with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    if {"table", "hardness"} & set(parts):
      write_mixture(folder / "rows.npy", flags.count)
    for part, function, place in (
      ("table", table, folder / "rows.npy"),
      ("hardness", hardness, folder / "rows.npy"),
      ("growth", growth, folder),
    ):
      if part in parts:
        met[part] = function(place, flags)
  print(json.dumps({"met": met}))
  raise SystemExit(0 if all(met.values()) else 1)


if __name__ == "__main__":
  main()
