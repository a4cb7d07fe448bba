import numpy as np
import pytest

from retrieval_jax.errors import UserError
from retrieval_jax.metrics.id_rows import rows_of_ids
from retrieval_jax.metrics.ranking import evaluate_ranking

NAMES = ("ndcg", "map", "mrr", "recall@2", "p@2", "rprec", "success@1")


def test_judged_passages_come_first_and_others_follow():
  rows, qrels = rows_of_ids([["a", "b", "c"], [], ["9"]], [{"c": 2, "x": 1}, {"b": 1}, {}])
  assert rows.tolist() == [[2, 3, 0], [-1, -1, -1], [0, -1, -1]]
  assert qrels.indptr.tolist() == [0, 2, 3, 3]
  assert qrels.rows.tolist() == [0, 1, 0]
  assert qrels.grades.tolist() == [2, 1, 1]


def test_the_metrics_are_those_of_rows_of_the_corpus():
  rng = np.random.default_rng(0)
  ids = [f"d{row}" for row in range(30)]
  rows = np.stack([rng.permutation(20)[:9] for _ in range(12)])
  rows[3, 4:] = -1
  rows[4] = -1
  pairs = [(rng.permutation(30)[:n], rng.integers(-1, 4, n)) for n in range(12)]
  found = [[ids[row] for row in one if row >= 0] for one in rows]
  grades = [{ids[row]: int(grade) for row, grade in zip(*pair, strict=True)} for pair in pairs]
  by_ids, qrels = rows_of_ids(found, grades)
  expected = evaluate_ranking(rows, qrels=pairs, metrics=NAMES)
  actual = evaluate_ranking(by_ids, qrels=qrels, metrics=NAMES)
  assert actual.means == expected.means
  assert actual[2:] == expected[2:] == (11, 10)


def test_no_queries_and_no_results():
  assert rows_of_ids([], [])[0].shape == (0, 0)
  assert rows_of_ids([[]], [{"a": 1}])[0].shape == (1, 0)


def test_mistakes():
  with pytest.raises(UserError, match="query 1 names passage 'b' twice"):
    rows_of_ids([["a", "b"], ["b", "c", "b", "c"]], [{}, {}])
  with pytest.raises(UserError, match="ranking has 1 queries and the judgements 2"):
    rows_of_ids([["a"]], [{}, {}])
