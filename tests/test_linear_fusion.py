import numpy as np
import pytest

from retrieval_jax.errors import UserError
from retrieval_jax.fusion_model import PairFeatures
from retrieval_jax.linear_fusion import LinearFusion, fit_linear


def _features(count=4000, seed=0):
  rng = np.random.default_rng(seed)
  return PairFeatures(
    rng.normal(0.4, 0.2, count).astype(np.float32),
    rng.normal(0.3, 0.1, count).astype(np.float32),
    rng.normal(1.5, 0.5, count).astype(np.float32),
  )


def test_scores_by_hand():
  features = PairFeatures(*(np.float32(column) for column in ([0.5, -1], [0.25, 0], [3, 1])))
  scores = LinearFusion(np.array([2.0, 1.0, -0.5]), -1.0).scores(features)
  np.testing.assert_allclose(scores, [1 + 0.25 - 1.5 - 1, -2 - 0.5 - 1])
  assert scores.dtype == np.float32


def test_two_kinds_of_pairs_get_their_own_log_odds():
  """One feature with two values: the minimum is where each value's probability is its share of labels, 1/4 and 2/3."""
  column = np.float32([0.2] * 8 + [0.6] * 6)
  targets = np.array([True] * 2 + [False] * 6 + [True] * 4 + [False] * 2)
  constant = np.zeros(14, np.float32)
  model = fit_linear(PairFeatures(column, constant, constant), targets, np.ones(14))
  scores = model.scores(PairFeatures(np.float32([0.2, 0.6]), constant[:2], constant[:2]))
  np.testing.assert_allclose(scores, [np.log(1 / 3), np.log(2)], atol=1e-4)
  assert model.weights[0] == pytest.approx((np.log(2) - np.log(1 / 3)) / 0.4, abs=1e-3)
  assert model.weights[1:].tolist() == [0, 0]  # of features that say nothing


def test_the_weights_that_made_the_labels_are_found():
  features = _features(40_000)
  true = LinearFusion(np.array([6.0, 9.0, -1.0]), -4.0)
  probabilities = 1 / (1 + np.exp(-true.scores(features).astype(np.float64)))
  targets = np.random.default_rng(1).random(40_000) < probabilities
  model = fit_linear(features, targets, np.ones(40_000))
  np.testing.assert_allclose(model.weights, true.weights, rtol=0.1)
  assert model.bias == pytest.approx(-4, rel=0.1)
  fitted = 1 / (1 + np.exp(-model.scores(features).astype(np.float64)))
  assert fitted.mean() == pytest.approx(targets.mean(), abs=1e-5)  # calibrated: at the minimum this is exact


def test_a_weight_counts_a_pair_so_many_times():
  features, targets = _features(60), np.arange(60) % 3 == 0
  weights = np.where(np.arange(60) < 20, 3.0, 1.0)
  times = np.repeat(np.arange(60), weights.astype(int))
  repeated = PairFeatures(*(column[times] for column in features))
  once = fit_linear(features, targets, weights)
  many = fit_linear(repeated, targets[times], np.ones(len(times)))
  np.testing.assert_allclose(once.weights, many.weights, rtol=1e-3, atol=1e-3)
  assert once.bias == pytest.approx(many.bias, abs=1e-3)


def test_pairs_that_a_feature_separates_give_finite_weights():
  features = _features(100)
  model = fit_linear(features, features.siamese > 0.3, np.ones(100))
  assert np.isfinite(model.weights).all()
  assert ((model.scores(features) > 0) == (features.siamese > 0.3)).mean() > 0.97


def test_what_it_says_of_itself():
  said = LinearFusion(np.array([2.0, 1.0, -0.5]), -1.0).describe()
  assert said == {"classifier": 2.0, "siamese": 1.0, "log_inverse_propensity": -0.5, "bias": -1.0}


@pytest.mark.parametrize("positives, said", [(0, "0 of 10"), (10, "10 of 10")])
def test_nothing_to_tell_apart(positives, said):
  with pytest.raises(UserError, match=f"{said} candidates are labels of their query; expected some"):
    fit_linear(_features(10), np.arange(10) < positives, np.ones(10))


def test_a_number_that_is_not_finite_is_named():
  features = _features(10)
  features.siamese[3] = np.nan
  with pytest.raises(UserError, match="the feature 'siamese' of 1 candidates is not finite"):
    fit_linear(features, np.arange(10) < 5, np.ones(10))
