import inspect
import itertools
import math
import warnings

import numpy as np
import pytest
from scipy import stats

from retrieval_jax.errors import UserError
from retrieval_jax.metrics import significance
from retrieval_jax.metrics.significance import Comparison, Interval, confidence_interval, paired_test

NAN = math.nan


# --- the interval -------------------------------------------------------------------------------------------------


def test_two_values_have_three_means():
  """Of 0 and 1 the resampled means are 0, 1/2 and 1, with the chances 1/4, 1/2 and 1/4."""
  values = np.array([0.0, 1.0])
  assert confidence_interval(values, level=0.95) == (0, 1)
  assert confidence_interval(values, level=0.4) == (0.5, 0.5)


def test_the_interval_is_that_of_a_normal_mean():
  values = np.random.default_rng(0).normal(0.4, 0.2, 2000)
  half = stats.norm.ppf(0.95) * values.std() / math.sqrt(2000)
  found = confidence_interval(values, level=0.9, samples=4000)
  assert found == pytest.approx((values.mean() - half, values.mean() + half), abs=half / 10)


def test_queries_without_judgements_are_left_out_of_the_interval():
  values = np.array([0.2, 0.9, 0.4])
  assert confidence_interval(np.array([NAN, 0.2, 0.9, NAN, 0.4])) == confidence_interval(values)


def test_equal_values_leave_no_doubt():
  """The mean of three times 0.1 is 0.10000000000000002 by summing; the interval is not beyond the values."""
  assert np.mean(np.full(3, 0.1)) > 0.1
  assert confidence_interval(np.full(3, 0.1)) == Interval(0.1, 0.1)
  assert confidence_interval(np.array([0.7])) == (0.7, 0.7)


def test_the_seed_decides_and_blocks_do_not(monkeypatch):
  values = np.random.default_rng(0).random(30)
  found = confidence_interval(values, seed=3, samples=500)
  assert found != confidence_interval(values, seed=4, samples=500)
  monkeypatch.setattr(significance, "BLOCK", 64)
  assert found == pytest.approx(confidence_interval(values, seed=3, samples=500), abs=1e-12)


def test_mistakes_of_an_interval():
  for values in ([], [NAN], [1.0, math.inf]):
    with pytest.raises(UserError, match="expected at least one, and finite"):
      confidence_interval(np.array(values))
  for level in (0, 1, 95, NAN):
    with pytest.raises(UserError, match=r"expected a part of 1, such as 0\.95"):
      confidence_interval(np.ones(3), level=level)
  with pytest.raises(UserError, match="0 samples"):
    confidence_interval(np.ones(3), samples=0)


# --- the test -----------------------------------------------------------------------------------------------------


def _by_all_changes(differences):
  """Returns the exact probability: the part of all sign changes whose mean is as far from 0, in whole numbers."""
  changed = [
    abs(sum(s * d for s, d in zip(signs, differences, strict=True)))
    for signs in itertools.product((1, -1), repeat=len(differences))
  ]
  return sum(value >= abs(sum(differences)) for value in changed) / len(changed)


@pytest.mark.parametrize("eighths", [[1, 2, 3, 4, 5], [1, -2, 3, 3, 3, 1], [2, 2, 2], [1, -1, 4], [5, 1]])
def test_few_queries_are_permuted_exactly(eighths):
  a = np.array([*eighths, 0, 0]) / 8
  found = paired_test(a, np.zeros(len(a)))
  assert found == pytest.approx((sum(eighths) / 8 / len(a), _by_all_changes(eighths), len(a)))


def test_queries_that_do_not_differ_are_not_permuted():
  """20 queries, of which 4 differ: 16 changes, not 2^20, so the probability is exact: 2/16."""
  a = np.full(20, 0.5)
  b = a - np.array([0.25] * 4 + [0] * 16)
  assert paired_test(a, b) == pytest.approx((0.05, 2 / 16, 20))


def test_one_query_proves_nothing():
  assert paired_test(np.array([0.9]), np.array([0.1])) == pytest.approx((0.8, 1, 1))
  assert paired_test(np.array([0.9, 0.5]), np.array([0.1, 0.5])).p_value == 1


@pytest.mark.parametrize("method", significance.METHODS)
def test_identical_runs_have_p_1_and_no_warning(method):
  values = np.array([0.1, 0.7, NAN, 0.3])
  with warnings.catch_warnings():
    warnings.simplefilter("error")
    assert paired_test(values, values.copy(), method=method) == Comparison(0.0, 1.0, 3)


def test_a_constant_difference_has_no_spread_and_no_warning():
  with warnings.catch_warnings():
    warnings.simplefilter("error")
    for shift in (0.5, 0.1):  # 0.1: the differences are equal but for rounding
      a = np.random.default_rng(0).random(50)
      assert paired_test(a + shift, a, method="t").p_value < 1e-100


@pytest.mark.parametrize("method", significance.METHODS)
def test_many_queries(method):
  """Both methods see what Student's formula says of 300 normal differences; the sign is that of the first's lead."""
  rng = np.random.default_rng(1)
  b = rng.random(300)
  for shift in (0.0, 0.02, -0.05):
    a = b + rng.normal(shift, 0.2, 300)
    differences = a - b
    t = differences.mean() / (differences.std(ddof=1) / math.sqrt(300))
    expected = 2 * stats.t.sf(abs(t), 299)
    found = paired_test(a, b, method=method, samples=5000)
    assert found.difference == pytest.approx(a.mean() - b.mean())
    assert found.p_value == pytest.approx(expected, rel=1e-9 if method == "t" else 0, abs=0.02)
    assert paired_test(b, a, method=method, samples=5000).difference == -found.difference


def test_the_smallest_probability_of_a_drawn_test():
  a = np.linspace(1, 2, 30)
  assert paired_test(a, np.zeros(30), samples=999).p_value == pytest.approx(2 / 1000)
  assert paired_test(a, np.zeros(30), samples=999) == paired_test(a, np.zeros(30), samples=999)


def test_queries_judged_in_one_alone_are_refused():
  with pytest.raises(UserError, match="2 queries have a value in one ranking alone, the first is query 1"):
    paired_test(np.array([0.1, NAN, 0.2]), np.array([0.1, 0.2, NAN]))


def test_mistakes_of_a_test():
  with pytest.raises(UserError, match="3 and 2 values"):
    paired_test(np.ones(3), np.ones(2))
  with pytest.raises(
    UserError, match=r"unknown method 'randomization'; did you mean 'randomisation'\? Known"
  ):
    inspect.unwrap(paired_test)(np.ones(3), np.ones(3), method="randomization")
  with pytest.raises(UserError, match="0 judged queries"):
    paired_test(np.array([NAN]), np.array([NAN]))
  with pytest.raises(UserError, match="needs at least 2 queries"):
    paired_test(np.ones(1), np.zeros(1), method="t")
  with pytest.raises(UserError, match="0 samples"):
    paired_test(np.ones(3), np.zeros(3), samples=0)
