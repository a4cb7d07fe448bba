import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from retrieval_jax import scoring
from retrieval_jax.errors import UserError
from retrieval_jax.losses.multi_triplet import multi_triplet, multi_triplet_columns, multi_triplets
from retrieval_jax.records import EmbeddedBatch


def _case(oracles, name):
  (case,) = [c for c in json.loads((oracles / "ngame_loss.json").read_text())["cases"] if c["name"] == name]
  return np.array(case["S"]), np.array(case["Y"], bool), case


def _mean(scores, relevant, present=None, **options):
  present = np.ones(scores.shape[1], bool) if present is None else present
  return jnp.mean(
    multi_triplets(scores, jnp.asarray(relevant), jnp.broadcast_to(present, scores.shape), **options)
  )


def _by_hand(scores, relevant, *, margin=0.2, a=3, b=5):
  """The definition in loops: of each row its a lowest positives, against its b highest negatives."""
  total = 0.0
  for row, known in zip(scores, relevant, strict=True):
    for positive in sorted(row[known])[:a]:
      hinges = [n - positive + margin for n in sorted(row[~known])[::-1][:b]]
      hinges = [h for h in hinges if h > 0]
      exponentials = [math.exp(h) for h in hinges]
      total += sum(h * e for h, e in zip(hinges, exponentials, strict=True)) / max(sum(exponentials), 1)
  return total / (len(scores) * a * b)


@pytest.mark.parametrize("bits", [32, 64])
def test_oracle_value_and_gradient(oracles, bits):
  dtype, tolerance = (np.float64, 1e-9) if bits == 64 else (np.float32, 1e-5)
  scores, relevant, case = _case(oracles, "M2_multi_p3_n5")
  with jax.enable_x64(bits == 64):
    got, gradient = jax.value_and_grad(_mean)(jnp.asarray(scores, dtype), relevant)
    assert got.dtype == dtype
    np.testing.assert_allclose(got, case["loss"], rtol=tolerance)
    np.testing.assert_allclose(gradient, np.array(case["grad"]), rtol=tolerance, atol=tolerance)
  assert _by_hand(scores, relevant) == pytest.approx(case["loss"], rel=1e-9)


def test_oracle_a_square_matrix_has_the_same_positives_as_any_other(oracles):
  """With as many columns as rows the official code takes the diagonal for the only positives: .030435."""
  scores, relevant, case = _case(oracles, "M2_multi_square_trap")
  with jax.enable_x64(True):
    got = float(_mean(jnp.asarray(scores), relevant))
  assert got == pytest.approx(_by_hand(scores, relevant), rel=1e-9)
  # By hand the official value: one positive per row, the other known ones masked, and the mean over B * 1 * 5.
  official = 0.0
  for i, row in enumerate(scores):
    hinges = np.maximum(0, np.sort(row[~relevant[i]])[::-1][:5] - row[i] + 0.2)
    weights = np.exp(hinges) * (hinges > 0)
    official += np.sum(hinges * weights) / max(np.sum(weights), 1) / 5
  assert case["loss"] == pytest.approx(official / 8, rel=1e-9)
  assert got != pytest.approx(case["loss"], rel=0.1)
  # Any further column, however low, leaves the value where it was: the shape alone changes nothing.
  with jax.enable_x64(True):
    wider = jnp.pad(jnp.asarray(scores), ((0, 0), (0, 1)), constant_values=-1)
    assert float(_mean(wider, np.pad(relevant, ((0, 0), (0, 1))))) == pytest.approx(got, rel=1e-12)


def test_columns_that_are_not_present_are_as_if_absent(oracles):
  """The padding of a union of labels: neither positive nor negative, whatever its scores and its relevance."""
  scores, relevant, case = _case(oracles, "M2_multi_p3_n5")
  rng = np.random.default_rng(0)
  padded = np.concatenate([scores, rng.uniform(-5, 5, (6, 5))], axis=1)
  known = np.concatenate([relevant, rng.random((6, 5)) < 0.5], axis=1)
  order = rng.permutation(16)
  with jax.enable_x64(True):
    got, gradient = jax.value_and_grad(_mean)(jnp.asarray(padded[:, order]), known[:, order], (order < 11))
  assert float(got) == pytest.approx(case["loss"], rel=1e-9)
  np.testing.assert_allclose(
    np.asarray(gradient)[:, np.argsort(order)[:11]], np.array(case["grad"]), atol=1e-9
  )
  assert not np.any(np.asarray(gradient)[:, order >= 11])


