import sys

import numpy as np
import pytest

from retrieval_jax.errors import UserError
from retrieval_jax.fusion_model import PairFeatures
from retrieval_jax.tree_fusion import LEAF, TreeFusion, fit_tree

# classifier <= 0.5 ? (siamese <= 0.25 ? 0.1 : 0.4) : 0.9
BY_HAND = TreeFusion(
  feature=np.array([0, 1, LEAF, LEAF, LEAF]),
  threshold=np.array([0.5, 0.25, 0, 0, 0]),
  left=np.array([1, 2, -1, -1, -1]),
  right=np.array([4, 3, -1, -1, -1]),
  probability=np.array([0.5, 0.2, 0.1, 0.4, 0.9]),
  beta=2.0,
)


def _features(*columns):
  return PairFeatures(*(np.float32(column) for column in columns))


def _random(count, seed=0):
  """Few different values, so that many pairs lie on a threshold's side by little."""
  return _features(*np.random.default_rng(seed).normal(0.3, 0.2, (3, count)).round(3))


def test_scores_by_hand():
  features = _features([0.5, 0.4, 0.6], [0.25, 0.3, 0.0], [9, 9, 9])
  np.testing.assert_allclose(BY_HAND.probabilities(features), [0.1, 0.4, 0.9])
  scores = BY_HAND.scores(features)
  np.testing.assert_allclose(
    scores, [2 * (0.1 + 0.25) + 0.5, 2 * (0.4 + 0.3) + 0.4, 2 * 0.9 + 0.6], rtol=1e-6
  )
  assert scores.dtype == np.float32


def test_what_it_says_of_itself():
  asked = {"classifier": 1, "siamese": 1, "log_inverse_propensity": 0}
  assert BY_HAND.describe() == {"leaves": 3, "asked": asked, "beta": 2.0}


def test_no_pairs():
  assert BY_HAND.scores(_features([], [], [])).shape == (0,)


def test_a_tree_that_is_one_leaf():
  tree = TreeFusion(np.array([LEAF]), np.zeros(1), np.array([-1]), np.array([-1]), np.array([0.25]))
  np.testing.assert_allclose(tree.scores(_features([1, 2], [3, 4], [0, 0])), [0.25 + 3 + 1, 0.25 + 4 + 2])


@pytest.mark.parametrize("weighted", [False, True])
def test_probabilities_are_those_of_scikit_learn(weighted):
  sklearn_tree = pytest.importorskip("sklearn.tree")
  features, unseen = _random(3000), _random(3000, seed=1)
  rng = np.random.default_rng(2)
  targets = rng.random(3000) < 1 / (1 + np.exp(4 - 6 * features.classifier - 5 * features.siamese))
  weights = np.where(targets, 1.0, 7.5) if weighted else np.ones(3000)
  theirs = sklearn_tree.DecisionTreeClassifier(max_depth=7, random_state=0)
  theirs.fit(features.matrix(), targets, sample_weight=weights)
  ours = fit_tree(features, targets, weights)
  for some in (features, unseen):
    np.testing.assert_allclose(
      ours.probabilities(some), theirs.predict_proba(some.matrix())[:, 1], rtol=0, atol=1e-15
    )
  assert ours.beta == 1
  assert ours.describe()["leaves"] == theirs.get_n_leaves()


def test_depth_is_the_questions_asked_at_most():
  pytest.importorskip("sklearn")
  features = _random(500)
  tree = fit_tree(features, features.classifier + features.siamese > 0.6, np.ones(500), max_depth=1, beta=0.5)
  assert len(tree.feature) == 3
  assert tree.beta == 0.5


def test_mistakes():
  pytest.importorskip("sklearn")
  features, targets, ones = _random(10), np.arange(10) < 5, np.ones(10)
  with pytest.raises(UserError, match="TREE_DEPTH=0: expected a whole number of at least 1"):
    fit_tree(features, targets, ones, max_depth=0)
  with pytest.raises(UserError, match="FUSION_BETA=-1: expected a number of at least 0"):
    fit_tree(features, targets, ones, beta=-1)
  with pytest.raises(UserError, match="0 of 10 candidates are labels"):
    fit_tree(features, targets & False, ones)


def test_without_scikit_learn_the_extra_is_named(monkeypatch):
  monkeypatch.setitem(sys.modules, "sklearn", None)
  with pytest.raises(UserError, match=r"pip install 'retrieval-jax\[fusion\]'`, or fit fusion/linear\.gin"):
    fit_tree(_random(10), np.arange(10) < 5, np.ones(10))
