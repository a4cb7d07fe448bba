import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

from retrieval_jax import scoring, sharding
from retrieval_jax.errors import UserError
from retrieval_jax.losses.triplet import Candidates, hardest, hardest_triplets, triplet
from tests.embedded_batches import embedded_batch

# The published code of each, under the names of this module.
WEIGHTINGS = {"plain": "none", "NGAME": "softmax_zero_logit", "DEXA": "softmax"}
ORACLE_CASES = [f"M1_ohnm_plain_k{k}" for k in (1, 3, 5)] + [
  f"M1_ohnm_softmax_k{k}_{code}" for k in (1, 3, 5) for code in ("NGAME", "DEXA")
]


def _output(loss, batch):
  return loss.apply({}, {}, batch, rng=None, train=True)[0]


def _value(loss, batch):
  return float(_output(loss, batch).loss)


def _unit(*degrees):
  angles = np.radians(degrees)
  return np.stack([np.cos(angles), np.sin(angles)], axis=1)


def _cos(*degrees):
  return [math.cos(math.radians(d)) for d in degrees]


# --- reference values ---------------------------------------------------------------------------------------------


def _case(oracles, name):
  (case,) = [c for c in json.loads((oracles / "ngame_loss.json").read_text())["cases"] if c["name"] == name]
  return case


def _mean_over_rows(case, dtype, *, weighting):
  """Returns value and gradient of the mean over the rows, as a function of the oracle's scores."""
  kwargs = case["kwargs"]
  relevant = jnp.asarray(case["Y"], bool)

  def value(scores):
    rows = hardest_triplets(
      jnp.diagonal(scores),
      Candidates(scores, ~relevant),
      k=kwargs["k"],
      margin=kwargs["margin"],
      weighting=weighting,
      weighting_temperature=kwargs.get("tau", 0.1),
    )
    assert rows.dtype == dtype
    return jnp.mean(rows)

  return jax.value_and_grad(value)(jnp.asarray(case["S"], dtype))


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("name", ORACLE_CASES)
def test_oracle_values_and_gradients(oracles, name, bits):
  # The oracle's scores have 6 digits exactly and its results all of float64's.
  dtype, tolerance = (np.float64, 1e-9) if bits == 64 else (np.float32, 1e-5)
  case = _case(oracles, name)
  with jax.enable_x64(bits == 64):
    got, gradient = _mean_over_rows(
      case, dtype, weighting=WEIGHTINGS["plain" if "plain" in name else name.split("_")[-1]]
    )
    np.testing.assert_allclose(got, case["loss"], rtol=tolerance)
    np.testing.assert_allclose(gradient, np.array(case["grad"]), rtol=tolerance, atol=tolerance)


def test_oracle_the_factory_gives_the_same_from_a_batch(oracles):
  """Scores as inner products with unit vectors; the full label lists as known positives."""
  case = _case(oracles, "M1_ohnm_softmax_k3_NGAME")
  relevant = np.array(case["Y"], bool)
  positives = [np.flatnonzero(row) for row in relevant]
  width = max(map(len, positives))
  batch = embedded_batch(
    np.array(case["S"], np.float32),
    np.eye(8, dtype=np.float32),
    passage_rows=np.arange(8),
    positives=[np.pad(row, (0, width - len(row)), constant_values=-1) for row in positives],
  )
  loss = triplet(hardest=3, weighting="softmax_zero_logit", score=scoring.dot)
  assert _value(loss, batch) == pytest.approx(case["loss"], rel=1e-5)


def test_oracle_fewer_negatives_than_k_do_not_bring_back_masked_positives(oracles):
  """Row 0 has one negative, rows 1 and 2 none. The official code fills up with the first columns, positives and even
  the row's own column, which are wrong triplets; here there are none of them."""
  case = _case(oracles, "M1_edge_fewer_negatives_than_k")
  s = np.array(case["S"])
  own_column = 0.3  # s - s + margin, in rows 0 and 1
  assert case["loss"] == pytest.approx((own_column + (s[1, 0] - s[1, 1] + 0.3) + own_column) / (3 * 2))

  with jax.enable_x64(True):
    got, gradient = _mean_over_rows(case, np.float64, weighting="none")
    assert float(got) == max(0, s[0, 1] - s[0, 0] + 0.3) / (3 * 2) == 0
    assert not np.any(gradient)


def test_oracle_k_beyond_the_columns_takes_them_all(oracles):
  """The official code fails: "selected index k out of range"."""
  case = _case(oracles, "M1_edge_k_larger_than_batch")
  assert "out of range" in case["error"]
  with jax.enable_x64(True):
    for k in (3, 5, 50):
      case["kwargs"] = {"margin": 0.6, "k": k}
      s = np.array(case["S"])
      got, _ = _mean_over_rows(case, np.float64, weighting="none")
      assert float(got) == pytest.approx((s[0, 1] - s[0, 0] + 0.6) / (3 * k), rel=1e-12)


