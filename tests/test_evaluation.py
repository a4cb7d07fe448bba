"""What evaluation says of the embeddings themselves: sampled rows, rows without a direction, collapse."""

import math
from typing import NamedTuple

import numpy as np
import pytest

from retrieval_jax import evaluation
from retrieval_jax.data.dataset import RetrievalData
from retrieval_jax.data.relevance import Relevance
from retrieval_jax.evaluation import EvaluationResult, measure_geometry, strictly_decreasing, write_run
from retrieval_jax.metrics.geometry import uniformity
from retrieval_jax.records import Ranking
from retrieval_jax.searchers import EmbeddedTask


def _data(pairs, num_queries):
  """Returns data of which only the judgements matter: (query row, passage row) pairs."""
  queries, passages = np.array(pairs).T
  relevance = Relevance.from_pairs(queries, passages, np.ones(len(pairs)), num_queries=num_queries)
  examples = np.flatnonzero(relevance.counts > 0)
  return RetrievalData("toy", "test", None, None, relevance, examples, "")


def test_geometry_by_hand():
  # Query row 1 has no positive; queries 0 and 2 have the first positives 1 and 0.
  data = _data([(0, 2), (0, 1), (2, 0)], num_queries=3)
  embedded = EmbeddedTask(queries=np.array([[2.0, 0], [0, 1]]), passages=np.array([[0.0, 1], [0, 3], [1, 0]]))
  assert measure_geometry(embedded, data) == pytest.approx(
    {
      "alignment": (2 + 0) / 2,
      "uniformity_queries": -4,
      "uniformity_passages": math.log((1 + 2 * math.exp(-4)) / 3),
      "mean_cosine_passages": 1 / 3,
    }
  )


def test_rows_of_zeros_and_single_rows_are_left_out():
  data = _data([(0, 0), (1, 1)], num_queries=2)
  zeros = EmbeddedTask(queries=np.array([[0.0, 0], [0, 1]]), passages=np.array([[1.0, 0], [1, 0], [0, 0]]))
  assert measure_geometry(zeros, data) == pytest.approx(
    {"alignment": 2, "uniformity_passages": 0, "mean_cosine_passages": 1}
  )
  assert measure_geometry(EmbeddedTask(np.zeros((2, 2)), np.zeros((2, 2))), data) == {}


def test_a_sample_is_the_same_every_time(monkeypatch):
  monkeypatch.setattr(evaluation, "SAMPLE", 50)
  rng = np.random.default_rng(1)
  data = _data([(i, i) for i in range(400)], num_queries=400)
  embedded = EmbeddedTask(rng.normal(size=(400, 8)), rng.normal(size=(400, 8)))
  found = measure_geometry(embedded, data)
  assert found == measure_geometry(embedded, data)
  assert found["uniformity_passages"] != uniformity(embedded.passages)
  assert found["uniformity_passages"] == pytest.approx(uniformity(embedded.passages), abs=0.2)
  assert len(evaluation._sample(400)) == len(set(evaluation._sample(400))) == 50


class _Ids(NamedTuple):
  """The ids of a TokenStore."""

  ids: list[str]


def _run(tmp_path, scores, rows=None):
  """Returns the lines of the run file of one query with these scores; passage i is called p<i>."""
  rows = np.arange(len(scores)) if rows is None else np.asarray(rows)
  ids = [f"p{i}" for i in range(len(scores))]
  data = _data([(0, 0)], num_queries=1)._replace(queries=_Ids(["query"]), passages=_Ids(ids))
  ranking = Ranking(rows[None], np.asarray(scores, np.float32)[None])
  write_run(tmp_path / "run.trec", EvaluationResult({}, ranking, data, {}), depth=100, tag="dense")
  return [line.split() for line in (tmp_path / "run.trec").read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize(
  "scores",
  [
    [16777217.0, 16777216.0],  # float32 holds only the second
    [1.0, 1.0, 1.0, 0.5],
    [0.99999994, 0.9999999, 0.99999986],  # alike in six decimals
    [0.0, 0.0, -0.0, -1.0],
    [-0.25, -0.25],
    [3.0000002, 3.0, 3.0, 2.9999998],  # the lowered third meets the fourth
    [0.5] * 100,
  ],
)
def test_a_run_file_sorted_by_its_scores_has_our_order(tmp_path, scores):
  """As trec_eval reads it: float32 scores, equal ones by id, the later id first, and no look at the rank."""
  lines = _run(tmp_path, scores)
  by_score = sorted(lines, key=lambda line: (np.float32(line[4]), line[2]), reverse=True)
  assert by_score == lines
  assert [line[3] for line in lines] == [str(rank) for rank in range(1, 1 + len(scores))]
  np.testing.assert_allclose([float(line[4]) for line in lines], scores, rtol=1e-5, atol=1e-30)


def test_a_run_file_keeps_scores_that_differ_and_leaves_empty_places_out(tmp_path):
  assert _run(tmp_path, [0.75, 0.1, -np.inf], rows=[2, 0, -1]) == [
    ["query", "Q0", "p2", "1", "0.75", "dense"],
    ["query", "Q0", "p0", "2", "0.1", "dense"],
  ]


def test_scores_are_lowered_as_little_as_possible():
  below_one = np.float32(1 - 2**-24)
  np.testing.assert_array_equal(
    strictly_decreasing(np.array([1.0, 1.0, 0.5], np.float32)), np.array([1, below_one, 0.5], np.float32)
  )
  assert strictly_decreasing(np.zeros(0)).shape == (0,)
