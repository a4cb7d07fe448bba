import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from retrieval_jax.classifier_losses import of_columns
from retrieval_jax.classifier_state import (
  NAME,
  abstract_state,
  by_rows,
  bytes_needed,
  initial_state,
  padded_rows,
)
from retrieval_jax.classifier_step import (
  ClassifierStepOptions,
  jit_classifier_step,
  make_classifier_step,
  put_batch,
)
from retrieval_jax.errors import UserError
from retrieval_jax.label_unions import UnionBatch
from retrieval_jax.partitioning import partitioner
from retrieval_jax.sparse_optimizers import sparse_adam
from tests.hlo import arrays, collectives

C, D, Q, U = 800, 16, 16, 12  # 800 labels make 1,536 rows
ROWS = 1536


def rate(step):
  return jnp.full((), 0.01)


@pytest.fixture(scope="module")
def embeddings():
  return np.random.default_rng(0).normal(size=(C, D)).astype(np.float32)


def batch_of(step):
  """Ten labels of sixteen points of which the last is padding; each point has one or two of them."""
  rng = np.random.default_rng(step)
  labels = np.sort(rng.choice(C, 10, replace=False))
  positives = np.stack([rng.integers(0, 10, Q), rng.integers(0, 10, Q)], axis=1).astype(np.int32)
  positives[::3, 1] = U
  positives[-1] = U
  return UnionBatch(
    points=rng.normal(size=(Q, D)).astype(np.float32),
    labels=np.concatenate([labels, [ROWS, ROWS + 1]]).astype(np.int32),
    own=positives[:, 0],
    positives=positives,
    filtered=np.zeros((Q, 0), np.int32),
    weights=np.array([1] * (Q - 1) + [0], np.float32),
  )


def compiled_step(part, **options):
  optimizer = sparse_adam(rate)
  step = make_classifier_step(
    of_columns(), optimizer, num_labels=C, seed=0, options=ClassifierStepOptions(**options)
  )
  target = abstract_state(C, D, optimizer, part)
  return jit_classifier_step(step, jax.tree.map(lambda x: x.sharding, target), part), target


@pytest.fixture(scope="module")
def one():
  part = partitioner(devices=jax.devices()[:1])
  return part, *compiled_step(part)


@pytest.fixture(scope="module")
def eight():
  part = partitioner(num_partitions=2)
  return part, *compiled_step(part)


def trained(devices, embeddings, steps=3):
  """Returns the state after some steps, and the metrics of the last."""
  part, step, _ = devices
  state, metrics = initial_state(embeddings, sparse_adam(rate), part), {}
  for number in range(steps):
    state, metrics = step(state, put_batch(batch_of(number), part))
  return state, metrics


