"""Every metric of random runs, query by query, against pytrec_eval, which is trec_eval's own code."""

import numpy as np
import pytest

from retrieval_jax.metrics.id_rows import rows_of_ids
from retrieval_jax.metrics.ranking import METRICS, evaluate_ranking
from retrieval_jax.metrics.trec_order import trec_order, trec_order_of_ids
from retrieval_jax.records import Ranking

CUTOFFS = (1, 2, 3, 5, 10, 20, 100)
WITH_CUTOFF = {"ndcg": "ndcg_cut", "map": "map_cut", "recall": "recall", "p": "P", "success": "success"}
WHOLE = {"ndcg": "ndcg", "map": "map", "mrr": "recip_rank", "rprec": "Rprec", "recall": "set_recall"}
CORPUS, QUERIES, DEPTH = 60, 40, 30


def _random_qrels(rng, ids, grades):
  """Returns as our pairs and as dicts: some queries judge nothing, some nothing above 0, some what the corpus lacks.

  No query has negative grades alone: trec_eval reads outside its memory there, and may crash.
  """
  pairs = []
  for _ in range(QUERIES):
    count = rng.choice([0, 1, 3, 12, 25])
    rows = rng.permutation(CORPUS + 10)[:count]  # from CORPUS on: not in the corpus
    values = rng.choice(grades, count)
    values[:1] = np.maximum(values[:1], 0)
    pairs.append((rows, values))
  return pairs, {
    f"q{i}": {ids[row]: int(grade) for row, grade in zip(rows, values, strict=True)}
    for i, (rows, values) in enumerate(pairs)
    if len(rows)
  }


def _random_ranking(rng, ties):
  """Returns rankings of 0 to DEPTH results, in no order at all, with many equal scores or with none."""
  rows = np.stack([rng.permutation(CORPUS)[:DEPTH] for _ in range(QUERIES)])
  counts = rng.choice([0, 1, 7, DEPTH], QUERIES)
  rows[np.arange(DEPTH) >= counts[:, None]] = -1
  return Ranking(rows, rng.integers(-2, 3, rows.shape) / 7 if ties else rng.normal(size=rows.shape))


def _expected(pytrec_eval, qrels, ranking, ids, level):
  """Returns name -> one value a judged query, 0 where it has no results, in our names; and how many had results."""
  run = {
    f"q{i}": {ids[row]: float(score) for row, score in zip(rows, scores, strict=True) if row >= 0}
    for i, (rows, scores) in enumerate(zip(*ranking, strict=True))
  }
  run = {query: found for query, found in run.items() if found}
  cuts = ",".join(map(str, CUTOFFS))
  names = {*WHOLE.values(), *(f"{name}.{cuts}" for name in WITH_CUTOFF.values())}
  values = pytrec_eval.RelevanceEvaluator(qrels, names, relevance_level=level).evaluate(run)
  ours = {
    f"{name}@{cut}": f"{theirs}_{cut}" for name, theirs in WITH_CUTOFF.items() for cut in CUTOFFS
  } | WHOLE
  return {
    name: np.array([values[query][theirs] if query in values else 0.0 for query in qrels])
    for name, theirs in ours.items()
  }, len(values)


@pytest.mark.parametrize("ties", [False, True], ids=["distinct", "ties"])
@pytest.mark.parametrize(
  "grades, level", [([1], 1), ([0, 1], 1), ([-2, -1, 0, 1, 2, 3], 1), ([-1, 0, 1, 2, 3], 2), ([0, 5], 5)]
)
def test_every_metric_equals_trec_eval(grades, level, ties):
  pytrec_eval = pytest.importorskip("pytrec_eval")
  ids = [str(number) for number in np.random.default_rng(9).permutation(1000)[: CORPUS + 10]]
  for seed in range(4):
    rng = np.random.default_rng(seed)
    pairs, qrels = _random_qrels(rng, ids, grades)
    ranking = _random_ranking(rng, ties)
    expected, answered = _expected(pytrec_eval, qrels, ranking, ids, level)
    found = evaluate_ranking(
      trec_order(ranking, ids).rows, qrels=pairs, metrics=list(expected), relevant_from=level
    )
    judged = [i for i in range(QUERIES) if f"q{i}" in qrels]
    assert (found.judged, found.answered) == (len(judged), answered)
    assert 0 < answered < len(judged) < QUERIES
    for name, values in expected.items():
      np.testing.assert_allclose(found.per_query[name][judged], values, rtol=0, atol=1e-9, err_msg=name)
      assert np.isnan(np.delete(found.per_query[name], judged)).all()
      assert found.means[name] == pytest.approx(values.mean(), abs=1e-9)


