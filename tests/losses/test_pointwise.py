import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from retrieval_jax import scoring
from retrieval_jax.errors import UserError
from retrieval_jax.losses import bias
from retrieval_jax.losses.base import DataSizes
from retrieval_jax.losses.matryoshka import matryoshka
from retrieval_jax.losses.pointwise import binary_cross_entropy, squared_error
from retrieval_jax.losses.temperature import learned
from retrieval_jax.losses.weighted_sum import weighted_sum
from retrieval_jax.records import EmbeddedBatch

# Scores of the own pairs, with the inner product.
SCORES, TARGETS = np.array([0.9, 0.2, -0.4], np.float32), np.array([1.0, 0.25, 0.0], np.float32)


def _batch(scores=SCORES, targets=TARGETS, weights=(1, 1, 1)):
  """Queries are [score, 7], passages [1, 0]: the query's other coordinate meets hard negatives alone."""
  scores = np.asarray(scores)
  q = len(scores)
  return EmbeddedBatch(
    query=jnp.stack([jnp.asarray(scores), jnp.full(q, 7, scores.dtype)], axis=1),
    passage=jnp.repeat(jnp.eye(2, dtype=scores.dtype), q, axis=0),
    query_rows=np.arange(q),
    passage_rows=np.arange(2 * q),
    positives=np.arange(q)[:, None],
    weights=np.array(weights, np.float32),
    targets=np.asarray(targets),
  )


def _output(loss, batch, params=None):
  if params is None:
    params, _ = loss.init(jax.random.key(0), embed_dim=2, data=DataSizes(9, 9))
  return loss.apply(params, {}, batch, rng=None, train=True)[0]


def _metrics(loss, batch):
  return {name: float(v) for name, v in _output(loss, batch).metrics.items()}


def test_squared_error_of_own_pairs_alone():
  loss = squared_error(score=scoring.dot)
  rows = [(0.9 - 1) ** 2, (0.2 - 0.25) ** 2, 0.4**2]
  assert float(_output(loss, _batch()).loss) == pytest.approx(np.mean(rows), rel=1e-5)
  weighted = _output(loss, _batch(weights=(1, 2, 0.5)))
  assert float(weighted.loss) == pytest.approx(np.average(rows, weights=[1, 2, 0.5]), rel=1e-5)
  assert _metrics(loss, _batch()) == pytest.approx({"score": 0.7 / 3, "target": 1.25 / 3})


def test_squared_error_gradient_and_cosine():
  batch = _batch(np.array([3.0, 0.0, -7.0], np.float32))
  loss = squared_error()
  got, gradient = jax.value_and_grad(lambda x: _output(loss, batch._replace(query=x)).loss)(batch.query)
  cosines = np.array([3 / math.hypot(3, 7), 0, -math.sqrt(0.5)])
  assert float(got) == pytest.approx(np.mean((cosines - TARGETS) ** 2), rel=1e-5)
  # The cosine's slope in its first coordinate is 49 / (x^2 + 49)^(3/2).
  slope = 2 / 3 * (cosines - TARGETS) * 49 / (np.array([9, 0, 49]) + 49) ** 1.5
  np.testing.assert_allclose(gradient[:, 0], slope, rtol=1e-5)


def test_cross_entropy_of_own_pairs_alone():
  loss = binary_cross_entropy(temperature=0.5, bias=-0.3, score=scoring.dot)
  probabilities = [1 / (1 + math.exp(-(2 * s - 0.3))) for s in (0.9, 0.2, -0.4)]
  rows = [
    -(y * math.log(p) + (1 - y) * math.log(1 - p)) for p, y in zip(probabilities, (1, 0.25, 0), strict=True)
  ]
  assert float(_output(loss, _batch()).loss) == pytest.approx(np.mean(rows), rel=1e-5)
  weighted = _output(loss, _batch(weights=(1, 2, 0.5)))
  assert float(weighted.loss) == pytest.approx(np.average(rows, weights=[1, 2, 0.5]), rel=1e-5)
  assert _metrics(loss, _batch()) == pytest.approx(
    {
      "probability": np.mean(probabilities),
      "target": 1.25 / 3,
      "targets_outside": 0,
      "temperature": 0.5,
      "logit_scale": 2,
      "bias": -0.3,
    }
  )


