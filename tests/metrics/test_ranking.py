import inspect
import math

import numpy as np
import pytest

from retrieval_jax.errors import UserError
from retrieval_jax.metrics import judgements
from retrieval_jax.metrics.judgements import Qrels
from retrieval_jax.metrics.ranking import evaluate_ranking

NAMES = ("p@1", "p@3", "mrr", "mrr@2", "ndcg@10", "ndcg", "recall@1", "recall@3", "recall")
MORE_NAMES = ("map", "map@1", "map@2", "map@3", "rprec", "success", "success@1", "success@3")


def _evaluated(rows, qrels, *metrics, **options):
  return evaluate_ranking(np.array(rows), qrels=qrels, metrics=metrics, **options)


def _means(rows, qrels, *metrics, **options):
  return _evaluated(rows, qrels, *metrics, **options).means


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


def test_average_precision_r_precision_and_success_by_hand():
  """Results 4 1 9, relevant 1, 2 and 9: precision 1/2 at rank 2 and 2/3 at rank 3, nothing for 2; R is 3."""
  assert _means([[4, 1, 9]], [([1, 2, 9], [1, 1, 1])], *MORE_NAMES) == pytest.approx(
    {
      "map": (1 / 2 + 2 / 3 + 0) / 3,
      "map@1": 0,
      "map@2": (1 / 2) / 3,
      "map@3": (1 / 2 + 2 / 3) / 3,
      "rprec": 2 / 3,
      "success": 1,
      "success@1": 0,
      "success@3": 1,
    }
  )


def test_more_relevant_passages_than_the_cutoff():
  """Five relevant, the first two places right: average precision and recall divide by all five, nDCG is 1."""
  means = _means([[0, 1, 8]], [(range(5), [1] * 5)], "map@2", "recall@2", "ndcg@2", "p@2", "rprec", "mrr@2")
  assert means == pytest.approx(
    {"map@2": 2 / 5, "recall@2": 2 / 5, "ndcg@2": 1, "p@2": 1, "rprec": 2 / 5, "mrr@2": 1}
  )


def test_the_cutoff_is_exact():
  rows, qrels = [[5, 6, 7]], [([7], [1])]
  assert _means(rows, qrels, "mrr@2", "mrr@3", "p@2", "recall@2", "ndcg@2", "ndcg@3") == pytest.approx(
    {"mrr@2": 0, "mrr@3": 1 / 3, "p@2": 0, "recall@2": 0, "ndcg@2": 0, "ndcg@3": 1 / math.log2(4)}
  )


def test_ndcg_gain_is_linear():
  """Case 77: a:3 b:1 ranked b, a, x: .79671; an exponential gain would give .70981."""
  assert _means([[1, 0, 9]], [([0, 1], [3, 1])], "ndcg@10")["ndcg@10"] == pytest.approx(0.79671, abs=5e-6)
  assert _dcg(1, 3) / _dcg(3, 1) == pytest.approx(0.79671, abs=5e-6)


def test_ideal_is_cut_at_the_same_place():
  """Five relevant passages, two of them in the first two places: nDCG@2 is 1."""
  assert _means([[0, 1]], [(range(5), [1] * 5)], "ndcg@2", "recall@2") == {"ndcg@2": 1.0, "recall@2": 2 / 5}


def test_a_relevant_passage_missing_from_the_corpus_stays_in_the_ideal():
  """Case 42: one of two found at rank 1: .6131, as trec_eval says; 10**9 is no row of the corpus."""
  means = _means([[0, 5, 6]], [([0, 10**9], [1, 1])], "ndcg@10", "recall@100")
  assert means["ndcg@10"] == pytest.approx(0.6131, abs=5e-5)
  assert means["recall@100"] == 1 / 2


