import math

import numpy as np
import pytest

from retrieval_jax.errors import UserError
from retrieval_jax.metrics.judgements import Qrels
from retrieval_jax.metrics.ranking import evaluate_ranking

NAMES = ("p@1", "p@3", "mrr", "mrr@2", "ndcg@10", "ndcg", "recall@1", "recall@3", "recall")


def _means(rows, qrels, *metrics):
  return evaluate_ranking(np.array(rows), qrels=qrels, metrics=metrics)[0]


def _dcg(*grades):
  return sum(grade / math.log2(1 + rank) for rank, grade in enumerate(grades, start=1))


def test_one_query_by_hand():
  """Results 4 1 9, relevant 1 and 2."""
  assert _means([[4, 1, 9]], [([1, 2], [1, 1])], *NAMES) == pytest.approx(
    {
      "p@1": 0,
      "p@3": 1 / 3,
      "mrr": 1 / 2,
      "mrr@2": 1 / 2,
      "ndcg@10": _dcg(0, 1) / _dcg(1, 1),
      "ndcg": _dcg(0, 1) / _dcg(1, 1),
      "recall@1": 0,
      "recall@3": 1 / 2,
      "recall": 1 / 2,
    }
  )


def test_the_cutoff_is_exact():
  rows, qrels = [[5, 6, 7]], [([7], [1])]
  assert _means(rows, qrels, "mrr@2", "mrr@3", "p@2", "recall@2", "ndcg@2", "ndcg@3") == pytest.approx(
    {"mrr@2": 0, "mrr@3": 1 / 3, "p@2": 0, "recall@2": 0, "ndcg@2": 0, "ndcg@3": 1 / math.log2(4)}
  )


def test_ndcg_gain_is_linear():
  """a:3 b:1 ranked b, a, x: .79671; an exponential gain would give .70981."""
  assert _means([[1, 0, 9]], [([0, 1], [3, 1])], "ndcg@10")["ndcg@10"] == pytest.approx(0.79671, abs=5e-6)
  assert _dcg(1, 3) / _dcg(3, 1) == pytest.approx(0.79671, abs=5e-6)


def test_ideal_is_cut_at_the_same_place():
  """Five relevant passages, two of them in the first two places: nDCG@2 is 1."""
  assert _means([[0, 1]], [(range(5), [1] * 5)], "ndcg@2", "recall@2") == {"ndcg@2": 1.0, "recall@2": 2 / 5}


def test_a_relevant_passage_missing_from_the_corpus_stays_in_the_ideal():
  """One of two found at rank 1: .6131, as trec_eval says; 10**9 is no row of the corpus."""
  means = _means([[0, 5, 6]], [([0, 10**9], [1, 1])], "ndcg@10", "recall@100")
  assert means["ndcg@10"] == pytest.approx(0.6131, abs=5e-5)
  assert means["recall@100"] == 1 / 2


def test_queries_without_results_count_as_zero():
  """Two judged queries, one answered: 0.5, not 1."""
  rows, qrels = [[3, -1], [-1, -1]], [([3], [1]), ([4], [1])]
  assert set(_means(rows, qrels, *NAMES).values()) == {1 / 2, 1 / 6}
  assert _means(rows, qrels, "p@3")["p@3"] == pytest.approx(1 / 6)


def test_no_columns_at_all():
  assert _means(np.zeros((1, 0), int), [([3], [1])], *NAMES) == dict.fromkeys(NAMES, 0.0)


def test_padding_never_matches_and_never_shifts_ranks():
  assert _means([[-1, 3]], [([3], [1])], "mrr", "p@2") == {"mrr": 1 / 2, "p@2": 1 / 2}


def test_self_retrieval_dropped_or_not():
  """Queries 0 judges passages 0..9. All ten found: 1.0. Passage 0 dropped as the query itself: .9364 and .9."""
  qrels = [(range(10), [1] * 10)]
  assert _means([range(10)], qrels, "ndcg@10")["ndcg@10"] == pytest.approx(1)
  dropped = _means([[*range(1, 10), -1]], qrels, "ndcg@10", "recall@10")
  assert dropped["ndcg@10"] == pytest.approx(0.9364, abs=5e-5)
  assert dropped["recall@10"] == pytest.approx(0.9)


def test_negative_and_zero_grades_are_not_relevant():
  rows, qrels = [[1, 2, 0]], [([0, 1, 2], [2, -1, 0])]
  assert _means(rows, qrels, "mrr", "ndcg@10", "recall@1", "p@3") == pytest.approx(
    {"mrr": 1 / 3, "ndcg@10": 1 / math.log2(4), "recall@1": 0, "p@3": 1 / 3}
  )


