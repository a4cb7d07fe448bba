"""One training step of a T5 1.1 base dual encoder on one GPU: examples/s, MFU, memory, and the same in PyTorch beside it.

SDE + SamToNe, bfloat16 activations over float32 parameters, AdamW, batch 512, 64 + 256 tokens, no dropout, random weights and
random token ids: nothing is downloaded. Parts, each in a process and under a time limit of its own, so that one that fails costs
only itself:
  matmul          the card's rate in a large bfloat16 product: what MFU is measured against
  plain, tiled    ours, the loss's logits all at once or in tiles
  torch           transformers' T5EncoderModel, mean pooling, the same loss, eager (autocast); torch_compiled: torch.compile
A step's operations are counted by formula (products of the encoder, forward once and backward twice), the same for all. Peak
memory is what the framework's allocator held at most. torch and transformers are optional: pip install -e '.[interop]'.

  bash scripts/benchmarks/gpu.sh                              # under 8 minutes on one GPU
  python scripts/benchmarks/gpu.py --tiny --platform=cpu      # all parts with small sizes, here
"""

import argparse
import json
import os
import pathlib
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

PARTS = {"matmul": 60, "plain": 120, "tiled": 120, "torch": 90, "torch_compiled": 120}  # seconds at most
VOCABULARY = 32128
TEMPERATURE = 0.01
LEARNING_RATE = 1e-4


class Sizes(NamedTuple):
  """What is trained. rows_per_tile: of the tiled loss. product: rows and columns of the matrices of the matmul part."""

  layers: int = 12
  heads: int = 12
  head_dim: int = 64
  width: int = 768
  mlp: int = 2048
  batch: int = 512
  query_length: int = 64
  passage_length: int = 256
  rows_per_tile: int = 128
  product: int = 8192
  rounds: int = 10

  def flops(self) -> float:
    """Returns the operations of one training step, counted as products: 2 for each weight and token, and attention's."""
    inner = self.heads * self.head_dim
    weights = self.layers * (4 * self.width * inner + 3 * self.width * self.mlp)
    forward = 0.0
    for length in (self.query_length, self.passage_length):
      attention = self.layers * 4 * length * inner  # scores and the sum of values, of a token
      forward += self.batch * (length * (2 * weights + attention) + 2 * self.width * self.width)
    forward += 2 * 2 * self.batch * self.batch * self.width  # query-passage and query-query scores
    return 3 * forward


