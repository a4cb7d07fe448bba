import numpy as np
import pytest

from retrieval_jax.fusion_candidates import PAIRS, Candidates, HeadResults, candidates, pair_scores, ranked
from retrieval_jax.index.exact import search_exact
from retrieval_jax.records import Ranking

QUERIES = np.float32([[1, 0], [0, 1]])
CLASSIFIERS = np.float32([[0.9, 0.1], [0.2, 0.8], [0.5, 0.3], [-0.4, -0.6]])
PASSAGES = np.float32([[0.1, 0.2], [0.7, 0.6], [0.3, 0.4], [0.8, -0.5]])


def _ranking(rows, scores):
  return Ranking(np.array(rows, np.int32), np.array(scores, np.float32))


def test_union_with_the_other_head_s_score_by_hand():
  by_classifier = _ranking([[0, 2], [1, -1]], [[0.9, 0.5], [0.8, -np.inf]])
  by_siamese = _ranking([[3, 0], [1, 2]], [[0.8, 0.1], [0.6, 0.4]])
  found = candidates(
    HeadResults(by_classifier, QUERIES, CLASSIFIERS), HeadResults(by_siamese, QUERIES, PASSAGES)
  )
  assert found.owners.tolist() == [0, 0, 0, 1, 1]
  assert found.rows.tolist() == [0, 2, 3, 1, 2]
  np.testing.assert_allclose(found.classifier, np.float32([0.9, 0.5, -0.4, 0.8, 0.3]))  # -0.4, not 0
  np.testing.assert_allclose(found.siamese, np.float32([0.1, 0.3, 0.8, 0.6, 0.4]))
  assert {column.dtype for column in found} == {np.dtype("int32"), np.dtype("float32")}


def test_each_head_has_its_own_queries():
  nothing = _ranking([[-1]], [[-np.inf]])
  one = _ranking([[2]], [[7]])
  found = candidates(
    HeadResults(nothing, QUERIES[:1], CLASSIFIERS), HeadResults(one, 10 * QUERIES[:1], PASSAGES)
  )
  assert (found.classifier.tolist(), found.siamese.tolist()) == ([0.5], [7])


@pytest.mark.parametrize("depth", [1, 3, 40])
def test_equals_all_scores_on_random_embeddings(depth):
  rng = np.random.default_rng(0)
  queries, classifiers, passages = (
    rng.standard_normal((n, 8)).astype(np.float32) for n in (2 * PAIRS // 40, 40, 40)
  )
  heads = [
    HeadResults(search_exact(corpus, queries, k=depth), queries, corpus) for corpus in (classifiers, passages)
  ]
  found = candidates(*heads)
  np.testing.assert_allclose(
    found.classifier, (queries @ classifiers.T)[found.owners, found.rows], rtol=1e-4, atol=1e-5
  )
  np.testing.assert_allclose(
    found.siamese, (queries @ passages.T)[found.owners, found.rows], rtol=1e-4, atol=1e-5
  )
  for query in (0, len(queries) - 1):
    expected = sorted({*heads[0].ranking.rows[query], *heads[1].ranking.rows[query]})
    assert found.rows[found.owners == query].tolist() == expected


def test_pair_scores_in_several_parts():
  rng = np.random.default_rng(0)
  queries, corpus = (rng.standard_normal((n, 4)).astype(np.float32) for n in (5, 7))
  owners, rows = rng.integers(0, 5, PAIRS + 3), rng.integers(0, 7, PAIRS + 3)
  scores = pair_scores(queries, corpus, owners, rows)
  np.testing.assert_allclose(scores, (queries @ corpus.T)[owners, rows], rtol=1e-4, atol=1e-5)


def _found(owners, rows):
  zeros = np.zeros(len(rows), np.float32)
  return Candidates(np.array(owners, np.int32), np.array(rows, np.int32), zeros, zeros)


def test_ranked_by_hand_with_a_query_without_candidates():
  found = _found([0, 0, 2, 2, 2], [3, 5, 1, 4, 6])
  ranking = ranked(found, np.float32([1, 2, -3, -1, -2]), num_queries=3, k=2)
  assert ranking.rows.tolist() == [[5, 3], [-1, -1], [4, 6]]
  assert ranking.scores.tolist() == [[2, 1], [-np.inf, -np.inf], [-1, -2]]


def test_ties_go_to_the_smaller_row_and_places_are_padded():
  ranking = ranked(_found([0, 0, 0], [2, 4, 9]), np.float32([1, 1, 1]), num_queries=1, k=5)
  assert ranking.rows.tolist() == [[2, 4, 9, -1, -1]]
  empty = ranked(_found([], []), np.zeros(0, np.float32), num_queries=2, k=1)
  assert empty.rows.tolist() == [[-1], [-1]]


def test_where_keeps_what_is_marked():
  kept = _found([0, 0, 1], [3, 5, 1]).where(np.array([True, False, True]))
  assert (kept.owners.tolist(), kept.rows.tolist()) == ([0, 1], [3, 1])
