import numpy as np
import pytest

from retrieval_jax.errors import UserError
from retrieval_jax.metrics.ranking import evaluate_ranking
from retrieval_jax.metrics.trec_order import trec_order, trec_order_of_ids
from retrieval_jax.records import Ranking

ABC = ["a", "b", "c"]


def _ordered(rows, scores, ids):
  found = trec_order(Ranking(np.array(rows), np.array(scores)), ids)
  return found.rows.tolist(), found.scores.tolist()


@pytest.mark.parametrize("relevant, expected", [(0, 1 / 3), (1, 1 / 2), (2, 1)])
def test_ties_go_by_descending_id(relevant, expected):
  """Case 77: a, b and c tied. With a relevant the reciprocal rank is 1/3, with c relevant 1."""
  ranking = trec_order(Ranking(np.array([[0, 1, 2]]), np.full((1, 3), 0.5)), ABC)
  assert evaluate_ranking(ranking.rows, qrels=[([relevant], [1])], metrics=["mrr"]).means == {"mrr": expected}


def test_scores_that_float32_cannot_tell_apart_tie():
  """Case 31: 16777217 and 16777216 tie, so the id decides: a, the better one, comes second. Ours: first."""
  rows, scores = np.array([[0, 1]]), np.array([[16777217.0, 16777216.0]])
  ordered = trec_order(Ranking(rows, scores), ABC)
  assert ordered.rows.tolist() == [[1, 0]]
  assert ordered.scores.tolist() == [[16777216.0, 16777217.0]]
  qrels = [([0], [1])]
  assert evaluate_ranking(ordered.rows, qrels=qrels, metrics=["mrr"]).means == {"mrr": 0.5}
  assert evaluate_ranking(rows, qrels=qrels, metrics=["mrr"]).means == {"mrr": 1.0}


def test_scores_decide_first_and_only_their_ties_move():
  assert _ordered([[0, 1, 2, 3]], [[1.0, 3.0, 1.0, 2.0]], ["d", "c", "e", "z"]) == (
    [[1, 3, 2, 0]],
    [[3.0, 2.0, 1.0, 1.0]],
  )


def test_ids_are_compared_as_text_and_by_code_point():
  """ "9" is above "10"; upper case is below lower case; U+10000 is above U+FFFF, which UTF-16 would have otherwise."""
  assert _ordered([[0, 1, 2, 3]], [[0.0] * 4], ["10", "9", "1", "8"])[0] == [[1, 3, 0, 2]]
  assert _ordered([[0, 1, 2]], [[0.0] * 3], ["A", "a", "é"])[0] == [[2, 1, 0]]
  assert _ordered([[0, 1]], [[0.0] * 2], ["\uffff", "\U00010000"])[0] == [[1, 0]]


def test_empty_places_come_last_also_behind_minus_infinity():
  rows, scores = _ordered([[-1, 0, -1, 1], [2, 1, -1, -1]], [[9.0, -np.inf, np.nan, -np.inf]] * 2, ABC)
  assert rows == [[1, 0, -1, -1], [2, 1, -1, -1]]
  assert scores[0][:2] == [-np.inf, -np.inf]


def test_scores_beyond_float32_tie_at_infinity():
  assert _ordered([[0, 1]], [[1e300, 1e200]], ABC)[0] == [[1, 0]]
  assert _ordered([[0, 1]], [[0.0, -0.0]], ABC)[0] == [[1, 0]]


def test_no_results_at_all():
  assert _ordered(np.zeros((2, 0), int), np.zeros((2, 0)), []) == ([[], []], [[], []])
  assert _ordered([[-1, -1]], [[0.0, 0.0]], [])[0] == [[-1, -1]]


def test_ids_of_one_query_have_the_same_order():
  """As the order of rows, on scores with many ties."""
  rng = np.random.default_rng(0)
  ids = [str(i) for i in range(40)]
  scores = rng.integers(-3, 3, 40) / 7
  expected = trec_order(Ranking(np.arange(40)[None], scores[None]), ids)
  assert trec_order_of_ids(ids, scores.tolist()) == [ids[row] for row in expected.rows[0]]
  assert trec_order_of_ids(["a", "b"], [16777217.0, 16777216.0]) == ["b", "a"]
  assert trec_order_of_ids(["a", "b"], [1e300, 1e200]) == ["b", "a"]
  assert trec_order_of_ids(["a", "b"], [0.0, -0.0]) == ["b", "a"]
  assert trec_order_of_ids([], []) == []
  with pytest.raises(UserError, match="score of result 'b' is not a number"):
    trec_order_of_ids(["a", "b"], [1.0, np.nan])
  with pytest.raises(UserError, match="2 results have 1 scores"):
    trec_order_of_ids(["a", "b"], [1.0])


def test_mistakes():
  with pytest.raises(UserError, match="query 1 has a score that is not a number"):
    _ordered([[0], [1]], [[1.0], [np.nan]], ABC)
  with pytest.raises(UserError, match="names row 3, and there are 3 ids"):
    _ordered([[3]], [[1.0]], ABC)
  with pytest.raises(UserError, match=r"rows \(1, 2\) and scores \(1, 1\)"):
    _ordered([[0, 1]], [[1.0]], ABC)
