"""Gravity on one thread: the Gramian form against the sum over all pairs, and what the estimators cost as the data grow.

Three parts, all by default, each line in a process of its own:

  forms    loss and gradient by the embeddings of both sides: the pairs themselves (6 d B^2 FLOPs, B^2 memory), the Gramian
           form with gradients through both Gramians (8 d^2 B), the surrogate against given Gramians (4 d^2 B), and a whole
           step of SOGram: surrogate, update of the average, metrics. Bars: the Gramian form wins from B = 8 d on, and the
           ratio at the largest B is at least half of .75 B / d.
  sogram   one SOGram step as the data grow from 1e4 to 1e7 rows. Bar: at most 1.3 times as long.
  sagram   one SAGram step, and its caches: bytes a device on 1 and on 8 devices. Bars: a device of 8 holds an eighth of the
           caches, and no step moves as many bytes between devices as a cache has.

  python scripts/benchmarks/gramian.py
  python scripts/benchmarks/gramian.py --parts forms --batches 256 1024 --dims 64
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

PAIRS_UP_TO = {64: 16384, 128: 8192}  # beyond, several matrices of B x B are more than 3 GB
FORMS = ("pairs", "gramian", "surrogate", "sogram")


class Cell(NamedTuple):
  """One measurement."""

  part: str
  form: str
  batch: int
  dim: int
  rows: int = 0  # of the data
  devices: int = 1


def measure(cell: Cell, seconds: float) -> dict[str, float]:
  """Returns the numbers of a cell; runs in a process that has the devices it wants."""
  if cell.part == "forms" and cell.form != "sogram":
    return _form(cell, seconds)
  return _step(cell, seconds)


def _form(cell: Cell, seconds: float) -> dict[str, float]:
  import jax
  import jax.numpy as jnp

  from retrieval_jax.losses import gramian_matrices
  from retrieval_jax.losses.gramian_matrices import Gramians, gram

  query, passage, ones, estimate = _inputs(cell)

  def pairs(query: Any, passage: Any) -> Any:
    return gramian_matrices.double_sum(query, passage, ones, ones)

  def of_gramians(query: Any, passage: Any) -> Any:
    return gramian_matrices.gravity(Gramians(gram(query), gram(passage)))

  def surrogate(query: Any, passage: Any) -> Any:
    each = jnp.sum(query * (query @ estimate), 1) + jnp.sum(passage * (passage @ estimate), 1)
    return jnp.mean(each)

  function = {"pairs": pairs, "gramian": of_gramians, "surrogate": surrogate}[cell.form]
  step = jax.jit(jax.value_and_grad(function, (0, 1)))
  return _timed(lambda: step(query, passage), seconds)


def _inputs(cell: Cell) -> tuple:
  import jax.numpy as jnp
  import numpy as np

  rng = np.random.default_rng(0)
  query, passage = (jnp.asarray(rng.standard_normal((cell.batch, cell.dim), np.float32)) for _ in range(2))
  return query, passage, jnp.ones(cell.batch), jnp.eye(cell.dim)


def _step(cell: Cell, seconds: float) -> dict[str, float]:
  """Measures one step of a loss: value, gradient and the state's update, on a mesh of all devices."""
  import jax
  import jax.numpy as jnp
  import numpy as np
  from jax.sharding import NamedSharding, PartitionSpec

  from retrieval_jax.losses import gramian
  from retrieval_jax.losses.base import DataSizes
  from retrieval_jax.partitioning import partitioner
  from retrieval_jax.records import EmbeddedBatch, Marginals

  loss = gramian.sogram() if cell.form == "sogram" else gramian.sagram()
  part = partitioner()
  sizes = DataSizes(max(cell.rows, cell.batch), max(cell.rows, cell.batch))

  def create() -> Any:
    return loss.init(jax.random.key(0), embed_dim=cell.dim, data=sizes)[1]

  abstract = jax.eval_shape(create)
  whole = jax.tree.map(lambda _: part.replicated, abstract)
  shardings = whole if loss.state_axes is None else part.shardings(abstract, loss.state_axes(abstract))
  state = jax.jit(create, out_shardings=shardings)()
  query, passage, ones, _ = _inputs(cell)
  rows = np.random.default_rng(1).integers(0, sizes.num_queries, (2, cell.batch)).astype(np.int32)
  share = ones / sizes.num_queries
  marginals = Marginals(ones, ones, share, share)
  batch = EmbeddedBatch(query, passage, rows[0], rows[1], rows[1][:, None], ones, marginals=marginals)
  placed = jax.device_put(batch, NamedSharding(part.mesh, PartitionSpec("data")))

  def step(state: Any, batch: EmbeddedBatch) -> tuple:
    if loss.before is not None:
      state = loss.before(state, batch)

    def value(query: Any, passage: Any) -> tuple:
      replaced = batch._replace(query=query, passage=passage)
      output, after = loss.apply({}, state, replaced, rng=None, train=True)
      return jnp.asarray(output.loss), after

    (value_, after), gradient = jax.value_and_grad(value, (0, 1), has_aux=True)(batch.query, batch.passage)
    return (after if loss.after is None else loss.after(after)), value_, gradient

  compiled = (
    jax.jit(part.traced(step), donate_argnums=0, out_shardings=(shardings, None, None))
    .lower(state, placed)
    .compile()
  )
  held = {"state": state}

  def run() -> Any:
    held["state"], value, gradient = compiled(held["state"], placed)
    return value, gradient

  size = sum(x.addressable_shards[0].data.nbytes for x in jax.tree.leaves(state))
  found = _timed(run, seconds)
  return {**found, "bytes": size, "moved": _moved(compiled.as_text() or "")}


