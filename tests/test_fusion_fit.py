"""Fitting a fusion on points whose labels are known, measuring it on those that it has not seen, and the program."""

import json
from typing import NamedTuple

import numpy as np
import pytest

from retrieval_jax.data.features import TaskInfo
from retrieval_jax.data.label_counts import LabelCounts
from retrieval_jax.data.relevance import Relevance
from retrieval_jax.errors import UserError
from retrieval_jax.fuse import fuse
from retrieval_jax.fusion_fit import fit_fusion, label_weights, labelled_pairs
from retrieval_jax.fusion_options import FusionOptions
from retrieval_jax.head_fusion import fused_heads
from retrieval_jax.linear_fusion import LinearFusion, fit_linear
from retrieval_jax.searchers import BM25Searcher
from tests.two_heads import labelled, two_heads

POINTS, LABELS, D = 300, 40, 8


def _unit(x):
  return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)


@pytest.fixture(scope="module")
def own():
  """The label of each point."""
  return np.random.default_rng(0).integers(0, LABELS, POINTS)


@pytest.fixture(scope="module")
def data(own, tmp_path_factory):
  return labelled(tmp_path_factory.mktemp("points"), [[int(label)] for label in own], LABELS)


@pytest.fixture
def searcher(own, data, tmp_path):
  """Both heads see each label's true direction through noise of their own, so that their sum sees it better."""
  rng = np.random.default_rng(1)
  true = _unit(rng.standard_normal((LABELS, D)))
  views = [_unit(true + 0.3 * rng.standard_normal((LABELS, D))) for _ in range(2)]
  queries = _unit(true[own] + 0.15 * rng.standard_normal((POINTS, D)))
  return two_heads(tmp_path, data, queries, *views)


def test_the_fusion_of_two_noisy_heads_beats_both(searcher, data):
  found = fit_fusion(searcher, data, fit_linear)
  best = max(found.metrics[head]["p@1"] for head in ("embedding", "classifiers"))
  assert 0.3 < best < found.metrics["fused"]["p@1"] - 0.05
  gain = found.gains["p@1"]
  assert gain.difference == pytest.approx(found.metrics["fused"]["p@1"] - best)
  assert 0 < gain.interval.low < gain.difference < gain.interval.high
  assert (found.points, found.candidates, found.labels, found.found) == (300, 300 * 40, 300, 300)


def test_heads_are_measured_as_a_search_finds_them(own, searcher, data):
  found = fit_fusion(searcher, data, fit_linear, FusionOptions(depth=1))
  for head, one in (("embedding", searcher.dense), ("classifiers", searcher)):
    best = one.search(data, k=1).rows[:, 0]
    assert found.metrics[head]["p@1"] == pytest.approx(np.mean(best == own))
  assert 300 < found.candidates < 600
  assert found.found < found.labels == 300


class Memory(NamedTuple):
  """Knows the pairs that it was fitted on by heart: those that were labels score 1, all others 0."""

  known: frozenset

  def scores(self, features):
    return np.array([pair in self.known for pair in zip(*features, strict=True)], np.float32)


def _memorise(features, targets, weights):
  return Memory(frozenset(zip(*(column[targets] for column in features), strict=True)))


def test_no_point_is_measured_by_a_fusion_that_saw_it(searcher, data):
  found = fit_fusion(searcher, data, _memorise)
  assert found.metrics["fused"]["p@1"] < 0.1  # one of 40 labels is right by chance
  assert found.gains["p@1"].interval.high < 0
  features = len(found.fitted.model.known)  # pyright: ignore[reportAttributeAccessIssue]
  assert features == POINTS  # the one that is kept saw all


def test_filtered_pairs_are_no_candidates(own, searcher, data):
  others = (own + 1) % LABELS
  rows = np.arange(POINTS)
  filtered = Relevance.from_pairs(rows, others, np.ones(POINTS, np.int32), POINTS)
  pairs = labelled_pairs(searcher, data._replace(filtered=filtered), rows, depth=LABELS)
  assert len(pairs.targets) == POINTS * (LABELS - 1)
  left = pairs.found.rows.reshape(POINTS, LABELS - 1)
  assert (left != others[:, None]).all()
  assert pairs.targets.sum() == POINTS
  np.testing.assert_array_equal(pairs.found.rows[pairs.targets], own)