def test_queries_without_results_count_as_zero():
  """Case 76: two judged queries, one answered: 0.5, not 1."""
  rows, qrels = [[3, -1], [-1, -1]], [([3], [1]), ([4], [1])]
  found = _evaluated(rows, qrels, *NAMES, *MORE_NAMES)
  assert set(found.means.values()) == {1 / 2, 1 / 6}
  assert (found.judged, found.answered) == (2, 1)
  assert _means(rows, qrels, "p@3")["p@3"] == pytest.approx(1 / 6)


def test_no_columns_at_all():
  names = (*NAMES, *MORE_NAMES)
  assert _means(np.zeros((1, 0), int), [([3], [1])], *names) == dict.fromkeys(names, 0.0)


def test_padding_never_matches_and_never_shifts_ranks():
  assert _means([[-1, 3]], [([3], [1])], "mrr", "p@2") == {"mrr": 1 / 2, "p@2": 1 / 2}


def test_self_retrieval_dropped_or_not():
  """Case 75: query 0 judges passages 0..9. All ten found: 1.0. Passage 0 dropped as the query itself: .9364 and .9."""
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


def test_a_judged_query_without_a_relevant_passage_counts_as_zero():
  """As in trec_eval: query 1 was judged, and nothing good was known; query 2 was not judged, whatever it found."""
  rows, qrels = [[3], [4], [5]], [([3], [1]), ([4], [0]), ([], [])]
  found = _evaluated(rows, qrels, *NAMES, *MORE_NAMES)
  assert found.means["p@1"] == found.means["ndcg"] == found.means["map"] == 1 / 2
  for values in found.per_query.values():
    np.testing.assert_array_equal(values[1:], [0, np.nan])
  assert (found.judged, found.answered) == (2, 2)


def test_only_judged_queries_are_counted_as_answered():
  found = _evaluated([[3, -1], [-1, 4], [5, 6]], [([3], [1]), ([9], [1]), ([], [])], "mrr")
  assert (found.judged, found.answered) == (2, 2)


def test_relevant_from_2_is_for_binary_metrics_alone():
  """Grades 1, 3 and 2 in this order: with 2 as the lowest relevant grade the first result is a miss; nDCG stays."""
  rows, qrels = [[0, 1, 2]], [([0, 1, 2], [1, 3, 2])]
  names = ("mrr", "p@1", "recall@2", "map", "rprec", "success@1", "ndcg")
  ndcg = _dcg(1, 3, 2) / _dcg(3, 2, 1)
  assert list(_means(rows, qrels, *names).values()) == pytest.approx([1, 1, 2 / 3, 1, 1, 1, ndcg])
  assert list(_means(rows, qrels, *names, relevant_from=2).values()) == pytest.approx(
    [1 / 2, 0, 1 / 2, (1 / 2 + 2 / 3) / 2, 1 / 2, 0, ndcg]
  )


def test_float_grades_are_gains():
  assert _means([[1, 0]], [([0, 1], [1.5, 0.5])], "ndcg")["ndcg"] == pytest.approx(
    _dcg(0.5, 1.5) / _dcg(1.5, 0.5)
  )


def test_per_query_values_are_in_the_order_of_the_queries():
  rows = [[2, 0, 1], [0, 1, 2], [1, 2, 0]]
  found = _evaluated(rows, [([0], [1])] * 3, "mrr")
  np.testing.assert_allclose(found.per_query["mrr"], [1 / 2, 1, 1 / 3])


def test_unsorted_judgements_and_csr_agree():
  rows = np.array([[9, 2, 5], [5, 1, 0]])
  pairs = [([5, 2, 7], [1, 3, 2]), ([0], [1])]
  csr = Qrels(np.array([0, 3, 4]), np.array([5, 2, 7, 0]), np.array([1, 3, 2, 1]))
  by_pairs = _means(rows, pairs, *NAMES)
  assert by_pairs == _means(rows, csr, *NAMES)
  assert by_pairs["ndcg"] == pytest.approx((_dcg(0, 3, 1) / _dcg(3, 2, 1) + _dcg(0, 0, 1)) / 2)