TINY = Sizes(2, 2, 16, 64, 128, 8, 8, 16, 4, 256, 2)


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the parts one after the other, or one of them, and returns the exit status: 1 if all failed."""
  flags = _flags(argv)
  sizes = TINY if flags.tiny else Sizes(batch=flags.batch, rounds=flags.rounds)
  if flags.part:
    print(json.dumps(RUN[flags.part](sizes, flags)), flush=True)
    return 0
  end, found = time.monotonic() + flags.seconds, {}
  for part in flags.parts.split(","):
    limit = flags.part_seconds or PARTS[part]
    found[part] = _in_process(part, flags, min(limit, end - time.monotonic()))
    print(_line(part, found[part], sizes, _rate(found)), flush=True)
  report = {"sizes": sizes._asdict(), "flops_a_step": sizes.flops(), "parts": found}
  text = json.dumps(report, indent=2)
  print(text)
  if flags.json:
    pathlib.Path(flags.json).write_text(text + "\n", encoding="utf-8")
  return int(all("error" in numbers for numbers in found.values()))


def _flags(argv: Sequence[str] | None) -> argparse.Namespace:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--platform", default="gpu", choices=("gpu", "cpu"))
  parser.add_argument("--tiny", action="store_true", help="small sizes: does it run?")
  parser.add_argument("--batch", type=int, default=512)
  parser.add_argument("--chunks", type=int, default=1, help="of encoding (GradCache), where memory is short")
  parser.add_argument("--rounds", type=int, default=10, help="steps that are timed, after two")
  parser.add_argument("--parts", default=",".join(PARTS), help=f"of {','.join(PARTS)}")
  parser.add_argument("--seconds", type=float, default=450, help="for all parts together (default: 450)")
  parser.add_argument("--part_seconds", type=float, help="for each part, in place of its own limit")
  parser.add_argument("--json", help="a file for the numbers")
  parser.add_argument("--part", choices=tuple(PARTS), help=argparse.SUPPRESS)
  flags = parser.parse_args(argv)
  if unknown := set(flags.parts.split(",")) - set(PARTS):
    parser.error(f"--parts: unknown {', '.join(sorted(unknown))}; expected some of {', '.join(PARTS)}")
  return flags


def _in_process(part: str, flags: argparse.Namespace, seconds: float) -> dict[str, Any]:
  """Returns the numbers of a part, run in a process of its own, or {"error": why there are none}."""
  if seconds < 1:
    return {"error": "no time was left"}
  command = [
    sys.executable,
    __file__,
    f"--part={part}",
    f"--platform={flags.platform}",
    f"--batch={flags.batch}",
  ]
  command += [f"--rounds={flags.rounds}", f"--chunks={flags.chunks}", *(["--tiny"] if flags.tiny else [])]
  environment = dict(os.environ, XLA_PYTHON_CLIENT_MEM_FRACTION="0.92", TF_CPP_MIN_LOG_LEVEL="3")
  if flags.platform == "cpu":
    environment |= {"JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": ""}
  began = time.monotonic()
  try:
    done = subprocess.run(
      command, capture_output=True, text=True, timeout=seconds, env=environment, check=False
    )
  except subprocess.TimeoutExpired:
    return {"error": f"took longer than {seconds:.0f} s"}
  if done.returncode or not done.stdout.strip():
    return {"error": (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1][:300]}
  return {**json.loads(done.stdout.splitlines()[-1]), "part_seconds": round(time.monotonic() - began, 1)}


def _rate(found: Mapping[str, Mapping[str, Any]]) -> float | None:
  return found.get("matmul", {}).get("flops_a_second")


def _line(part: str, numbers: Mapping[str, Any], sizes: Sizes, rate: float | None) -> str:
  """Returns a row of the table."""
  if "error" in numbers:
    return f"{part:<15} failed: {numbers['error']}"
  if part == "matmul":
    return (
      f"{part:<15} {numbers['flops_a_second'] / 1e12:8.1f} TFLOP/s in bfloat16 products of {sizes.product} x {sizes.product}"
      f", {numbers['device']}"
    )
  seconds = numbers["step_seconds"]
  mfu = f"{100 * sizes.flops() / seconds / rate:5.1f}% MFU" if rate else "  no MFU"
  return (
    f"{part:<15} {sizes.batch / seconds:8.1f} examples/s {1e3 * seconds:9.1f} ms a step {mfu} "
    f"{numbers['peak_bytes'] / 2**30:7.2f} GiB at most, {numbers['first_seconds']:5.1f} s to the first step, loss "
    f"{numbers['loss']:.4f}"
  )


def _batch(sizes: Sizes) -> tuple[np.ndarray, np.ndarray]:
  rng = np.random.default_rng(0)
  lengths = (sizes.query_length, sizes.passage_length)
  query, passage = (rng.integers(3, VOCABULARY, (sizes.batch, n)).astype(np.int32) for n in lengths)
  return query, passage


def _timed(step: Callable[[], float], rounds: int, began: float) -> dict[str, float]:
  """Returns the least time of a step, each ended by reading its loss, after two that compile and warm up."""
  step()
  first = time.perf_counter() - began
  step()
  times, loss = [], 0.0
  for _ in range(rounds):
    start = time.perf_counter()
    loss = step()
    times.append(time.perf_counter() - start)
  return {
    "step_seconds": min(times),
    "median_seconds": float(np.median(times)),
    "first_seconds": first,
    "loss": loss,
  }


def _host_peak() -> int:
  return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def matmul(sizes: Sizes, flags: argparse.Namespace) -> dict[str, Any]:
  """Returns the rate of large bfloat16 products in jax: the best of ten rounds of ten."""
  import jax
  import jax.numpy as jnp

  device = _device(flags)
  a, b = (
    jax.random.normal(jax.random.key(i), (sizes.product, sizes.product), jnp.bfloat16) for i in range(2)
  )
  many = 10

  @jax.jit
  def products(a, b):
    scale = jnp.bfloat16(sizes.product**-0.5)  # keeps the numbers in range, and random: zeros would be faster
    return jax.lax.fori_loop(0, many, lambda _, x: (x @ b) * scale, a)

  products(a, b).block_until_ready()
  times = []
  for _ in range(10):
    start = time.perf_counter()
    products(a, b).block_until_ready()
    times.append(time.perf_counter() - start)
  return {
    "flops_a_second": many * 2 * sizes.product**3 / min(times),
    "device": device.device_kind,
    "jax": jax.__version__,
  }


def _device(flags: argparse.Namespace) -> Any:
  import jax

  device = jax.devices()[0]
  if device.platform != flags.platform:
    raise SystemExit(f"jax finds {device.platform}, not {flags.platform}")
  return device


def ours(sizes: Sizes, flags: argparse.Namespace, rows_per_tile: int) -> dict[str, Any]:
  """Returns the numbers of retrieval_jax's step."""
  import jax

  from retrieval_jax import optimizers
  from retrieval_jax.losses.base import DataSizes
  from retrieval_jax.losses.in_batch import samtone
  from retrieval_jax.losses.softmax_terms import Options
  from retrieval_jax.models.dual_encoder import dual_encoder
  from retrieval_jax.models.t5 import T5Encoder
  from retrieval_jax.models.tower import Tower
  from retrieval_jax.partitioning import partitioner
  from retrieval_jax.records import Batch
  from retrieval_jax.step_options import StepOptions
  from retrieval_jax.train_state import initial_state, state_shardings
  from retrieval_jax.train_step import make_train_step

  device, began = _device(flags), time.perf_counter()
  encoder = T5Encoder(sizes.layers, sizes.heads, sizes.head_dim, sizes.width, sizes.mlp, dtype="bfloat16")
  model = dual_encoder(Tower(encoder=encoder, vocab_size=VOCABULARY, projection_dim=sizes.width))
  loss = samtone(temperature=TEMPERATURE, options=Options(rows_per_tile=rows_per_tile))
  transform, part = optimizers.adamw(LEARNING_RATE).transform, partitioner()

  def create():
    return initial_state(jax.random.key(0), model, loss, transform, data=DataSizes(1, 1))

  shardings = state_shardings(jax.eval_shape(create), model, part)
  state = jax.jit(create, out_shardings=shardings)()
  query, passage = _batch(sizes)
  rows = np.arange(sizes.batch, dtype=np.int32)
  batch = part.put_batch(Batch(query, passage, rows, rows, rows[:, None], np.ones(sizes.batch, np.float32)))
  options = StepOptions(chunks=flags.chunks)
  step = part.jit_step(make_train_step(model, loss, transform, seed=0, options=options), shardings)

  def run() -> float:
    nonlocal state
    state, metrics = step(state, batch)
    return float(metrics["loss"])

  numbers = _timed(run, sizes.rounds, began)
  stats = device.memory_stats() or {}
  return {**numbers, "peak_bytes": stats.get("peak_bytes_in_use", _host_peak()), "jax": jax.__version__}