def test_oracle_positives_are_masked_not_clipped(oracles):
  """An older code clips positives at 0, where they beat negatives below 0; ours is the plain value."""
  clipped, plain = _case(oracles, "M1_ohnm_plain_k3_LEVER"), _case(oracles, "M1_ohnm_plain_k3")
  with jax.enable_x64(True):
    got, _ = _mean_over_rows(clipped, np.float64, weighting="none")
  assert float(got) == pytest.approx(plain["loss"], rel=1e-9)
  assert clipped["loss"] - plain["loss"] == pytest.approx(0.3 / 24, rel=1e-6)


# --- the pure functions -------------------------------------------------------------------------------------------


def test_hardest_is_top_k_of_those_present():
  rng = np.random.default_rng(0)
  scores, present = rng.normal(size=(7, 20)).astype(np.float32), rng.random((7, 20)) < 0.6
  for k in (1, 4, 19):
    got = hardest(Candidates(jnp.asarray(scores), jnp.asarray(present)), k)
    for i in range(7):
      want = np.sort(scores[i][present[i]])[::-1][:k]
      np.testing.assert_array_equal(np.asarray(got.scores[i])[np.asarray(got.present[i])], want)
      assert np.all(np.diff(np.asarray(got.present[i]).astype(int)) <= 0)  # those absent are last


def test_of_equal_scores_as_many_as_there_is_room_for():
  scores = jnp.array([[0.5, 0.9, 0.5, 0.5, -jnp.inf]])
  present = jnp.array([[True, True, True, True, False]])
  got, gradient = jax.value_and_grad(lambda s: hardest(Candidates(s, present), 3).scores.sum())(scores)
  assert float(got) == pytest.approx(0.5 + 0.9 + 0.5)
  np.testing.assert_array_equal(gradient, [[1, 1, 1, 0, 0]])


@pytest.mark.parametrize("k", [1, 2, 3])
def test_nan_is_not_hidden(k):
  """A broken hard negative must show in the loss, wherever it stands and however few places there are."""
  for scores in ([0.1, 0.2, math.nan], [math.nan, 0.9, 0.1]):
    assert math.isnan(_rows(0.5, scores, k=k, margin=0.3))
  present = jnp.array([[True, True, False]])
  candidates = Candidates(jnp.array([[0.4, 0.1, math.nan]]), present)
  got = hardest_triplets(jnp.array([0.5]), candidates, k=k, margin=0.3)
  assert float(got[0]) == pytest.approx(0.2 / k)


def _rows(positive, scores, **options):
  present = jnp.ones((1, len(scores)), bool)
  candidates = Candidates(jnp.array([scores]), present)
  return float(hardest_triplets(jnp.array([positive]), candidates, **options)[0])


def test_weightings_by_hand():
  """Two violators (.5, .4) and one that does not violate (.1) for a positive of .5 and a margin of .3."""
  scores, options = [0.4, 0.1, 0.5], {"k": 3, "margin": 0.3}
  assert _rows(0.5, scores, **options) == pytest.approx((0.3 + 0.2) / 3, rel=1e-6)
  e5, e4, e0 = math.exp(5), math.exp(4), math.exp(0)
  assert _rows(0.5, scores, weighting="softmax", **options) == pytest.approx(
    (0.3 * e5 + 0.2 * e4) / (e5 + e4) / 3, rel=1e-6
  )
  assert _rows(0.5, scores, weighting="softmax_zero_logit", **options) == pytest.approx(
    (0.3 * e5 + 0.2 * e4) / (e5 + e4 + e0) / 3, rel=1e-6
  )
  assert _rows(0.5, scores, weighting="softmax", weighting_temperature=0.2, **options) == pytest.approx(
    (0.3 * math.exp(2.5) + 0.2 * math.exp(2)) / (math.exp(2.5) + math.exp(2)) / 3, rel=1e-6
  )


@pytest.mark.parametrize("weighting", WEIGHTINGS.values())
def test_an_absent_candidate_is_no_term_and_takes_no_weight(weighting):
  """Whatever stands in its place; the divisor stays k."""
  options = {"margin": 0.3, "weighting": weighting}
  want = _rows(0.5, [0.4, 0.5], k=2, **options) * 2 / 4

  def row(scores):
    present = jnp.array([[True, False, True, False]])
    return hardest_triplets(jnp.array([0.5]), Candidates(scores, present), k=4, **options)[0]

  got, gradient = jax.value_and_grad(row)(jnp.array([[0.4, 99.0, 0.5, -jnp.inf]]))
  assert float(got) == pytest.approx(want, rel=1e-6)
  assert np.all(np.isfinite(gradient))
  assert gradient[0, 1] == gradient[0, 3] == 0


