"""Batches of rows by length, in a few fixed shapes, so that each compiles once whatever is encoded."""

from collections.abc import Iterator
from typing import Final

import numpy as np
from jaxtyping import Int

FEWEST_ROWS: Final = 8  # of a batch: fewer rows than that cost about the same


def bucket(length: int, longest: int) -> int:
  """Returns the padded length: the next multiple of 16 up to 128, then the next power of two; at most `longest`.

  Example: bucket(17, 512) is 32 and bucket(129, 512) is 256.
  """
  rounded = -(-max(length, 1) // 16) * 16
  if rounded > 128:
    rounded = 1 << (rounded - 1).bit_length()
  return min(rounded, longest)


def row_counts(length: int, tokens_per_batch: int, *, multiple: int) -> list[int]:
  """Returns the numbers of rows a batch of this length may have, largest first: the full one, and quarters of it down to
  8, for what is left over and for a handful of queries. All are multiples of `multiple`, the number of data shards.

  Example: row_counts(16, 8192, multiple=1) is [512, 128, 32, 8].
  """
  full = max(tokens_per_batch // length // multiple, 1) * multiple
  smallest = -(-FEWEST_ROWS // multiple) * multiple
  counts = [full]
  while counts[-1] > smallest:
    quarter = -(-counts[-1] // (4 * multiple)) * multiple
    counts.append(max(quarter, smallest))
  return counts


def length_batches(
  lengths: Int[np.ndarray, "c"], longest: int, tokens_per_batch: int, *, multiple: int
) -> Iterator[tuple[Int[np.ndarray, "q"], int]]:
  """Yields (rows, padded length) covering every row once, longest first; -1 pads the last batch.

  Longest first, so that a batch that does not fit in memory fails at once and the time left is never underestimated.
  Every batch but the last is full, so there is about one compilation a length (Encoder.shapes bounds them).

  Example: `length_batches(np.array([5, 60, 30]), 64, 64, multiple=1)` yields rows `[1]` at 64, then rows `[2, 0]` at 32.
  """
  order = np.argsort(-lengths, kind="stable")
  start = 0
  while start < len(order):
    length = bucket(int(lengths[order[start]]), longest)
    left = len(order) - start
    counts = row_counts(length, tokens_per_batch, multiple=multiple)
    size = min((count for count in counts if count >= left), default=counts[0])
    rows = order[start : start + size]
    yield np.pad(rows, (0, size - len(rows)), constant_values=-1), length
    start += size
