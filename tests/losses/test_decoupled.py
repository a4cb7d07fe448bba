import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from retrieval_jax import scoring
from retrieval_jax.errors import UserError
from retrieval_jax.losses.base import DataSizes
from retrieval_jax.losses.decoupled import decoupled_softmax, decoupled_terms
from retrieval_jax.losses.in_batch import in_batch_softmax
from retrieval_jax.losses.temperature import learned
from retrieval_jax.records import EmbeddedBatch

# Queries are rows of scores, passages unit vectors: the scores are these, with the inner product.
SCORES = np.array(
  [[0.8, 0.5, 0.1, 0.3, -0.5, 0.0], [0.2, 0.6, 0.4, 0.7, 0.1, 0.9], [0.0, 0.3, 0.5, 0.2, 0.6, -0.2]],
  np.float32,
)
E = np.exp(SCORES)


def _batch(scores=SCORES, **fields):
  q, p = scores.shape
  default = {
    "query_rows": np.arange(q),
    "passage_rows": np.arange(10, 10 + p),
    "positives": np.full((q, 1), -1),
    "weights": np.ones(q, np.float32),
  }
  return EmbeddedBatch(jnp.asarray(scores), jnp.eye(p, dtype=scores.dtype), **(default | fields))


def _output(loss, batch, params=None):
  return loss.apply({} if params is None else params, {}, batch, rng=None, train=True)[0]


def _value(loss, batch):
  return float(_output(loss, batch).loss)


def test_each_positive_competes_with_the_negatives_alone():
  """Query 0 is answered by its own passage, by query 1's and by a hard negative of query 2."""
  batch = _batch(positives=np.array([[11, 15], [-1, -1], [12, -1]]))
  negatives = E[0, [2, 3, 4]].sum()
  rows = [
    -sum(math.log(E[0, j] / (E[0, j] + negatives)) for j in (0, 1, 5)) / 3,
    -math.log(E[1, 1] / E[1].sum()),
    -math.log(E[2, 2] / E[2].sum()),
  ]
  loss = decoupled_softmax(temperature=1.0, score=scoring.dot)
  assert _value(loss, batch) == pytest.approx(np.mean(rows), rel=1e-6)
  weighted = batch._replace(weights=np.array([1, 2, 0.5], np.float32))
  assert _value(loss, weighted) == pytest.approx(np.average(rows, weights=[1, 2, 0.5]), rel=1e-6)
  metrics = {n: float(v) for n, v in _output(loss, batch).metrics.items()}
  # Query 1 is nearer to a hard negative than to its own passage, query 2 to another.
  assert metrics == pytest.approx(
    {"accuracy": 1 / 3, "positives": 5 / 3, "negatives": 13 / 3, "temperature": 1, "logit_scale": 1}
  )


def test_the_other_direction():
  """Passage 1 answers queries 0 and 1; hard negatives take no part."""
  batch = _batch(positives=np.array([[11], [-1], [-1]]))
  backward = [
    -math.log(E[0, 0] / (E[0, 0] + E[1, 0] + E[2, 0])),
    -sum(math.log(E[i, 1] / (E[i, 1] + E[2, 1])) for i in (0, 1)) / 2,
    -math.log(E[2, 2] / E[:, 2].sum()),
  ]
  one_way = _value(decoupled_softmax(temperature=1.0, score=scoring.dot), batch)
  both = decoupled_softmax(temperature=1.0, bidirectional=True, score=scoring.dot)
  assert _value(both, batch) == pytest.approx((one_way + np.mean(backward)) / 2, rel=1e-6)


@pytest.mark.parametrize("bidirectional", [False, True])
def test_with_one_positive_per_query_it_is_the_in_batch_softmax(bidirectional):
  options = {"temperature": 0.05, "bidirectional": bidirectional, "score": scoring.dot}
  assert _value(decoupled_softmax(**options), _batch()) == pytest.approx(
    _value(in_batch_softmax(**options), _batch()), rel=1e-6
  )


