"""Exact search of unit vectors, ours against faiss-cpu's IndexFlatIP, in one run: seconds, and memory by the matrix read.

Each side is a process of its own with the same number of threads; their rounds alternate, after one to warm up, and each
takes its best. "product" is numpy's matrix product alone, in chunks and without a look at the scores: on an idle machine
about the least that a float32 search takes (with other work beside it, the threads of its BLAS wait for each other). All
read the corpus from one memory-mapped file, faiss into its own copy, ours chunk by chunk. Memory is what a process takes
above what it had before the corpus: at most at any time (pages of the file that are mapped count, though the system may
drop them) and what is its own (anonymous).
Needs `pip install -e '.[ann]'`, and 4 bytes of disk for each number of the largest corpus.

  python scripts/benchmarks/search.py
  python scripts/benchmarks/search.py --rows 100000 --queries 64 --k 100
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

BLOCK = 65_536
CHUNK = 1024  # passages per product, so that its scores stay in the cache
SIDES = ("ours", "faiss", "product")


class Cell(NamedTuple):
  """One measurement of each side."""

  rows: int
  queries: int
  k: int


def unit_vectors(seed: int, rows: int, dim: int) -> np.ndarray:
  vectors = np.random.default_rng(seed).standard_normal((rows, dim), np.float32)
  return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def write_corpus(path: pathlib.Path, rows: int, dim: int) -> None:
  corpus = np.lib.format.open_memmap(path, "w+", np.float32, (rows, dim))
  for seed, first in enumerate(range(0, rows, BLOCK), start=1):
    corpus[first : first + BLOCK] = unit_vectors(seed, min(BLOCK, rows - first), dim)
  corpus.flush()


# --- in the process of one side -----------------------------------------------------------------------------------

Search = Callable[[np.ndarray, int], Any]


def ours(corpus: np.ndarray) -> Search:
  from retrieval_jax.index.exact import exact

  index = exact(corpus)
  return lambda queries, k: index.search(queries, k=k)


def faiss(corpus: np.ndarray) -> Search:
  import faiss

  index = faiss.IndexFlatIP(corpus.shape[1])
  for first in range(0, len(corpus), BLOCK):
    index.add(np.ascontiguousarray(corpus[first : first + BLOCK]))
  return lambda queries, k: index.search(queries, k)[::-1]


def product(corpus: np.ndarray) -> Search:
  def search(queries: np.ndarray, k: int) -> None:
    del k
    columns, scores = np.ascontiguousarray(queries.T), np.empty((CHUNK, len(queries)), np.float32)
    for first in range(0, len(corpus), CHUNK):
      chunk = corpus[first : first + CHUNK]
      np.matmul(chunk, columns, out=scores[: len(chunk)])

  return search


def memory(field: str) -> int:
  """Returns a size of this process from Linux, in bytes: RssAnon, or VmHWM, the largest resident size so far."""
  for line in pathlib.Path("/proc/self/status").read_text().splitlines():
    if line.startswith(f"{field}:"):
      return int(line.split()[1]) * 1024
  raise SystemExit(f"/proc/self/status has no {field}: this benchmark needs Linux")


class AnonymousPeak:
  """The largest RssAnon while it runs, looked at every few milliseconds."""

  def __enter__(self) -> "AnonymousPeak":
    self.peak = 0
    self._stop = threading.Event()
    self._thread = threading.Thread(target=self._watch)
    self._thread.start()
    return self

  def _watch(self) -> None:
    while not self._stop.wait(0.005):
      self.peak = max(self.peak, memory("RssAnon"))

  def __exit__(self, *_: object) -> None:
    self._stop.set()
    self._thread.join()


def serve(side: str, path: str, *, queries: int, threads: int) -> None:
  """Answers, line by line, a cell with its measurement; the first line is what building took."""
  os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])  # XLA takes what it may run on
  import jax  # so that all sides start from one size

  jax.local_devices()
  corpus = np.load(path, mmap_mode="r")
  asked = unit_vectors(0, queries, corpus.shape[1])
  makers: dict[str, Callable[[np.ndarray], Search]] = {"ours": ours, "faiss": faiss, "product": product}
  makers[side](corpus[:256])(asked[:64], 10)  # what the first product sets up once is no memory of a search
  before, own = memory("VmHWM"), memory("RssAnon")
  with AnonymousPeak() as watch:
    search = makers[side](corpus)
    search(asked, 10)  # and maps the file
  print(json.dumps({"peak": memory("VmHWM") - before, "own": watch.peak - own}), flush=True)
  for line in sys.stdin:
    cell = Cell(**json.loads(line))
    wall, cpu = time.perf_counter(), time.process_time()
    found = search(asked[: cell.queries], cell.k)
    timing = {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
    rows = None if found is None else [row.tolist() for row in np.asarray(found[0])[:64]]
    print(json.dumps({**timing, "rows": rows}), flush=True)


# --- in the process that compares ---------------------------------------------------------------------------------


class Side:
  """A process that measures."""

  def __init__(self, name: str, path: pathlib.Path, *, queries: int, threads: int) -> None:
    count = str(threads)
    self._process = subprocess.Popen(
      [sys.executable, __file__, "--serve", name, str(path), "--queries", str(queries), "--threads", count],
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      text=True,
      env={**os.environ, "OMP_NUM_THREADS": count, "OPENBLAS_NUM_THREADS": count, "JAX_PLATFORMS": "cpu"},
    )
    self.memory = self._answer()

  def measure(self, cell: Cell) -> dict:
    assert self._process.stdin is not None
    self._process.stdin.write(json.dumps(cell._asdict()) + "\n")
    self._process.stdin.flush()
    return self._answer()

  def _answer(self) -> dict:
    assert self._process.stdout is not None
    line = self._process.stdout.readline()
    if not line:
      raise SystemExit(f"a side ended with {self._process.wait()}")
    return json.loads(line)

  def close(self) -> None:
    assert self._process.stdin is not None
    self._process.stdin.close()
    self._process.wait()


def compared(sides: dict[str, Side], cell: Cell, rounds: int) -> dict[str, dict]:
  best: dict[str, dict] = {}
  for number in range(rounds + 1):
    for name, side in sides.items():
      got = side.measure(cell)
      if number and (name not in best or got["wall"] < best[name]["wall"]):
        best[name] = got
  return best


def lines(sides: dict[str, Side], cells: list[Cell], *, dim: int, rounds: int) -> Iterator[str]:
  matrix = cells[0].rows * dim * 4
  for name, side in sides.items():
    shares = {kind: f"{size / 2**20:7.0f} MiB {size / matrix:5.2f}x" for kind, size in side.memory.items()}
    yield f"{cells[0].rows:>9,}  memory {name:<8} peak {shares['peak']}   own {shares['own']}   of the matrix"
  for cell in cells:
    best = compared(sides, cell, rounds)
    same = np.mean(np.array(best["ours"]["rows"]) == np.array(best["faiss"]["rows"]))
    gflop = 2 * cell.rows * cell.queries * dim / 1e9
    times = "  ".join(
      f"{name} {best[name]['wall']:7.3f} s {gflop / best[name]['wall']:4.0f} GFLOP/s" for name in SIDES
    )
    ratios = (best["faiss"][kind] / best["ours"][kind] for kind in ("wall", "cpu"))
    yield (
      f"{cell.rows:>9,} {cell.queries:>6,} {cell.k:>6,}  {times}  faiss / ours: "
      + " ".join(f"{ratio:5.2f}x {kind}" for ratio, kind in zip(ratios, ("wall", "CPU"), strict=True))
      + f"  same rows {100 * same:.2f}%"
    )


def main() -> None:
  parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
  parser.add_argument("--rows", type=int, nargs="+", default=[100_000, 1_000_000])
  parser.add_argument("--queries", type=int, nargs="+", default=[64, 1024])
  parser.add_argument("--k", type=int, nargs="+", default=[100, 10, 1000])
  parser.add_argument("--dim", type=int, default=384)
  parser.add_argument("--threads", type=int, default=2)
  parser.add_argument("--rounds", type=int, default=3)
  parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
  flags = parser.parse_args()
  if flags.serve:
    serve(*flags.serve, queries=flags.queries[0], threads=flags.threads)
    return
  print(f"     rows queries     k  d = {flags.dim}, float32, {flags.threads} threads, best of {flags.rounds}")
  for rows in flags.rows:
    with tempfile.TemporaryDirectory() as folder:
      path = pathlib.Path(folder) / "corpus.npy"
      write_corpus(path, rows, flags.dim)
      queries = max(flags.queries)
      sides = {name: Side(name, path, queries=queries, threads=flags.threads) for name in SIDES}
      cells = [Cell(rows, queries, k) for queries in flags.queries for k in flags.k]
      for line in lines(sides, cells, dim=flags.dim, rounds=flags.rounds):
        print(line, flush=True)
      for side in sides.values():
        side.close()


if __name__ == "__main__":
  main()