def test_queries_without_a_relevant_passage_are_left_out():
  rows, qrels = [[3], [4], [5]], [([3], [1]), ([4], [0]), ([], [])]
  means, per_query = evaluate_ranking(np.array(rows), qrels=qrels, metrics=["p@1"])
  assert means == {"p@1": 1.0}
  np.testing.assert_array_equal(per_query["p@1"], [1, np.nan, np.nan])


def test_float_grades_are_gains():
  assert _means([[1, 0]], [([0, 1], [1.5, 0.5])], "ndcg")["ndcg"] == pytest.approx(
    _dcg(0.5, 1.5) / _dcg(1.5, 0.5)
  )


def test_per_query_values_are_in_the_order_of_the_queries():
  rows = [[2, 0, 1], [0, 1, 2], [1, 2, 0]]
  _, per_query = evaluate_ranking(np.array(rows), qrels=[([0], [1])] * 3, metrics=["mrr"])
  np.testing.assert_allclose(per_query["mrr"], [1 / 2, 1, 1 / 3])


def test_unsorted_judgements_and_csr_agree():
  rows = np.array([[9, 2, 5], [5, 1, 0]])
  pairs = [([5, 2, 7], [1, 3, 2]), ([0], [1])]
  csr = Qrels(np.array([0, 3, 4]), np.array([5, 2, 7, 0]), np.array([1, 3, 2, 1]))
  by_pairs, _ = evaluate_ranking(rows, qrels=pairs, metrics=NAMES)
  assert by_pairs == evaluate_ranking(rows, qrels=csr, metrics=NAMES)[0]
  assert by_pairs["ndcg"] == pytest.approx((_dcg(0, 3, 1) / _dcg(3, 2, 1) + _dcg(0, 0, 1)) / 2)


def test_against_a_plain_loop_on_random_rankings():
  rng = np.random.default_rng(0)
  rows = np.stack([rng.permutation(30)[:12] for _ in range(50)])
  qrels = []
  for _ in range(50):
    judged = rng.permutation(30)[: rng.integers(1, 9)]
    qrels.append((judged, rng.integers(0, 4, len(judged))))
  expected = []
  for found, (judged, grades) in zip(rows, qrels, strict=True):
    grade = dict(zip(judged.tolist(), grades.tolist(), strict=True))
    gains = [grade.get(row, 0) for row in found.tolist()]
    if not any(grades > 0):
      continue
    hits = [rank for rank, gain in enumerate(gains, start=1) if gain > 0]
    expected.append(
      [
        sum(gain > 0 for gain in gains[:5]) / 5,
        1 / hits[0] if hits else 0,
        _dcg(*gains[:5]) / _dcg(*sorted(grades, reverse=True)[:5]),
        len(hits) / sum(grades > 0),
      ]
    )
  assert len(expected) < 50
  means = _means(rows, qrels, "p@5", "mrr", "ndcg@5", "recall@12")
  np.testing.assert_allclose(list(means.values()), np.mean(expected, axis=0), rtol=1e-12)


# --- mistakes -----------------------------------------------------------------------------------------------------


def test_unknown_metric():
  with pytest.raises(UserError, match="Unknown metric 'ndgc@10'; did you mean 'ndcg'"):
    _means([[0]], [([0], [1])], "ndgc@10")


@pytest.mark.parametrize("name", ["p@0", "p@-1", "p@x", "p@", "p@1.5"])
def test_bad_cutoff(name):
  with pytest.raises(UserError, match="must be a whole number from 1, as in 'p@10'"):
    _means([[0]], [([0], [1])], name)


def test_nothing_judged():
  with pytest.raises(UserError, match="None of the 2 queries has a relevant passage"):
    _means([[0], [1]], [([], []), ([1], [0])], "mrr")


def test_a_result_twice():
  with pytest.raises(UserError, match="query 1 names passage 4 twice"):
    _means([[4, 5], [4, 4]], [([4], [1])] * 2, "mrr")


def test_a_judgement_twice():
  with pytest.raises(UserError, match="Query 0 judges passage 4 twice"):
    _means([[4]], [([4, 5, 4], [1, 1, 2])], "mrr")


def test_different_numbers_of_queries():
  with pytest.raises(UserError, match="ranking has 1 queries and the judgements 2"):
    _means([[4]], [([4], [1])] * 2, "mrr")


def test_grades_that_do_not_fit_the_rows():
  with pytest.raises(UserError, match="Query 1 has 2 judged passages but 1 grades"):
    _means([[4], [5]], [([4], [1]), ([5, 6], [1])], "mrr")


@pytest.mark.parametrize("rows, grades", [([4], [math.nan]), ([-1], [1]), ([4], [math.inf])])
def test_judgements_must_be_finite_rows_from_zero(rows, grades):
  with pytest.raises(UserError, match="finite grades and passage rows from 0"):
    _means([[4]], [(rows, grades)], "mrr")
