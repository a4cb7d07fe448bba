"""Alignment, uniformity, the mean cosine, effective rank and tower ratios: values by hand, blocks, and what has no direction."""

import math

import numpy as np
import pytest

from retrieval_jax.errors import UserError
from retrieval_jax.metrics import geometry
from retrieval_jax.metrics.geometry import alignment, effective_rank, mean_cosine, tower_ratios, uniformity

AXES = np.array([[1.0, 0], [0, 2], [-3, 0]])


def test_alignment_is_the_mean_squared_distance_of_normalised_pairs():
  other = np.array([[1.0, 0], [5, 0], [1, 0]])
  assert alignment(AXES, other) == pytest.approx((0 + 2 + 4) / 3)
  assert alignment(AXES, AXES * 7) == pytest.approx(0)


def test_uniformity_is_over_the_pairs_of_different_rows():
  # Squared distances 2, 2 and 4.
  assert uniformity(AXES) == pytest.approx(math.log((2 * math.exp(-2 * 2) + math.exp(-2 * 4)) / 3))
  assert uniformity(AXES, t=1.0) == pytest.approx(math.log((2 * math.exp(-2) + math.exp(-4)) / 3))
  assert uniformity(np.eye(5)) == pytest.approx(-4)
  assert uniformity(np.ones((4, 3))) == pytest.approx(0, abs=1e-9)


def test_mean_cosine_is_over_the_pairs_of_different_rows():
  assert mean_cosine(AXES) == pytest.approx((0 + 0 - 1) / 3)
  assert mean_cosine(np.full((5, 3), 0.1, np.float32)) == pytest.approx(1)


def test_blocks_equal_the_whole(monkeypatch):
  x = np.random.default_rng(0).normal(size=(23, 6)).astype(np.float32)
  unit = x.astype(np.float64) / np.linalg.norm(x.astype(np.float64), axis=1, keepdims=True)
  cosines = (unit @ unit.T)[np.triu_indices(23, k=1)]
  expected = np.log(np.mean(np.exp(-2 * (2 - 2 * cosines))))
  assert uniformity(x) == pytest.approx(expected, rel=1e-10)
  monkeypatch.setattr(geometry, "BLOCK", 5)
  assert uniformity(x) == pytest.approx(expected, rel=1e-10)
  assert mean_cosine(x) == pytest.approx(cosines.mean(), rel=1e-9)


def test_effective_rank_is_exp_of_the_entropy_of_the_singular_values():
  assert effective_rank(np.eye(4)) == pytest.approx(4)
  assert effective_rank(np.ones((5, 3))) == pytest.approx(1)
  # Singular values 3 and 1: shares 3/4 and 1/4.
  entropy = -(3 / 4 * math.log(3 / 4) + 1 / 4 * math.log(1 / 4))
  assert effective_rank(np.array([[3.0, 0], [0, -1], [0, 0]])) == pytest.approx(math.exp(entropy))
  assert effective_rank(1e-8 * np.eye(4, dtype=np.float32)) == pytest.approx(4)


@pytest.mark.parametrize("rows", [np.zeros((3, 2)), np.zeros((0, 2)), np.array([[1.0, np.nan]])])
def test_effective_rank_of_nothing(rows):
  with pytest.raises(UserError, match=r"effective_rank: embeddings \(\d, 2\); expected finite rows"):
    effective_rank(rows)


def test_tower_ratios_are_of_the_pairs_of_different_rows():
  query = np.array([[1.0, 0], [3, 4], [0, 2]])  # cosines .6 (0, 1), 0 (0, 2), .8 (1, 2)
  passage = np.array([[0.8, 0.6], [0, 1], [1, 0]])
  # cos(q_i, p_j), i != j: 0 (0, 1), 1 (0, 2); .96 (1, 0), .6 (1, 2); .6 (2, 0), 1 (2, 1). The first has no ratio.
  expected = [0 / 1, 0.6 / 0.96, 0.8 / 0.6, 0 / 0.6, 0.8 / 1]
  assert tower_ratios(query, passage).tolist() == pytest.approx(expected)
  assert tower_ratios(query[:2], query[:2]) == pytest.approx([1, 1])
  with pytest.raises(UserError, match=r"tower_ratios: queries \(3, 2\) and passages \(2, 2\)"):
    tower_ratios(query, passage[:2])


def test_float16_rows_do_not_overflow():
  assert mean_cosine(np.array([[300.0, 0], [0, 300]], np.float16)) == pytest.approx(0)


@pytest.mark.parametrize("bad", [np.nan, np.inf, 0.0])
def test_rows_without_a_direction(bad):
  x = np.array([[1.0, 0], [bad, 0], [0, 1]])
  for function in (uniformity, mean_cosine, lambda rows: alignment(rows, AXES)):
    with pytest.raises(UserError, match="1 of 3 embeddings are zero or not finite, the first is row 1"):
      function(x)


def test_too_few_rows():
  for function in (uniformity, mean_cosine):
    with pytest.raises(UserError, match="1 embeddings; expected at least 2"):
      function(np.ones((1, 3)))
  with pytest.raises(UserError, match="0 embeddings; expected at least 1"):
    alignment(np.ones((0, 3)), np.ones((0, 3)))


def test_other_mistakes():
  with pytest.raises(UserError, match=r"alignment: queries \(3, 2\) and passages \(2, 2\)"):
    alignment(AXES, AXES[:2])
  with pytest.raises(UserError, match="uniformity: t is -1"):
    uniformity(AXES, t=-1)
