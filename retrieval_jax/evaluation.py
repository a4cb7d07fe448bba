"""Retrieval evaluation: search a task's corpus for its queries, measure, write metrics.json and a TREC run file."""

import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jax
import numpy as np

from retrieval_jax.data import dataset
from retrieval_jax.data.dataset import RetrievalData
from retrieval_jax.data.text_inputs import TextInputs
from retrieval_jax.errors import UserError
from retrieval_jax.metrics.ranking import evaluate_ranking
from retrieval_jax.paths import atomic_write
from retrieval_jax.records import Ranking
from retrieval_jax.searchers import Searcher, task_name

METRICS = ("p@1", "mrr", "mrr@10", "ndcg@10", "recall@1", "recall@10", "recall@100")


class EvaluationResult(NamedTuple):
  """metrics: name -> mean over the judged queries. ranking: what was found for data.examples, in that order."""

  metrics: Mapping[str, float]
  ranking: Ranking
  data: RetrievalData


class RetrievalEvaluator(NamedTuple):
  """Evaluates a searcher on one task's split.

  depth: results ranked per query; "mrr" looks that deep (a relevant passage further down counts 0).
  run_depth: results written to the run file.
  """

  source: dataset.Source
  inputs: TextInputs
  metrics: Sequence[str] = METRICS
  depth: int = 1000
  run_depth: int = 100

  @property
  def name(self) -> str:
    """The task's name; with the split behind it unless that is "test"."""
    return task_name(self.source)

  def load(self) -> RetrievalData:
    """Returns the task's queries, corpus and judgements; there is at least one judged query."""
    return dataset.load(self.source, self.inputs)

  def evaluate(self, searcher: Searcher) -> EvaluationResult:
    """Returns the metrics of a searcher; every judged query counts, also those without a hit."""
    data = self.load()
    ranking = searcher.search(data, k=min(self.depth, data.passages.num_rows))
    qrels = [data.relevance.row(int(row)) for row in data.examples]
    means, _ = evaluate_ranking(ranking.rows, qrels=qrels, metrics=self.metrics)
    bad = [name for name, value in means.items() if not np.isfinite(value)]
    if bad:
      raise UserError(f"{self.name}: {', '.join(bad)} not finite")
    return EvaluationResult(means, ranking, data)

  def folder(self, searcher: Searcher, model_dir: pathlib.Path) -> pathlib.Path:
    """Returns MODEL_DIR/eval/<task>/step_<n>; a searcher other than the model's own puts its name before step."""
    kind = "" if searcher.name == "dense" else f"{searcher.name}_"
    return model_dir / "eval" / self.name / f"{kind}step_{searcher.step}"

  def run(self, searcher: Searcher, *, model_dir: pathlib.Path) -> dict[str, float]:
    """Evaluates and writes MODEL_DIR/eval/<task>/step_<n>/{metrics.json, run.trec}; returns the metrics."""
    result = self.evaluate(searcher)
    if jax.process_index() == 0:
      folder = self.folder(searcher, model_dir)
      record = {
        **result.metrics,
        "queries": len(result.data.examples),
        "corpus_size": result.data.passages.num_rows,
        "checkpoint": searcher.checkpoint,
        "step": searcher.step,
        "searcher": searcher.name,
        "task": self.source.name,
        "split": self.source.split,
        "task_fingerprint": result.data.fingerprint,
      }
      with atomic_write(folder / "metrics.json") as file:
        json.dump(record, file, indent=2)
        file.write("\n")
      write_run(folder / "run.trec", result, depth=self.run_depth, tag=searcher.name)
    return dict(result.metrics)


def write_run(path: pathlib.Path, result: EvaluationResult, *, depth: int, tag: str) -> None:
  """Writes a TREC run file: `query Q0 passage rank score tag`, one line a result, best first.

  Ids with white space cannot stand in that format; they raise UserError naming the id.
  """
  with atomic_write(path) as file:
    for row, passages, scores in zip(
      result.data.examples, result.ranking.rows[:, :depth], result.ranking.scores[:, :depth], strict=True
    ):
      query_id = _token(result.data.queries.ids[int(row)])
      for rank, (passage, score) in enumerate(zip(passages, scores, strict=True), start=1):
        if passage >= 0:
          file.write(
            f"{query_id} Q0 {_token(result.data.passages.ids[int(passage)])} {rank} {score:.6f} {tag}\n"
          )


def _token(identifier: str) -> str:
  if not identifier or any(c.isspace() for c in identifier):
    raise UserError(
      f"the id {identifier!r} cannot be written to a TREC run file, whose columns are split at white space"
    )
  return identifier
