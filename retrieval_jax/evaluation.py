"""Retrieval evaluation: search a task's corpus for its queries, measure, write the metrics, the run and every query's values."""

import json
import pathlib
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float

from retrieval_jax.data import dataset
from retrieval_jax.data.benchmarks import check_counts, check_files
from retrieval_jax.data.dataset import RetrievalData
from retrieval_jax.data.sampling import Sample, sampled
from retrieval_jax.data.text_inputs import TextInputs
from retrieval_jax.decile_report import report_deciles
from retrieval_jax.embedding_geometry import measure_geometry, sample_embeddings, warn_of_collapse
from retrieval_jax.embedding_sample import EmbeddingSample, write_sample
from retrieval_jax.errors import UserError
from retrieval_jax.metrics.deciles import Decile, decile_values
from retrieval_jax.metrics.judgements import Qrels
from retrieval_jax.metrics.per_query import write_per_query
from retrieval_jax.metrics.ranking import deepest_cutoff, evaluate_ranking, weighted_metrics
from retrieval_jax.metrics.significance import confidence_interval
from retrieval_jax.paths import atomic_write
from retrieval_jax.propensities import Propensities
from retrieval_jax.records import Ranking
from retrieval_jax.result_files import GEOMETRY_FILE, METRICS_FILE, PER_QUERY_FILE, RUN_FILE, WORST_FILE
from retrieval_jax.run_file import write_run
from retrieval_jax.searchers import EXACT, DenseSearcher, Searcher, task_name
from retrieval_jax.unwanted import (
  NOTHING,
  candidates_alone,
  filtered_passages,
  number_unshared,
  own_passages,
  without,
)
from retrieval_jax.worst_file import write_worst
from retrieval_jax.worst_queries import worst_queries


class EvaluationResult(NamedTuple):
  """What an evaluation found.

  metrics: name -> mean over the judged queries. per_query: name -> value of each of `data.judged`.
  ranking: what was found for data.judged, in that order.
  counts: how many queries were judged and answered, how many judgements dangle, and so on: whole numbers, by name.
  geometry: what `measure_geometry` says of the embeddings; empty for a searcher without any.
  deciles: of a task with label counts, what was found of common and of rare passages, the head first.
  sample: some of the embeddings; None for a searcher without any.
  """

  metrics: Mapping[str, float]
  per_query: Mapping[str, Float[np.ndarray, "q"]]
  ranking: Ranking
  data: RetrievalData
  counts: Mapping[str, int]
  geometry: Mapping[str, float]
  deciles: Sequence[Decile] = ()
  sample: EmbeddingSample | None = None


class Found(NamedTuple):
  """What a search gave: the results that count, how many others were left out, and how the embeddings lie, if there are some."""

  ranking: Ranking
  dropped: Mapping[str, int]
  geometry: Mapping[str, float]
  sample: EmbeddingSample | None


