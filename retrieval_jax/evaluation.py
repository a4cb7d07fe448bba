"""Retrieval evaluation: search a task's corpus for its queries, measure, write metrics.json and a TREC run file."""

import json
import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Float, Int

from retrieval_jax.data import dataset
from retrieval_jax.data.dataset import RetrievalData
from retrieval_jax.data.text_inputs import TextInputs
from retrieval_jax.errors import UserError
from retrieval_jax.metrics.geometry import alignment, mean_cosine, uniformity
from retrieval_jax.metrics.ranking import evaluate_ranking
from retrieval_jax.paths import atomic_write
from retrieval_jax.records import Ranking
from retrieval_jax.searchers import DenseSearcher, EmbeddedTask, Searcher, task_name

METRICS = ("p@1", "mrr", "mrr@10", "ndcg@10", "recall@1", "recall@10", "recall@100")
SAMPLE = 2000  # rows of a side that the geometry is measured on: 0.2 s
COLLAPSED = 0.95  # mean cosine of two passages above which a model hardly tells them apart


class EvaluationResult(NamedTuple):
  """metrics: name -> mean over the judged queries. ranking: what was found for data.examples, in that order.

  geometry: what `measure_geometry` says of the embeddings; empty for a searcher without any.
  """

  metrics: Mapping[str, float]
  ranking: Ranking
  data: RetrievalData
  geometry: Mapping[str, float]


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
    k = min(self.depth, data.passages.num_rows)
    geometry: Mapping[str, float] = {}
    if isinstance(searcher, DenseSearcher):
      embedded = searcher.embedded(data)
      ranking, geometry = embedded.search(k=k), measure_geometry(embedded, data)
    else:
      ranking = searcher.search(data, k=k)
    qrels = [data.relevance.row(int(row)) for row in data.examples]
    means = evaluate_ranking(ranking.rows, qrels=qrels, metrics=self.metrics).means
    bad = [name for name, value in means.items() if not np.isfinite(value)]
    if bad:
      raise UserError(f"{self.name}: {', '.join(bad)} not finite")
    return EvaluationResult(means, ranking, data, geometry)

  def folder(self, searcher: Searcher, model_dir: pathlib.Path) -> pathlib.Path:
    """Returns MODEL_DIR/eval/<task>/step_<n>; a searcher other than the model's own puts its name before step."""
    kind = "" if searcher.name == "dense" else f"{searcher.name}_"
    return model_dir / "eval" / self.name / f"{kind}step_{searcher.step}"

  def run(self, searcher: Searcher, *, model_dir: pathlib.Path) -> dict[str, float]:
    """Evaluates and writes MODEL_DIR/eval/<task>/step_<n>/{metrics.json, run.trec}; returns the metrics and
    the geometry of the embeddings, and warns if they have collapsed."""
    result = self.evaluate(searcher)
    if jax.process_index() == 0:
      folder = self.folder(searcher, model_dir)
      _warn_of_collapse(self.name, result.geometry)
      record = {
        **result.metrics,
        **result.geometry,
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
    return {**result.metrics, **result.geometry}


def measure_geometry(embedded: EmbeddedTask, data: RetrievalData) -> dict[str, float]:
  """Returns numbers that say how the embeddings lie, on at most 2,000 queries and passages, always the same ones:
  alignment (of queries with their first positive), uniformity_queries, uniformity_passages, mean_cosine_passages.

  They are those of metrics/geometry.py: of directions, so embeddings of zeros are left out. A number that takes more
  rows than there are is left out too.
  """
  queries = _sample(len(embedded.queries))
  positives = data.relevance.positives(data.examples[queries])[:, 0]
  answers, asked = embedded.passages[positives], embedded.queries[queries]
  both = _nonzero(answers) & _nonzero(asked)
  asked_of = asked[_nonzero(asked)]
  passages = embedded.passages[_sample(len(embedded.passages))]
  passages = passages[_nonzero(passages)]
  found = {}
  if both.any():
    found["alignment"] = alignment(asked[both], answers[both])
  if len(asked_of) > 1:
    found["uniformity_queries"] = uniformity(asked_of)
  if len(passages) > 1:
    found["uniformity_passages"] = uniformity(passages)
    found["mean_cosine_passages"] = mean_cosine(passages)
  return found


def _sample(count: int) -> Int[np.ndarray, "e"]:
  """Returns at most SAMPLE of the rows, ascending: a function of their number alone."""
  if count <= SAMPLE:
    return np.arange(count)
  return np.sort(np.random.default_rng(0).choice(count, SAMPLE, replace=False))


def _nonzero(rows: Float[np.ndarray, "e d"]) -> np.ndarray:
  return np.any(rows != 0, axis=1)


def _warn_of_collapse(name: str, geometry: Mapping[str, float]) -> None:
  found = geometry.get("mean_cosine_passages", 0.0)
  if found > COLLAPSED:
    print(
      f"warning: {name}: two passages have the mean cosine {found:.3f}, above {COLLAPSED}: their embeddings hardly "
      "differ. Either the model is not trained yet, or its pooling sees what all texts share (a special token, a "
      "prefix): compare POOLING and the prefixes with those the model was made with.",
      file=sys.stderr,
    )


def write_run(path: pathlib.Path, result: EvaluationResult, *, depth: int, tag: str) -> None:
  """Writes a TREC run file: `query Q0 passage rank score tag`, one line a result, best first.

  Tools that read it forget the rank, sort by score and order equal ones by id; so a score that is not below the one
  above it is written as the next float32 below that one, and their order is ours.

  Ids with white space cannot stand in that format; they raise UserError naming the id.
  """
  with atomic_write(path) as file:
    for row, passages, scores in zip(
      result.data.examples, result.ranking.rows[:, :depth], result.ranking.scores[:, :depth], strict=True
    ):
      query_id = _token(result.data.queries.ids[int(row)])
      found = passages >= 0
      for rank, (passage, score) in enumerate(
        zip(passages[found], strictly_decreasing(scores[found]), strict=True), start=1
      ):
        passage_id = _token(result.data.passages.ids[int(passage)])
        file.write(f"{query_id} Q0 {passage_id} {rank} {score!s} {tag}\n")


def strictly_decreasing(scores: Float[np.ndarray, "k"]) -> Float[np.ndarray, "k"]:
  """Returns float32 scores, best first, each lowered as little as it takes to lie below the one before it.

  Example: `strictly_decreasing(np.array([1.0, 1.0, 0.5]))` is `[1, 0.99999994, 0.5]`.
  """
  lowered = np.array(scores, np.float32)
  for i in range(1, len(lowered)):
    lowered[i] = min(lowered[i], np.nextafter(lowered[i - 1], np.float32(-np.inf)))
  return lowered


def _token(identifier: str) -> str:
  if not identifier or any(c.isspace() for c in identifier):
    raise UserError(
      f"the id {identifier!r} cannot be written to a TREC run file, whose columns are split at white space"
    )
  return identifier
