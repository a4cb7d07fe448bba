"""Taking results that are none out of a ranking."""

import json
import math

import numpy as np
import pytest

from retrieval_jax.metrics.ranking import evaluate_ranking
from retrieval_jax.records import Ranking
from retrieval_jax.unwanted import Unwanted, without


def ranking_of(rows):
  rows = np.array(rows, np.int32)
  return Ranking(rows, np.where(rows >= 0, -1.0 - np.arange(rows.shape[1]), -np.inf).astype(np.float32))


def test_what_is_unwanted_is_taken_out_and_the_rest_moves_up():
  ranking = ranking_of([[7, 5, 2, 9], [1, 3, -1, -1], [4, 6, 8, 0]])
  unwanted = Unwanted(np.array([0, 0, 0, 1, 1]), np.array([5, 9, 100, 1, 7]))
  assert unwanted.most == 3
  cut, count = without(ranking, unwanted, depth=3)
  assert cut.rows.tolist() == [[7, 2, -1], [3, -1, -1], [4, 6, 8]]
  assert cut.scores.tolist() == [[-1, -3, -math.inf], [-2, -math.inf, -math.inf], [-1, -2, -3]]
  assert count == 3
  assert ranking.rows[0].tolist() == [7, 5, 2, 9]  # untouched


def test_nothing_unwanted_cuts_at_the_depth():
  cut, count = without(
    ranking_of([[7, 5, 2]]), Unwanted(np.zeros(0, np.int64), np.zeros(0, np.int64)), depth=2
  )
  assert (cut.rows.tolist(), count) == ([[7, 5]], 0)


def test_the_xc_repositorys_filter(oracles):
  """Its tool sets the filtered scores to 0 and drops what is 0 before ranking."""
  oracle = json.loads((oracles / "xc_metrics.json").read_text())
  places, rows = np.array(oracle["filter_pairs"]).T
  unwanted = Unwanted(places, rows)
  found = np.full((oracle["n_rows"], 5 + unwanted.most), -1, np.int32)
  for place, scores in enumerate(oracle["scores"]):
    best = [label for label, _ in sorted(scores, key=lambda pair: -pair[1])][: found.shape[1]]
    found[place, : len(best)] = best
  cut, count = without(ranking_of(found), unwanted, depth=5)
  assert 0 < count <= len(oracle["filter_pairs"])
  metrics = {"P": "p", "N": "ndcg", "R": "recall", "hits": "success"}
  qrels = [(labels, [1] * len(labels)) if labels else ([0], [0]) for labels in oracle["Y"]]
  for theirs, ours in metrics.items():
    means = evaluate_ranking(cut.rows, qrels=qrels, metrics=[f"{ours}@{k}" for k in range(1, 6)]).means
    expected = oracle["metrics"]["A0.55_B1.5_filtered"][theirs]
    np.testing.assert_allclose(list(means.values()), expected, rtol=0, atol=3.1e-8, err_msg=theirs)


@pytest.mark.parametrize("block", [1, 7, 1 << 20])
def test_in_blocks_it_is_the_same(monkeypatch, block):
  monkeypatch.setattr("retrieval_jax.unwanted.BLOCK", block)
  rng = np.random.default_rng(0)
  rows = np.stack([rng.permutation(30)[:9] for _ in range(12)])
  pairs = [(place, row) for place in range(12) for row in rng.permutation(30)[: place % 5]]
  unwanted = Unwanted(np.array([place for place, _ in pairs]), np.array([row for _, row in pairs]))
  cut, count = without(ranking_of(rows), unwanted, depth=6)
  kept = [[row for row in found if (place, row) not in pairs] for place, found in enumerate(rows.tolist())]
  assert cut.rows.tolist() == [(found + [-1] * 9)[:6] for found in kept]
  assert count == sum(9 - len(found) for found in kept) > 0
