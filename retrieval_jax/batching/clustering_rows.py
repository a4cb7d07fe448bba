"""Rows as vectors of small whole numbers, and the exact products and sums of them that clustering needs."""

import math
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float, Int, Int8

from retrieval_jax.errors import UserError

EXACT: Final = 2**24  # float32 holds every whole number up to it: sums below it are the same in any order
BLOCK: Final = 2048  # rows that are float32 at a time: a few MB, which stay in the cache
_LARGEST = 127  # of an int8
_WIDTH = 6.0  # components are cut off at this many standard deviations of a random unit vector's
_FINE = (
  20  # bits of a row's largest component, for its length: 2^13 of their squares add up exactly in float64
)


class Centroids(NamedTuple):
  """Of groups of rows: the sum of each one's rows, quantised, and the length that it had."""

  numbers: Int8[np.ndarray, "g d"]
  lengths: Float[np.ndarray, "g"]


@runtime_checkable
class Rows(Protocol):
  """Embeddings as clustering sees them, in small whole numbers.

  In all of it, `order` has row numbers, of which those of one group (cluster, node of a tree) stand together, and
  `ends` says where each group's part of it ends.
  """

  @property
  def shape(self) -> tuple[int, int]: ...

  @property
  def at_once(self) -> int:
    """How many rows to ask the products of in one call, about: their memory is 4 * m bytes each."""
    ...

  def sample(self, rows: Int[np.ndarray, "r"]) -> Float[np.ndarray, "r d"]:
    """Returns some rows, whole numbers in float32."""
    ...

  def centroids(self, order: Int[np.ndarray, "r"], ends: Int[np.ndarray, "g"]) -> Centroids:
    """Returns the centroid of each group."""
    ...

  def products(
    self, order: Int[np.ndarray, "r"], ends: Int[np.ndarray, "g"], centroids: Int8[np.ndarray, "g m d"]
  ) -> Int[np.ndarray, "r m"]:
    """Returns the products of each row with the m centroids of its group, exactly (int32)."""
    ...

  def nearest(
    self,
    order: Int[np.ndarray, "r"],
    ends: Int[np.ndarray, "g"],
    centroids: Sequence[Int8[np.ndarray, "_ d"]],
  ) -> Int[np.ndarray, "r"]:
    """Returns which of its group's centroids has the largest product with each row, the first of equal ones."""
    ...


def centroids_of(sums: Float[np.ndarray, "g d"]) -> Centroids:
  """Returns the centroids of groups from the sums of their rows, in float64."""
  return Centroids(quantised(sums), np.sqrt(np.einsum("gd,gd->g", sums, sums)))


def quantised(vectors: Float[np.ndarray, "r d"]) -> Int8[np.ndarray, "r d"]:
  """Returns the vectors at one length, in whole numbers, the same ones on every machine.

  Only operations are used that IEEE 754 defines to the last bit, and sums of whole numbers, which are exact. At 384
  dimensions the numbers have a standard deviation of 21, and the product of two unit vectors is off by 0.0007. A product
  stays below EXACT: more than 1,040 dimensions have smaller numbers. A vector of zeros, or one below 1e-33, becomes zeros.
  """
  dim = vectors.shape[1]
  fine = vectors.astype(np.float32)
  _, exponent = np.frexp(np.maximum(fine.max(axis=1), -fine.min(axis=1)))
  fine *= np.ldexp(np.float32(1), np.minimum(_FINE - exponent, 120))[:, None]
  np.rint(fine, out=fine)
  exact = fine.astype(np.float64)
  length = np.sqrt(np.einsum("rd,rd->r", exact, exact))
  most = _most(dim)
  fine *= (unit_length(dim) / np.maximum(length, 1)).astype(np.float32)[:, None]
  np.rint(fine, out=fine)
  return np.clip(fine, -most, most, out=fine).astype(np.int8)


def unit_length(dim: int) -> float:
  """Returns the length of quantised vectors, but for rounding and what is cut off."""
  return _most(dim) / min(1.0, _WIDTH / math.sqrt(dim))