def _moved(hlo: str) -> float:
  """Returns the bytes of the largest result of a collective in a compiled program."""
  import math
  import re

  sizes = {"f32": 4, "s32": 4, "u32": 4, "bf16": 2, "pred": 1}
  found = [0]
  for line in hlo.splitlines():
    if re.search(
      r"= .*(all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter)(-start)?\(", line
    ):
      for dtype, shape in re.findall(
        r"(f32|s32|u32|bf16|pred)\[([\d,]*)\]", line.split("=", 1)[1].split("(", 1)[0] + line
      ):
        found.append(sizes[dtype] * math.prod(int(n) for n in shape.split(",") if n))
        break
  return float(max(found))


def _timed(run: Callable[[], Any], seconds: float) -> dict[str, float]:
  """Returns the least milliseconds of CPU time of rounds that last at least 20 ms."""
  import jax

  jax.block_until_ready(run())
  start = time.perf_counter()
  jax.block_until_ready(run())
  once = max(time.perf_counter() - start, 1e-6)
  count, rounds, started = max(1, int(0.02 / once)), [], time.perf_counter()
  while len(rounds) < 3 or time.perf_counter() - started < seconds:
    cpu = time.process_time()
    for _ in range(count):
      result = run()
    jax.block_until_ready(result)
    rounds.append((time.process_time() - cpu) / count)
  return {"ms": 1000 * min(rounds)}


def fresh(cell: Cell, seconds: float) -> dict[str, float]:
  """Returns the measurement of a process of its own, on one thread."""
  flags = f"--xla_force_host_platform_device_count={cell.devices} --xla_cpu_multi_thread_eigen=false"
  environment = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", "OMP_NUM_THREADS": "1"}
  command = [sys.executable, __file__, "--cell", json.dumps(cell), "--seconds", str(seconds)]
  done = subprocess.run(command, capture_output=True, text=True, env=environment)
  if done.returncode:
    raise SystemExit(f"{cell}: {done.stderr[-3000:]}")
  return json.loads(done.stdout.splitlines()[-1])


