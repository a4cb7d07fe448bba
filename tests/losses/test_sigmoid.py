import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from retrieval_jax import scoring
from retrieval_jax.errors import UserError
from retrieval_jax.losses import bias
from retrieval_jax.losses.base import DataSizes
from retrieval_jax.losses.sigmoid import sigmoid
from retrieval_jax.losses.temperature import learned
from retrieval_jax.records import EmbeddedBatch

# Queries are rows of scores, passages unit vectors: the scores are these, with the inner product.
SCORES = np.array([[0.8, 0.1, 0.3, -0.5], [0.2, 0.6, 0.4, 0.7]], np.float32)


def _batch(scores=SCORES, *, passage_rows=(10, 11, 12, 13), positives=((10, -1), (11, -1)), weights=(1, 1)):
  q, p = scores.shape
  return EmbeddedBatch(
    query=jnp.asarray(scores),
    passage=jnp.eye(p, dtype=scores.dtype),
    query_rows=np.arange(q),
    passage_rows=np.array(passage_rows),
    positives=np.array(positives),
    weights=np.array(weights, np.float32),
  )


def _output(loss, batch, params=None):
  if params is None:
    params, _ = loss.init(jax.random.key(0), embed_dim=4, data=DataSizes(9, 9))
  return loss.apply(params, {}, batch, rng=None, train=True)[0]


def _log_sigmoid(x):
  return -math.log1p(math.exp(-x))


def test_every_pair_is_a_question():
  """The paper's sum over pairs divided by the number of queries; hard negatives are further columns."""
  loss = sigmoid(temperature=0.5, bias=-1.0, score=scoring.dot)
  rows = [
    -sum(_log_sigmoid((1 if i == j else -1) * (2 * SCORES[i, j] - 1)) for j in range(4)) for i in range(2)
  ]
  assert float(_output(loss, _batch()).loss) == pytest.approx(sum(rows) / 2, rel=1e-6)
  weighted = _output(loss, _batch(weights=(1, 3)))
  assert float(weighted.loss) == pytest.approx((rows[0] + 3 * rows[1]) / 4, rel=1e-6)


def test_temperature_and_bias_are_learned_from_a_tenth_and_minus_10():
  loss = sigmoid(score=scoring.dot)
  params, state = loss.init(jax.random.key(0), embed_dim=4, data=DataSizes(9, 9))
  assert state == {}
  assert {n: float(v) for n, v in params.items()} == pytest.approx({"log_scale": math.log(10), "bias": -10})

  def value(params):
    return _output(loss, _batch(), params).loss

  # d loss / d logit of a pair is sigmoid(logit) - 1 for a positive and sigmoid(logit) for a negative.
  z = 10 * SCORES - 10
  slope = (1 / (1 + np.exp(-z)) - np.eye(2, 4)) / 2
  got = jax.grad(value)(params)
  assert float(got["bias"]) == pytest.approx(slope.sum(), rel=1e-5)
  assert float(got["log_scale"]) == pytest.approx((slope * 10 * SCORES).sum(), rel=1e-5)
  metrics = {n: float(v) for n, v in _output(loss, _batch()).metrics.items()}
  assert metrics == pytest.approx(
    # Query 1 is nearer to a hard negative than to its own passage.
    {"accuracy": 0.5, "negatives": 3, "temperature": 0.1, "logit_scale": 10, "bias": -10}
  )


def test_fixed_numbers_are_no_parameters():
  params, _ = sigmoid(temperature=0.1, bias=-5.0).init(jax.random.key(0), embed_dim=4, data=DataSizes(9, 9))
  assert params == {}
  only_bias = sigmoid(temperature=0.1, bias=bias.learned(initial=-5.0))
  assert set(only_bias.init(jax.random.key(0), embed_dim=4, data=DataSizes(9, 9))[0]) == {"bias"}
  only_scale = sigmoid(temperature=learned(initial=0.1), bias=0.0)
  assert set(only_scale.init(jax.random.key(0), embed_dim=4, data=DataSizes(9, 9))[0]) == {"log_scale"}


@pytest.mark.parametrize("known, sign", [("masked", 0), ("positive", 1), ("negative", -1)])
def test_what_known_positives_of_other_examples_are(known, sign):
  """Passage 11, query 1's, answers query 0 as well."""
  loss = sigmoid(temperature=1.0, bias=0.0, known_positives=known, score=scoring.dot)
  z = np.array([[1, sign, -1, -1], [-1, 1, -1, -1]])
  want = -sum(_log_sigmoid(s * x) for s, x in zip(z.ravel(), SCORES.ravel(), strict=True) if s) / 2
  output = _output(loss, _batch(positives=((10, 11), (11, -1))))
  assert float(output.loss) == pytest.approx(want, rel=1e-6)
  assert float(output.metrics["negatives"]) == (3 if known == "negative" else 2.5)


def test_an_empty_slot_of_a_hard_negative_is_in_no_pair():
  loss = sigmoid(temperature=1.0, bias=0.0, score=scoring.dot)
  want = -sum(_log_sigmoid((1 if i == j else -1) * SCORES[i, j]) for i in range(2) for j in range(3)) / 2
  assert float(_output(loss, _batch(passage_rows=(10, 11, 12, -1))).loss) == pytest.approx(want, rel=1e-6)


def test_large_logits_are_exact_and_finite():
  """1 / (1 + e^200) is 0 in float32, its logarithm is -200; log(1 + e^-40) keeps its digits."""
  wrong = _batch(np.array([[-1.0]], np.float32), passage_rows=(10,), positives=((10,),), weights=(1,))
  loss = sigmoid(temperature=0.005, bias=0.0, score=scoring.dot)
  got, gradient = jax.value_and_grad(lambda x: _output(loss, wrong._replace(query=x)).loss)(wrong.query)
  assert float(got) == 200
  assert float(gradient[0, 0]) == -200
  right = wrong._replace(query=-wrong.query)
  assert float(_output(sigmoid(temperature=1 / 40, bias=0.0), right).loss) == pytest.approx(
    math.exp(-40), rel=1e-4
  )


def test_zero_embeddings_have_a_finite_loss_and_gradient():
  batch = _batch(np.zeros((2, 4), np.float32))
  loss = sigmoid(temperature=0.1, bias=0.0)
  got, gradient = jax.value_and_grad(lambda x: _output(loss, batch._replace(query=x)).loss)(batch.query)
  assert float(got) == pytest.approx(4 * math.log(2))
  assert np.all(np.isfinite(gradient))


def test_float64_is_kept():
  with jax.enable_x64(True):
    output = _output(
      sigmoid(temperature=0.5, bias=-1.0, score=scoring.dot), _batch(SCORES.astype(np.float64))
    )
    assert output.loss.dtype == np.float64


@pytest.mark.parametrize(
  "options, message",
  [
    ({"temperature": 0.0}, "sigmoid: temperature is 0.0; it must be above 0"),
    ({"bias": float("inf")}, "sigmoid: bias is inf; expected a finite number"),
    ({"known_positives": "mask"}, r"unknown known_positives 'mask'; did you mean 'masked'\? Known"),
  ],
)
def test_options_out_of_range(options, message):
  with pytest.raises(UserError, match=message):
    sigmoid(**options)


def test_a_learned_bias_must_be_finite():
  with pytest.raises(UserError, match="learned bias: initial is nan"):
    bias.learned(initial=float("nan"))