# --- batches ------------------------------------------------------------------------------------------------------


def test_the_hardest_negative_of_each_query_by_hand():
  """Queries at 0 and 90 degrees, passages at 20 and 60, hard negatives at 30 and 130."""
  batch = embedded_batch(_unit(0, 90), _unit(20, 60, 30, 130))
  c20, c30, c40, c60, c70 = _cos(20, 30, 40, 60, 70)
  # Query 0: passages at 60, 30 and 130 degrees. Query 1: at 70, 60 and 40.
  assert _value(triplet(margin=0.3), batch) == pytest.approx(((c30 - c20 + 0.3) + (c40 - c30 + 0.3)) / 2)
  assert _value(triplet(margin=0.9, hardest=2), batch) == pytest.approx(
    ((c30 - c20 + 0.9) + (c60 - c20 + 0.9) + (c40 - c30 + 0.9) + (c60 - c30 + 0.9)) / 4
  )
  assert _value(triplet(margin=0.9, hardest=5), batch) == pytest.approx(
    ((c30 - c20 + 0.9) + (c60 - c20 + 0.9) + (c40 - c30 + 0.9) + (c60 - c30 + 0.9) + (c70 - c30 + 0.9)) / 10
  )
  # Passage to query: 70 degrees for passage 0, 60 for passage 1; the hard negatives take no part.
  backward = ((c70 - c20 + 0.9) + (c60 - c30 + 0.9)) / 2
  forward = ((c30 - c20 + 0.9) + (c40 - c30 + 0.9)) / 2
  assert _value(triplet(margin=0.9, bidirectional=True), batch) == pytest.approx((forward + backward) / 2)


def test_same_tower_negatives_compete_for_the_places():
  """Queries at 0, 10 and 80 degrees, passages at 30, 50 and 90."""
  batch = embedded_batch(_unit(0, 10, 80), _unit(30, 50, 90))
  own = _cos(30, 40, 10)
  to_passages, to_queries = _cos(50, 20, 30), _cos(10, 10, 70)  # the hardest of each kind
  to_queries_back, to_passages_back = _cos(20, 30, 10 + 70), _cos(20, 20, 40)

  def mean_hinge(*kinds):
    return np.mean([max(0, max(n) - s + 0.5) for s, *n in zip(own, *kinds, strict=True)])

  forward, forward_query = mean_hinge(to_passages), mean_hinge(to_passages, to_queries)
  backward, backward_passage = mean_hinge(to_queries_back), mean_hinge(to_queries_back, to_passages_back)
  assert forward < forward_query
  assert backward < backward_passage
  make = {"margin": 0.5, "bidirectional": True}
  assert _value(triplet(margin=0.5), batch) == pytest.approx(forward)
  assert _value(triplet(margin=0.5, same_tower="query"), batch) == pytest.approx(forward_query)
  for side, value in {
    "none": forward + backward,
    "query": forward_query + backward,
    "passage": forward + backward_passage,
    "both": forward_query + backward_passage,
  }.items():
    assert _value(triplet(same_tower=side, **make), batch) == pytest.approx(value / 2, rel=1e-5), side


def test_known_positives_are_no_negatives_in_any_column():
  """Query 0 is also answered by query 1's passage and by a hard negative; repeated queries spare each other."""
  query, passage = _unit(0, 90, 90), _unit(30, 10, 80, 5, 170, 40)
  batch = embedded_batch(
    query,
    passage,
    query_rows=[1, 2, 2],
    passage_rows=[10, 11, 12, 13, 14, 15],
    positives=[[10, 11, 13], [11, -1, -1], [12, -1, -1]],
  )
  # Query 0: of 80, 170 and 40 degrees. Queries 1 and 2 answer alike: of 60, 85, 80 and 50 degrees.
  c = math.cos
  hinges = [
    c(math.radians(40)) - c(math.radians(30)) + 0.6,
    c(math.radians(50)) - c(math.radians(80)) + 0.6,
    max(0, c(math.radians(50)) - c(math.radians(10)) + 0.6),
  ]
  assert _value(triplet(margin=0.6), batch) == pytest.approx(np.mean(hinges))
  output = _output(triplet(margin=0.6, same_tower="query"), batch)
  assert float(output.metrics["negatives"]) == pytest.approx((3 + 2 + 4 + 1 + 4 + 1) / 3 - 2 / 3)
  unmasked = _output(triplet(margin=0.6, same_tower="query", mask_false_negatives=False), batch)
  assert float(unmasked.metrics["negatives"]) == 5 + 2


