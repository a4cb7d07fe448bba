"""Chunked encoding (GradCache): memory and time of one training step of MiniLM against the number of chunks.

Batch 512 in 1, 4 and 16 chunks, 16 + 32 tokens, float32, AdamW, in-batch softmax, random weights; every setting in a
process of its own. Prints XLA's temporary memory, the process's peak, seconds and CPU seconds a step (minimum of the
rounds after a first one) and their ratios to one chunk. Bars: memory falls with the chunks; time grows by at most 35%,
which one more forward pass costs in theory (4 passes' worth of products instead of 3).

  python scripts/benchmarks/gradcache.py --rounds 3
"""

import argparse
import itertools
import json
import resource
import subprocess
import sys
import time

import jax
import numpy as np

from retrieval_jax import optimizers
from retrieval_jax.losses.base import DataSizes
from retrieval_jax.losses.in_batch import in_batch_softmax
from retrieval_jax.models.bert import BertEncoder
from retrieval_jax.models.dual_encoder import dual_encoder
from retrieval_jax.models.tower import Tower
from retrieval_jax.partitioning import partitioner
from retrieval_jax.records import Batch
from retrieval_jax.step_options import StepOptions
from retrieval_jax.train_state import initial_state, state_shardings
from retrieval_jax.train_step import make_train_step

VOCABULARY = 30522
MOST_TIME = 1.35


def measure(flags: argparse.Namespace, chunks: int) -> dict[str, float]:
  """Returns the numbers of one setting, measured in this process."""
  encoder = BertEncoder(num_layers=6, num_heads=12, embed_dim=384, mlp_dim=1536)
  model = dual_encoder(Tower(encoder=encoder, vocab_size=VOCABULARY))
  loss, transform, part = in_batch_softmax(temperature=0.05), optimizers.adamw(2e-5).transform, partitioner()

  def create():
    return initial_state(jax.random.key(0), model, loss, transform, data=DataSizes(1, 1))

  shardings = state_shardings(jax.eval_shape(create), model, part)
  state = jax.jit(create, out_shardings=shardings)()
  rng, rows = np.random.default_rng(0), np.arange(flags.batch, dtype=np.int32)
  query, passage = (
    rng.integers(1000, VOCABULARY, (flags.batch, length)).astype(np.int32)
    for length in (flags.query_length, flags.passage_length)
  )
  weights = np.ones(flags.batch, np.float32)
  batch = part.put_batch(Batch(query, passage, rows, rows, rows[:, None], weights))
  train_step = make_train_step(model, loss, transform, seed=0, options=StepOptions(chunks=chunks))
  step = part.jit_step(train_step, shardings).lower(state, batch).compile()

  wall, cpu, first = [], [], 0.0
  for number in range(1 + flags.rounds):
    start = time.perf_counter(), time.process_time()
    state, metrics = step(state, batch)
    value = float(metrics["loss"])
    first = value if number == 0 else first
    wall.append(time.perf_counter() - start[0])
    cpu.append(time.process_time() - start[1])
  return {
    "temporaries": step.memory_analysis().temp_size_in_bytes / 2**20,
    "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10,
    "wall": min(wall[1:]),
    "cpu": min(cpu[1:]),
    "loss": first,
  }


def main() -> None:
  parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
  parser.add_argument("--rounds", type=int, default=2)
  parser.add_argument("--batch", type=int, default=512)
  parser.add_argument("--query_length", type=int, default=16)
  parser.add_argument("--passage_length", type=int, default=32)
  parser.add_argument("--chunks", type=int, nargs="+", default=[1, 4, 16])
  parser.add_argument("--measure", type=int, help=argparse.SUPPRESS)  # in the processes that this one starts
  flags = parser.parse_args()
  if flags.measure is not None:
    print(json.dumps(measure(flags, flags.measure)))
    return
  print(
    f"MiniLM, batch {flags.batch}, {flags.query_length} + {flags.passage_length} tokens, float32, "
    f"{len(jax.devices())} {jax.devices()[0].platform}, {flags.rounds} rounds, minimum; in brackets: of one chunk's\n"
    f"{'chunks':>6} {'XLA temporaries':>22} {'peak of process':>22} {'wall a step':>18} {'CPU a step':>18} {'loss':>9}"
  )
  results: list[dict[str, float]] = []
  for chunks in flags.chunks:
    command = [sys.executable, __file__, *sys.argv[1:], f"--measure={chunks}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
      sys.exit(f"{chunks} chunks: exit code {done.returncode}\n{done.stderr[-2000:]}")
    results.append(json.loads(done.stdout.splitlines()[-1]))
    now, base = results[-1], results[0]
    columns = (
      ("temporaries", "MiB", 22, 0),
      ("peak", "MiB", 22, 0),
      ("wall", "s", 18, 2),
      ("cpu", "s", 18, 2),
    )
    cells = [f"{now[n]:,.{d}f} {unit} ({now[n] / base[n]:.2f})".rjust(width) for n, unit, width, d in columns]
    print(f"{chunks:>6} {' '.join(cells)} {now['loss']:>9.4f}", flush=True)
  falls = all(b["temporaries"] < a["temporaries"] for a, b in itertools.pairwise(results))
  slowest = max(result["cpu"] / results[0]["cpu"] for result in results)
  print(f"memory falls with the chunks: {'yes' if falls else 'NO'}")
  print(
    f"CPU time at most {MOST_TIME:.2f} of one chunk's: {'yes' if slowest <= MOST_TIME else 'NO'} ({slowest:.2f})"
  )


if __name__ == "__main__":
  main()