def test_the_comparison_has_every_metric():
  shared = {name: metric for name, metric in METRICS.items() if metric.sees != "weights"}  # test_extreme.py
  assert {*WITH_CUTOFF, *WHOLE} == set(shared)
  assert {name for name, metric in shared.items() if metric.cutoff != "must"} - set(WHOLE) == {"success"}
  assert set(shared) - set(WITH_CUTOFF) == {"mrr", "rprec"}  # trec_eval has no mrr@K, rprec takes no cutoff


def test_mrr_with_a_cutoff_is_that_of_the_cut_run():
  """trec_eval's recip_rank has no cutoff: case 77. MRR@K is its value of a run of K results."""
  pytrec_eval = pytest.importorskip("pytrec_eval")
  ids = [f"d{i}" for i in range(CORPUS + 10)]
  rng = np.random.default_rng(0)
  pairs, qrels = _random_qrels(rng, ids, [0, 1])
  ranking = trec_order(_random_ranking(rng, ties=False), ids)
  found = evaluate_ranking(ranking.rows, qrels=pairs, metrics=[f"mrr@{cut}" for cut in CUTOFFS])
  judged = [i for i in range(QUERIES) if f"q{i}" in qrels]
  for cut in CUTOFFS:
    short = Ranking(ranking.rows[:, :cut], ranking.scores[:, :cut])
    expected, _ = _expected(pytrec_eval, qrels, short, ids, 1)
    np.testing.assert_allclose(found.per_query[f"mrr@{cut}"][judged], expected["mrr"], rtol=0, atol=1e-9)


@pytest.mark.parametrize("ties", [False, True], ids=["distinct", "ties"])
def test_rankings_given_by_ids_equal_trec_eval(ties):
  pytrec_eval = pytest.importorskip("pytrec_eval")
  ids = [str(number) for number in np.random.default_rng(9).permutation(1000)[: CORPUS + 10]]
  rng = np.random.default_rng(0)
  _, qrels = _random_qrels(rng, ids, [-1, 0, 1, 2])
  ranking = _random_ranking(rng, ties)
  expected, answered = _expected(pytrec_eval, qrels, ranking, ids, 1)
  found = [
    trec_order_of_ids([ids[row] for row in rows if row >= 0], scores[rows >= 0].tolist())
    for rows, scores in zip(*ranking, strict=True)
  ]
  rows, ours = rows_of_ids(found, [qrels.get(f"q{i}", {}) for i in range(QUERIES)])
  values = evaluate_ranking(rows, qrels=ours, metrics=list(expected))
  assert (values.judged, values.answered) == (len(qrels), answered)
  for name, theirs in expected.items():
    judged = ~np.isnan(values.per_query[name])
    np.testing.assert_allclose(values.per_query[name][judged], theirs, rtol=0, atol=1e-9, err_msg=name)


@pytest.mark.parametrize("relevant, expected", [("a", 1 / 3), ("b", 1 / 2), ("c", 1)])
def test_case_77_tied_a_b_c(relevant, expected):
  pytrec_eval = pytest.importorskip("pytrec_eval")
  evaluator = pytrec_eval.RelevanceEvaluator({"q": {relevant: 1}}, {"recip_rank"})
  assert evaluator.evaluate({"q": dict.fromkeys("abc", 1.0)})["q"]["recip_rank"] == pytest.approx(expected)
  ranking = trec_order(Ranking(np.array([[0, 1, 2]]), np.ones((1, 3))), list("abc"))
  pairs = [(["abc".index(relevant)], [1])]
  assert evaluate_ranking(ranking.rows, qrels=pairs, metrics=["mrr"]).means["mrr"] == pytest.approx(expected)


def test_case_31_float32_ties():
  pytrec_eval = pytest.importorskip("pytrec_eval")
  evaluator = pytrec_eval.RelevanceEvaluator({"q": {"a": 1}}, {"recip_rank"})
  assert evaluator.evaluate({"q": {"a": 16777217.0, "b": 16777216.0}})["q"]["recip_rank"] == 0.5
  ranking = trec_order(Ranking(np.array([[0, 1]]), np.array([[16777217.0, 16777216.0]])), ["a", "b"])
  assert evaluate_ranking(ranking.rows, qrels=[([0], [1])], metrics=["mrr"]).means["mrr"] == 0.5
