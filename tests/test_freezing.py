"""Frozen parameters: bit-equal after training, without state, without decay; patterns that match nothing are refused."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from retrieval_jax.errors import UserError
from retrieval_jax.freezing import freeze, frozen_mask
from retrieval_jax.losses.base import DataSizes
from retrieval_jax.losses.in_batch import samtone
from retrieval_jax.models.dual_encoder import dual_encoder
from retrieval_jax.models.t5 import T5Encoder
from retrieval_jax.models.tower import Tower
from retrieval_jax.optimizers import adafactor, adamw
from retrieval_jax.partitioning import partitioner
from retrieval_jax.records import Batch
from retrieval_jax.train_state import initial_state, state_shardings
from retrieval_jax.train_step import make_train_step

ENCODER = T5Encoder(num_layers=1, num_heads=2, head_dim=4, embed_dim=8, mlp_dim=16)
MODEL = dual_encoder(Tower(ENCODER, vocab_size=16, projection_dim=4), sharing="ade_fte")
OPTIMIZERS = {"adamw": adamw(1e-2, weight_decay=0.1, clip_norm=1.0), "adafactor": adafactor(1e-2)}


def batch() -> Batch:
  tokens = np.random.default_rng(0).integers(1, 16, (8, 5)).astype(np.int32)
  rows = np.arange(8, dtype=np.int32)
  return Batch(tokens, tokens[:, ::-1].copy(), rows, rows, rows[:, None], np.ones(8, np.float32))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_frozen_parameters_stay_bit_equal_on_the_mesh(optimizer):
  patterns = (*MODEL.frozen_paths, "query_encoder/layers_0/mlp/.*")
  transform = freeze(OPTIMIZERS[optimizer].transform, patterns)
  loss = samtone(temperature=0.1)
  create = lambda rng: initial_state(  # noqa: E731
    rng, MODEL, loss, transform, data=DataSizes(num_queries=8, num_passages=8)
  )
  mesh = partitioner(num_partitions=2)
  abstract = jax.eval_shape(create, jax.random.key(0))
  shardings = state_shardings(abstract, MODEL, mesh)
  state = jax.jit(create, out_shardings=shardings)(jax.random.key(0))
  # A negative zero is a bit pattern too.
  table = state.params["model"]["token_embedder"]["embedding"].at[3, 0].set(-0.0)
  state = state.replace(
    params={**state.params, "model": {**state.params["model"], "token_embedder": {"embedding": table}}}
  )
  state = jax.device_put(state, shardings)
  before = jax.tree.map(np.array, state.params["model"])
  step = mesh.jit_step(make_train_step(MODEL, loss, transform, seed=0, frozen=patterns), shardings)
  for _ in range(3):
    state, metrics = step(state, mesh.put_batch(batch()))
  assert np.isfinite(float(metrics["grad_norm"]))
  mask = frozen_mask(before, patterns)
  after = jax.tree.map(np.array, state.params["model"])
  for frozen, old, new in zip(*(jax.tree.leaves(t) for t in (mask, before, after)), strict=True):
    assert (old.tobytes() == new.tobytes()) == frozen
  frozen_size = sum(x.size for x, m in zip(jax.tree.leaves(before), jax.tree.leaves(mask), strict=True) if m)
  assert frozen_size == 16 * 8 + 3 * 8 * 16


def test_frozen_parameters_have_no_state():
  params = {"model": {"a": jnp.ones((4, 4)), "b": jnp.ones(3)}}
  state = freeze(optax.adam(0.1), ["a"]).init(params)
  assert sum(leaf.size for leaf in jax.tree.leaves(state)) == 2 * 3 + 1


def test_freezing_everything_is_a_mistake():
  with pytest.raises(UserError, match="nothing is left to train"):
    freeze(optax.sgd(0.1), [".*"]).init({"model": {"a": jnp.ones(2)}})


def test_no_pattern_is_the_transformation_itself():
  transform = optax.adam(0.1)
  assert freeze(transform, ()) is transform


@pytest.mark.parametrize(
  "pattern, message",
  [
    ("token_embeder/.*", "matches no parameter"),
    ("encoder", "matches no parameter"),
    ("(", "not a regular expression"),
  ],
)
def test_bad_patterns(pattern, message):
  params = {"model": {"token_embedder": {"embedding": jnp.ones((2, 2))}, "encoder": {"kernel": jnp.ones(2)}}}
  with pytest.raises(UserError, match=message):
    freeze(optax.sgd(0.1), [pattern]).init(params)
