"""Dropout: rate, expectation, shared axes, independence from sharding."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from numpy.testing import assert_allclose, assert_array_equal

from retrieval_jax.errors import UserError
from retrieval_jax.models.dropout import Dropout, keep_mask


def apply(rate: float, x, *, train=True, seed=0, broadcast_axes=()):
  module = Dropout(rate, broadcast_axes)
  return module.apply({}, x, train=train, rngs={"dropout": jax.random.key(seed)})


def test_kept_entries_are_divided_by_what_the_rounded_rate_keeps():
  y = np.asarray(apply(0.1, jnp.ones((200, 501))))
  kept = y[y != 0]
  assert_allclose(kept, 256 / (256 - 26), rtol=1e-6)
  # Standard deviation of the mean over 100,200 entries: about 0.001.
  assert_allclose(y.mean(), 1.0, atol=0.005)


def test_neighbours_are_independent():
  """Four entries share one draw: their bytes must not agree more often than chance."""
  keep = np.asarray(keep_mask(jax.random.key(1), (1000, 400), dropped=128)).reshape(-1, 4)
  for i in range(4):
    for j in range(i):
      assert_allclose(np.mean(keep[:, i] == keep[:, j]), 0.5, atol=0.01)


def test_one_draw_serves_a_broadcast_axis():
  y = apply(0.5, jnp.ones((4, 6, 32)), broadcast_axes=(-2,))
  assert_array_equal(y, jnp.broadcast_to(y[:, :1], y.shape))
  assert len(np.unique(np.asarray(y[:, 0]), axis=0)) == 4


def test_identity_without_training_and_at_rate_0_needs_no_key():
  x = jnp.arange(6.0)
  assert_array_equal(Dropout(0.5).apply({}, x, train=False), x)
  assert_array_equal(Dropout(0.0).apply({}, x, train=True), x)


def test_same_key_same_mask_other_key_other_mask():
  x = jnp.ones((8, 33))
  assert_array_equal(apply(0.3, x, seed=1), apply(0.3, x, seed=1))
  assert (apply(0.3, x, seed=1) != apply(0.3, x, seed=2)).any()


def test_bfloat16_stays_bfloat16():
  assert apply(0.5, jnp.ones((4, 4), jnp.bfloat16)).dtype == jnp.bfloat16


def test_sharded_mask_equals_the_mask_on_one_device():
  mesh = jax.make_mesh((2, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2, devices=jax.devices()[:4])
  sharding = NamedSharding(mesh, P("data", None, "model"))
  draw = jax.jit(lambda key: keep_mask(key, (4, 3, 32), dropped=100), out_shardings=sharding)
  key = jax.random.key(5)
  assert_array_equal(draw(key), keep_mask(key, (4, 3, 32), dropped=100))


@pytest.mark.parametrize("rate", [-0.1, 1.0])
def test_impossible_rate(rate):
  with pytest.raises(UserError, match=f"dropout rate {rate}: expected 0 <= rate < 1"):
    apply(rate, jnp.ones(3))
