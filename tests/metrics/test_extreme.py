"""Propensity-scored metrics: by hand, and against the XC repository's tool, whose plain metrics ours equal too."""

import json
import math
import pathlib

import numpy as np
import pytest

from retrieval_jax.errors import UserError
from retrieval_jax.metrics.extreme import inverse_propensity
from retrieval_jax.metrics.ranking import evaluate_ranking, weighted_metrics

ORACLE = json.loads((pathlib.Path(__file__).parent.parent / "oracles" / "xc_metrics.json").read_text())
OURS = {
  "P": "p",
  "N": "ndcg",
  "R": "recall",
  "hits": "success",
  "PSP": "psp",
  "PSN": "psndcg",
  "PSR": "psrecall",
}
REFERENCE = "|float64_reference"
COUNTS = np.array(ORACLE["train_label_freq"])


def ranking(*, filtered=False):
  """Returns the oracle's predictions, best first, without the pairs of its filter if there is one."""
  unwanted = set(map(tuple, ORACLE["filter_pairs"])) if filtered else set()
  rows = np.full((ORACLE["n_rows"], ORACLE["n_labels"]), -1)
  for query, scores in enumerate(ORACLE["scores"]):
    kept = [(-score, label) for label, score in scores if (query, label) not in unwanted]
    rows[query, : len(kept)] = [label for _, label in sorted(kept)]
  return rows


def truth(*, remove_invalid=False):
  """Returns the oracle's labels: a point without any is judged and has none, or has no judgement and is left out."""
  empty = ([], []) if remove_invalid else ([0], [0])
  return [(labels, [1] * len(labels)) if labels else empty for labels in ORACLE["Y"]]


def constants(case):
  """Returns (A, B) of a name such as "A0.55_B1.5_filtered"."""
  a, b = case.partition("|")[0].split("_")[:2]
  return float(a[1:]), float(b[1:])


def measured(case, name, weights):
  """Returns a metric at 1 to 5 in a case of the oracle."""
  qrels = truth(remove_invalid="remove_invalid" in case)
  asked = [f"{name}@{cut}" for cut in range(1, 6)]
  rows = ranking(filtered="filtered" in case)
  return list(evaluate_ranking(rows, qrels=qrels, metrics=asked, weights=weights).means.values())


@pytest.mark.parametrize("case", ORACLE["metrics"])
def test_every_metric_is_the_xc_repositorys(case):
  """With the weights that its tool used. Its own N, PSN, R and hits are rounded to float32, hence 3.1e-8."""
  a, b = constants(case)
  weights = np.array(ORACLE["inv_propensity"][f"{a}_{b}"])
  within = 1e-14 if case.endswith(REFERENCE) else 3.1e-8
  for theirs, values in ORACLE["metrics"][case].items():
    if theirs in OURS:
      np.testing.assert_allclose(
        measured(case, OURS[theirs], weights), values, rtol=0, atol=within, err_msg=theirs
      )


@pytest.mark.parametrize("case", [case for case in ORACLE["metrics"] if case.endswith(REFERENCE)])
def test_metrics_with_our_own_weights(case):
  """Theirs are computed in float32: they differ by up to 2e-7."""
  a, b = constants(case)
  weights = inverse_propensity(COUNTS, ORACLE["n_train"], a, b)
  np.testing.assert_allclose(weights, ORACLE["inv_propensity"][f"{a}_{b}"], rtol=2e-7)
  for theirs, values in ORACLE["metrics"][case].items():
    np.testing.assert_allclose(
      measured(case, OURS[theirs], weights), values, rtol=0, atol=1.5e-8, err_msg=theirs
    )


def test_recall_that_skips_empty_rows_is_that_of_the_judged_rows():
  """Theirs is summed in float32."""
  asked = [f"recall@{cut}" for cut in range(1, 6)]
  found = evaluate_ranking(ranking(), qrels=truth(remove_invalid=True), metrics=asked)
  theirs = ORACLE["metrics"]["A0.55_B1.5"]["R_fast_skips_empty_rows"]
  np.testing.assert_allclose(list(found.means.values()), theirs, rtol=0, atol=6e-8)
  assert found.judged == 37


