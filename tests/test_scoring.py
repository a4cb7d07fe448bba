"""Scores: made in float32 whatever comes in, distinct where bfloat16 would merge them, finite at zero vectors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from retrieval_jax import scoring


def _at_cosines(cosines):
  """Returns unit vectors of the plane with these cosines to (1, 0)."""
  cosines = np.asarray(cosines)
  return np.stack([cosines, np.sqrt(1 - cosines**2)], axis=1)


@pytest.mark.parametrize("score", [scoring.cosine, jax.jit(scoring.cosine)], ids=["eager", "jit"])
@pytest.mark.parametrize(
  "cosines",
  [
    [0.995, 0.997, 0.998, 0.999],  # bfloat16: three are 0.99609375, the last is 1
    [0.999, 0.9975, 0.996],
    [0.5, 0.5001, 0.5002],
    [-0.9991, -0.9990, -0.9989],
  ],
)
def test_cosines_that_differ_stay_different(score, cosines):
  assert len(set(np.asarray(cosines, jnp.bfloat16).tolist())) < len(cosines)
  got = score(jnp.array([[1.0, 0.0]]), jnp.asarray(_at_cosines(cosines), jnp.float32))
  assert got.dtype == jnp.float32
  np.testing.assert_allclose(got[0], cosines, atol=1e-6)
  np.testing.assert_array_equal(np.argsort(got[0]), np.argsort(cosines))


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize("score", [scoring.cosine, scoring.dot])
def test_half_precision_is_raised_before_the_product(score, dtype):
  rng = np.random.default_rng(0)
  query, passage = (jnp.asarray(rng.normal(size=(3, 16)), dtype) for _ in range(2))
  got = score(query, passage)
  assert got.dtype == jnp.float32
  exact = score(query.astype(jnp.float32), passage.astype(jnp.float32))
  np.testing.assert_array_equal(got, exact)


def test_float16_does_not_overflow():
  """300 * 300 + 300 * 300 is above 65504, the largest float16; the squared norm too."""
  x = jnp.full((1, 2), 300, jnp.float16)
  assert float(scoring.dot(x, x)[0, 0]) == 180_000
  assert float(scoring.cosine(x, x)[0, 0]) == pytest.approx(1, rel=1e-6)


def test_float64_is_kept():
  with jax.enable_x64(True):
    x = jnp.asarray(_at_cosines([1 - 1e-12]))
    assert scoring.dot(x, x).dtype == scoring.cosine(x, x).dtype == jnp.float64


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_zero_vectors_score_0_with_finite_gradients(dtype):
  """On either side, on both, and next to a vector that is not zero."""
  some = jnp.asarray([[0.0, 0.0], [3.0, 4.0]], dtype)

  def total(query, passage):
    return jnp.sum(scoring.cosine(query, passage))

  np.testing.assert_allclose(scoring.cosine(some, some), [[0, 0], [0, 1]], rtol=1e-5)
  for gradient in jax.grad(total, (0, 1))(some, some):
    assert np.isfinite(gradient.astype(jnp.float32)).all()


def test_the_preparation_of_a_score_makes_it_an_inner_product():
  rng = np.random.default_rng(0)
  query, passage = (jnp.asarray(rng.normal(size=(3, 4)), jnp.float32) for _ in range(2))
  for score in (scoring.cosine, scoring.dot):
    prepare = scoring.preparation(score)
    np.testing.assert_allclose(
      scoring.dot(prepare(query), prepare(passage)), score(query, passage), rtol=1e-6
    )
  assert scoring.preparation(lambda query, passage: scoring.dot(query, passage)) is None
