"""Deciles from head to tail: who is in which, and what each contributes."""

import itertools

import numpy as np
import pytest

from retrieval_jax.errors import UserError
from retrieval_jax.metrics.deciles import decile_values, groups_of
from retrieval_jax.metrics.judgements import Qrels
from retrieval_jax.metrics.ranking import evaluate_ranking

# Twenty labels in no order of frequency: label l has TRAINING[l] points. Two a decile.
TRAINING = np.array([0, 90, 7, 7, 7, 50, 1, 0, 3, 20, 30, 2, 9, 8, 11, 12, 40, 4, 5, 6])


def test_the_head_comes_first_and_equal_frequencies_in_row_order():
  groups = groups_of(TRAINING)
  assert np.bincount(groups).tolist() == [2] * 10
  assert [sorted(TRAINING[groups == number].tolist(), reverse=True) for number in range(10)] == [
    [90, 50],
    [40, 30],
    [20, 12],
    [11, 9],
    [8, 7],
    [7, 7],
    [6, 5],
    [4, 3],
    [2, 1],
    [0, 0],
  ]
  assert (groups[2], groups[3], groups[4]) == (4, 5, 5)  # all three have 7 points


def test_sizes_differ_by_one_at_most():
  assert np.bincount(groups_of(np.arange(23))).tolist() == [3, 3, 3, 2, 2, 2, 2, 2, 2, 2]
  assert groups_of(np.array([3, 9, 4])).tolist() == [2, 0, 1]


def test_what_each_decile_contributes_by_hand():
  """Three points; the second finds nothing that is its own, the third has no label. A fourth is not judged."""
  qrels = Qrels.of([([1, 5, 0], [1, 1, 1]), ([7, 6], [1, 1]), ([0], [0]), ([], [])])
  rows = np.array([[5, 9, 0, 1, 2, 3], [1, 2, 3, 4, 5, 7], [0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 4, 5]])
  deciles = decile_values(rows, qrels=qrels, counts=TRAINING, cutoffs=(1, 5))
  head, rare, tail = deciles[0], deciles[8], deciles[9]
  assert head[:6] == (2, 0, 90, 50, 2, 2 / 5)  # the pairs of the labels 1 and 5
  assert tail[:6] == (2, 2, 0, 0, 2, 2 / 5)  # 0 and 7, which no training point has
  assert rare[:6] == (2, 0, 2, 1, 1, 1 / 5)
  assert head.values == {"p@1": 1 / 3, "p@5": 2 / 15, "recall@1": 1 / 2, "recall@5": 2 / 2}
  assert tail.values == {"p@1": 0, "p@5": 1 / 15, "recall@1": 0, "recall@5": 1 / 2}  # label 7 is sixth
  assert rare.values == {"p@1": 0, "p@5": 0, "recall@1": 0, "recall@5": 0}
  assert [decile.pairs for decile in deciles[1:8]] == [0] * 7
  assert {value for decile in deciles[1:8] for value in decile.values.values()} == {0}


@pytest.mark.parametrize("relevant_from", [1, 2])
def test_contributions_sum_to_the_precision(relevant_from):
  rng = np.random.default_rng(0)
  counts = rng.integers(0, 30, 60)
  qrels = Qrels.of([(rng.permutation(60)[:8], rng.integers(0, 4, 8)) for _ in range(50)])
  rows = np.stack([rng.permutation(60)[:25] for _ in range(50)])
  deciles = decile_values(rows, qrels=qrels, counts=counts, relevant_from=relevant_from, cutoffs=(1, 5, 20))
  names = ["p@1", "p@5", "p@20"]
  means = evaluate_ranking(rows, qrels=qrels, metrics=names, relevant_from=relevant_from).means
  for name in names:
    assert means[name] > 0
    assert sum(decile.values[name] for decile in deciles) == pytest.approx(means[name], rel=1e-12)
  pairs = int(np.sum(qrels.grades >= relevant_from))
  assert sum(decile.pairs for decile in deciles) == pairs
  assert sum(decile.share for decile in deciles) == pytest.approx(1)
  found = sum(decile.values["recall@20"] * decile.pairs for decile in deciles)
  assert found == pytest.approx(means["p@20"] * 20 * 50)  # hits, all queries together
  spans = [(decile.most, decile.least) for decile in deciles]
  assert all(before[1] >= after[0] for before, after in itertools.pairwise(spans))
  assert sum(decile.unseen for decile in deciles) == np.sum(counts == 0)


def test_fewer_than_ten_labels_are_a_decile_each():
  deciles = decile_values(np.array([[1, 0]]), qrels=Qrels.of([([0], [1])]), counts=np.array([3, 9]))
  assert [(decile.labels, decile.most, decile.pairs) for decile in deciles] == [(1, 9, 0), (1, 3, 1)]
  assert deciles[1].values == {"p@1": 0, "p@5": 1 / 5, "recall@1": 0, "recall@5": 1}


def test_a_judged_passage_without_a_count():
  with pytest.raises(
    UserError, match=r"2 training counts, and judgements up to row 2; expected one count a passage"
  ):
    decile_values(np.array([[1, 0]]), qrels=Qrels.of([([2], [1])]), counts=np.array([3, 9]))