def forms(batches: list[int], dims: list[int], seconds: float) -> bool:
  """Prints the table of forms; returns whether the bars are met."""
  print(
    f"{'d':>4} {'B':>6} {'pairs':>10} {'Gramian':>10} {'surrogate':>10} {'SOGram':>10}  pairs / Gramian (.75 B / d)"
  )
  met = True
  for dim in dims:
    for batch in batches:
      got = {
        form: fresh(Cell("forms", form, batch, dim), seconds)["ms"]
        for form in FORMS
        if form != "pairs" or batch <= PAIRS_UP_TO.get(dim, 8192)
      }
      expected = 0.75 * batch / dim
      ratio = got["pairs"] / got["gramian"] if "pairs" in got else float("nan")
      shown = " ".join(f"{got[form]:>7.2f} ms" if form in got else f"{'-':>10}" for form in FORMS)
      print(f"{dim:>4} {batch:>6} {shown}  {ratio:8.1f}x ({expected:.1f}x)", flush=True)
      if "pairs" in got and batch >= 8 * dim:
        met &= ratio > 1
      if "pairs" in got and batch == max(b for b in batches if b <= PAIRS_UP_TO.get(dim, 8192)):
        met &= ratio >= expected / 2
  return met


def growth(sizes: list[int], seconds: float) -> bool:
  """Prints SOGram's step over the rows of the data; returns whether it stays the same."""
  print(f"\nSOGram, d = 64, B = 128\n{'rows':>11} {'step':>10} {'state a device':>15}")
  times = []
  for rows in sizes:
    got = fresh(Cell("sogram", "sogram", 128, 64, rows), seconds)
    times.append(got["ms"])
    print(f"{rows:>11,} {got['ms']:>7.3f} ms {got['bytes'] / 1e3:>12,.0f} kB", flush=True)
  return max(times) <= 1.3 * times[0]


def caches(sizes: list[int], seconds: float) -> bool:
  """Prints SAGram's step and caches over the rows of the data, on 1 and 8 devices; returns whether the bars are met."""
  print(
    f"\nSAGram, d = 64, B = 128\n{'rows':>11} {'devices':>8} {'step':>10} {'state a device':>15} {'largest transfer':>17}"
  )
  met = True
  for rows in sizes:
    of_one = fresh(Cell("sagram", "sagram", 128, 64, rows, 1), seconds)
    of_eight = fresh(Cell("sagram", "sagram", 128, 64, rows, 8), seconds)
    for devices, got in ((1, of_one), (8, of_eight)):
      print(
        f"{rows:>11,} {devices:>8} {got['ms']:>7.3f} ms {got['bytes'] / 1e6:>12,.1f} MB {got['moved'] / 1e3:>14,.0f} kB",
        flush=True,
      )
    small = 64 * 64 * 4 * 16  # what every device holds whole: a few matrices
    met &= of_eight["bytes"] <= of_one["bytes"] / 8 + small and of_eight["moved"] < rows * 64 * 4 / 8
  return met


def main() -> None:
  parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
  parser.add_argument(
    "--parts", nargs="+", default=["forms", "sogram", "sagram"], choices=["forms", "sogram", "sagram"]
  )
  parser.add_argument("--batches", type=int, nargs="+", default=[256, 512, 1024, 2048, 4096, 8192, 16384])
  parser.add_argument("--dims", type=int, nargs="+", default=[64, 128])
  parser.add_argument("--rows", type=int, nargs="+", default=[10_000, 100_000, 1_000_000, 10_000_000])
  parser.add_argument("--cached_rows", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
  parser.add_argument("--seconds", type=float, default=1.0, help="repeat a cell for so long")
  parser.add_argument("--cell", help=argparse.SUPPRESS)
  flags = parser.parse_args()
  for name in ("batches", "dims", "rows", "cached_rows", "seconds"):
    given = getattr(flags, name)
    if min(given if isinstance(given, list) else [given]) <= 0:
      parser.error(f"--{name} {given}: expected numbers above 0")
  if flags.cell:
    print(json.dumps(measure(Cell(*json.loads(flags.cell)), flags.seconds)))
    return
  met = {}
  if "forms" in flags.parts:
    met["forms"] = forms(flags.batches, flags.dims, flags.seconds)
  if "sogram" in flags.parts:
    met["sogram"] = growth(flags.rows, flags.seconds)
  if "sagram" in flags.parts:
    met["sagram"] = caches(flags.cached_rows, flags.seconds)
  print(json.dumps({"met": met}))
  sys.exit(0 if all(met.values()) else 1)


if __name__ == "__main__":
  main()
