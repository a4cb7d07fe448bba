import numpy as np
import pytest

from retrieval_jax.errors import UserError
from retrieval_jax.index.fusion import reciprocal_rank_fusion, weighted_fusion
from retrieval_jax.records import Ranking


def _ranking(rows, scores=None):
  """Rows of one or more queries; without scores, those fall by 1 from 10."""
  rows = np.array(rows, np.int32)
  if scores is None:
    scores = np.broadcast_to(10.0 - np.arange(rows.shape[1]), rows.shape)
  return Ranking(rows, np.where(rows < 0, -np.inf, np.array(scores)).astype(np.float32))


def test_reciprocal_ranks_by_hand():
  fused = reciprocal_rank_fusion([_ranking([[7, 3, 5]]), _ranking([[3, 9]])], k=4)
  np.testing.assert_array_equal(fused.rows, [[3, 7, 9, 5]])
  np.testing.assert_allclose(fused.scores, [[1 / 62 + 1 / 61, 1 / 61, 1 / 62, 1 / 63]], rtol=1e-6)
  assert (fused.rows.dtype, fused.scores.dtype) == (np.int32, np.float32)


def test_constant_and_weights_by_hand():
  fused = reciprocal_rank_fusion(
    [_ranking([[0, 1]]), _ranking([[2, 1]])], k=3, constant=1, weights=[1.0, 3.0]
  )
  np.testing.assert_array_equal(fused.rows, [[2, 1, 0]])
  np.testing.assert_allclose(fused.scores, [[3 / 2, 1 / 3 + 3 / 3, 1 / 2]], rtol=1e-6)


def test_weighted_scores_by_hand():
  first = _ranking([[0, 1, 2]], [[4.0, 3.0, 2.0]])  # 1, 0.5, 0
  second = _ranking([[2, 3, 1]], [[30.0, 20.0, 10.0]])  # 1, 0.5, 0
  fused = weighted_fusion([first, second], k=4, weights=[0.7, 0.3])
  np.testing.assert_array_equal(fused.rows, [[0, 1, 2, 3]])
  np.testing.assert_allclose(fused.scores, [[0.7, 0.35, 0.3, 0.15]], rtol=1e-6)
  plain = weighted_fusion([first, second], k=4, weights=[1.0, 0.1], normalise="none")
  np.testing.assert_array_equal(plain.rows, [[2, 0, 1, 3]])
  np.testing.assert_allclose(plain.scores, [[2 + 3, 4, 3 + 1, 2]], rtol=1e-6)


def test_scores_of_a_query_are_normalised_by_themselves():
  fused = weighted_fusion([_ranking([[0, 1, 2], [0, 1, 2]], [[9, 5, 1], [0.3, 0.1, -0.1]])], k=3)
  np.testing.assert_allclose(fused.scores, [[1, 0.5, 0]] * 2, rtol=1e-6)


def test_equal_scores_and_a_single_result_count_1():
  fused = weighted_fusion([_ranking([[4, 2], [1, -1]], [[3, 3], [0.5, 0]])], k=2)
  np.testing.assert_array_equal(fused.rows, [[2, 4], [1, -1]])
  np.testing.assert_array_equal(fused.scores, [[1, 1], [1, -np.inf]])


@pytest.mark.parametrize("fuse", [reciprocal_rank_fusion, weighted_fusion])
def test_ties_go_to_the_smaller_row(fuse):
  fused = fuse([_ranking([[8, 6]]), _ranking([[6, 8]]), _ranking([[2, 4]]), _ranking([[4, 2]])], k=4)
  np.testing.assert_array_equal(fused.rows, [[2, 4, 6, 8]])
  np.testing.assert_array_equal(fuse([_ranking([[8, 6]]), _ranking([[6, 8]])], k=1).rows, [[6]])


def test_sums_of_equal_terms_in_another_order_tie():
  """0.1 + 0.2 + 0.3 is not 0.3 + 0.2 + 0.1 in float64."""
  rankings = [_ranking([[5, 3]], [[a, b]]) for a, b in ((0.1, 0.3), (0.2, 0.2), (0.3, 0.1))]
  fused = weighted_fusion(rankings, k=2, normalise="none")
  np.testing.assert_array_equal(fused.rows, [[3, 5]])


@pytest.mark.parametrize("fuse", [reciprocal_rank_fusion, weighted_fusion])
def test_places_without_a_passage_are_none_in_the_result(fuse):
  nothing = _ranking([[-1, -1, -1], [-1, -1, -1]])
  fused = fuse([_ranking([[3, 1, -1], [-1, -1, -1]]), nothing], k=4)
  np.testing.assert_array_equal(fused.rows, [[3, 1, -1, -1], [-1, -1, -1, -1]])
  assert (fused.scores[fused.rows < 0] == -np.inf).all()
  assert np.isfinite(fused.scores[fused.rows >= 0]).all()