def _most(dim: int) -> int:
  return min(_LARGEST, math.isqrt(EXACT // dim))


class HostRows:
  """Rows in the memory of this process: products by the BLAS library of NumPy. One byte a component."""

  at_once = 2**16

  def __init__(self, numbers: Int8[np.ndarray, "e d"]):
    self._numbers = numbers

  @classmethod
  def of(cls, embeddings: Float[np.ndarray, "e d"]) -> "HostRows":
    """Returns the rows of embeddings, which are read block by block.

    Raises: UserError for a row that is not finite, or zero.
    """
    numbers = np.empty(embeddings.shape, np.int8)
    for start in range(0, len(embeddings), BLOCK):
      numbers[start : start + BLOCK] = checked(embeddings, start)
    return cls(numbers)

  @property
  def shape(self) -> tuple[int, int]:
    return self._numbers.shape  # pyright: ignore[reportReturnType]  # of two dimensions

  def sample(self, rows: Int[np.ndarray, "r"]) -> Float[np.ndarray, "r d"]:
    return self._numbers[rows].astype(np.float32)

  def centroids(self, order: Int[np.ndarray, "r"], ends: Int[np.ndarray, "g"]) -> Centroids:
    parts = []
    for first, last in chunks(ends, BLOCK):
      start = ends[first - 1] if first else 0
      starts = [0, *(ends[first : last - 1] - start)]
      sums = np.zeros((last - first, self.shape[1]))
      for low in range(start, ends[last - 1], BLOCK):  # more than one of a large group only
        block = self.sample(order[low : min(low + BLOCK, ends[last - 1])])
        sums += np.add.reduceat(block, starts, axis=0)  # below EXACT in a block
      parts.append(centroids_of(sums))
    return Centroids(*map(np.concatenate, zip(*parts, strict=True)))

  def products(
    self, order: Int[np.ndarray, "r"], ends: Int[np.ndarray, "g"], centroids: Int8[np.ndarray, "g m d"]
  ) -> Int[np.ndarray, "r m"]:
    found = np.empty((len(order), centroids.shape[1]), np.int32)
    for group, start, stop in _pieces(ends):
      found[start:stop] = self.sample(order[start:stop]) @ centroids[group].astype(np.float32).T
    return found

  def nearest(
    self,
    order: Int[np.ndarray, "r"],
    ends: Int[np.ndarray, "g"],
    centroids: Sequence[Int8[np.ndarray, "_ d"]],
  ) -> Int[np.ndarray, "r"]:
    found = np.empty(len(order), np.int32)
    for group, start, stop in _pieces(ends):
      scores = self.sample(order[start:stop]) @ centroids[group].astype(np.float32).T
      found[start:stop] = scores.argmax(axis=1)
    return found


def _pieces(ends: Int[np.ndarray, "g"]) -> list[tuple[int, int, int]]:
  """Returns (group, start, stop) of pieces of at most BLOCK rows of one group."""
  pieces, start = [], 0
  for group, end in enumerate(ends.tolist()):
    pieces += [(group, i, min(i + BLOCK, end)) for i in range(start, end, BLOCK)]
    start = end
  return pieces


def chunks(ends: Int[np.ndarray, "g"], most: int) -> Iterator[tuple[int, int]]:
  """Yields (first, last + 1) of consecutive groups that have at most `most` rows together, or of one group."""
  first = 0
  while first < len(ends):
    start = ends[first - 1] if first else 0
    last = max(first + 1, int(np.searchsorted(ends, start + most, side="right")))
    yield first, last
    first = last


def checked(
  embeddings: Float[np.ndarray, "e d"], start: int, stop: int | None = None
) -> Int8[np.ndarray, "_ d"]:
  """Returns the quantised rows from `start` to `stop` (BLOCK of them by default).

  Raises: UserError for a row that is not finite, or zero.
  """
  block = np.asarray(embeddings[start : start + BLOCK if stop is None else stop], np.float32)
  finite = np.isfinite(block).all(axis=1)
  if not finite.all():
    raise UserError(
      f"balanced_clusters: row {start + int(np.argmin(finite))} of the embeddings is not finite. Embeddings of rows "
      "that hold NaN or infinity mean that the model diverged: go back to an earlier checkpoint."
    )
  numbers = quantised(block)
  filled = numbers.any(axis=1)
  if not filled.all():
    raise UserError(
      f"balanced_clusters: row {start + int(np.argmin(filled))} of the embeddings is zero: it was never written. Fill "
      "all rows first: train one epoch of random batches, or encode the examples."
    )
  return numbers
