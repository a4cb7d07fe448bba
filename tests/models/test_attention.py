"""Self-attention in bfloat16: its values, and which products its gradient is made of."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

from retrieval_jax.models.attention import SelfAttention, attend

RNG = np.random.default_rng(0)
X = jnp.asarray(RNG.normal(size=(3, 5, 8)), jnp.float32)
MASK = jnp.arange(5)[None, :] < jnp.array([[5], [3], [1]])
BIAS = jnp.asarray(RNG.normal(size=(1, 2, 5, 5)), jnp.float32)
PRODUCT = re.compile(r"dot_general.*: \(tensor<[^>]*x(\w+)>, tensor<[^>]*x(\w+)>\) -> tensor<[^>]*x(\w+)>")


def gradient(dtype: str):
  attention = SelfAttention(2, 4, jax.nn.initializers.normal(0.5), dtype=dtype)
  params = jax.jit(lambda: attention.init(jax.random.key(0), X, MASK, train=False))()

  def loss(params, x, bias):
    return jnp.sum(attention.apply(params, x, MASK, bias, train=False).astype(jnp.float32) ** 2)

  return jax.jit(jax.grad(loss, argnums=(0, 1, 2))), params


@pytest.mark.parametrize("dtype, short", [("float32", "f32"), ("bfloat16", "bf16")])
def test_every_product_of_the_gradient_is_of_one_dtype_summed_in_float32(dtype, short):
  step, params = gradient(dtype)
  products = PRODUCT.findall(step.lower(params, X, BIAS).as_text())
  # Four projections, the logits and the mixture, each with two products behind it.
  assert products == [(short, short, "f32")] * (6 * 3)


def test_bfloat16_gradients_are_near_float32s():
  half, params = gradient("bfloat16")
  full, _ = gradient("float32")
  for got, expected in zip(*(jax.tree.leaves(step(params, X, BIAS)) for step in (half, full)), strict=True):
    assert got.dtype == jnp.float32
    scale = float(jnp.abs(expected).max())
    assert_allclose(got / scale, expected / scale, atol=0.03)


def test_bfloat16_attention_rounds_weights_and_result_alone():
  query, key, value = (jnp.asarray(RNG.normal(size=(3, 2, 5, 4)), jnp.bfloat16) for _ in range(3))
  got = attend(query, key, value, MASK, BIAS)
  wide = [part.astype(jnp.float32) for part in (query, key, value)]
  logits = jnp.einsum("bhqk,bhlk->bhql", wide[0], wide[1], precision="highest") + BIAS
  weights = jax.nn.softmax(jnp.where(MASK[:, None, None, :], logits, -jnp.inf)).astype(jnp.bfloat16)
  expected = jnp.einsum("bhql,bhlk->bhqk", weights.astype(jnp.float32), wide[2], precision="highest")
  assert got.dtype == jnp.bfloat16
  assert_allclose(got.astype(jnp.float32), expected.astype(jnp.bfloat16).astype(jnp.float32), rtol=1 / 64)
