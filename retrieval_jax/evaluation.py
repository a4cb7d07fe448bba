"""Retrieval evaluation: search a task's corpus for its queries, measure, write the metrics, the run and every query's values."""

import json
import pathlib
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float, Int

from retrieval_jax.data import dataset
from retrieval_jax.data.benchmarks import check_counts, check_files
from retrieval_jax.data.dataset import RetrievalData
from retrieval_jax.data.sampling import Sample, sampled
from retrieval_jax.data.text_inputs import TextInputs
from retrieval_jax.data.text_table import hash_text
from retrieval_jax.embedding_geometry import measure_geometry, warn_of_collapse
from retrieval_jax.errors import UserError
from retrieval_jax.metrics.per_query import write_per_query
from retrieval_jax.metrics.ranking import deepest_cutoff, evaluate_ranking
from retrieval_jax.metrics.significance import confidence_interval
from retrieval_jax.paths import atomic_write
from retrieval_jax.records import Ranking
from retrieval_jax.run_file import write_run
from retrieval_jax.searchers import EXACT, DenseSearcher, Searcher, task_name

METRICS_FILE, RUN_FILE, PER_QUERY_FILE = "metrics.json", "run.trec", "per_query.tsv"


class EvaluationResult(NamedTuple):
  """What an evaluation found.

  metrics: name -> mean over the judged queries. per_query: name -> value of each of `data.judged`.
  ranking: what was found for data.judged, in that order.
  counts: how many queries were judged and answered, how many judgements dangle, and so on: whole numbers, by name.
  geometry: what `measure_geometry` says of the embeddings; empty for a searcher without any.
  """

  metrics: Mapping[str, float]
  per_query: Mapping[str, Float[np.ndarray, "q"]]
  ranking: Ranking
  data: RetrievalData
  counts: Mapping[str, int]
  geometry: Mapping[str, float]


class RetrievalEvaluator(NamedTuple):
  """Evaluates a searcher on one task's split.

  metrics: names (metrics/ranking.py); None: those that the task declares.
  depth: results ranked per query; "mrr" and "map" without a cutoff look that deep.
  run_depth: results written to the run file.
  sample: the part of the task that is measured; if it is not all of it, the name ends in "_sample".
  drop_identical: whether a result whose id is the query's own is left out before ranking; None: as the task declares.
  """

  source: dataset.Source
  inputs: TextInputs
  metrics: Sequence[str] | None = None
  depth: int = 1000
  run_depth: int = 100
  sample: Sample = Sample()
  drop_identical: bool | None = None

  @property
  def name(self) -> str:
    """The task's name; with the split behind it unless that is "test"."""
    return task_name(self.source) + ("" if self.sample.is_all else "_sample")

  @property
  def metric_names(self) -> Sequence[str]:
    """The metrics that are reported.

    Raises: UserError for one that looks deeper than `depth`, and for settings that cannot be.
    """
    names = self.source.info.metrics if self.metrics is None else self.metrics
    strings = isinstance(names, Sequence) and all(isinstance(name, str) for name in names)
    if not strings or isinstance(names, str) or not names:
      raise UserError(f"METRICS={names!r}: expected a list of names, such as ('ndcg@10', 'recall@100').")
    for macro, value in (("SEARCH_DEPTH", self.depth), ("RUN_DEPTH", self.run_depth)):
      if type(value) is not int or value < 1:
        raise UserError(f"{macro}={value!r}: expected a whole number of at least 1.")
    if deepest_cutoff(names) > self.depth:
      raise UserError(
        f"{self.name}: {', '.join(names)} look deeper than SEARCH_DEPTH={self.depth}: raise it."
      )
    return names

  def load(self) -> RetrievalData:
    """Returns the task's queries, corpus and judgements; there is at least one query with a relevant passage."""
    data = dataset.load(self.source, self.inputs)
    return data if self.sample.is_all else sampled(data, self.sample)

  def evaluate(self, searcher: Searcher) -> EvaluationResult:
    """Returns the metrics of a searcher; every judged query counts, also those without a result.

    Raises: UserError for a metric that is not finite or that nothing can be measured by.
    """
    names, data = self.metric_names, self.load()
    drops = data.info.drop_identical if self.drop_identical is None else self.drop_identical
    k = min(self.depth + drops, data.passages.num_rows)
    geometry: Mapping[str, float] = {}
    if isinstance(searcher, DenseSearcher):
      embedded = searcher.embedded(data)
      ranking, geometry = embedded.search(k=k), measure_geometry(embedded, data)
    else:
      ranking = searcher.search(data, k=k)
    dropped = 0
    if drops:
      ranking, dropped = without_identical(ranking, rows_of_queries(data), depth=self.depth)
    found = evaluate_ranking(
      ranking.rows,
      qrels=[data.judgements(int(row)) for row in data.judged],
      metrics=names,
      relevant_from=data.info.relevant_from,
    )
    bad = [name for name, value in found.means.items() if not np.isfinite(value)]
    if bad:
      raise UserError(f"{self.name}: {', '.join(bad)} not finite")
    counts = {
      "queries": found.judged,
      "answered": found.answered,
      "corpus_size": data.passages.num_rows,
      "dangling_judgements": 0 if data.dangling is None else len(data.dangling.grades),
      "dropped_identical": dropped,
      "empty_passages": int(data.passages.empty.sum()),
      "empty_queries": int(data.queries.empty[data.judged].sum()),
    }
    return EvaluationResult(found.means, found.per_query, ranking, data, counts, geometry)

  def folder(self, searcher: Searcher, model_dir: pathlib.Path) -> pathlib.Path:
    """Returns MODEL_DIR/eval/<task>/step_<n>; a searcher other than the model's own puts its name before step."""
    kind = "" if searcher.name == EXACT else f"{searcher.name}_"
    return model_dir / "eval" / self.name / f"{kind}step_{searcher.step}"

  def run(self, searcher: Searcher, *, model_dir: pathlib.Path) -> dict[str, float]:
    """Evaluates and writes MODEL_DIR/eval/<task>/step_<n>/{metrics.json, run.trec, per_query.tsv}; returns the metrics
    and the geometry of the embeddings; warns of judgements that dangle, empty texts and embeddings that collapsed."""
    start = time.perf_counter()
    result = self.evaluate(searcher)
    if jax.process_index() == 0:
      folder = self.folder(searcher, model_dir)
      _warn(self.name, result.counts)
      if self.sample.is_all:
        for message in (*check_counts(result.data), *check_files(result.data)):
          print(f"warning: {message}", file=sys.stderr)
      warn_of_collapse(self.name, result.geometry)
      ids = [result.data.queries.ids[int(row)] for row in result.data.judged]
      passage_ids = result.data.passages.ids
      run = folder / RUN_FILE
      write_run(
        run,
        result.ranking,
        query_ids=ids,
        passage_ids=passage_ids,
        depth=self.run_depth,
        tag=searcher.name,
      )
      write_per_query(folder / PER_QUERY_FILE, ids, result.per_query)
      with atomic_write(folder / METRICS_FILE) as file:
        json.dump(self._record(searcher, result, time.perf_counter() - start), file, indent=2)
        file.write("\n")
    return {**result.metrics, **result.geometry}

  def run_all(self, searcher: Searcher, *, model_dir: pathlib.Path) -> dict[str, Mapping[str, float]]:
    """Returns {name: results}: what `run` returns, as a group of evaluators gives it for its members."""
    return {self.name: self.run(searcher, model_dir=model_dir)}

  def _record(self, searcher: Searcher, result: EvaluationResult, seconds: float) -> dict[str, Any]:
    """Returns what metrics.json holds: the numbers, and all that one must know to get them again."""
    return {
      **result.metrics,
      **result.geometry,
      **result.counts,
      "confidence_95": {name: confidence_interval(values) for name, values in result.per_query.items()},
      "relevant_from": result.data.info.relevant_from,
      "checkpoint": searcher.checkpoint,
      "step": searcher.step,
      "searcher": searcher.name,
      "task": self.source.name,
      "split": self.source.split,
      "sample": None if self.sample.is_all else self.sample._asdict(),
      "text_inputs": self.inputs.describe(),
      "task_fingerprint": result.data.fingerprint,
      "task_files": result.data.files,
      "seconds": round(seconds, 1),
    }


