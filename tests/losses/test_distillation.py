"""Distillation losses: values by hand, who is a candidate, copies of a passage, rows that contribute nothing."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from retrieval_jax.errors import UserError
from retrieval_jax.losses.base import DataSizes
from retrieval_jax.losses.distillation import distillation_kl, margin_mse
from retrieval_jax.losses.temperature import learned
from retrieval_jax.records import EmbeddedBatch

NO = -np.inf
LOG2, LOG3 = math.log(2), math.log(3)


def _batch(scores, teacher, **fields):
  """Returns a batch whose inner products are `scores` [q, p]: queries are unit vectors, passages its columns."""
  scores = np.asarray(scores, np.float32)
  q, p = scores.shape
  passage_rows = np.asarray(fields.pop("passage_rows", np.arange(100, 100 + p)))
  batch = EmbeddedBatch(
    query=jnp.eye(q),
    passage=jnp.asarray(scores.T),
    query_rows=np.arange(q),
    passage_rows=passage_rows,
    positives=passage_rows[:q, None],
    weights=np.ones(q, np.float32),
    teacher_scores=np.asarray(teacher, np.float32),
  )
  return batch._replace(**fields)


def _run(loss, batch):
  params, state = loss.init(jax.random.key(0), embed_dim=2, data=DataSizes(num_queries=9, num_passages=9))
  output, _ = loss.apply(params, state, batch, rng=None, train=True)
  return float(output.loss), {name: float(value) for name, value in output.metrics.items()}


def _gradients(loss, batch):
  def value(query, passage):
    return loss.apply({}, {}, batch._replace(query=query, passage=passage), rng=None, train=True)[0].loss

  return jax.grad(value, (0, 1))(batch.query, batch.passage)


def _dot(query, passage):
  return query @ passage.T


# --- KL divergence ------------------------------------------------------------------------------------------------


def test_kl_by_hand():
  # Teacher 3/4, 1/4 and student 1/2, 1/2; the second query has the teacher 1/2, 1/2 and the student 1/3, 2/3.
  batch = _batch([[7, 7], [0, LOG2]], [[LOG3, 0], [5, 5]])
  first = 3 / 4 * math.log(3 / 4 / (1 / 2)) + 1 / 4 * math.log(1 / 4 / (1 / 2))
  second = 1 / 2 * math.log(1 / 2 / (1 / 3)) + 1 / 2 * math.log(1 / 2 / (2 / 3))
  value, metrics = _run(distillation_kl(temperature=1.0, score=_dot), batch)
  assert value == pytest.approx((first + second) / 2, rel=1e-5)
  assert metrics == {"scored": 2, "distilled": 1, "temperature": 1, "logit_scale": 1}


def test_kl_divides_both_sides_by_their_temperatures():
  batch = _batch([[7, 7], [0, LOG2]], [[LOG3, 0], [5, 5]])
  warmer = _batch(np.array([[7, 7], [0, LOG2]]) / 4, np.array([[LOG3, 0], [5, 5]]) * 10)
  value, metrics = _run(distillation_kl(temperature=0.25, teacher_temperature=10.0, score=_dot), warmer)
  assert value == pytest.approx(_run(distillation_kl(temperature=1.0, score=_dot), batch)[0], rel=1e-5)
  assert metrics["logit_scale"] == 4


def test_kl_is_0_without_a_gradient_where_the_student_agrees_but_for_a_constant():
  batch = _batch([[1, 0.5], [0.2, 0.9]], np.array([[1, 0.5], [0.2, 0.9]]) * 20 + [[3], [-4]])
  loss = distillation_kl(temperature=0.05, score=_dot)
  assert _run(loss, batch)[0] == pytest.approx(0, abs=1e-6)
  for gradient in _gradients(loss, batch):
    np.testing.assert_allclose(gradient, 0, atol=1e-5)


def test_kl_gradient_is_the_difference_of_the_distributions():
  batch = _batch([[7, 7], [0, LOG2]], [[LOG3, 0], [5, 5]])
  _, passage = _gradients(distillation_kl(temperature=1.0, score=_dot), batch)
  by_score = np.array([[1 / 2 - 3 / 4, 1 / 2 - 1 / 4], [1 / 3 - 1 / 2, 2 / 3 - 1 / 2]]) / 2  # S - P over q
  np.testing.assert_allclose(passage, by_score.T, atol=1e-6)


def test_kl_sees_only_what_the_teacher_scored():
  scores = np.array([[1.0, 2, 3, 4], [4, 3, 2, 1]])
  teacher = np.array([[1, NO, 2, NO], [NO, 5, NO, NO]])
  value, metrics = _run(distillation_kl(temperature=1.0, score=_dot), _batch(scores, teacher))
  other = np.where(np.isfinite(teacher), scores, 1e3)
  assert _run(distillation_kl(temperature=1.0, score=_dot), _batch(other, teacher))[0] == pytest.approx(value)
  teacher_share, student_share = 1 / (1 + math.e), 1 / (1 + math.e**2)
  expected = sum(
    t * math.log(t / s) for t, s in [(teacher_share, student_share), (1 - teacher_share, 1 - student_share)]
  )
  assert value == pytest.approx(expected / 2, rel=1e-5)  # the second query has one candidate: 0, and counts
  assert (metrics["scored"], metrics["distilled"]) == (2 / 2, 1 / 2)


@pytest.mark.parametrize("loss", [distillation_kl(score=_dot), margin_mse()])
def test_nothing_scored_is_0_with_finite_gradients(loss):
  batch = _batch(np.zeros((2, 4)), np.full((2, 4), NO))
  value, metrics = _run(loss, batch)
  assert (value, metrics["distilled"]) == (0, 0)
  assert all(np.isfinite(gradient).all() for gradient in _gradients(loss, batch))


@pytest.mark.parametrize("loss", [distillation_kl(temperature=1.0, score=_dot), margin_mse()])
def test_copies_of_a_passage_count_once(loss):
  scores, teacher = np.array([[2.0, 1, 0.5, 0], [1, 3, 0.25, 0]]), np.array([[3, 1, 0, NO], [1, 2, 0, NO]])
  once = _run(loss, _batch(scores, teacher))[0]
  scores[:, 3], teacher[:, 3] = scores[:, 2], teacher[:, 2]
  twice = _run(loss, _batch(scores, teacher, passage_rows=np.array([100, 101, 102, 102])))[0]
  assert twice == pytest.approx(once, rel=1e-5)
  assert _run(loss, _batch(scores, teacher))[0] != pytest.approx(once, rel=1e-2)  # equal scores, two passages


def test_one_passage_in_two_columns_is_one_candidate():
  batch = _batch(
    [[1, 2, 3, 3], [1, 2, 3, 3]], [[NO, NO, 4, 4]] * 2, passage_rows=np.array([100, 101, 102, 102])
  )
  assert _run(distillation_kl(score=_dot), batch)[1]["distilled"] == 0


def test_kl_learns_its_temperature():
  loss = distillation_kl(temperature=learned(initial=0.5), score=_dot)
  params, _ = loss.init(jax.random.key(0), embed_dim=2, data=DataSizes(num_queries=9, num_passages=9))
  batch = _batch([[1, 0], [0, 1]], [[8, 0], [0, 8]])
  gradient = jax.grad(lambda p: loss.apply(p, {}, batch, rng=None, train=True)[0].loss)(params)
  assert gradient["log_scale"] < 0  # the teacher is surer than the student: the scale is to grow
  assert _run(loss, batch)[1]["temperature"] == pytest.approx(0.5)


# --- MarginMSE ----------------------------------------------------------------------------------------------------


def test_margin_mse_by_hand():
  # Query 0 has the scored negatives 1 and 2, query 1 only passage 2; passage 3 is scored by nobody.
  batch = _batch([[3, 1, 2, 9], [7, 4, 1, 9]], [[5, 2, 4.5, NO], [NO, 6, 1, NO]])
  first = (((3 - 1) - (5 - 2)) ** 2 + ((3 - 2) - (5 - 4.5)) ** 2) / 2
  second = ((4 - 1) - (6 - 1)) ** 2
  value, metrics = _run(margin_mse(), batch)
  assert value == pytest.approx((first + second) / 2)
  assert metrics == {"scored": (2 + 1) / 2, "distilled": 1}


def test_margin_mse_scales_the_student():
  value, _ = _run(margin_mse(score_scale=20.0), _batch([[0.9, 0.4], [0, 0]], [[9, 1], [NO, NO]]))
  assert value == pytest.approx((20 * (0.9 - 0.4) - (9 - 1)) ** 2 / 2, rel=1e-5)


def test_margin_mse_needs_the_score_of_the_positive():
  value, metrics = _run(margin_mse(), _batch([[3, 1], [1, 3]], [[NO, 2], [1, NO]]))
  assert (value, metrics["distilled"], metrics["scored"]) == (0, 0, 0)


def test_margin_mse_takes_no_known_positive_for_a_negative():
  scores, teacher = [[3, 1, 2, 0], [0, 1, 0, 0]], [[5, 2, 4.5, NO], [NO, NO, NO, NO]]
  positives = np.array([[100, 101], [101, -1]])
  value, metrics = _run(margin_mse(), _batch(scores, teacher, positives=positives))
  assert value == pytest.approx(((3 - 2) - (5 - 4.5)) ** 2 / 2)
  assert metrics["scored"] == 1 / 2


def test_float64_stays_float64():
  with jax.enable_x64(True):
    batch = _batch([[7, 7], [0, LOG2]], [[LOG3, 0], [5, 5]])
    batch = batch._replace(query=batch.query.astype(np.float64), passage=batch.passage.astype(np.float64))
    for loss in (distillation_kl(temperature=1.0), margin_mse()):
      output, _ = loss.apply({}, {}, batch, rng=None, train=True)
      assert output.loss.dtype == np.float64


# --- mistakes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [0, -1.0, float("nan"), float("inf")])
def test_numbers_must_be_positive(value):
  with pytest.raises(UserError, match="distillation_kl: temperature is"):
    distillation_kl(temperature=value)
  with pytest.raises(UserError, match="distillation_kl: teacher_temperature is"):
    distillation_kl(teacher_temperature=value)
  with pytest.raises(UserError, match=r"margin_mse: score_scale is .* about 20 for normalised"):
    margin_mse(score_scale=value)


def test_both_say_what_they_read():
  assert distillation_kl().requires == margin_mse().requires == {"teacher_scores"}
