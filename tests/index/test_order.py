import numpy as np

from retrieval_jax.index import order


def test_keys_sort_by_score_then_by_the_smaller_row():
  scores = np.array([-np.inf, -3.5, -1e-45, -0.0, 0.0, 1e-45, 2.0, np.inf], np.float32)
  for row, other in ((0, 1), (5, 2**31 - 1)):
    found = np.concatenate([order.keys(scores, np.full(8, row)), order.keys(scores, np.full(8, other))])
    descending = np.argsort(found)[::-1]
    expected = [7, 15, 6, 14, 5, 13, {3, 4}, {3, 4}, {11, 12}, {11, 12}, 2, 10, 1, 9, 0, 8]
    for place, index in zip(expected, descending.tolist(), strict=True):
      assert index in place if isinstance(place, set) else index == place
    assert found.min() > order.NOTHING


def test_keys_give_back_scores_and_rows():
  scores = np.array([[-1.5, 0.0, 7.25, 7.25]], np.float32)
  found = order.ranking(order.keys(scores, np.array([[2**31 - 1, 0, 9, 3]])), 5)
  np.testing.assert_array_equal(found.rows, [[3, 9, 0, 2**31 - 1, -1]])
  np.testing.assert_array_equal(found.scores, [[7.25, 7.25, 0.0, -1.5, -np.inf]])
  assert (found.rows.dtype, found.scores.dtype) == (np.int32, np.float32)


def test_best_keeps_the_largest_with_the_smallest_of_them_first():
  found = np.array([[5, 1, 9, 7, 3]], np.uint64)
  kept = order.best(found.copy(), 3)
  assert kept[0, 0] == 5
  assert sorted(kept[0].tolist()) == [5, 7, 9]
  everything = order.best(found.copy(), 9)
  assert everything[0, 0] == 1
  assert sorted(everything[0].tolist()) == [1, 3, 5, 7, 9]
