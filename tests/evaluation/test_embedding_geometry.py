"""What evaluation says of the embeddings themselves: sampled rows, rows without a direction, collapse."""

import math

import numpy as np
import pytest

from retrieval_jax import embedding_geometry
from retrieval_jax.data.dataset import RetrievalData
from retrieval_jax.data.relevance import Relevance
from retrieval_jax.embedding_geometry import measure_geometry
from retrieval_jax.metrics.geometry import uniformity
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
  assert len(embedding_geometry._sample(400)) == len(set(embedding_geometry._sample(400))) == 50