def test_blocks_of_queries_equal_the_whole(monkeypatch):
  """Random rankings looked at in one block, two queries at a time and one at a time, with a filter that lets most by."""
  rng = np.random.default_rng(0)
  rows = np.stack([rng.permutation(30)[:12] for _ in range(51)])
  qrels = [(rng.permutation(30)[:n], rng.integers(0, 4, n)) for n in rng.integers(0, 9, 51)]
  whole = _evaluated(rows, qrels, *NAMES, *MORE_NAMES)
  assert 0 < whole.means["map"] < 1
  for block in (24, 1):
    monkeypatch.setattr(judgements, "BLOCK", block)
    monkeypatch.setattr(judgements, "FEWEST_SLOTS", 2)
    monkeypatch.setattr(judgements, "MOST_SLOTS", 4)
    found = _evaluated(rows, qrels, *NAMES, *MORE_NAMES)
    for name, values in whole.per_query.items():
      np.testing.assert_array_equal(found.per_query[name], values)


def test_a_repeated_result_is_named_by_its_query_also_in_a_later_block(monkeypatch):
  monkeypatch.setattr(judgements, "BLOCK", 1)
  with pytest.raises(UserError, match="query 2 names passage 7 twice"):
    _means([[1, 2], [1, 2], [7, 7]], [([4], [1])] * 3, "mrr")


def test_rows_beyond_32_bits():
  big = 2**40
  assert _means([[big, big + 1]], [([big + 1, 2**62], [1, 1])], "mrr", "recall") == {
    "mrr": 1 / 2,
    "recall": 1 / 2,
  }
  with pytest.raises(UserError, match=f"names passage {big} twice"):
    _means([[big, 3, big]], [([4], [1])], "mrr")


# --- mistakes -----------------------------------------------------------------------------------------------------


def test_unknown_metric():
  with pytest.raises(UserError, match=r"Unknown metric 'ndgc@10'; did you mean 'ndcg' or 'psndcg'\? Known"):
    _means([[0]], [([0], [1])], "ndgc@10")


@pytest.mark.parametrize("name", ["p@0", "p@-1", "p@x", "p@", "p@1.5", "p@²"])
def test_bad_cutoff(name):
  with pytest.raises(UserError, match="must be a whole number from 1, as in 'p@10'"):
    _means([[0]], [([0], [1])], name)


def test_a_cutoff_too_many_or_too_few():
  with pytest.raises(UserError, match="'rprec@10' takes no cutoff: write 'rprec'"):
    _means([[0]], [([0], [1])], "rprec@10")
  with pytest.raises(UserError, match="'p' needs a cutoff, as in 'p@10'"):
    _means([[0]], [([0], [1])], "p")


def test_nothing_of_that_grade():
  qrels = [([0], [1]), ([3, 4], [0, 1])]
  assert _means([[0], [4]], qrels, "ndcg", relevant_from=2)["ndcg"] == 1
  with pytest.raises(
    UserError, match=r"mrr: none of the 2 queries has a passage of grade 2 .* best grade is 1"
  ):
    _means([[0], [4]], qrels, "ndcg", "mrr", relevant_from=2)
  with pytest.raises(UserError, match="relevant_from is 0; expected a grade above 0"):
    _means([[0], [4]], qrels, "mrr", relevant_from=0)


def test_a_ranking_that_is_not_of_rows():
  with pytest.raises(UserError, match="The ranking has the type float64; expected rows"):
    inspect.unwrap(judgements.judge)(np.array([[0.0]]), Qrels.of([([0], [1])]))


def test_judgements_whose_parts_do_not_fit():
  qrels = Qrels(np.array([0, 2]), np.array([1]), np.array([1.0]))
  with pytest.raises(UserError, match="indptr ends at 2, with 1 rows and 1 grades"):
    _means([[4]], qrels, "mrr")


@pytest.mark.parametrize("name", ["mrr", "ndcg"])
def test_nothing_judged(name):
  with pytest.raises(UserError, match="None of the 2 queries has a relevant passage"):
    _means([[0], [1]], [([], []), ([1], [0])], name)


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
