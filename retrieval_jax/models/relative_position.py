"""T5's relative position bias (Raffel et al. 2020, section 2.1): one learnt number a head and bucket of distances."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from retrieval_jax import sharding
from retrieval_jax.models.parameter import parameter


def bucket(
  distance: Int[np.ndarray, "*b"], *, num_buckets: int = 32, max_distance: int = 128
) -> Int[np.ndarray, "*b"]:
  """Returns the bucket of each distance = key position - query position.

  Half of the buckets serve keys after the query. In each half, distances below num_buckets / 4 have a bucket each;
  the rest share logarithmically wider ones up to max_distance, and the last holds everything beyond.

  Example: `bucket(np.array([0, -1, 1, 8, 1000]))` is `[0, 1, 17, 24, 31]`.
  """
  half = num_buckets // 2
  exact = half // 2
  # The first distance of each wide bucket: exact * (max / exact)^(i / wide), rounded up; 1e-6 forgives the power's error.
  growth = (max_distance / exact) ** (np.arange(half - exact) / (half - exact))
  edges = np.concatenate([np.arange(exact), np.ceil(exact * growth - 1e-6)])
  within = np.searchsorted(edges, np.abs(distance), side="right") - 1
  return (within + half * (distance > 0)).astype(np.int32)


class RelativePositionBias(nn.Module):
  """Returns the bias [1, h, q, k] = table[h, bucket(k - q)] of texts of `length` tokens, in float32."""

  num_heads: int
  num_buckets: int
  max_distance: int

  @nn.compact
  def __call__(self, length: int) -> Float[Array, "1 h l l"]:
    init = nn.initializers.variance_scaling(1.0, "fan_avg", "uniform")
    axes = (sharding.HEADS, sharding.RELPOS_BUCKETS)
    table = parameter(self, "rel_embedding", init, (self.num_heads, self.num_buckets), axes)
    distances = np.arange(1 - length, length)
    buckets = bucket(distances, num_buckets=self.num_buckets, max_distance=self.max_distance)
    # A product and a skew instead of a gather of [l, l] numbers: the gather's gradient is a scatter of l^2 collisions.
    chosen = jax.nn.one_hot(buckets, self.num_buckets, axis=0)
    by_distance = jnp.einsum("hr,ri->hi", table, chosen, precision="highest")
    return _skew(by_distance)[None]


def _skew(by_distance: Float[Array, "h i"]) -> Float[Array, "h l l"]:
  """Returns out[h, q, k] = by_distance[h, k - q + l - 1], where i = 2 l - 1.

  Rows of 2 l numbers laid end to end and cut into rows of 2 l - 1 move on by one place a row.
  """
  heads, count = by_distance.shape
  length = (count + 1) // 2
  padded = jnp.pad(by_distance, ((0, 0), (0, 1)))
  laid = jnp.broadcast_to(padded[:, None, :], (heads, length, count + 1)).reshape(heads, -1)
  return laid[:, : length * count].reshape(heads, length, count)[:, :, length - 1 :]
