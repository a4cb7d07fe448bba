import numpy as np
import pytest

from retrieval_jax import head_fusion
from retrieval_jax.errors import UserError
from retrieval_jax.fusion_file import FittedFusion, save_fusion
from retrieval_jax.head_fusion import FusedHeads, fused_heads, head_searchers
from retrieval_jax.linear_fusion import LinearFusion
from retrieval_jax.searchers import Searcher
from retrieval_jax.tree_fusion import LEAF, TreeFusion
from tests.two_heads import labelled, two_heads

QUERIES = np.float32([[1, 0], [0, 1]])
CLASSIFIERS = np.float32([[0.9, 0.1], [0.2, 0.8], [0.5, 0.3], [-0.4, -0.6]])
PASSAGES = np.float32([[0.1, 0.2], [0.7, 0.6], [0.3, 0.4], [0.8, -0.5]])
LINEAR = FittedFusion(LinearFusion(np.array([1.0, 2.0, 0.5]), -1.0), np.float32([0, 1, 2, 3]))
# A probability of 0.75 where the classifier scores above 0.4, else 0.25; beta is 2.
TREE = FittedFusion(
  TreeFusion(
    np.array([0, LEAF, LEAF]),
    np.array([0.4, 0, 0]),
    np.array([1, -1, -1]),
    np.array([2, -1, -1]),
    np.array([0.5, 0.25, 0.75]),
    2.0,
  ),
  np.zeros(4, np.float32),
)


@pytest.fixture
def data(tmp_path):
  return labelled(tmp_path, [[0], [1, 2]], 4)


@pytest.fixture
def searcher(tmp_path, data):
  return two_heads(tmp_path, data, QUERIES, PASSAGES, CLASSIFIERS)


def test_linear_scores_by_hand(searcher, data):
  found = FusedHeads(searcher, LINEAR, depth=1).search(data, k=3)
  assert found.rows.tolist() == [[3, 0, -1], [1, -1, -1]]
  first = [
    -0.4 + 2 * 0.8 + 0.5 * 3 - 1,
    0.9 + 2 * 0.1 + 0 - 1,
    -np.inf,
  ]  # 0 has its siamese score, 3 its classifier's
  np.testing.assert_allclose(found.scores, [first, [0.8 + 2 * 0.6 + 0.5 - 1, -np.inf, -np.inf]], rtol=1e-6)
  assert (found.rows.dtype, found.scores.dtype) == (np.int32, np.float32)


def test_tree_scores_by_hand(searcher, data):
  found = FusedHeads(searcher, TREE, depth=2).search(data, k=2)
  # Query 0 has the candidates 0 and 2 by classifier, 3 and 1 by text; query 1 has 1 and 2 by both.
  scores = [
    [2 * (0.75 + 0.1) + 0.9, 2 * (0.25 + 0.7) + 0.2, 2 * (0.75 + 0.3) + 0.5, 2 * (0.25 + 0.8) - 0.4],
    [0, 2 * (0.75 + 0.6) + 0.8, 2 * (0.25 + 0.4) + 0.3, 0],
  ]
  assert found.rows.tolist() == [[0, 2], [1, 2]]  # 0 and 2 tie in reals: 2.6
  np.testing.assert_allclose(found.scores, [[scores[0][0], scores[0][2]], [scores[1][1], scores[1][2]]])


def test_queries_in_parts_give_the_same(searcher, data, monkeypatch):
  whole = FusedHeads(searcher, LINEAR).search(data, k=4)
  monkeypatch.setattr(head_fusion, "QUERY_ROWS", 1)
  parts = FusedHeads(searcher, LINEAR).search(data, k=4)
  assert sorted(whole.rows[0].tolist()) == [0, 1, 2, 3]  # depth 300 is all four
  np.testing.assert_array_equal(parts.rows, whole.rows)
  np.testing.assert_allclose(parts.scores, whole.scores, rtol=1e-6)


def test_the_classifiers_see_unit_queries_and_the_texts_what_the_checkpoint_gives(tmp_path, data):
  searcher = two_heads(tmp_path, data, 3 * QUERIES, PASSAGES, CLASSIFIERS)
  scores = FusedHeads(searcher, LINEAR, depth=4).search(data, k=4)
  place = scores.rows[0].tolist().index(0)
  assert scores.scores[0, place] == pytest.approx(0.9 + 2 * 3 * 0.1 - 1, rel=1e-5)


def test_a_point_without_labels_is_searched_for_too(tmp_path):
  data = labelled(tmp_path, [[], [1]], 4)
  searcher = two_heads(tmp_path, data, QUERIES, PASSAGES, CLASSIFIERS)
  assert FusedHeads(searcher, LINEAR, depth=1).search(data, k=1).rows.tolist() == [[3], [1]]


def test_three_heads_with_names_of_their_own(tmp_path, searcher, data):
  save_fusion(searcher.classifiers, LINEAR, {})
  group = head_searchers(searcher, depth=1)
  assert [one.name for one in group.searchers] == ["dense", "classifiers", "fused"]
  assert [one.step for one in group.searchers] == [5, 9, 9]
  assert all(isinstance(one, Searcher) for one in group.searchers)
  best = [one.search(data, k=1).rows.tolist() for one in group.searchers]
  assert best == [[[3], [1]], [[0], [1]], [[3], [1]]]
  assert group.searchers[2].checkpoint == f"fusion in {tmp_path} on checkpoint_5"


def test_the_depth_is_that_of_the_fit_unless_another_is_given(searcher, capsys):
  save_fusion(searcher.classifiers, LINEAR, {})
  assert fused_heads(searcher).depth == 300  # a fit of before the depth was noted
  assert fused_heads(searcher, depth=7).depth == 7
  save_fusion(searcher.classifiers, LINEAR._replace(depth=2), {})
  assert fused_heads(searcher).depth == 2
  assert fused_heads(searcher, depth=2).depth == 2
  assert head_searchers(searcher).searchers[2].depth == 2  # pyright: ignore[reportAttributeAccessIssue]
  assert capsys.readouterr().err == ""
  assert fused_heads(searcher, depth=3).depth == 3
  assert "warning: FUSION_DEPTH=3, and the fusion was fitted with 2" in capsys.readouterr().err
  with pytest.raises(UserError, match="FUSION_DEPTH=0: expected a whole number"):
    fused_heads(searcher, depth=0)


def test_an_approximate_index_is_in_the_name(searcher):
  save_fusion(searcher.classifiers, LINEAR, {})
  approximate = searcher._replace(dense=searcher.dense._replace(name="faiss_hnsw"))
  assert fused_heads(approximate).name == "fused_faiss_hnsw"


def test_mistakes(tmp_path, searcher, data):
  with pytest.raises(UserError, match="no fusion was fitted for these classifiers"):
    head_searchers(searcher)
  with pytest.raises(UserError, match="FUSION_DEPTH=0: expected a whole number of at least 1"):
    FusedHeads(searcher, LINEAR, depth=0).search(data, k=1)
  (tmp_path / "other").mkdir()
  other = labelled(tmp_path / "other", [[0], [1]], 5)
  with pytest.raises(UserError, match="these classifiers belong to the corpus"):
    FusedHeads(searcher, LINEAR).search(other, k=1)