def test_metrics():
  """First every query is nearest to its own passage; then query 0 is nearer to a negative."""
  output = _output(triplet(margin=0.3), embedded_batch(_unit(0, 90), _unit(20, 60, 30, 130)))
  # Within the margin: query 0 has 30 degrees; query 1 has 40 alone, as cos 60 < cos 30 - .3.
  assert {name: float(v) for name, v in output.metrics.items()} == pytest.approx(
    {"accuracy": 1, "violations": 1, "negatives": 3}
  )
  output = _output(triplet(margin=0.4), embedded_batch(_unit(0, 90), _unit(20, 60, 10, 130)))
  # Query 0's own passage is at 20 degrees and one at 10; query 1's is at 30 and the others at 70, 80 and 40.
  assert {name: float(v) for name, v in output.metrics.items()} == pytest.approx(
    {"accuracy": 0.5, "violations": 1, "negatives": 3}
  )


def test_weights_make_a_weighted_mean():
  batch = embedded_batch(_unit(0, 90), _unit(20, 60))
  each = [max(0, n - p + 0.9) for p, n in zip(_cos(20, 30), _cos(60, 70), strict=True)]
  weighted = batch._replace(weights=np.array([1, 3], np.float32))
  assert _value(triplet(margin=0.9), weighted) == pytest.approx(np.average(each, weights=[1, 3]))


@pytest.mark.parametrize("weighting", WEIGHTINGS.values())
def test_zero_embeddings_have_a_finite_loss_and_gradient(weighting):
  batch = embedded_batch(np.zeros((3, 4), np.float32), np.zeros((6, 4), np.float32))
  loss = triplet(hardest=2, weighting=weighting, same_tower="both", bidirectional=True)

  def value(query, passage):
    return _output(loss, batch._replace(query=query, passage=passage)).loss

  got, gradients = jax.value_and_grad(value, (0, 1))(batch.query, batch.passage)
  assert float(got) == pytest.approx(0.3 if weighting == "none" else 0.3 / 2)
  assert all(np.isfinite(g).all() for g in gradients)


def test_a_batch_where_all_know_all_contributes_nothing():
  batch = embedded_batch(np.eye(3), np.eye(3), query_rows=[4, 4, 4])
  output = _output(triplet(same_tower="both", bidirectional=True, hardest=2), batch)
  assert float(output.loss) == 0
  assert {name: float(v) for name, v in output.metrics.items()} == {
    "accuracy": 1,
    "violations": 0,
    "negatives": 0,
  }


# --- mistakes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
  "options, message",
  [
    ({"weighting": "softmx"}, r"unknown weighting 'softmx'; did you mean 'softmax'\? Known"),
    ({"same_tower": "querys"}, "unknown same_tower 'querys'; did you mean 'query'"),
    ({"hardest": 0}, "hardest is 0; expected 1 or more"),
    ({"margin": -0.1}, r"margin is -0.1; expected 0 or more, in units of the score"),
    ({"margin": float("nan")}, "margin is nan"),
    ({"weighting_temperature": 0.0}, "weighting_temperature is 0.0; it must be above 0"),
    ({"same_tower": "both"}, "Set bidirectional=True, or same_tower='query'"),
    ({"same_tower": "passage"}, "same_tower 'passage' adds passage-passage terms"),
  ],
)
def test_options_out_of_range(options, message):
  with pytest.raises(UserError, match=message):
    triplet(**options)


@pytest.mark.parametrize("k", [1, 3, 7])
def test_one_device_and_several_choose_the_same_columns(k):
  """On one device lax.top_k, on several passes of argmax: ties go to the smaller column; NaN comes first."""
  scores = jnp.array([[0.5, 0.1, 0.5, 0.5, -0.2, 0.0, 0.3, 0.5], [0.1, 0.9, 0.7, 0.7, 0.7, -0.1, 0.2, 0.1]])
  candidates = Candidates(scores, jnp.array([[1, 1, 0, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 1, 1, 1]], bool))
  mesh = Mesh(np.array(jax.devices()[:1]), ("data",))
  with sharding.constraining(None, sharding.DataMesh(mesh, ("data",))):
    alone = hardest(candidates, k)
    broken = hardest(candidates._replace(scores=scores.at[1, 4:6].set(math.nan)), k)
  assert math.isnan(float(broken.scores[1, 0]))
  np.testing.assert_array_equal(alone.scores, hardest(candidates, k).scores)
  np.testing.assert_array_equal(alone.present, hardest(candidates, k).present)
