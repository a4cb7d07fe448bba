"""The order of an epoch: a permutation by (seed, epoch), with nothing carried from one epoch to the next."""

import functools

import numpy as np
from jaxtyping import Int


@functools.lru_cache(
  maxsize=4
)  # of two policies, the current epoch and the one a prefetching reader has begun
def permutation(count: int, seed: int, epoch: int) -> Int[np.ndarray, "e"]:
  """Returns the numbers 0 .. count - 1 in the order of an epoch: Philox keyed by (seed, epoch). Read-only.

  Cost: O(count) once per epoch (0.6 s for 10 million); 8 bytes a number.

  Example: `permutation(5, seed=0, epoch=1)`.
  """
  generator = np.random.Generator(np.random.Philox(key=np.array([seed, epoch], np.uint64)))
  order = generator.permutation(count)
  order.setflags(write=False)
  return order
