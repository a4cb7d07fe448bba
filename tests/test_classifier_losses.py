import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from retrieval_jax import scoring
from retrieval_jax.classifier_losses import masks, of_columns, of_pairs
from retrieval_jax.errors import UserError
from retrieval_jax.label_unions import UnionBatch
from retrieval_jax.losses.distillation import margin_mse
from retrieval_jax.losses.in_batch import in_batch_softmax
from retrieval_jax.losses.temperature import learned
from retrieval_jax.losses.triplet import triplet

NUM_LABELS = 20


def batch_of(relevant, *, filtered=None, labels=None, size=None, weights=None):
  """Returns the batch of a [q, l] mask of labels, padded to `size` columns; a point's own label is its first."""
  q, count = relevant.shape
  size = count if size is None else size
  columns = columns_of(relevant, size)
  labels = np.arange(count) if labels is None else np.asarray(labels)
  return UnionBatch(
    points=np.zeros((q, 1), np.float32),
    labels=np.concatenate([labels, NUM_LABELS + 5 + np.arange(size - count)]).astype(np.int32),
    own=columns[:, 0],
    positives=columns,
    filtered=np.zeros((q, 0), np.int32) if filtered is None else columns_of(filtered, size),
    weights=np.ones(q, np.float32) if weights is None else np.asarray(weights, np.float32),
  )


def columns_of(mask, size):
  width = max(int(mask.sum(axis=1).max()), 1)
  found = np.full((len(mask), width), size, np.int32)
  for row, known in zip(found, mask, strict=True):
    row[: known.sum()] = np.flatnonzero(known)
  return found


def oracle(oracles, name="M2_multi_p3_n5"):
  (case,) = [c for c in json.loads((oracles / "ngame_loss.json").read_text())["cases"] if c["name"] == name]
  return np.array(case["S"]), np.array(case["Y"], bool), case


def product(points, classifiers):
  """The score of `factors`."""
  return points @ classifiers.T


def factors(scores):
  """Returns points [q, l] and classifiers [l, l] whose products are the scores."""
  return jnp.asarray(scores), jnp.eye(scores.shape[1], dtype=scores.dtype)


def test_ngame_s_published_value_and_gradient_with_padding_behind(oracles):
  scores, relevant, case = oracle(oracles)
  q, count = relevant.shape
  batch = batch_of(relevant, size=count + 5)
  loss = of_columns(score=product)
  with jax.enable_x64(True):
    points, classifiers = factors(scores)
    padded = jnp.pad(classifiers, ((0, 5), (0, 0)), constant_values=3.0)  # would be the hardest of all

    def value(points):
      return loss(points, padded, batch, num_labels=NUM_LABELS).loss

    got, gradient = jax.value_and_grad(value)(points)
    assert_allclose(got, case["loss"], rtol=1e-6)
    assert_allclose(gradient, case["grad"], rtol=1e-6, atol=1e-9)
    metrics = loss(points, padded, batch, num_labels=NUM_LABELS).metrics
  assert_allclose(metrics["positives"], relevant.sum() / q)
  assert_allclose(metrics["negatives"], (~relevant).sum() / q)


def test_a_square_batch_is_like_any_other(oracles):
  """The official code takes the diagonal for the positives where there are as many labels as points; this does not."""
  scores, relevant, case = oracle(oracles, "M2_multi_square_trap")
  points, classifiers = factors(scores.astype(np.float32))
  loss = of_columns(score=product)
  count = relevant.shape[1]
  square = loss(points, classifiers, batch_of(relevant), num_labels=NUM_LABELS).loss
  wide = jnp.pad(classifiers, ((0, 4), (0, 0)))
  assert_allclose(
    square, loss(points, wide, batch_of(relevant, size=count + 4), num_labels=NUM_LABELS).loss, rtol=1e-6
  )
  assert abs(float(square) - case["loss"]) > 1e-3