def test_copies_of_a_passage_count_once():
  """Columns 1 and 3 hold one passage, which answers query 0 and no other but query 1; so do columns 4 and 5."""
  rows = np.array([10, 11, 12, 11, 14, 14])
  scores = SCORES.copy()
  scores[:, 3], scores[:, 5] = scores[:, 1], scores[:, 4]
  batch = _batch(scores, passage_rows=rows, positives=np.array([[11], [-1], [-1]]))
  e = np.exp(scores)
  negatives = e[0, [2, 4]].sum()
  rows_by_hand = [
    -sum(math.log(e[0, j] / (e[0, j] + negatives)) for j in (0, 1)) / 2,
    -math.log(e[1, 1] / e[1, [0, 1, 2, 4]].sum()),
    -math.log(e[2, 2] / e[2, [0, 1, 2, 4]].sum()),
  ]
  loss = decoupled_softmax(temperature=1.0, score=scoring.dot)
  assert _value(loss, batch) == pytest.approx(np.mean(rows_by_hand), rel=1e-6)


def test_repeated_queries_count_once():
  """Queries 0 and 1 are one query with two answers: each is a positive of the other's passage."""
  scores = SCORES[:, :3].copy()
  scores[1] = scores[0]
  e = np.exp(scores)
  batch = _batch(scores, query_rows=np.array([5, 5, 7]))
  forward = [
    -sum(math.log(e[0, j] / (e[0, j] + e[0, 2])) for j in (0, 1)) / 2,
    -sum(math.log(e[0, j] / (e[0, j] + e[0, 2])) for j in (0, 1)) / 2,
    -math.log(e[2, 2] / e[2].sum()),
  ]
  backward = [
    -math.log(e[0, 0] / (e[0, 0] + e[2, 0])),
    -math.log(e[0, 1] / (e[0, 1] + e[2, 1])),
    -math.log(e[2, 2] / (e[2, 2] + e[0, 2])),
  ]
  loss = decoupled_softmax(temperature=1.0, bidirectional=True, score=scoring.dot)
  assert _value(loss, batch) == pytest.approx((np.mean(forward) + np.mean(backward)) / 2, rel=1e-6)


def test_rows_without_positives_or_negatives_are_0():
  logits = jnp.array([[1.0, 2.0, 3.0], [1.0, 2.0, 3.0], [1.0, 2.0, 3.0]])
  relevant = jnp.array([[False, False, True], [True, True, False], [True, False, False]])
  present = jnp.tile(jnp.array([True, True, False]), (3, 1))

  def rows(logits):
    return decoupled_terms(logits, relevant, present, jnp.ones(3))

  np.testing.assert_allclose(rows(logits), [0, 0, math.log(1 + math.e)], rtol=1e-6)
  gradient = jax.grad(lambda x: rows(x).sum())(logits)
  assert np.all(np.isfinite(gradient))
  assert not np.any(gradient[:2])
  assert not np.any(gradient[:, 2])


def test_a_tiny_loss_keeps_its_digits():
  batch = _batch(np.eye(2, dtype=np.float32))
  assert _value(decoupled_softmax(temperature=1 / 40), batch) == pytest.approx(math.exp(-40), rel=1e-4)


def test_zero_embeddings_have_a_finite_loss_and_gradient():
  batch = _batch(np.zeros((3, 6), np.float32))
  loss = decoupled_softmax(bidirectional=True)
  got, gradient = jax.value_and_grad(lambda x: _output(loss, batch._replace(query=x)).loss)(batch.query)
  assert float(got) == pytest.approx((math.log(6) + math.log(3)) / 2, rel=1e-6)
  assert np.all(np.isfinite(gradient))


def test_the_temperature_can_be_learned():
  loss = decoupled_softmax(temperature=learned(initial=0.5), score=scoring.dot)
  params, _ = loss.init(jax.random.key(0), embed_dim=6, data=DataSizes(9, 9))
  output = _output(loss, _batch(), params)
  assert float(output.metrics["logit_scale"]) == pytest.approx(2)
  fixed = decoupled_softmax(temperature=0.5, score=scoring.dot)
  assert float(output.loss) == pytest.approx(_value(fixed, _batch()), rel=1e-6)
  gradient = jax.grad(lambda p: _output(loss, _batch(), p).loss)(params)["log_scale"]
  softmax = np.exp(2 * SCORES) / np.exp(2 * SCORES).sum(axis=1, keepdims=True)
  assert float(gradient) == pytest.approx(2 * ((softmax - np.eye(3, 6)) * SCORES).sum() / 3, rel=1e-5)


def test_temperature_must_be_positive():
  with pytest.raises(UserError, match=r"decoupled_softmax: temperature is 0\.0; it must be above 0"):
    decoupled_softmax(temperature=0.0)
