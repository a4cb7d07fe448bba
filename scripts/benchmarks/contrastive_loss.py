"""The contrastive loss alone, forward and backward: the plain form (whole matrices, autodiff) beside the tiled one.

Every cell is a process of its own: time (minimum of rounds), CPU seconds, peak memory above the inputs, and the
temporaries that XLA plans. FLOPs are those of the q x p x d products: 6 for each of forward and two backward products
of a block, which the plain form makes once; the tiled form makes the forward product of a block again where the
direction from passage to query needs the columns' totals first. All in float32, d = 768, no masks but the identities'.

  python scripts/benchmarks/contrastive_loss.py
  python scripts/benchmarks/contrastive_loss.py --batches 4096 --losses samtone --tiles 128 256 512
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from typing import NamedTuple

# Products of a [q, d] with a [p, d] matrix (2 q p d FLOPs each): plain, tiled.
PRODUCTS = {"one_way": (3, 3), "bidirectional": (3, 4), "samtone": (6, 7)}
PLAIN_UP_TO = 16384  # the plain form of SamToNe holds several float32 matrices of B x B


class Cell(NamedTuple):
  """One measurement. memory: peak resident bytes above those with the inputs in place."""

  loss: str
  batch: int
  dim: int
  tile: int  # 0: the plain form; -1: chosen by the batch


def make(cell: Cell):
  from retrieval_jax.losses.in_batch import in_batch_softmax, samtone
  from retrieval_jax.losses.softmax_terms import Options

  options = Options(rows_per_tile=None if cell.tile < 0 else cell.tile)
  if cell.loss == "samtone":
    return samtone(temperature=0.05, options=options)
  return in_batch_softmax(temperature=0.05, bidirectional=cell.loss == "bidirectional", options=options)


def measure(cell: Cell, seconds: float) -> dict:
  import jax
  import jax.numpy as jnp
  import numpy as np

  from retrieval_jax.records import EmbeddedBatch

  loss = make(cell)
  rng = np.random.default_rng(0)
  rows = jnp.arange(cell.batch, dtype=jnp.int32)
  query, passage = (jnp.asarray(rng.standard_normal((cell.batch, cell.dim), np.float32)) for _ in range(2))
  batch = EmbeddedBatch(query, passage, rows, rows, rows[:, None], jnp.ones(cell.batch))

  def value(query, passage, batch):
    output, _ = loss.apply({}, {}, batch._replace(query=query, passage=passage), rng=None, train=True)
    return output.loss

  step = jax.jit(jax.value_and_grad(value, (0, 1))).lower(query, passage, batch).compile()
  before = resident()
  walls, cpus, started = [], [], time.perf_counter()
  while not walls or time.perf_counter() - started < seconds:
    wall, cpu = time.perf_counter(), time.process_time()
    result = jax.block_until_ready(step(query, passage, batch))
    walls.append(time.perf_counter() - wall)
    cpus.append(time.process_time() - cpu)
  return {
    "wall": min(walls),
    "cpu": min(cpus),
    "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before,
    "temporaries": step.memory_analysis().temp_size_in_bytes,  # pyright: ignore[reportOptionalMemberAccess]
    "loss": float(result[0]),
    "gradient": float(jnp.linalg.norm(result[1][0])),
  }


def resident() -> int:
  """Returns this process's resident bytes now (Linux)."""
  with open("/proc/self/statm") as file:
    return int(file.read().split()[1]) * resource.getpagesize()


def fresh(cell: Cell, seconds: float) -> dict | None:
  """Returns the measurement of a process of its own, None if it died (out of memory)."""
  command = [sys.executable, __file__, "--cell", json.dumps(cell), "--seconds", str(seconds)]
  done = subprocess.run(command, capture_output=True, text=True)
  if done.returncode:
    print(done.stderr[-2000:], file=sys.stderr)
    return None
  return json.loads(done.stdout.splitlines()[-1])


def report(cell: Cell, got: dict, plain: dict | None) -> None:
  form = "plain" if cell.tile == 0 else "tiled" if cell.tile < 0 else f"tiled {cell.tile}"
  flops = 2 * PRODUCTS[cell.loss][cell.tile != 0] * cell.batch**2 * cell.dim
  ratio = f"{got['wall'] / plain['wall']:5.2f}x {got['cpu'] / plain['cpu']:5.2f}x" if plain else f"{'':13}"
  print(
    f"{cell.loss:<14}{cell.batch:>7}  {form:<10} {got['wall']:8.2f} s {got['cpu']:8.2f} CPU-s  {ratio}  "
    f"{got['memory'] / 2**20:8.0f} MiB {got['temporaries'] / 2**20:8.0f} MiB  {flops / 1e9:9.0f} GFLOP "
    f"{flops / got['cpu'] / 1e9:6.1f} GFLOP/CPU-s  loss {got['loss']:.6f}",
    flush=True,
  )
  if plain and abs(got["loss"] - plain["loss"]) > 1e-5 * abs(plain["loss"]):
    raise SystemExit(f"the two forms disagree: {got['loss']} and {plain['loss']}")


def main() -> None:
  parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
  parser.add_argument("--batches", type=int, nargs="+", default=[1024, 4096, 16384, 65536])
  parser.add_argument("--losses", nargs="+", default=["bidirectional", "samtone"], choices=list(PRODUCTS))
  parser.add_argument(
    "--tiles", type=int, nargs="+", default=[-1], help="rows per tile; -1: chosen by the batch"
  )
  parser.add_argument("--dim", type=int, default=768)
  parser.add_argument("--seconds", type=float, default=10, help="repeat a cell for so long (at least once)")
  parser.add_argument("--cell", help=argparse.SUPPRESS)
  flags = parser.parse_args()
  if flags.cell:
    print(json.dumps(measure(Cell(*json.loads(flags.cell)), flags.seconds)))
    return
  print(
    f"{'loss':<14}{'batch':>7}  {'form':<10} {'time':>10} {'':>14}  to plain: wall, CPU  peak above inputs, XLA's temporaries"
  )
  for loss in flags.losses:
    for batch in flags.batches:
      cells = [
        Cell(loss, batch, flags.dim, tile) for tile in ([0] if batch <= PLAIN_UP_TO else []) + flags.tiles
      ]
      plain = None
      for cell in cells:
        got = fresh(cell, flags.seconds)
        if got is None:
          print(f"{loss:<14}{batch:>7}  tile {cell.tile}: died", flush=True)
          continue
        report(cell, got, plain)
        plain = got if cell.tile == 0 else plain


if __name__ == "__main__":
  main()
