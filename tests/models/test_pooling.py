"""Poolings: T5X's numbers, float32 out, 0 for a row of nothing but padding."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

from retrieval_jax.errors import UserError
from retrieval_jax.models.pooling import POOLINGS, AttentionPooling, pooling


@pytest.mark.parametrize("name", ["mean", "max", "last"])
def test_pooling_oracle(name, oracles):
  archive = np.load(oracles / "poolings.npz")
  got = pooling(name)(jnp.asarray(archive["x"]), jnp.asarray(archive["mask"], jnp.float32))
  assert_allclose(got, archive[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
  "name, expected",
  [("mean", [(1 + 5) / 2, (2 + 3) / 2]), ("max", [5, 3]), ("first", [1, 2]), ("last", [5, 3])],
)
def test_pooling_looks_at_unmasked_tokens_only(name, expected):
  x = jnp.array([[[1.0, 2.0], [5.0, 3.0], [90.0, -90.0]]])
  assert_allclose(pooling(name)(x, jnp.array([[1.0, 1.0, 0.0]])), [expected])


@pytest.mark.parametrize("name", POOLINGS)
def test_all_padding_gives_zero_and_a_finite_gradient(name):
  x = jnp.full((1, 3, 2), 7.0, jnp.bfloat16)
  mask = jnp.zeros((1, 3))
  pooled = pooling(name)(x, mask)
  assert pooled.dtype == jnp.float32
  assert_allclose(pooled, [[0.0, 0.0]])
  gradient = jax.grad(lambda x: jnp.sum(pooling(name)(x, mask)))(x)
  assert np.isfinite(np.asarray(gradient, np.float32)).all()


def test_attention_pooling_oracle(oracles):
  archive = np.load(oracles / "poolings.npz")
  params: dict = {}
  for key in archive.files:
    if key.startswith("attention_params/"):
      _, layer, leaf = key.split("/")
      params.setdefault(layer, {})[leaf] = archive[key]
  got = pooling("attention").apply(
    {"params": params}, jnp.asarray(archive["x"]), jnp.asarray(archive["mask"])
  )
  assert_allclose(got, archive["attention_tanh"], atol=1e-5)


def test_attention_pooling_of_all_padding_is_zero():
  x, mask = jnp.full((1, 3, 2), 7.0), jnp.zeros((1, 3))
  module = AttentionPooling()
  params = module.init(jax.random.key(0), x, mask)
  assert_allclose(module.apply(params, x, mask), [[0.0, 0.0]])
  gradient = jax.grad(lambda x: jnp.sum(module.apply(params, x, mask)))(x)
  assert np.isfinite(gradient).all()


def test_unknown_pooling_names_the_nearest():
  with pytest.raises(
    UserError, match=r"unknown pooling 'men'; expected one of mean, max.*did you mean 'mean'"
  ):
    pooling("men")