def torch_samtone(query: Any, passage: Any) -> Any:
  """Returns SamToNe on the query side in both directions (losses/in_batch.py) of L2-normalised float32 embeddings."""
  import torch

  scores, alike = query @ passage.T / TEMPERATURE, query @ query.T / TEMPERATURE
  alike = alike.masked_fill(torch.eye(len(query), dtype=torch.bool, device=query.device), float("-inf"))
  targets = torch.arange(len(query), device=query.device)
  forward = torch.nn.functional.cross_entropy(torch.cat([scores, alike], dim=1), targets)
  return (forward + torch.nn.functional.cross_entropy(scores.T, targets)) / 2


def theirs(sizes: Sizes, flags: argparse.Namespace, compiled: bool) -> dict[str, Any]:
  """Returns the numbers of PyTorch's step."""
  import torch
  import transformers

  where, began = torch.device("cpu" if flags.platform == "cpu" else "cuda"), time.perf_counter()
  config = transformers.T5Config(
    vocab_size=VOCABULARY,
    d_model=sizes.width,
    d_kv=sizes.head_dim,
    d_ff=sizes.mlp,
    num_layers=sizes.layers,
    num_heads=sizes.heads,
    feed_forward_proj="gated-gelu",
    dropout_rate=0.0,
  )
  torch.manual_seed(0)
  encoder: Any = transformers.T5EncoderModel(config)
  encoder.to(where).train()
  projection = torch.nn.Linear(sizes.width, sizes.width, bias=False, device=where)
  parameters = [*encoder.parameters(), *projection.parameters()]
  optimizer = torch.optim.AdamW(parameters, lr=LEARNING_RATE, fused=where.type == "cuda")
  query, passage = (torch.tensor(ids, dtype=torch.long, device=where) for ids in _batch(sizes))

  def embed(ids: Any) -> Any:
    with torch.autocast(where.type, torch.bfloat16):
      hidden = encoder(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state
      pooled = projection(hidden.mean(dim=1))
    return torch.nn.functional.normalize(pooled.float(), dim=1)

  fast_embed = torch.compile(embed) if compiled else embed

  def run() -> float:
    optimizer.zero_grad(set_to_none=True)
    loss = torch_samtone(fast_embed(query), fast_embed(passage))
    loss.backward()
    optimizer.step()
    return float(loss.detach())

  numbers = _timed(run, sizes.rounds, began)
  peak = torch.cuda.max_memory_allocated() if where.type == "cuda" else _host_peak()
  return {**numbers, "peak_bytes": peak, "torch": torch.__version__, "transformers": transformers.__version__}


RUN: Mapping[str, Callable[[Sizes, argparse.Namespace], dict[str, Any]]] = {
  "matmul": matmul,
  "plain": lambda sizes, flags: ours(sizes, flags, 0),
  "tiled": lambda sizes, flags: ours(sizes, flags, sizes.rows_per_tile),
  "torch": lambda sizes, flags: theirs(sizes, flags, False),
  "torch_compiled": lambda sizes, flags: theirs(sizes, flags, True),
}


if __name__ == "__main__":
  sys.exit(main())
