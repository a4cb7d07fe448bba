"""Steps that are not finite are counted and named, or end the training; a full memory names the settings."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from retrieval_jax.losses.base import DataSizes, Loss, stateless
from retrieval_jax.losses.in_batch import in_batch_softmax
from retrieval_jax.models.dual_encoder import dual_encoder
from retrieval_jax.models.feature_bag import FeatureBagTower
from retrieval_jax.records import Batch, EmbeddedBatch, LossOutput
from retrieval_jax.step_guard import NonFiniteError, OutOfMemoryError, StepGuard, explaining_memory
from retrieval_jax.step_options import StepOptions
from retrieval_jax.train_state import TrainState, initial_state
from retrieval_jax.train_step import make_train_step

MODEL = dual_encoder(FeatureBagTower((("id", 5),), embed_dim=2, hidden_dims=(2,)))


def root_of_target() -> Loss:
  """A loss whose value is the mean of sqrt(target) times the scores: NaN for a negative target."""

  def compute(batch: EmbeddedBatch) -> LossOutput:
    scores = jnp.sum(jnp.asarray(batch.query) * jnp.asarray(batch.passage), axis=1)
    return LossOutput(jnp.mean(jnp.sqrt(jnp.asarray(batch.targets)) * scores), {})

  return stateless(compute, requires=frozenset({"targets"}))


def batch(target: float) -> Batch:
  ids = {"id": np.array([[1], [2]], np.int32)}
  rows = np.arange(2, dtype=np.int32)
  weights = np.ones(2, np.float32)
  return Batch(ids, ids, rows, rows, rows[:, None], weights, targets=np.full(2, target, np.float32))


def guarded(limit: int, loss: Loss | None = None) -> tuple[StepGuard, TrainState]:
  loss = root_of_target() if loss is None else loss
  transform, options = optax.adam(0.1), StepOptions(max_nonfinite_steps=limit)
  state = initial_state(jax.random.key(0), MODEL, loss, transform, data=DataSizes(2, 2))
  step = jax.jit(make_train_step(MODEL, loss, transform, seed=0, options=options))
  return StepGuard(step, options, 2), state


def equal(a: object, b: object) -> bool:
  return all(np.array_equal(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


def test_the_first_nonfinite_step_stops_by_default_and_is_seen_while_the_next_one_runs():
  guard, state = guarded(0)
  state = guard.run(1, state, batch(1.0))
  assert guard.metrics()["nonfinite_steps"] == 0
  state = guard.run(2, state, batch(-1.0))
  with pytest.raises(
    NonFiniteError, match=r"^step 2: .*loss is nan.*Lower LEARNING_RATE.*MAX_NONFINITE_STEPS"
  ):
    guard.run(3, state, batch(1.0))


def test_a_nonfinite_step_changes_nothing_but_the_step_number_and_is_named(capsys):
  guard, start = guarded(2)
  state = guard.run(1, start, batch(-1.0))
  assert int(state.step) == 1
  assert equal(start.replace(step=state.step), state)
  assert guard.metrics()["nonfinite_steps"] == 1
  assert np.isnan(guard.metrics()["loss"])  # a second look counts nothing
  said = capsys.readouterr().err
  assert said.count("step 1: ") == 1
  assert "loss is nan" in said
  assert "its update was left out (1 of at most 2 such steps)" in said
  after = guard.run(2, state, batch(1.0))
  assert not equal(after.params, state.params)
  assert guard.metrics()["nonfinite_steps"] == 1


def test_one_nonfinite_step_too_many_stops():
  guard, state = guarded(1)
  state = guard.run(1, state, batch(-1.0))
  guard.run(2, state, batch(-1.0))
  with pytest.raises(NonFiniteError, match=r"step 2: .* number 2 since the start; MAX_NONFINITE_STEPS is 1"):
    guard.metrics()


def test_a_finite_loss_with_a_gradient_that_is_not_is_a_nonfinite_step():
  def compute(batch: EmbeddedBatch) -> LossOutput:
    return LossOutput(
      jnp.sum(jnp.sqrt(0 * jnp.asarray(batch.query))), {}
    )  # 0, whose gradient is 0 * infinity

  guard, state = guarded(1, stateless(compute))
  after = guard.run(1, state, batch(1.0))
  metrics = guard.metrics()
  assert metrics["loss"] == 0
  assert metrics["nonfinite_steps"] == 1
  assert equal(after.params, state.params)


def test_a_full_memory_names_the_settings():
  def too_large(state, batch):
    return jnp.zeros(2**46, jnp.float32), batch

  guard = StepGuard(too_large, StepOptions(chunks=2), 128)
  with pytest.raises(
    OutOfMemoryError,
    match=r"(?s)TRAIN_CHUNKS \(now 2\): try 4.*same gradient.*BATCH_SIZE \(now 128\).*fewer negatives.*REMAT_POLICY"
    r".*JAX said: RESOURCE_EXHAUSTED: Out of memory allocating 281474976710656 bytes",
  ):
    guard.run(1, guarded(0)[1], batch(1.0))


def test_other_errors_come_through():
  with pytest.raises(jax.errors.JaxRuntimeError, match="INTERNAL"), explaining_memory(StepOptions(), 8):
    raise jax.errors.JaxRuntimeError("INTERNAL: something else")


@pytest.mark.parametrize("microbatches", [1, 2])
def test_a_step_without_negatives_is_named_once(capsys, microbatches):
  """Two queries in two microbatches have none; in one batch each is the other's."""
  transform, options = optax.sgd(0.1), StepOptions(microbatches=microbatches)
  loss = in_batch_softmax(temperature=1.0)
  state = initial_state(jax.random.key(0), MODEL, loss, transform, data=DataSizes(2, 2))
  guard = StepGuard(jax.jit(make_train_step(MODEL, loss, transform, seed=0, options=options)), options, 2)
  for number in (1, 2):
    state = guard.run(number, state, batch(1.0))
  guard.metrics()
  said = capsys.readouterr().err
  assert said.count("no query has a negative") == microbatches - 1