def rows_of_queries(data: RetrievalData) -> Int[np.ndarray, "q"]:
  """Returns for each of data.judged the corpus row with the query's own id, -1 where there is none."""
  hashes = np.array([hash_text(data.queries.ids[int(row)]) for row in data.judged], np.uint64)
  return data.passages.rows_of_hashes(hashes)


def without_identical(ranking: Ranking, own_rows: Int[np.ndarray, "q"], *, depth: int) -> tuple[Ranking, int]:
  """Returns the ranking without each query's own row, cut at `depth`, and how many results were left out.

  Example: own row 5 of a query with the results [7, 5, 2] leaves [7, 2].
  """
  own = (ranking.rows == own_rows[:, None]) & (ranking.rows >= 0)
  order = np.argsort(own, axis=1, kind="stable")  # the others keep their order, their own goes last
  rows = np.take_along_axis(np.where(own, -1, ranking.rows), order, axis=1)
  scores = np.take_along_axis(np.where(own, -np.inf, ranking.scores), order, axis=1)
  return Ranking(rows[:, :depth], scores[:, :depth].astype(np.float32)), int(own.sum())


def _warn(name: str, counts: Mapping[str, int]) -> None:
  """Says what a user should know of the numbers before believing them."""
  unanswered = counts["queries"] - counts["answered"]
  messages = [
    (unanswered, "queries have no result at all; they count 0"),
    (
      counts["dangling_judgements"],
      "judgements name passages that the corpus lacks; they count as not found",
    ),
    (counts["empty_passages"], "passages are empty texts; they are searched like the others"),
    (counts["empty_queries"], "queries are empty texts"),
  ]
  for count, message in messages:
    if count:
      print(f"warning: {name}: {count:,} {message}.", file=sys.stderr)
  if counts["dropped_identical"]:
    print(
      f"{name}: {counts['dropped_identical']:,} results were the query itself and left out.", file=sys.stderr
    )