def test_the_weight_by_hand():
  """Ten labels of no point, one of all: 1 + C (n + B)^-A, C = (ln N - 1)(B + 1)^A."""
  c = (math.log(1000) - 1) * 2.5**0.55
  expected = [1 + c * 1.5**-0.55, 1 + c * 10.5**-0.55, 1 + c * 1001.5**-0.55]
  np.testing.assert_allclose(inverse_propensity(np.array([0, 9, 1000]), 1000), expected, rtol=1e-15)


@pytest.mark.parametrize("a, b", [(1e300, 1.0), (300.0, 1e-3), (1e3, 1e3)])
def test_constants_whose_weights_overflow(a, b):
  with pytest.raises(UserError, match=r"inverse_propensity: a=.*, b=.*: the weights overflow"):
    inverse_propensity(np.array([0, 9, 1000]), 1000, a, b)


def test_rarer_labels_weigh_more_and_none_less_than_1():
  weights = inverse_propensity(np.arange(301), 300, 0.6, 2.6)
  assert np.all(np.diff(weights) < 0)
  assert weights[-1] > 1


# Two points. The first has the labels 0 (weight 2) and 1 (weight 8), the second the label 2 (weight 4); label 3 weighs 1.
WEIGHTS = np.array([2.0, 8.0, 4.0, 1.0])
QRELS = [([0, 1], [1, 1]), ([2], [1])]
LOG3 = math.log2(3)


def by_hand(rows, *metrics, qrels=QRELS, **options):
  return evaluate_ranking(np.array(rows), qrels=qrels, metrics=metrics, weights=WEIGHTS, **options)


def test_one_ranking_by_hand():
  """The first point finds its common label first and its rare one third, the second its label second."""
  found = by_hand([[0, 3, 1], [3, 2, 0]], "psp@1", "psp@2", "psp@3", "psndcg@2", "psndcg@3", "psrecall@2")
  unit = 1 + 1 / LOG3  # what weights of 1 attain in two places
  assert found.means == pytest.approx(
    {
      "psp@1": (2 + 0) / (8 + 4),
      "psp@2": (2 + 4) / (10 + 4),
      "psp@3": (10 + 4) / (10 + 4),
      "psndcg@2": (2 / unit + 4 / LOG3) / ((8 + 2 / LOG3) / unit + 4),
      "psndcg@3": ((2 + 8 / 2) / unit + 4 / LOG3) / ((8 + 2 / LOG3) / unit + 4),
      "psrecall@2": (2 / 2 + 4 / 1) / ((8 + 2) / 2 + 4 / 1),
    },
    rel=1e-14,
  )


def test_without_a_cutoff_the_whole_ranking_counts():
  rows = [[0, 3, 1], [3, 2, 0]]
  whole = by_hand(rows, "psndcg", "psrecall").means
  cut = by_hand(rows, "psndcg@3", "psrecall@3").means
  assert list(whole.values()) == pytest.approx(list(cut.values()), rel=1e-15)


def test_it_is_a_ratio_of_means_and_no_mean_of_ratios():
  """Only the rare label is found: 8 of 8 + 4, where the ratios 1 and 0 would have a mean of a half."""
  found = by_hand([[1], [3]], "psp@1")
  assert found.means["psp@1"] == pytest.approx(8 / 12)
  assert found.means["psp@1"] != pytest.approx((8 / 8 + 0 / 4) / 2)


def test_the_values_of_the_queries_have_the_metric_as_their_mean():
  """A value is what was found over the mean of what could be, so it may be above 1; no judgement stays NaN."""
  found = by_hand([[1], [3], [2], [0]], "psp@1", qrels=[*QRELS, ([], []), ([0], [0])])
  best = (8 + 4 + 0) / 3
  np.testing.assert_allclose(found.per_query["psp@1"], [8 / best, 0, np.nan, 0])
  assert found.means["psp@1"] == pytest.approx(np.nanmean(found.per_query["psp@1"])) == pytest.approx(8 / 12)
  assert found.judged == 3


