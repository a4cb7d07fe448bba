"""The order of results, higher score first and then the smaller row, as one integer per result that sorts that way."""

import numpy as np
from jaxtyping import Float, Int, UInt64

from retrieval_jax.records import Ranking

NOTHING = np.uint64(0)  # below the key of every score but NaN
_SIGN = np.uint32(1 << 31)
_HALF = np.uint64(32)


def keys(scores: Float[np.ndarray, "*b"], rows: Int[np.ndarray, "*b"]) -> UInt64[np.ndarray, "*b"]:
  """Returns integers that are larger for a better result: the float32 score in the high half, the row, inverted, in the
  low one. 0 and -0 are one score. Rows are 0 .. 2^31 - 1; scores may be infinite, not NaN.

  A float's bits grow with its size; those of negative ones are inverted so that they grow with the value.
  """
  bits = (scores.astype(np.float32, copy=False) + np.float32(0)).view(np.uint32)
  ordered = np.where(bits & _SIGN, ~bits, bits | _SIGN)
  return (ordered.astype(np.uint64) << _HALF) | (~rows.astype(np.uint32)).astype(np.uint64)


def scores(found: UInt64[np.ndarray, "*b"]) -> Float[np.ndarray, "*b"]:
  """Returns the float32 scores of keys, -inf for NOTHING."""
  ordered = (found >> _HALF).astype(np.uint32)
  values = np.where(ordered & _SIGN, ordered & ~_SIGN, ~ordered).view(np.float32)
  return np.where(found == NOTHING, np.float32(-np.inf), values)


def best(found: UInt64[np.ndarray, "q x"], k: int) -> UInt64[np.ndarray, "q y"]:
  """Returns the k largest keys of each row, all where there are no more; the first is the smallest, the rest unordered.

  They are moved within `found`, of which the result is a part.

  Cost: x comparisons a row, not x log x; numpy's partition of integers is vectorised.
  """
  surplus = max(found.shape[1] - k, 0)
  if found.shape[1]:
    found.partition(surplus, axis=1)
  return found[:, surplus:]


def ranking(found: UInt64[np.ndarray, "q x"], k: int) -> Ranking:
  """Returns the k best results of each row of keys; row -1 with score -inf where there are fewer.

  Example: `ranking(keys(np.float32([[1, 2]]), np.array([[5, 3]])), 3).rows` is `[[3, 5, -1]]`.
  """
  kept = np.sort(best(found.copy(), k), axis=1)[:, ::-1]
  kept = np.pad(kept, ((0, 0), (0, k - kept.shape[1])))
  rows = (~kept.astype(np.uint32)).astype(np.int32)
  return Ranking(np.where(kept == NOTHING, np.int32(-1), rows), scores(kept))
