"""Tree fusion, as the NGAME code does it: a small decision tree's probability, added to the scores of both heads."""

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from retrieval_jax.errors import UserError
from retrieval_jax.fusion_model import PairFeatures, check_pairs

LEAF = -1  # in TreeFusion.feature


class TreeFusion(NamedTuple):
  """score = beta (probability of the pair's leaf + siamese) + classifier.

  feature: of each node the number of the feature it looks at, LEAF where there is none. A pair whose feature is at most
    the node's threshold goes to the node `left`, any other to `right`; node 0 is the root.
  probability: of each node, that a pair in it is one of a query and its label.
  """

  feature: Int[np.ndarray, "n"]
  threshold: Float[np.ndarray, "n"]
  left: Int[np.ndarray, "n"]
  right: Int[np.ndarray, "n"]
  probability: Float[np.ndarray, "n"]
  beta: float = 1.0

  def probabilities(self, features: PairFeatures) -> Float[np.ndarray, "x"]:
    """Returns each pair's probability, float64. Time: a step a level of the tree."""
    matrix = features.matrix()
    nodes, pairs = np.zeros(len(matrix), np.int64), np.arange(len(matrix))
    while True:
      asked = self.feature[nodes[pairs]]
      pairs, asked = pairs[asked != LEAF], asked[asked != LEAF]
      if not len(pairs):
        return self.probability[nodes]
      here = nodes[pairs]
      goes_left = matrix[pairs, asked] <= self.threshold[here]
      nodes[pairs] = np.where(goes_left, self.left[here], self.right[here])

  def scores(self, features: PairFeatures) -> Float[np.ndarray, "x"]:
    """Returns beta (probability + siamese) + classifier, float32; added up in float64."""
    siamese = features.siamese.astype(np.float64)
    return (self.beta * (self.probabilities(features) + siamese) + features.classifier).astype(np.float32)

  def describe(self) -> dict[str, object]:
    """Returns how large the tree is, how often each feature is asked, and beta."""
    names = PairFeatures._fields
    asked = {name: int(np.count_nonzero(self.feature == i)) for i, name in enumerate(names)}
    return {"leaves": int(np.count_nonzero(self.feature == LEAF)), "asked": asked, "beta": float(self.beta)}


def fit_tree(
  features: PairFeatures,
  targets: Bool[np.ndarray, "x"],
  weights: Float[np.ndarray, "x"],
  *,
  max_depth: int = 7,
  beta: float = 1.0,
) -> TreeFusion:
  """Returns the decision tree of targets on features that splits by Gini impurity, with `beta` beside it.

  weights: how many pairs each stands for. max_depth: questions asked of a pair at most.

  Time: a sort of the pairs by each feature at every level. Needs scikit-learn (extra `fusion`) to fit; not afterwards.

  Raises: UserError for pairs that nothing can be fitted on, a depth below 1, a beta that is negative or not finite, and
  without scikit-learn.

  Source: the fusion of Dahiya et al., 2023 (NGAME), as its published code has it: depth 7, beta 1.

  Example: `fit_tree(features, targets, np.ones(len(targets)), max_depth=3)`.
  """
  if type(max_depth) is not int or max_depth < 1:
    raise UserError(
      f"TREE_DEPTH={max_depth!r}: expected a whole number of at least 1, questions asked of a pair."
    )
  if not 0 <= beta < np.inf:
    raise UserError(f"FUSION_BETA={beta!r}: expected a number of at least 0.")
  check_pairs(features, targets, weights)
  grower = _sklearn().DecisionTreeClassifier(max_depth=max_depth, random_state=0)
  tree = grower.fit(features.matrix(), targets, sample_weight=weights).tree_
  values = tree.value[:, 0, :]
  return TreeFusion(
    np.where(tree.children_left < 0, LEAF, tree.feature).astype(np.int32),
    tree.threshold.astype(np.float64),
    tree.children_left.astype(np.int32),
    tree.children_right.astype(np.int32),
    (values[:, 1] / values.sum(axis=1)).astype(np.float64),
    float(beta),
  )


def _sklearn() -> Any:
  try:
    from sklearn import tree
  except ImportError as error:
    raise UserError(
      f"A fusion by a tree is fitted with the package scikit-learn ({error}). Install it with `pip install "
      "'retrieval-jax[fusion]'`, or fit fusion/linear.gin."
    ) from error
  return tree
