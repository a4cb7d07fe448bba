"""Rows that take no part in in-batch negatives, by hand; that every loss obeys is tests/conformance/test_losses.py."""

import math

import jax.numpy as jnp
import numpy as np
import pytest

from retrieval_jax import scoring
from retrieval_jax.losses import pairs
from retrieval_jax.losses.in_batch import in_batch_softmax, samtone
from retrieval_jax.losses.sigmoid import sigmoid
from retrieval_jax.losses.softmax_terms import Options
from retrieval_jax.microbatches import cut
from retrieval_jax.records import Batch
from tests.embedded_batches import embedded_batch

# Scores of three queries with their positives (0, 1, 2) and with one hard negative of each (3, 4, 5).
SCORES = np.array(
  [
    [0.9, 0.2, 0.1, 0.3, 0.4, 0.5],
    [0.6, 0.7, 0.0, 0.2, 0.5, 0.1],
    [0.3, 0.4, 0.8, 0.6, 0.2, 0.7],
  ]
)
E = np.exp(SCORES)


def _batch(in_batch, **fields):
  """Queries are unit vectors, so that the passages are the columns of SCORES."""
  batch = embedded_batch(np.eye(3), SCORES.T, **fields)
  return batch._replace(in_batch=None if in_batch is None else np.array(in_batch))


def _apply(loss, batch):
  output = loss.apply({}, {}, batch, rng=None, train=True)
  return float(output[0].loss), {name: float(x) for name, x in output[0].metrics.items()}


def _assert_equal(got, want):
  assert got[0] == pytest.approx(want[0], rel=1e-6)
  assert got[1] == pytest.approx(want[1], rel=1e-6)


@pytest.mark.parametrize("rows_per_tile", [0, 2])
def test_from_query_to_passage(rows_per_tile):
  """Query 1 has its own hard negative, column 4; queries 0 and 2 have neither its positive nor that."""
  loss = in_batch_softmax(
    temperature=1.0, bidirectional=False, score=scoring.dot, options=Options(rows_per_tile=rows_per_tile)
  )
  value, metrics = _apply(loss, _batch([True, False, True]))
  expected = [
    -math.log(E[0, 0] / (E[0, 0] + E[0, 2] + E[0, 3] + E[0, 5])),
    -math.log(E[1, 1] / (E[1, 1] + E[1, 4])),
    -math.log(E[2, 2] / (E[2, 2] + E[2, 0] + E[2, 3] + E[2, 5])),
  ]
  assert value == pytest.approx(np.mean(expected), rel=1e-6)
  assert metrics["negatives"] == pytest.approx((3 + 1 + 3) / 3)
  assert metrics["accuracy"] == 1


@pytest.mark.parametrize("rows_per_tile", [0, 2])
def test_from_passage_to_query_and_among_queries(rows_per_tile):
  """Queries are orthogonal: a same-tower logit is 0."""
  options = Options(rows_per_tile=rows_per_tile)
  loss = samtone(temperature=1.0, score=scoring.dot, options=options)
  value, _ = _apply(loss, _batch([True, False, True]))
  forward = [
    -math.log(E[0, 0] / (E[0, 0] + E[0, 2] + E[0, 3] + E[0, 5] + 1)),
    -math.log(E[1, 1] / (E[1, 1] + E[1, 4])),
    -math.log(E[2, 2] / (E[2, 2] + E[2, 0] + E[2, 3] + E[2, 5] + 1)),
  ]
  backward = [-math.log(E[0, 0] / (E[0, 0] + E[2, 0])), 0.0, -math.log(E[2, 2] / (E[2, 2] + E[0, 2]))]
  assert value == pytest.approx((np.mean(forward) + np.mean(backward)) / 2, rel=1e-6)


def test_all_rows_switched_off_is_the_option_of_the_loss():
  options = Options(in_batch_negatives=False)
  whole = in_batch_softmax(temperature=1.0, bidirectional=False, score=scoring.dot, options=options)
  rows = in_batch_softmax(temperature=1.0, bidirectional=False, score=scoring.dot)
  _assert_equal(_apply(rows, _batch([False] * 3)), _apply(whole, _batch(None)))


def test_all_rows_switched_on_changes_nothing():
  loss = samtone(temperature=0.1, side="both")
  _assert_equal(_apply(loss, _batch([True] * 3)), _apply(loss, _batch(None)))


def test_sigmoid():
  value, metrics = _apply(sigmoid(temperature=1.0, bias=0.0, score=scoring.dot), _batch([True, False, True]))
  negatives = {0: [2, 3, 5], 1: [4], 2: [0, 3, 5]}
  expected = [
    math.log1p(math.exp(-SCORES[i, i])) + sum(math.log1p(E[i, j]) for j in columns)
    for i, columns in negatives.items()
  ]
  assert value == pytest.approx(np.mean(expected), rel=1e-6)
  assert metrics["negatives"] == pytest.approx(7 / 3)


def test_copies_count_what_is_seen_together():
  rows = [7, 7, 8, 7, 7, 7, 8, 8, 9]  # positives of three queries, then two hard negatives of each
  batch = embedded_batch(np.eye(3), np.zeros((9, 3)), query_rows=[5, 5, 5], passage_rows=rows)
  queries, passages = pairs.sides(batch)
  assert pairs.copies(passages, 3).tolist() == [5, 5, 3, 5, 5, 5, 3, 3, 1]
  assert pairs.copies(queries, 3).tolist() == [3, 3, 3]
  queries, passages = pairs.sides(batch._replace(in_batch=np.array([True, False, True])))
  # Query 1 sees 7 (its positive), 7 and 8; the others see 7, 8, 7, 7, 8, 9.
  assert pairs.copies(passages, 3).tolist() == [3, 2, 2, 3, 3, 2, 1, 2, 1]
  assert pairs.copies(queries, 3).tolist() == [2, 1, 2]


def test_microbatches_take_the_switch_along():
  tokens = np.zeros((4, 2), np.int32)
  rows = np.arange(4, dtype=np.int32)
  switch = np.array([True, False, False, True])
  batch = Batch(tokens, tokens, rows, rows, rows[:, None], np.ones(4, np.float32), in_batch=switch)
  assert jnp.asarray(cut(batch, 2).in_batch).tolist() == [[True, False], [False, True]]