def test_cross_entropy_learns_temperature_and_bias():
  loss = binary_cross_entropy(
    temperature=learned(initial=0.5), bias=bias.learned(initial=-0.3), score=scoring.dot
  )
  params, _ = loss.init(jax.random.key(0), embed_dim=2, data=DataSizes(9, 9))
  assert set(params) == {"log_scale", "bias"}
  got = jax.grad(lambda p: _output(loss, _batch(), p).loss)(params)
  slope = (1 / (1 + np.exp(-(2 * SCORES - 0.3))) - TARGETS) / 3
  assert float(got["bias"]) == pytest.approx(slope.sum(), rel=1e-4)
  assert float(got["log_scale"]) == pytest.approx((slope * 2 * SCORES).sum(), rel=1e-4)


def test_cross_entropy_of_large_logits_is_exact_and_finite():
  loss = binary_cross_entropy(temperature=0.005, score=scoring.dot)
  batch = _batch(np.array([-1.0, 1.0, 1.0], np.float32), np.array([1, 1, 0], np.float32))
  got, gradient = jax.value_and_grad(lambda x: _output(loss, batch._replace(query=x)).loss)(batch.query)
  assert float(got) == pytest.approx((200 + math.exp(-200) + 200) / 3)
  np.testing.assert_allclose(gradient[:, 0], [-200 / 3, 0, 200 / 3], rtol=1e-6)
  right = _batch(np.array([0.2], np.float32), np.array([1], np.float32), (1,))
  assert float(_output(loss, right).loss) == pytest.approx(math.exp(-40), rel=1e-4)


def test_targets_are_divided_by_their_scale():
  """Grades up to 4: .5 is 2, and the range that a training's data are checked against is 0 to 4."""
  graded = _batch(targets=4 * TARGETS)
  for make in (squared_error, binary_cross_entropy):
    assert float(_output(make(target_scale=4.0), graded).loss) == pytest.approx(
      float(_output(make(), _batch()).loss), rel=1e-6
    )
    with pytest.raises(UserError, match=r"target_scale is 0\.0; expected a number above 0"):
      make(target_scale=0.0)
  entropy = binary_cross_entropy(target_scale=4.0)
  assert entropy.target_range == (0, 4)
  assert squared_error().target_range is None
  both = weighted_sum({"a": (1.0, matryoshka(entropy, dims=(2,))), "b": (1.0, binary_cross_entropy())})
  assert both.target_range == (0, 1)


def test_targets_outside_0_to_1_are_counted():
  batch = _batch(targets=np.array([2, 0.5, -1], np.float32))
  assert _metrics(binary_cross_entropy(), batch)["targets_outside"] == pytest.approx(2 / 3)
  padded = batch._replace(weights=np.array([0, 1, 0], np.float32))
  assert _metrics(binary_cross_entropy(), padded)["targets_outside"] == 0


@pytest.mark.parametrize("loss", [squared_error(), binary_cross_entropy()], ids=["squared", "entropy"])
def test_both_read_the_targets_and_build_no_matrix(loss):
  assert loss.requires == {"targets"}
  batch = EmbeddedBatch(
    np.zeros((64, 4), np.float32),
    np.zeros((128, 4), np.float32),
    np.arange(64),
    np.arange(128),
    np.arange(64)[:, None],
    np.ones(64, np.float32),
    np.ones(64, np.float32),
  )
  params, _ = loss.init(jax.random.key(0), embed_dim=4, data=DataSizes(9, 9))

  def value(query, passage):
    return _output(loss, batch._replace(query=query, passage=passage), params).loss

  traced = jax.make_jaxpr(jax.grad(value, (0, 1)))(batch.query, batch.passage)
  assert max(v.aval.size for equation in traced.jaxpr.eqns for v in equation.outvars) == 128 * 4


def test_options_out_of_range():
  with pytest.raises(UserError, match=r"binary_cross_entropy: temperature is 0\.0; it must be above 0"):
    binary_cross_entropy(temperature=0.0)
  with pytest.raises(UserError, match="binary_cross_entropy: bias is nan; expected a finite number"):
    binary_cross_entropy(bias=float("nan"))
