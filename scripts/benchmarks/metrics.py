"""Metrics of 10,000 queries x 1,000 results: ours against pytrec_eval and ir_measures, in CPU seconds and peak memory.

Each runs in a process of its own, on one core, and computes the same, for each query and in the mean: nDCG@10, nDCG@100,
MAP, MRR@10, recall@100, recall@1000 and P@10. trec_eval has no MRR with a cutoff: pytrec_eval computes the whole one.

Columns, best of the rounds:
  values      from input in memory: rows of the corpus (int32) and judgements as arrays for ours, as our own search
              returns them; dicts of dicts for the others, made beforehand.
  from ids    from lists of passage ids and scores, best first, and judgements as dicts: ours turns the ids into rows,
              the others make the dicts of the run.
  MB          peak memory above that of ids, scores, rows and judgements: of the input, and of the values above it.
  difference  the largest one of a mean to ours.

  python scripts/benchmarks/metrics.py --rounds 3
"""

import argparse
import importlib.util
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import numpy as np

METRICS = ("ndcg@10", "ndcg@100", "map", "mrr@10", "recall@100", "recall@1000", "p@10")


class Task(NamedTuple):
  """Results of a search: as rows, and as lists of ids and scores, best first; judgements as a dict for each query."""

  rows: np.ndarray
  found: list[list[str]]
  scores: list[list[float]]
  qrels: list[dict[str, int]]
  judged: list[tuple[list[int], list[int]]]  # the same as rows and grades


class Contender(NamedTuple):
  """make: input in memory from the task. values: means by our names from that input. from_ids: from the task."""

  make: Callable[[], Any]
  values: Callable[[Any], dict[str, float]]
  from_ids: Callable[[], dict[str, float]]


def make_task(queries: int, depth: int, corpus: int, judged: int) -> Task:
  """Returns random results; up to `judged` passages of a query have grades 0 to 3, half of them are among its results."""
  rng = np.random.default_rng(0)
  ids = [f"doc{row}" for row in rng.permutation(corpus)]
  rows = np.stack([rng.choice(corpus, depth, replace=False) for _ in range(queries)]).astype(np.int32)
  scores = [np.linspace(1, 0, depth, dtype=np.float32).tolist() for _ in range(queries)]  # no ties
  pairs = []
  for one in rows:
    among = np.unique([*rng.choice(one, judged // 2), *rng.integers(0, corpus, judged - judged // 2)])
    pairs.append((among.tolist(), rng.integers(0, 4, len(among)).tolist()))
  qrels = [{ids[row]: grade for row, grade in zip(*pair, strict=True)} for pair in pairs]
  return Task(rows, [[ids[row] for row in one.tolist()] for one in rows], scores, qrels, pairs)


def by_query(values: list) -> dict[str, Any]:
  return {f"q{i}": value for i, value in enumerate(values)}


def run_dicts(task: Task) -> dict[str, dict[str, float]]:
  return by_query([dict(zip(*one, strict=True)) for one in zip(task.found, task.scores, strict=True)])


def ours(task: Task) -> Contender:
  from retrieval_jax.metrics.id_rows import rows_of_ids
  from retrieval_jax.metrics.judgements import Qrels
  from retrieval_jax.metrics.ranking import evaluate_ranking

  def values(made: tuple[np.ndarray, Qrels]) -> dict[str, float]:
    return evaluate_ranking(made[0], qrels=made[1], metrics=METRICS).means

  return Contender(
    lambda: (task.rows, Qrels.of(task.judged)), values, lambda: values(rows_of_ids(task.found, task.qrels))
  )


def pytrec(task: Task) -> Contender:
  import pytrec_eval

  names = {"ndcg@10": "ndcg_cut_10", "ndcg@100": "ndcg_cut_100", "map": "map", "p@10": "P_10"}
  names |= {"recall@100": "recall_100", "recall@1000": "recall_1000"}
  asked = {"ndcg_cut.10,100", "map", "recip_rank", "recall.100,1000", "P.10"}
  qrels = by_query(task.qrels)

  def values(run: dict) -> dict[str, float]:
    found = pytrec_eval.RelevanceEvaluator(qrels, asked).evaluate(run).values()
    return {name: float(np.mean([one[key] for one in found])) for name, key in names.items()}

  return Contender(lambda: run_dicts(task), values, lambda: values(run_dicts(task)))


def measures(task: Task) -> Contender:
  import ir_measures
  from ir_measures import AP, RR, P, R, nDCG

  asked = [nDCG @ 10, nDCG @ 100, AP, RR @ 10, R @ 100, R @ 1000, P @ 10]
  qrels = by_query(task.qrels)

  def values(run: dict) -> dict[str, float]:
    found = ir_measures.calc(asked, qrels, run)  # the values of each query too
    means = cast(dict[Any, float], found.aggregated)
    return {name: float(means[measure]) for name, measure in zip(METRICS, asked, strict=True)}

  return Contender(lambda: run_dicts(task), values, lambda: values(run_dicts(task)))


CONTENDERS = {"ours": ours, "pytrec_eval": pytrec, "ir_measures": measures}


def peak() -> float:
  """Returns the most memory that this process has had, in MB."""
  return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def fastest(function: Callable[[], Any], rounds: int) -> float:
  """Returns CPU seconds."""
  seconds = []
  for _ in range(rounds):
    start = time.process_time()
    function()
    seconds.append(time.process_time() - start)
  return min(seconds)


def measure(name: str, flags: argparse.Namespace) -> dict[str, Any]:
  task = make_task(flags.queries, flags.depth, flags.corpus, flags.judged)
  contender = CONTENDERS[name](task)
  memory = [peak()]
  made = contender.make()
  memory.append(peak())
  means = contender.values(made)
  memory.append(peak())
  values = fastest(lambda: contender.values(made), flags.rounds)
  del made
  from_ids = fastest(contender.from_ids, flags.rounds)
  return {"means": means, "values": values, "from_ids": from_ids, "mb": np.diff(memory).tolist()}


def main() -> None:
  parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
  parser.add_argument("--queries", type=int, default=10_000)
  parser.add_argument("--depth", type=int, default=1000)
  parser.add_argument("--corpus", type=int, default=1_000_000)
  parser.add_argument("--judged", type=int, default=20, help="judged passages a query")
  parser.add_argument("--rounds", type=int, default=3)
  parser.add_argument("--only", choices=CONTENDERS, help="one of them, as JSON")
  flags = parser.parse_args()
  if flags.only:
    print(json.dumps(measure(flags.only, flags)))
    return
  print(f"{flags.queries} queries x {flags.depth} results, {flags.judged} judged a query; CPU seconds")
  titles = (
    "values",
    "from ids",
    "values / ours",
    "from ids / ours",
    "MB of input",
    "MB of values",
    "difference",
  )
  print(f"{'':<14}" + "".join(f"{title:>17}" for title in titles))
  us = None
  for name in CONTENDERS:
    if name != "ours" and importlib.util.find_spec(name) is None:
      print(f"{name:<14}is not installed: pip install -e '.[bench]'", flush=True)
      continue
    command = [sys.executable, __file__, *sys.argv[1:], "--only", name]
    them = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    us = us or them
    times = (
      them["values"],
      them["from_ids"],
      them["values"] / us["values"],
      them["from_ids"] / us["from_ids"],
    )
    difference = max(abs(us["means"][metric] - value) for metric, value in them["means"].items())
    line = [f"{x:>17.2f}" for x in times] + [f"{x:>17.0f}" for x in them["mb"]]
    print(f"{name:<14}{''.join(line)}{difference:>17.1e}", flush=True)


if __name__ == "__main__":
  main()
