"""Two runs side by side: each metric's difference over the same queries, and whether chance explains it."""

import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from retrieval_jax.data.trec import read_qrels, read_run
from retrieval_jax.errors import UserError
from retrieval_jax.metrics.per_query import read_per_query
from retrieval_jax.metrics.ranking import evaluate_ranking
from retrieval_jax.metrics.significance import confidence_interval, paired_test
from retrieval_jax.paths import resolve
from retrieval_jax.result_files import PER_QUERY_FILE, RUN_FILE

METRICS = ("ndcg@10", "map", "mrr@10", "recall@100", "p@1")
PerQuery = Mapping[str, Mapping[str, float]]  # metric -> query id -> value


class Comparison(NamedTuple):
  """A metric of run A and of run B.

  difference: mean of B minus mean of A. interval: its 95% confidence interval (bootstrap). p_value: how often a
  difference as large comes about if the two runs are exchangeable (paired randomisation test).
  """

  metric: str
  a: float
  b: float
  difference: float
  interval: tuple[float, float]
  p_value: float
  queries: int


def compare(
  run_a: str, run_b: str, *, qrels: str | None = None, metrics: Sequence[str] | None = None
) -> list[Comparison]:
  """Returns the comparison of every metric that both runs have, over the queries that both have.

  run_a, run_b: a folder of `eval` (MODEL_DIR/eval/<task>/step_<n>), its per_query.tsv, or with `qrels` a TREC run file,
  ours or another tool's.
  qrels: judgements in TREC's or BEIR's form; both runs are then measured anew.
  metrics: those that are compared; None: all.

  Raises: UserError if the runs are not of the same queries, or have no metric in common.

  Example: `compare("a/eval/pydocs/step_0", "b/eval/pydocs/step_100")`.
  """
  a, b = (read_values(path, qrels=qrels) for path in (run_a, run_b))
  common = [name for name in a if name in b and (metrics is None or name in metrics)]
  if not common:
    raise UserError(f"{run_a} has {', '.join(a)} and {run_b} {', '.join(b)}: no metric in common.")
  return [_compared(name, a[name], b[name], (run_a, run_b)) for name in common]


def _compared(
  metric: str, a: Mapping[str, float], b: Mapping[str, float], runs: tuple[str, str]
) -> Comparison:
  if a.keys() != b.keys():
    only_a, only_b = sorted(a.keys() - b.keys()), sorted(b.keys() - a.keys())
    raise UserError(
      f"{runs[0]} and {runs[1]} are not of the same queries: {len(only_a)} are in the first alone ({only_a[:3]}), "
      f"{len(only_b)} in the second alone ({only_b[:3]}). Compare runs of one task and split."
    )
  first = np.array(list(a.values()))
  second = np.array([b[query] for query in a])
  test = paired_test(first, second)
  return Comparison(
    metric,
    float(np.nanmean(first)),
    float(np.nanmean(second)),
    float(np.nanmean(second) - np.nanmean(first)),
    confidence_interval(second - first),
    test.p_value,
    test.count,
  )


def read_values(path: str, *, qrels: str | None = None) -> PerQuery:
  """Returns every metric of every query of a run: from its per_query.tsv, or measured anew where `qrels` is given."""
  found = resolve(path)
  if qrels is not None:
    return measure(found / RUN_FILE if found.is_dir() else found, resolve(qrels))
  table = found / PER_QUERY_FILE if found.is_dir() else found
  if not table.is_file():
    raise UserError(
      f"{path}: no {PER_QUERY_FILE} in it. Name a folder that eval wrote (MODEL_DIR/eval/<task>/step_<n>), or a run "
      "file together with --qrels FILE."
    )
  if table.name == RUN_FILE:
    raise UserError(f"{path} is a run file: give --qrels FILE beside it, or name {table.parent}.")
  ids, values = read_per_query(table)
  return {name: dict(zip(ids, column.tolist(), strict=True)) for name, column in values.items()}


def measure(run: pathlib.Path, qrels: pathlib.Path, metrics: Sequence[str] = METRICS) -> PerQuery:
  """Returns the metrics of a TREC run file under judgements, for every judged query; queries without results count 0.

  Results are taken by score, equal ones in the order of their ranks.
  """
  judged: dict[str, dict[str, int]] = {}
  for line in read_qrels(qrels):
    judged.setdefault(line.query_id, {})[line.passage_id] = line.grade
  found: dict[str, list[tuple[float, int, str]]] = {}
  for line in read_run(run):
    found.setdefault(line.query_id, []).append((-line.score, line.rank, line.passage_id))
  if not judged.keys() & found.keys():
    raise UserError(
      f"{run} has no query that {qrels} judges (the first are {list(found)[:1]} and {list(judged)[:1]}). Ids are taken "
      "as they are: '1' is not '01'."
    )
  unanswered = len(judged.keys() - found.keys())
  if unanswered:
    print(
      f"warning: {run} has no result for {unanswered:,} of the {len(judged):,} queries that {qrels} judges; they count 0.",
      file=sys.stderr,
    )
  rows: dict[str, int] = {}
  depth = max(map(len, found.values()))
  results = np.full((len(judged), depth), -1, np.int64)
  for i, query in enumerate(judged):
    ordered = [rows.setdefault(passage, len(rows)) for *_, passage in sorted(found.get(query, []))]
    results[i, : len(ordered)] = ordered
  pairs = [
    ([rows.setdefault(passage, len(rows)) for passage in grades], list(grades.values()))
    for grades in judged.values()
  ]
  values = evaluate_ranking(results, qrels=pairs, metrics=metrics).per_query
  return {name: dict(zip(judged, column.tolist(), strict=True)) for name, column in values.items()}


def comparison_table(comparisons: Sequence[Comparison], names: tuple[str, str]) -> str:
  """Returns the comparison as plain text, metrics in percent."""
  lines = [
    f"A {names[0]}",
    f"B {names[1]}",
    f"{'':14}{'A':>8}{'B':>8}{'B - A':>8}{'95% interval':>18}{'p':>9}   ({comparisons[0].queries:,} queries)",
  ]
  for c in comparisons:
    low, high = (100 * x for x in c.interval)
    numbers = f"{100 * c.a:>8.1f}{100 * c.b:>8.1f}{100 * c.difference:>+8.1f}"
    lines.append(f"{c.metric:<14}{numbers}{f'{low:+.1f} .. {high:+.1f}':>18}{c.p_value:>9.4f}")
  return "\n".join(lines)