class RetrievalEvaluator(NamedTuple):
  """Evaluates a searcher on one task's split.

  Results that the task filters are taken out before ranking, from a list that is as much longer.

  metrics: names (metrics/ranking.py); None: those that the task declares.
  depth: results ranked per query; "mrr" and "map" without a cutoff look that deep.
  run_depth: results written to the run file.
  sample: the part of the task that is measured; if it is not all of it, the name ends in "_sample" or "_candidates".
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
    return task_name(self.source) + self.sample.suffix

  @property
  def metric_names(self) -> Sequence[str]:
    """The metrics that are reported.

    Raises: UserError for one that looks deeper than `depth` or needs propensities that the task does not declare, and for
      settings that cannot be.
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
    if self.source.info.propensity is None and (scored := weighted_metrics(names)):
      raise UserError(
        f"{self.name}: {', '.join(scored)} need propensities, and the task declares none: TaskInfo(propensity=(A, B)) of "
        "a task with training points does. Leave them out of METRICS."
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
    searched = self._search(searcher, data)
    ranking = searched.ranking
    qrels, least = Qrels.of([data.judgements(int(row)) for row in data.judged]), data.info.relevant_from
    scored, deciles = Propensities.of(data), []
    weights = None if scored is None else scored.weights
    found = evaluate_ranking(ranking.rows, qrels=qrels, metrics=names, relevant_from=least, weights=weights)
    if scored is not None:
      deciles = decile_values(ranking.rows, qrels=qrels, counts=scored.counts, relevant_from=least)
    bad = [name for name, value in found.means.items() if not np.isfinite(value)]
    if bad:
      raise UserError(f"{self.name}: {', '.join(bad)} not finite")
    counts = {
      "queries": found.judged,
      "answered": found.answered,
      "corpus_size": data.passages.num_rows - number_unshared(data),
      "dangling_judgements": 0 if data.dangling is None else len(data.dangling.grades),
      **searched.dropped,
      "empty_passages": int(data.passages.empty.sum()),
      "empty_queries": int(data.queries.empty[data.judged].sum()),
    }
    return EvaluationResult(
      found.means, found.per_query, ranking, data, counts, searched.geometry, deciles, searched.sample
    )

  def _search(self, searcher: Searcher, data: RetrievalData) -> Found:
    """Returns the `depth` best results without those that are none."""
    drops = data.info.drop_identical if self.drop_identical is None else self.drop_identical
    own, filtered = own_passages(data) if drops else NOTHING, filtered_passages(data)
    deepest = self.depth + own.most + filtered.most
    k = min(deepest + number_unshared(data), data.passages.num_rows)
    embedded = searcher.embedded(data) if isinstance(searcher, DenseSearcher) else None
    ranking = searcher.search(data, k=k) if embedded is None else embedded.search(k=k)
    ranking = candidates_alone(ranking, data, depth=deepest)
    ranking, identical = without(ranking, own, depth=self.depth + filtered.most)
    ranking, pairs = without(ranking, filtered, depth=self.depth)
    geometry = {} if embedded is None else measure_geometry(embedded, data)
    sample = None if embedded is None else sample_embeddings(embedded, data, ranking)
    return Found(ranking, {"dropped_identical": identical, "dropped_filtered": pairs}, geometry, sample)

  def folder(self, searcher: Searcher, model_dir: pathlib.Path) -> pathlib.Path:
    """Returns MODEL_DIR/eval/<task>/step_<n>; a searcher other than the model's own puts its name before step."""
    kind = "" if searcher.name == EXACT else f"{searcher.name}_"
    return model_dir / "eval" / self.name / f"{kind}step_{searcher.step}"

  def run(self, searcher: Searcher, *, model_dir: pathlib.Path) -> dict[str, float]:
    """Evaluates and writes MODEL_DIR/eval/<task>/step_<n>/{metrics.json, run.trec, per_query.tsv, worst.jsonl}, of a searcher
    with embeddings geometry.npz, and of a task with label counts deciles.tsv and deciles.png; returns the metrics and the
    geometry of the embeddings; warns of judgements that dangle, empty texts and embeddings that collapsed."""
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
      self._write_for_report(folder, result)
      if result.deciles:
        report_deciles(folder, searcher.name, result.deciles)
      with atomic_write(folder / METRICS_FILE) as file:
        json.dump(self._record(searcher, result, time.perf_counter() - start), file, indent=2)
        file.write("\n")
    return {**result.metrics, **result.geometry}

  def run_all(self, searcher: Searcher, *, model_dir: pathlib.Path) -> dict[str, Mapping[str, float]]:
    """Returns {name: results}: what `run` returns, as a group of evaluators gives it for its members."""
    return {self.name: self.run(searcher, model_dir=model_dir)}

  def _write_for_report(self, folder: pathlib.Path, result: EvaluationResult) -> None:
    """Writes what a report shows of single queries and embeddings: less than 2 MB, in some 50 ms."""
    metric = self.metric_names[0]
    values = result.per_query[metric]
    write_worst(folder / WORST_FILE, worst_queries(result.ranking, result.data, metric=metric, values=values))
    if result.sample is not None:
      write_sample(folder / GEOMETRY_FILE, result.sample)

  def _record(self, searcher: Searcher, result: EvaluationResult, seconds: float) -> dict[str, Any]:
    """Returns what metrics.json holds: the numbers, and all that one must know to get them again."""
    return {
      **result.metrics,
      **result.geometry,
      **result.counts,
      "confidence_95": {name: confidence_interval(values) for name, values in result.per_query.items()},
      "relevant_from": result.data.info.relevant_from,
      "propensity": None if (scored := Propensities.of(result.data)) is None else scored.record(),
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
  if counts["dropped_filtered"]:
    print(
      f"{name}: {counts['dropped_filtered']:,} results are filtered by the task and left out.",
      file=sys.stderr,
    )
