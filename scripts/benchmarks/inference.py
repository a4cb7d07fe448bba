"""Time a query of the fused head, by exact search and by HNSW, in one run; where it goes, and what HNSW misses.

The embeddings are drawn: labels around topics, classifiers near their labels, queries near theirs. On both sides a query takes two
searches (classifiers, embeddings), the scores that one head lacks, the fusion and the order. "one" asks query by query,
as a service does; "many" asks all at once. Rounds alternate after one to warm up; each takes its best.
Needs `pip install -e '.[ann]'`.

  python scripts/benchmarks/inference.py
  python scripts/benchmarks/inference.py --labels 131073 --dim 768 --depth 100
"""

import argparse
import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from retrieval_jax.fusion_candidates import HeadResults, candidates, ranked
from retrieval_jax.head_fusion import features_of
from retrieval_jax.index.ann import faiss_hnsw
from retrieval_jax.index.base import Index
from retrieval_jax.index.exact import exact
from retrieval_jax.linear_fusion import LinearFusion

TOPICS = 200
MODEL = LinearFusion(np.array([8.0, 5.5, 0.0]), -10.0)
STAGES = ("search", "scores", "fusion")
K = 5


class Data(NamedTuple):
  queries: np.ndarray
  classifiers: np.ndarray
  passages: np.ndarray


class Indexes(NamedTuple):
  classifiers: Index
  passages: Index


def unit(x: np.ndarray) -> np.ndarray:
  return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)


def drawn(labels: int, dim: int, queries: int) -> Data:
  rng = np.random.default_rng(0)

  def near(x: np.ndarray, noise: float) -> np.ndarray:
    return unit(x + noise * unit(rng.standard_normal(x.shape, np.float32)))

  passages = near(unit(rng.standard_normal((TOPICS, dim)))[rng.integers(0, TOPICS, labels)], 1.0)
  return Data(near(passages[rng.integers(0, labels, queries)], 0.8), near(passages, 0.5), passages)


def timed(
  data: Data, indexes: Indexes, places: Sequence[np.ndarray], depth: int
) -> tuple[dict[str, float], np.ndarray]:
  """Returns milliseconds a query by stage, and the rows that were found."""
  logs = np.zeros(len(data.passages), np.float32)
  spent, rows = dict.fromkeys(STAGES, 0.0), []
  for some in places:
    queries = data.queries[some]
    times = [time.perf_counter()]
    results = [
      HeadResults(index.search(queries, k=depth), queries, corpus)
      for index, corpus in zip(indexes, (data.classifiers, data.passages), strict=True)
    ]
    times.append(time.perf_counter())
    found = candidates(*results)
    times.append(time.perf_counter())
    scores = MODEL.scores(features_of(found, logs))
    rows.append(ranked(found, scores, num_queries=len(some), k=K).rows)
    times.append(time.perf_counter())
    for stage, seconds in zip(STAGES, np.diff(times), strict=True):
      spent[stage] += seconds
  count = sum(map(len, places))
  return {stage: 1e3 * seconds / count for stage, seconds in spent.items()}, np.concatenate(rows)


def main() -> None:
  parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
  parser.add_argument("--labels", type=int, default=8712)
  parser.add_argument("--dim", type=int, default=384)
  parser.add_argument("--queries", type=int, default=256)
  parser.add_argument("--depth", type=int, default=300)
  parser.add_argument("--rounds", type=int, default=3)
  flags = parser.parse_args()
  data = drawn(flags.labels, flags.dim, flags.queries)
  sides: dict[str, Indexes] = {}
  for name, build in (("exact", exact), ("hnsw", faiss_hnsw)):
    start = time.perf_counter()
    sides[name] = Indexes(build(data.classifiers), build(data.passages))
    print(
      f"{name:<6} two indexes of {flags.labels:,} x {flags.dim} built in {time.perf_counter() - start:.1f} s"
    )
  print(f"milliseconds a query, depth {flags.depth}, best of {flags.rounds}")
  numbers = np.arange(flags.queries)
  for kind, places in (("one", np.split(numbers, flags.queries)), ("many", [numbers])):
    best: dict[str, dict[str, float]] = {}
    rows = {}
    for number in range(flags.rounds + 1):
      for name, side in sides.items():
        spent, rows[name] = timed(data, side, places, flags.depth)
        if number and (name not in best or sum(spent.values()) < sum(best[name].values())):
          best[name] = spent
    for name, spent in best.items():
      stages = "  ".join(f"{stage} {value:7.3f}" for stage, value in spent.items())
      print(f"{kind:<5} {name:<6} {sum(spent.values()):7.3f}  ({stages})")
    same = np.mean(
      [len({*a} & {*b}) / K for a, b in zip(*(rows[name].tolist() for name in sides), strict=True)]
    )
    ratio = sum(best["exact"].values()) / sum(best["hnsw"].values())
    print(f"{kind:<5} exact / hnsw {ratio:.2f}x; hnsw has {100 * same:.2f}% of the exact top {K}", flush=True)


if __name__ == "__main__":
  main()
