"""The linear map in float32 and bfloat16: values, gradients, dtypes."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from numpy.testing import assert_allclose, assert_array_equal

from retrieval_jax.models.dense import Dense, half_product

X = np.random.default_rng(0).normal(size=(5, 3, 8)).astype(np.float32)


def apply(dtype: str, params, x):
  dense = Dense(4, ("embed", "mlp"), jax.nn.initializers.normal(1.0), use_bias=True, dtype=dtype)
  return dense.apply({"params": params}, jnp.asarray(x))


PARAMS = {
  "kernel": jnp.asarray(np.random.default_rng(1).normal(size=(8, 4)), jnp.float32),
  "bias": jnp.array([0.0, 1.0, -1.0, 100.0]),
}


def test_float32_is_x_times_w_plus_b():
  assert_allclose(
    apply("float32", PARAMS, X), X @ PARAMS["kernel"] + PARAMS["bias"][None, None], rtol=1e-5, atol=1e-5
  )


def test_bfloat16_sums_in_float32_and_rounds_once():
  half = lambda x: jnp.asarray(x, jnp.bfloat16).astype(jnp.float32)  # noqa: E731
  expected = half(half(X) @ half(PARAMS["kernel"]) + PARAMS["bias"][None, None])
  got = apply("bfloat16", PARAMS, X)
  assert got.dtype == jnp.bfloat16
  assert_allclose(got.astype(jnp.float32), expected, rtol=1 / 128)


def test_gradients_of_the_half_product_are_products_of_halves():
  x, kernel = jnp.asarray(X[0], jnp.bfloat16), PARAMS["kernel"].astype(jnp.bfloat16)
  gradient = jnp.asarray(np.random.default_rng(2).normal(size=(3, 4)), jnp.float32)
  value, pull = jax.vjp(partial(half_product, "bn,nf->bf"), x, kernel)
  by_x, by_kernel = pull(gradient)
  assert (value.dtype, by_x.dtype, by_kernel.dtype) == (jnp.float32, jnp.bfloat16, jnp.bfloat16)
  rounded = gradient.astype(jnp.bfloat16).astype(jnp.float32)
  assert_allclose(by_x.astype(jnp.float32), rounded @ kernel.T.astype(jnp.float32), rtol=1 / 64, atol=1e-2)
  assert_allclose(by_kernel.astype(jnp.float32), x.T.astype(jnp.float32) @ rounded, rtol=1 / 64, atol=1e-2)
  text = (
    jax.jit(lambda x, k, g: jax.vjp(partial(half_product, "bn,nf->bf"), x, k)[1](g))
    .lower(x, kernel, gradient)
    .as_text()
  )
  products = [line for line in text.splitlines() if "dot_general" in line]
  assert len(products) == 2
  assert all(line.count("bf16>") >= 2 for line in products), (
    "a product of float32 by bfloat16 is slow on every backend"
  )


def test_parameters_get_float32_gradients():
  gradient = jax.grad(lambda p: jnp.sum(apply("bfloat16", p, X).astype(jnp.float32)))(PARAMS)
  assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(gradient))
  assert_array_equal(gradient["bias"], [15.0] * 4)