def test_a_point_of_weight_0_is_as_if_absent(oracles):
  scores, relevant, _ = oracle(oracles)
  points, classifiers = factors(scores.astype(np.float32))
  loss = of_columns(score=product)
  weights = [1, 1, 0, 1, 0, 1]
  kept = np.flatnonzero(weights)
  got = loss(points, classifiers, batch_of(relevant, weights=weights), num_labels=NUM_LABELS).loss
  want = loss(points[kept], classifiers, batch_of(relevant[kept]), num_labels=NUM_LABELS).loss
  assert_allclose(got, want, rtol=1e-6)
  nothing = batch_of(relevant, weights=np.zeros(6))
  value, gradient = jax.value_and_grad(lambda p: loss(p, classifiers, nothing, num_labels=NUM_LABELS).loss)(
    points
  )
  assert value == 0
  assert_array_equal(gradient, 0)


def test_what_is_filtered_is_neither_positive_nor_negative():
  relevant = np.array([[True, False, False]])
  filtered = np.array([[False, True, False]])
  batch = batch_of(relevant, filtered=filtered, size=4)
  known, present = masks(batch, NUM_LABELS)
  assert_array_equal(known, [[True, False, False, False]])
  assert_array_equal(present, [[True, False, True, False]])
  # Cosines .8 with the positive, 1 with the filtered label, .6 with the negative: hinge .6 - .8 + .25 = .05, over 1 x 1.
  points = jnp.array([[1.0, 0.0]])
  classifiers = jnp.array([[0.8, 0.6], [1.0, 0.0], [0.6, 0.8], [0.0, 0.0]])

  def compute(scores, relevant, present):
    from retrieval_jax.losses.multi_triplet import multi_triplets

    return multi_triplets(scores, relevant, present, margin=0.25, num_positives=1, num_negatives=1)

  loss = of_columns(compute)
  assert_allclose(loss(points, classifiers, batch, num_labels=NUM_LABELS).loss, 0.05, atol=1e-6)


def test_a_softmax_of_losses_sees_each_label_once():
  """Two points with the labels {0, 1} and {2}; label 3 is a hard negative. Own labels 0 and 2."""
  relevant = np.array([[True, True, False, False], [False, False, True, False]])
  batch = batch_of(relevant, size=6)
  rng = np.random.default_rng(0)
  points, classifiers = rng.normal(size=(2, 3)), np.pad(rng.normal(size=(4, 3)), ((0, 2), (0, 0)))
  points, classifiers = jnp.asarray(points, jnp.float32), jnp.asarray(classifiers, jnp.float32)
  loss = of_pairs(in_batch_softmax(temperature=0.5, bidirectional=False))
  got, gradient = jax.value_and_grad(lambda c: loss(points, c, batch, num_labels=NUM_LABELS).loss)(
    classifiers
  )
  s = np.exp(np.asarray(scoring.cosine(points, classifiers)) / 0.5)
  first = -np.log(s[0, 0] / (s[0, 0] + s[0, 2] + s[0, 3]))  # label 1 is a positive too: no negative
  second = -np.log(s[1, 2] / (s[1, 2] + s[1, 0] + s[1, 1] + s[1, 3]))
  assert_allclose(got, (first + second) / 2, rtol=1e-5)
  assert_array_equal(gradient[4:], 0)


def test_a_triplet_of_losses_leaves_filtered_labels_out():
  relevant = np.array([[True, False, False], [False, False, True]])
  filtered = np.array([[False, True, False], [False, False, False]])
  points = jnp.array([[1.0, 0.0], [0.0, 1.0]])
  classifiers = jnp.array([[0.8, 0.6], [1.0, 0.0], [0.0, 1.0]])
  loss = of_pairs(triplet(margin=0.5, hardest=1))
  got = loss(points, classifiers, batch_of(relevant, filtered=filtered), num_labels=NUM_LABELS).loss
  # Point 0: label 2 at 0 - .8 + .5 < 0; label 1 would be 1 - .8 + .5. Point 1: label 0 at .6 - 1 + .5 = .1.
  assert_allclose(got, (0 + 0.1) / 2, atol=1e-6)


@pytest.mark.parametrize(
  "loss, message",
  [
    (margin_mse(), "the loss reads teacher_scores, which the batches of classifiers do not have"),
    (in_batch_softmax(temperature=learned(initial=0.05)), "the loss has parameters or a state of its own"),
  ],
)
def test_losses_that_need_more_are_refused(loss, message):
  with pytest.raises(UserError, match=f"CLASSIFIER_LOSS: {message}"):
    of_pairs(loss)