def test_of_many_pairs_those_drawn_stand_for_the_others(searcher, data):
  """300 labels and 11,700 others, of which 1,200 are drawn: the log-odds stay what they were."""
  whole = fit_fusion(searcher, data, fit_linear).fitted.model
  seen = []

  def watched(features, targets, weights):
    seen.append((len(targets), int(targets.sum()), float(weights.sum())))
    return fit_linear(features, targets, weights)

  drawn = fit_fusion(searcher, data, watched, FusionOptions(max_pairs=1500)).fitted.model
  assert seen[-1] == (1500, 300, pytest.approx(12_000))
  assert isinstance(whole, LinearFusion)
  assert isinstance(drawn, LinearFusion)
  assert drawn.bias == pytest.approx(whole.bias, rel=0.15)
  np.testing.assert_allclose(drawn.weights, whole.weights, rtol=0.15)


def test_so_many_points_are_drawn_and_always_the_same(searcher, data):
  first, again, other = (
    fit_fusion(searcher, data, fit_linear, FusionOptions(max_points=50, seed=seed)) for seed in (0, 0, 1)
  )
  assert first.points == 50
  assert first.metrics == again.metrics
  assert first.metrics != other.metrics


def _counted(data):
  counts = np.bincount(data.relevance.passage_rows, minlength=LABELS)
  return data._replace(label_counts=LabelCounts(counts, POINTS), info=TaskInfo(propensity=(0.55, 1.5)))


def test_the_rarity_of_labels_is_a_feature_only_if_asked_for(searcher, data):
  counted = _counted(data)
  plain = fit_fusion(searcher, counted, fit_linear)
  assert {"psp@1", "psp@5"} <= plain.metrics["fused"].keys()
  assert not plain.fitted.log_inverse_propensity.any()
  asked = fit_fusion(searcher, counted, fit_linear, FusionOptions(use_propensity=True))
  weights = label_weights(counted)
  assert weights is not None
  np.testing.assert_allclose(asked.fitted.log_inverse_propensity, np.log(weights), rtol=1e-6)
  assert asked.fitted.model.describe()["log_inverse_propensity"] != 0
  with pytest.raises(UserError, match="FUSION_PROPENSITY=True: toy declares no propensities"):
    fit_fusion(searcher, data, fit_linear, FusionOptions(use_propensity=True))


def test_too_few_points(tmp_path):
  data = labelled(tmp_path, [[0], []], 2)
  searcher = two_heads(tmp_path, data, *(np.eye(2, dtype=np.float32) for _ in range(3)))
  with pytest.raises(
    UserError, match=r"toy, split held_out: 1 points with labels; a fusion is fitted on at least 2"
  ):
    fit_fusion(searcher, data, fit_linear)


@pytest.mark.parametrize(
  "name, macro, value",
  [
    ("depth", "FUSION_DEPTH", 0),
    ("max_points", "FUSION_POINTS", 1),
    ("max_pairs", "FUSION_PAIRS", 1.5),
    ("seed", "FUSION_SEED", -1),
  ],
)
def test_options_that_cannot_be(searcher, data, name, macro, value):
  with pytest.raises(UserError, match=f"^{macro}={value}: expected a whole number of at least"):
    fit_fusion(searcher, data, fit_linear, FusionOptions(**{name: value}))


def test_the_program_writes_what_a_search_reads_and_says_whether_it_helps(searcher, data, capsys):
  found = fuse(searcher, data, fit=fit_linear)
  said = capsys.readouterr().out
  assert "toy/held_out: 300 points, 12,000 candidates; 300 of 300 labels among them (100.0%)" in said
  assert "p@1: +" in said
  assert ": the fusion helps" in said
  record = json.loads((searcher.classifiers.folder / "fusion.json").read_text("utf-8"))
  assert record["model"] == "linear"
  assert record["metrics"]["fused"]["p@1"] == found.metrics["fused"]["p@1"]
  assert (record["split"], record["options"]["depth"], record["checkpoint"]) == (
    "held_out",
    300,
    searcher.checkpoint,
  )
  ranking = fused_heads(searcher).search(data, k=1)
  hits = data.relevance.has(data.judged, ranking.rows[:, 0])
  assert hits.mean() == pytest.approx(
    found.metrics["fused"]["p@1"], abs=0.03
  )  # of all points, not of the other half


def test_the_program_says_where_the_fusion_harms(searcher, data, capsys):
  class Worse(LinearFusion):
    pass

  fuse(searcher, data, fit=lambda *_: Worse(np.array([-1.0, 0.0, 0.0]), 0.0))
  assert ": the fusion harms; prefer " in capsys.readouterr().out


def test_the_program_needs_classifiers(data):
  with pytest.raises(UserError, match="SEARCHER: bm25 has no classifiers to fuse"):
    fuse(BM25Searcher(), data, fit=fit_linear)