def test_rows_without_positives_negatives_or_violations_are_0():
  scores = jnp.array([[0.1, 0.9], [0.1, 0.9], [0.9, 0.1]])
  relevant = jnp.array([[False, False], [True, True], [True, False]])
  present = jnp.ones((3, 2), bool)
  got, gradient = jax.value_and_grad(lambda s: multi_triplets(s, relevant, present).sum())(scores)
  assert float(got) == 0
  assert not np.any(gradient)


def _batch(query, passage, **fields):
  q, p = len(query), len(passage)
  default = {
    "query_rows": np.arange(q),
    "passage_rows": np.arange(100, 100 + p),
    "positives": np.full((q, 1), -1),
    "weights": np.ones(q, np.float32),
  }
  return EmbeddedBatch(jnp.asarray(query), jnp.asarray(passage), **(default | fields))


def _output(loss, batch):
  return loss.apply({}, {}, batch, rng=None, train=True)[0]


def test_the_batch_holds_positives_and_negatives():
  """Query 0 has its own passage 10, and 11, another's; its own hard negative and both of query 1 are negatives."""
  scores = np.array([[0.8, 0.5, 0.7, 0.4], [0.3, 0.6, 0.2, 0.55]], np.float32)
  batch = _batch(
    scores,
    np.eye(4, dtype=np.float32),
    passage_rows=np.array([10, 11, 12, 13]),
    positives=np.array([[11], [-1]]),
  )
  loss = multi_triplet(margin=0.3, num_positives=2, num_negatives=2, score=scoring.dot)

  def weighted(*hinges):
    return sum(h * math.exp(h) for h in hinges) / sum(map(math.exp, hinges))

  # Query 0: .5 against .7 and .4; .8 against .7. Query 1: .6 against .55 (.3 has no more than a hinge of 0).
  rows = [(weighted(0.5, 0.2) + weighted(0.2)) / 4, weighted(0.25) / 4]
  output = _output(loss, batch)
  assert float(output.loss) == pytest.approx(np.mean(rows), rel=1e-5)
  assert {n: float(v) for n, v in output.metrics.items()} == pytest.approx(
    {"positives": 1.5, "negatives": 2.5}
  )
  heavier = _output(loss, batch._replace(weights=np.array([3, 1], np.float32)))
  assert float(heavier.loss) == pytest.approx(np.average(rows, weights=[3, 1]), rel=1e-5)


def test_zero_embeddings_have_a_finite_loss_and_gradient():
  batch = _batch(np.zeros((3, 4), np.float32), np.zeros((6, 4), np.float32))
  loss = multi_triplet(num_positives=1, num_negatives=5)
  got, gradient = jax.value_and_grad(lambda x: _output(loss, batch._replace(query=x)).loss)(batch.query)
  assert float(got) == pytest.approx(0.2 / 5)  # five hinges of .2, each of weight 1 / 5, over 5
  assert np.all(np.isfinite(gradient))


@pytest.mark.parametrize(
  "options, message",
  [
    ({"margin": -1.0}, r"margin is -1.0; expected 0 or more, in units of the score \(MARGIN\)"),
    ({"margin": math.nan}, "margin is nan; expected 0 or more"),
    ({"num_positives": 0}, r"num_positives is 0; expected 1 or more .*\(HARDEST_POSITIVES\)"),
    ({"num_negatives": 0}, r"num_negatives is 0; expected 1 or more .*\(HARDEST_NEGATIVES\)"),
    ({"num_negatives": True}, r"num_negatives is True; expected 1 or more .*whole number"),
  ],
)
def test_options_out_of_range(options, message):
  ones = jnp.ones((1, 2), bool)
  with pytest.raises(UserError, match=message):
    multi_triplet(**options)
  with pytest.raises(UserError, match=message):
    multi_triplet_columns(**options)
  with pytest.raises(UserError, match=message):
    multi_triplets(jnp.zeros((1, 2)), ones, ones, **options)


def test_the_loss_of_columns_has_the_options_that_are_given():
  scores, relevant = jnp.array([[0.5, 0.4]]), jnp.array([[True, False]])
  loss = multi_triplet_columns(margin=0.2, num_positives=1, num_negatives=1)
  assert float(loss(scores, relevant, jnp.ones((1, 2), bool))[0]) == pytest.approx(0.1)
