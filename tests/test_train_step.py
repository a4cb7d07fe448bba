"""The train step and state: shardings of every slot, dropout keys, what the metrics say."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from retrieval_jax import optimizers
from retrieval_jax.losses import in_batch
from retrieval_jax.losses.base import DataSizes
from retrieval_jax.models.bert import BertEncoder
from retrieval_jax.models.dual_encoder import dual_encoder
from retrieval_jax.models.tower import Tower
from retrieval_jax.partitioning import partitioner
from retrieval_jax.records import Batch
from retrieval_jax.step_options import StepOptions
from retrieval_jax.train_state import initial_state, state_shardings
from retrieval_jax.train_step import make_train_step


def model(dropout_rate: float = 0.0):
  encoder = BertEncoder(num_layers=1, num_heads=2, embed_dim=16, mlp_dim=32, dropout_rate=dropout_rate)
  return dual_encoder(Tower(encoder=encoder, vocab_size=64))


def batch(size: int = 8) -> Batch:
  tokens = np.random.default_rng(0).integers(1, 64, (2, size, 6)).astype(np.int32)
  rows = np.arange(size, dtype=np.int32)
  return Batch(tokens[0], tokens[1], rows, rows, rows[:, None], np.ones(size, np.float32))


def build(transform, *, dropout_rate: float = 0.0, num_partitions: int = 2):
  loss, part = in_batch.samtone(temperature=0.1), partitioner(num_partitions=num_partitions)
  towers = model(dropout_rate)

  def create():
    return initial_state(jax.random.key(0), towers, loss, transform, data=DataSizes(8, 8))

  shardings = state_shardings(jax.eval_shape(create), towers, part)
  state = jax.jit(create, out_shardings=shardings)()
  step = part.jit_step(make_train_step(towers, loss, transform, seed=0), shardings)
  return state, step, part


@pytest.mark.parametrize("name", ["adamw", "adafactor"])
def test_optimizer_slots_are_sharded_like_their_parameter(name):
  transform = getattr(optimizers, name)(1e-3).transform
  state, step, part = build(transform)
  state, metrics = step(state, part.put_batch(batch()))
  assert int(state.step) == 1
  assert np.isfinite(float(metrics["loss"]))
  kernel = state.params["model"]["encoder"]["layers_0"]["mlp"]["wi"]["kernel"]
  same = [x for x in jax.tree.leaves(state.opt_state) if x.shape == kernel.shape]
  assert same, "no slot has the kernel's shape"
  assert all(x.sharding == kernel.sharding for x in same)
  assert kernel.sharding.shard_shape(kernel.shape) == (16, 16)


def test_dropout_differs_by_step_and_repeats_by_seed():
  transform = optimizers.adamw(1e-12).transform  # the parameters stay: the loss moves by dropout alone
  state, step, part = build(transform, dropout_rate=0.5)
  placed = part.put_batch(batch())
  losses = []
  for _ in range(3):
    state, metrics = step(state, placed)
    losses.append(float(metrics["loss"]))
  assert len(set(losses)) == 3
  again, step, _ = build(transform, dropout_rate=0.5)
  assert float(step(again, placed)[1]["loss"]) == losses[0]


def test_metrics_are_float32_scalars():
  state, step, part = build(optimizers.adamw(1e-3).transform)
  _, metrics = step(state, part.put_batch(batch()))
  assert {"loss", "grad_norm", "accuracy", "negatives", "temperature"} <= metrics.keys()
  assert all(value.shape == () and value.dtype == jnp.float32 for value in metrics.values())


def counting_loss():
  """A loss whose state counts what it was asked: {before, rows of the estimation batch, applied, after}."""
  plain = in_batch.samtone(temperature=0.1)

  def init(rng, *, embed_dim, data):
    params, _ = plain.init(rng, embed_dim=embed_dim, data=data)
    return params, dict.fromkeys(("after", "applied", "before", "norm"), jnp.zeros(()))

  def before(state, estimation):
    norm = jnp.zeros(()) if estimation is None else jnp.sum(estimation.query**2)
    return {**state, "before": state["before"] + 1, "norm": norm}

  def apply(params, state, embedded, *, rng, train):
    output, _ = plain.apply(params, {}, embedded, rng=rng, train=train)
    return output, {**state, "applied": state["applied"] + 1}

  return plain._replace(init=init, apply=apply, before=before, after=lambda s: {**s, "after": s["after"] + 1})


@pytest.mark.parametrize("microbatches", [1, 4])
def test_a_loss_acts_once_before_and_after_all_microbatches(microbatches):
  loss, part, towers = counting_loss(), partitioner(num_partitions=8), model(0.5)
  transform = optimizers.adamw(1e-3).transform

  def create():
    return initial_state(jax.random.key(0), towers, loss, transform, data=DataSizes(8, 8))

  shardings = state_shardings(jax.eval_shape(create), towers, part, loss)
  state = jax.jit(create, out_shardings=shardings)()
  params = jax.tree.map(jnp.copy, state.params["model"])
  options = StepOptions(microbatches=microbatches)
  step = part.jit_step(make_train_step(towers, loss, transform, seed=0, options=options), shardings)
  estimation = batch(4)
  state, _ = step(state, part.put_batch(batch()._replace(estimation=estimation)))
  counted = {name: float(value) for name, value in state.loss_state.items() if name != "norm"}
  assert counted == {"before": 1, "applied": microbatches, "after": 1}
  # The estimation batch goes through the towers as they were, without dropout.
  expected = jnp.sum(towers.encode_queries(params, estimation.query_tokens) ** 2)
  np.testing.assert_allclose(state.loss_state["norm"], expected, rtol=1e-5)


def test_a_losss_state_is_split_by_its_axes():
  plain = in_batch.samtone(temperature=0.1)
  state = {"cache": jnp.zeros((16, 4)), "sum": jnp.zeros((4, 4))}
  loss = plain._replace(
    init=lambda rng, *, embed_dim, data: ({}, state),
    state_axes=lambda state: {"cache": ("batch", None), "sum": (None, None)},
  )
  part, towers = partitioner(num_partitions=2), model()
  transform = optimizers.adamw(1e-3).transform
  abstract = jax.eval_shape(
    lambda: initial_state(jax.random.key(0), towers, loss, transform, data=DataSizes(8, 8))
  )
  found = state_shardings(abstract, towers, part, loss).loss_state
  assert found["cache"].shard_shape((16, 4)) == (4, 4)
  assert found["sum"].is_fully_replicated