def test_a_point_without_labels_counts_0_in_p_and_nothing_in_psp():
  before = by_hand([[1], [3]], "p@1", "psp@1").means
  after = by_hand([[1], [3], [0]], "p@1", "psp@1", qrels=[*QRELS, ([0], [0])]).means
  assert (before["p@1"], after["p@1"]) == (1 / 2, 1 / 3)
  assert before["psp@1"] == pytest.approx(after["psp@1"]) == pytest.approx(8 / 12)


def test_grades_do_not_multiply_weights():
  """A grade of 3 is a label like any other, one below relevant_from is none."""
  graded = [([0, 1], [3, 2]), ([2], [1])]
  rows = [[0, 3, 1], [3, 2, 0]]
  assert by_hand(rows, "psp@3", "psndcg@3", qrels=graded).means == by_hand(rows, "psp@3", "psndcg@3").means
  assert by_hand(rows, "psp@2", qrels=graded, relevant_from=2).means["psp@2"] == pytest.approx(2 / (8 + 2))


def test_equal_weights_give_p_over_the_best_p():
  rows = ranking()
  found = evaluate_ranking(
    rows, qrels=truth(), metrics=["psp@3", "p@3", "psrecall@9"], weights=np.full(60, 7.0)
  )
  best = np.mean([min(3, len(labels)) / 3 for labels in ORACLE["Y"]])
  assert found.means["psp@3"] == pytest.approx(found.means["p@3"] / best)


def test_which_metrics_need_weights():
  assert weighted_metrics(["p@5", "psp@5", "ndcg", "psndcg", "psrecall@3"]) == [
    "psp@5",
    "psndcg",
    "psrecall@3",
  ]


# --- mistakes -----------------------------------------------------------------------------------------------------


def test_weights_that_are_missing_too_few_or_cannot_be():
  rows, metrics = np.array([[0], [3]]), ["p@1", "psp@1", "psndcg@1"]
  with pytest.raises(
    UserError, match=r"^psp@1, psndcg@1: the passages have no weights; give weights=inverse"
  ):
    evaluate_ranking(rows, qrels=QRELS, metrics=metrics)
  with pytest.raises(
    UserError, match=r"1 judgements are of passages without a weight, the first of row 2; there are 2"
  ):
    evaluate_ranking(rows, qrels=QRELS, metrics=metrics, weights=WEIGHTS[:2])
  for bad in (0.0, -1.0, np.nan, np.inf):
    with pytest.raises(UserError, match=r"psp@1, psndcg@1: every passage must have a finite weight above 0"):
      evaluate_ranking(rows, qrels=QRELS, metrics=metrics, weights=np.array([2, 8, 4, bad]))


def test_psp_needs_a_cutoff():
  with pytest.raises(UserError, match=r"Metric 'psp' needs a cutoff, as in 'psp@10'"):
    by_hand([[0], [3]], "psp")


@pytest.mark.parametrize(
  "counts, points, constants, message",
  [
    ([1], 2, (0.55, 1.5), r"2 training points; expected at least 3"),
    ([1], 9, (0.0, 1.5), r"a=0.0, b=1.5; both must be above 0"),
    ([1], 9, (0.55, -1), r"a=0.55, b=-1; both must be above 0"),
    ([1, 10], 9, (0.55, 1.5), r"counts from 1 to 10 with 9 training points"),
    ([-1, 3], 9, (0.55, 1.5), r"counts from -1 to 3 with 9 training points"),
  ],
)
def test_counts_and_constants_that_cannot_be(counts, points, constants, message):
  with pytest.raises(UserError, match=message):
    inverse_propensity(np.array(counts), points, *constants)
