import jax.numpy as jnp
import numpy as np

from retrieval_jax.hardness import in_batch_hardness

QUERIES = jnp.array([[1.0, 0.0], [2.0, 0.0], [0.0, 1.0], [3.0, 4.0]])


def test_the_mean_cosine_to_the_nearest_others():
  """Cosines: 0-1 1, 0-2 0, 0-3 0.6, 1-2 0, 1-3 0.6, 2-3 0.8."""
  one = in_batch_hardness(QUERIES, jnp.arange(4), nearest=1)
  two = in_batch_hardness(QUERIES, jnp.arange(4), nearest=2)
  assert np.isclose(one, (1 + 1 + 0.8 + 0.8) / 4)
  assert np.isclose(two, ((1 + 0.6) / 2 + (1 + 0.6) / 2 + (0.8 + 0) / 2 + (0.8 + 0.6) / 2) / 4)


def test_fewer_others_than_asked_for():
  ten = in_batch_hardness(QUERIES, jnp.arange(4), nearest=10)
  assert np.isclose(ten, ((1 + 0 + 0.6) + (1 + 0 + 0.6) + (0 + 0 + 0.8) + (0.6 + 0.6 + 0.8)) / 3 / 4)


def test_copies_and_padding_do_not_count():
  copies = in_batch_hardness(QUERIES, jnp.array([7, 7, 2, 3]), nearest=1)
  assert np.isclose(copies, (0.6 + 0.6 + 0.8 + 0.8) / 4)
  padded = in_batch_hardness(QUERIES, jnp.array([0, 1, -1, -1]), nearest=1)
  assert np.isclose(padded, 1.0)
  assert in_batch_hardness(QUERIES, jnp.array([5, -1, -1, -1]), nearest=1) == 0