def test_a_weight_of_0_and_a_place_without_a_passage():
  fused = weighted_fusion([_ranking([[3, -1]]), _ranking([[1, 2]])], k=3, weights=[0, 1], normalise="none")
  np.testing.assert_array_equal(fused.rows, [[1, 2, 3]])
  np.testing.assert_array_equal(fused.scores, [[10, 9, 0]])


@pytest.mark.parametrize("fuse", [reciprocal_rank_fusion, weighted_fusion])
def test_one_ranking_keeps_its_order(fuse):
  rows = np.random.default_rng(0).permuted(np.tile(np.arange(20), (5, 1)), axis=1)
  np.testing.assert_array_equal(fuse([_ranking(rows)], k=20).rows, rows)


@pytest.mark.parametrize("fuse", [reciprocal_rank_fusion, weighted_fusion])
def test_equals_a_dictionary_of_sums(fuse):
  """The whole of it against the plainest way, with many queries and places without a passage."""
  rng = np.random.default_rng(1)
  rankings = []
  for k in (7, 12, 1):
    rows = rng.permuted(np.tile(np.arange(15), (40, 1)), axis=1)[:, :k].astype(np.int32)
    rows[np.arange(k) >= rng.integers(0, k + 1, (40, 1))] = -1
    rankings.append(_ranking(rows, -np.sort(-rng.normal(size=rows.shape), axis=1)))
  weights = [1.0, 0.5, 2.0]
  fused = fuse(rankings, k=10, weights=weights)
  for query in range(40):
    sums: dict[int, float] = {}
    for ranking, weight in zip(rankings, weights, strict=True):
      rows, scores = ranking.rows[query], ranking.scores[query].astype(np.float64)
      rows, scores = rows[rows >= 0], scores[rows >= 0]
      for rank, row in enumerate(rows.tolist(), start=1):
        spread = scores.max() - scores.min()
        share = (scores[rank - 1] - scores.min()) / spread if spread else 1.0
        sums[row] = sums.get(row, 0.0) + weight * (
          1 / (60 + rank) if fuse is reciprocal_rank_fusion else share
        )
    best = sorted(sums, key=lambda row: (-np.float32(sums[row]), row))[:10]
    assert fused.rows[query].tolist() == best + [-1] * (10 - len(best))
    np.testing.assert_allclose(fused.scores[query][: len(best)], [sums[row] for row in best], rtol=1e-6)


def test_no_query():
  assert reciprocal_rank_fusion([_ranking(np.zeros((0, 3)))], k=2).rows.shape == (0, 2)


# --- mistakes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fuse", [reciprocal_rank_fusion, weighted_fusion])
def test_rankings_and_numbers_that_cannot_be(fuse):
  one, two = _ranking([[0]]), _ranking([[0], [1]])
  with pytest.raises(UserError, match="no ranking to fuse"):
    fuse([], k=1)
  with pytest.raises(UserError, match=r"are of \[1, 2\] queries"):
    fuse([one, two], k=1)
  with pytest.raises(UserError, match="k is 0"):
    fuse([one], k=0)
  with pytest.raises(UserError, match="2 weights for 1 rankings"):
    fuse([one], k=1, weights=[1.0, 2.0])
  for weight in (-1.0, float("nan"), float("inf")):
    with pytest.raises(UserError, match="expected numbers of at least 0"):
      fuse([one], k=1, weights=[weight])


@pytest.mark.parametrize("weights", [0.5, "ab", [None, 1], {"a": 1}, [0, 0]])
def test_weights_that_are_no_numbers(weights):
  ranking = Ranking(np.array([[0]]), np.array([[1.0]], np.float32))
  with pytest.raises(UserError, match="expected a list of numbers, not all 0"):
    reciprocal_rank_fusion([ranking, ranking], k=1, weights=weights)


def test_a_constant_below_0():
  with pytest.raises(UserError, match="constant is -1"):
    reciprocal_rank_fusion([_ranking([[0]])], k=1, constant=-1)


def test_a_normalisation_that_is_none():
  with pytest.raises(UserError, match="'minmax'; expected 'min_max' or 'none'; did you mean 'min_max'"):
    weighted_fusion([_ranking([[0]])], k=1, normalise="minmax")


def test_scores_that_are_not_finite():
  with pytest.raises(UserError, match="ranking 1 has a score that is not finite"):
    weighted_fusion([_ranking([[0]]), _ranking([[0]], [[np.nan]])], k=1)
