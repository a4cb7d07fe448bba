"""One training step of the Gramian paper's towers with large tables: rows of the batch alone against whole tables, in one run.

Both are Adagrad on the tables and SGD on the rest, the same to rounding. Items have an id, up to 24 title n-grams and up to
8 categories, popular ones more often; tables are 32 wide, hidden layers [128, 64], batches of 128 pairs. n-grams are a third
as many as ids, categories 1,000. The two alternate and each takes the minimum of its rounds. Memory is what the compiled
program needs beside the state, which it writes in place.

  python scripts/benchmarks/table_updates.py --rows 10000 100000 1000000
"""

import argparse
import functools
import time
from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np
import optax

from retrieval_jax import optimizers
from retrieval_jax.losses.base import DataSizes
from retrieval_jax.losses.in_batch import in_batch_softmax
from retrieval_jax.models.dual_encoder import TowerPair, dual_encoder
from retrieval_jax.models.feature_bag import FeatureBagTower
from retrieval_jax.partitioning import partitioner
from retrieval_jax.records import Batch
from retrieval_jax.sparse_optimizers import sparse_adagrad
from retrieval_jax.table_updates import TableUpdates
from retrieval_jax.train_state import initial_state, state_shardings
from retrieval_jax.train_step import make_train_step

COLUMNS = (1, 24, 8)
CATEGORIES = 1000
TABLE_RATE, RATE = 0.1, 0.03
BATCHES = 16  # different ones


class Timing(NamedTuple):
  """Of one step: wall and CPU seconds."""

  wall: float
  cpu: float


def model_of(rows: int) -> TowerPair:
  features = (("id", rows), ("ngrams", max(rows // 3, 2)), ("categories", CATEGORIES))
  tower = FeatureBagTower(features, embed_dim=32, hidden_dims=(128, 64), columns=COLUMNS)
  return dual_encoder(tower, sharing="ade_ste")


def items(rng: np.random.Generator, count: int, rows: int) -> np.ndarray:
  """Returns tokens of items: uniform ids, n-grams and categories by Zipf's law, some places empty."""
  columns: list[np.ndarray] = [rng.integers(1, rows, (count, 1))]
  for width, size in ((COLUMNS[1], max(rows // 3, 2)), (COLUMNS[2], CATEGORIES)):
    ids = 1 + (size - 1) ** rng.random((count, width))
    ids[rng.random((count, width)) < 0.4] = 0
    columns.append(ids)
  return np.concatenate(columns, axis=1).astype(np.int32)


def batch_of(seed: int, size: int, rows: int) -> Batch:
  rng = np.random.default_rng(seed)
  numbers = np.arange(size, dtype=np.int32)
  tokens = items(rng, size, rows), items(rng, size, rows)
  return Batch(*tokens, numbers, numbers, numbers[:, None], np.ones(size, np.float32))


def whole_tables() -> optax.GradientTransformation:
  """Returns Adagrad of tables, whole, and SGD of the rest."""

  def labels(params):
    name = lambda path, _: "tables" if "embedding" in jax.tree_util.keystr(path) else "rest"  # noqa: E731
    return jax.tree_util.tree_map_with_path(name, params)

  tables = optax.adagrad(TABLE_RATE, initial_accumulator_value=0.1, eps=1e-10)
  return optax.partition({"tables": tables, "rest": optax.sgd(RATE)}, labels)


def runner(rows: int, size: int, *, sparse: bool) -> tuple[Callable[[int], Timing], int]:
  """Returns (the function that takes so many steps and times one of them, bytes of the program beside the state)."""
  model, part, loss = model_of(rows), partitioner(), in_batch_softmax(temperature=1.0)
  transform, tables = whole_tables(), None
  if sparse:
    rate = optimizers.schedule("constant", base_learning_rate=TABLE_RATE)
    tables = TableUpdates(model, sparse_adagrad(rate, initial_accumulator=0.1))
    transform = optimizers.sgd(RATE).transform
  create = functools.partial(
    initial_state, jax.random.key(0), model, loss, transform, data=DataSizes(1, 1), tables=tables
  )
  shardings = state_shardings(jax.eval_shape(create), model, part)
  state = jax.jit(create, out_shardings=shardings)()
  step = part.jit_step(make_train_step(model, loss, transform, seed=0, tables=tables), shardings)
  batches = [part.put_batch(batch_of(seed, size, rows)) for seed in range(BATCHES)]
  memory = step.lower(state, batches[0]).compile().memory_analysis()

  def run(steps: int) -> Timing:
    nonlocal state
    wall, cpu = time.perf_counter(), time.process_time()
    for number in range(steps):
      state, metrics = step(state, batches[number % BATCHES])
    jax.block_until_ready((state, metrics))
    return Timing((time.perf_counter() - wall) / steps, (time.process_time() - cpu) / steps)

  return run, memory.temp_size_in_bytes


def main() -> None:
  parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
  parser.add_argument("--rows", type=int, nargs="+", default=[10_000, 60_000, 300_000, 1_000_000])
  parser.add_argument("--batch", type=int, default=128)
  parser.add_argument("--steps", type=int, default=50, help="of the sparse step in each round")
  parser.add_argument("--rounds", type=int, default=3)
  flags = parser.parse_args()
  print(
    f"batch {flags.batch}, {jax.device_count()} x {jax.devices()[0].platform}, minimum of {flags.rounds} rounds"
  )
  for rows in flags.rows:
    runs = {sparse: runner(rows, flags.batch, sparse=sparse) for sparse in (True, False)}
    steps = {True: flags.steps, False: max(2, flags.steps // 10)}
    for run, _ in runs.values():
      run(2)
    times = {sparse: [] for sparse in runs}
    for _ in range(flags.rounds):
      for sparse, (run, _) in runs.items():
        times[sparse].append(run(steps[sparse]))
    best = {s: Timing(min(t.wall for t in found), min(t.cpu for t in found)) for s, found in times.items()}
    for sparse, name in ((True, "rows of the batch"), (False, "whole tables")):
      print(
        f"{rows:>9,} rows  {name:<18} {1e3 * best[sparse].wall:8.2f} ms  {1e3 * best[sparse].cpu:8.2f} CPU-ms  "
        f"{runs[sparse][1] / 2**20:8.1f} MiB beside the state"
      )
    print(
      f"{rows:>9,} rows  ratio {best[False].wall / best[True].wall:.1f}x (wall), {best[False].cpu / best[True].cpu:.1f}x (CPU), "
      f"{runs[False][1] / runs[True][1]:.1f}x memory",
      flush=True,
    )


if __name__ == "__main__":
  main()
