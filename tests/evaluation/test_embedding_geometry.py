"""What evaluation says of the embeddings themselves: sampled rows, rows without a direction, collapse."""

import math

import numpy as np
import pytest

from retrieval_jax import embedding_geometry
from retrieval_jax.data.dataset import RetrievalData
from retrieval_jax.data.relevance import Relevance
from retrieval_jax.embedding_geometry import measure_geometry, sample_embeddings
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
  monkeypatch.setattr(embedding_geometry, "SAMPLE", 50)
  rng = np.random.default_rng(1)
  data = _data([(i, i) for i in range(400)], num_queries=400)
  embedded = EmbeddedTask(rng.normal(size=(400, 8)), rng.normal(size=(400, 8)))
  found = measure_geometry(embedded, data)
  assert found == measure_geometry(embedded, data)
  assert found["uniformity_passages"] != uniformity(embedded.passages)
  assert found["uniformity_passages"] == pytest.approx(uniformity(embedded.passages), abs=0.2)


def test_the_embeddings_that_are_kept_are_those_of_pairs_and_of_first_results():
  # Judged are the query rows 0 and 2, with the first positives 1 and 0; row 1 of the judged has no result.
  data = _data([(0, 2), (0, 1), (2, 0)], num_queries=3)
  embedded = EmbeddedTask(np.array([[2.0, 0], [0, 1]]), np.array([[0.0, 1], [3, 4], [1, 0]]))
  ranking = Ranking(np.array([[1, 2], [-1, -1]]), np.array([[6.0, 2], [-np.inf, -np.inf]], np.float32))
  sample = sample_embeddings(embedded, data, ranking)
  assert sample.queries.tolist() == [[1, 0], [0, 1]]
  np.testing.assert_allclose(sample.passages, [[0.6, 0.8], [0, 1]], atol=1e-3)
  assert sample.query_norms.tolist() == [2, 1]
  assert sample.passage_norms.tolist() == [5, 1]
  assert sample.top_cosines == pytest.approx([0.6])


def test_the_rows_that_are_kept_depend_on_the_task_alone(monkeypatch):
  monkeypatch.setattr(embedding_geometry, "TOPS", 30)
  rng = np.random.default_rng(1)
  data = _data([(i, i) for i in range(700)], num_queries=700)
  ranking = Ranking(np.arange(700)[:, None], np.ones((700, 1), np.float32))
  numbers = np.arange(1.0, 701)[:, None] * np.eye(1, 4)
  first = sample_embeddings(EmbeddedTask(numbers, rng.normal(size=(700, 4))), data, ranking)
  second = sample_embeddings(EmbeddedTask(numbers, rng.normal(size=(700, 4))), data, ranking)
  assert len(first.query_norms) == 500
  assert len(first.top_cosines) == 30
  assert first.query_norms.tolist() == second.query_norms.tolist()