def test_the_start_is_the_labels_embeddings_at_unit_length(embeddings, eight):
  state = initial_state(embeddings, sparse_adam(rate), eight[0])
  weights = np.asarray(state.params[NAME])
  assert weights.shape == (ROWS, D)
  assert_allclose(weights[:C], embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True), atol=1e-6)
  assert_array_equal(weights[C:], 0)
  for array in (state.params[NAME], *state.opt_state.values()):
    assert {shard.data.shape for shard in array.addressable_shards} == {(ROWS // 8, D)}


def test_8_devices_are_1_device(embeddings, one, eight):
  (alone, metrics), (split, split_metrics) = trained(one, embeddings), trained(eight, embeddings)
  assert int(split.step) == 3
  for name in metrics:
    assert_allclose(split_metrics[name], metrics[name], rtol=1e-5)
  for a, b in zip(jax.tree.leaves(alone), jax.tree.leaves(split), strict=True):
    assert_allclose(b, a, atol=1e-6)


def test_rows_that_no_batch_touched_keep_their_bits(embeddings, eight):
  start = np.asarray(initial_state(embeddings, sparse_adam(rate), eight[0]).params[NAME])
  state, metrics = trained(eight, embeddings)
  touched = np.unique(np.concatenate([batch_of(step).labels[:10] for step in range(3)]))
  others = np.setdiff1d(np.arange(ROWS), touched)
  assert_array_equal(np.asarray(state.params[NAME])[others], start[others])
  for slot in state.opt_state.values():
    assert_array_equal(np.asarray(slot)[others], 0)
    assert np.abs(np.asarray(slot)[touched]).max(axis=1).min() > 0
  assert np.abs(np.asarray(state.params[NAME])[touched] - start[touched]).max(axis=1).min() > 0
  assert metrics["labels"] == 10


def test_a_step_touches_nothing_but_the_batch_s_rows(eight):
  """Each device's piece [192, d] is read, and written in place, and enters no arithmetic; what travels is [u, d]."""
  _, step, target = eight
  program = step.lower(target, batch_of(0)).compile()
  text = program.as_text()
  piece = rf"f32\[{ROWS // 8},{D}\]"
  operations = set(re.findall(rf"= {piece}\S* ([\w-]+)\(", text))
  assert operations <= {
    "parameter",
    "scatter",
    "fusion",
    "while",
    "get-tuple-element",
    "dynamic-update-slice",
    "bitcast",
    "conditional",
  }
  assert not re.search(
    rf"= {piece}\S* (add|multiply|subtract|divide|copy|sqrt|select|broadcast|all-gather)\(", text
  )
  assert (ROWS, D) not in arrays(text)
  moved = {shape for one in collectives(text) if one.floats for shape in one.shapes}
  assert moved <= {(U, D), (), (1,)}
  memory = program.memory_analysis()
  assert memory.temp_size_in_bytes < 4 * ROWS // 8 * D * 4
  assert memory.alias_size_in_bytes >= 3 * ROWS // 8 * D * 4


def test_the_work_does_not_grow_with_the_labels():
  part, optimizer = partitioner(devices=jax.devices()[:1]), sparse_adam(rate)
  step = make_classifier_step(of_columns(), optimizer, num_labels=C, seed=0)
  found = []
  for labels in (C, 40 * C):
    target = abstract_state(labels, D, optimizer, part)
    jitted = jit_classifier_step(step, jax.tree.map(lambda x: x.sharding, target), part)
    program = jitted.lower(target, batch_of(0)).compile()
    found.append((program.cost_analysis()["flops"], program.memory_analysis().temp_size_in_bytes))
  assert found[0][0] == found[1][0]
  assert found[1][1] <= found[0][1] + 64


def test_dropout_is_drawn_anew_in_every_step_and_the_same_again(embeddings, one):
  part, step, _ = one
  batch = put_batch(batch_of(0), part)

  def loss_at(number):
    state = initial_state(embeddings, sparse_adam(rate), part)
    return float(step(state.replace(step=jnp.int32(number)), batch)[1]["loss"])

  assert loss_at(0) == loss_at(0)
  assert loss_at(0) != loss_at(1)


def test_a_step_that_is_not_finite_changes_nothing_where_that_is_allowed(embeddings):
  part = partitioner(devices=jax.devices()[:1])
  step, _ = compiled_step(part, max_nonfinite_steps=1)
  state = initial_state(embeddings, sparse_adam(rate), part)
  start = np.array(state.params[NAME])  # a copy: the step takes the state's memory
  batch = batch_of(0)
  batch.points[3] = np.nan
  state, metrics = step(state, put_batch(batch, part))
  assert not np.isfinite(metrics["grad_norm"])
  assert int(state.step) == 1
  assert_array_equal(state.params[NAME], start)
  assert_array_equal(state.opt_state["m"], 0)
  state, metrics = step(state, put_batch(batch_of(0), part))
  assert np.isfinite(metrics["grad_norm"])
  assert np.abs(np.asarray(state.params[NAME]) - start).max() > 0


def test_bytes():
  adam = sparse_adam(rate)
  assert padded_rows(1) == padded_rows(768) == 768
  assert bytes_needed(C, D, adam) == (4 * ROWS * D, 3 * 4 * ROWS * D)


@pytest.mark.parametrize(
  "options, message",
  [
    ({"dropout_rate": 1.0}, r"POINT_DROPOUT=1\.0: expected 0 or more and less than 1"),
    ({"max_nonfinite_steps": -1}, "MAX_NONFINITE_STEPS=-1: expected a whole number of at least 0"),
  ],
)
def test_options_that_cannot_be(options, message):
  with pytest.raises(UserError, match=message):
    ClassifierStepOptions(**options).check()


def test_a_number_of_devices_that_cannot_be():
  with pytest.raises(UserError, match=r"divisor of 768, such as 4 or 6, not 5"):
    by_rows(partitioner(devices=jax.devices()[:5]))
