"""The k largest inner products on CPUs: XLA's matrix product, and numpy's scan that keeps what beats the k-th best so far.

After the first chunks hardly a score does: of c passages in random order, about k (1 + log(c / k)) per query. So the
scores are compared once, while they are still in the cache, and only those few are ever sorted. (XLA's top_k sorts every
row of a chunk on CPUs, which takes longer than the product. numpy's own product is as fast as XLA's on an idle machine,
but its threads wait for each other in a loop: on a machine with other work it took ten times as long.)
"""

from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Float, Int, UInt64

from retrieval_jax import scoring
from retrieval_jax.errors import UserError
from retrieval_jax.index import order
from retrieval_jax.index.base import OVERFLOW, Embeddings, check_finite, read_blocks
from retrieval_jax.records import Ranking

QUERY_ROWS = 1024  # per product: with 1,024 passages 4 MiB of scores, which stay in the cache
_SCORES = 1 << 19  # with fewer queries, more passages: small products do not fill the cores
_CHUNK_ROWS = (1024, 8192)  # bounds of that
_MULTIPLE = 16  # of both: odd products may be summed in several ways, and equal passages could score apart
_DENSE = 2  # above one in so many scores, the whole chunk is sorted into the best: gathering costs more
_FEWEST = 64  # rows of a chunk that are worth a pass of their own


class _Results(NamedTuple):
  """Results in any order: whose they are, and their keys."""

  queries: Int[np.ndarray, "x"]
  keys: UInt64[np.ndarray, "x"]


class _Best:
  """The best results so far of a block of queries, over chunks that come in row order."""

  def __init__(self, queries: int, k: int) -> None:
    self._k = k
    self._found = np.full((queries, k), order.NOTHING)
    self._threshold = np.full(queries, -np.inf, np.float32)  # at most the k-th best score so far
    self._waiting: list[_Results] = []
    self._counts = np.zeros(queries, np.int64)  # of those that wait, by query

  def add(self, scores: Float[np.ndarray, "r q"], first_row: int) -> None:
    """Takes in a chunk's scores. A score equal to the k-th best loses: its row is larger.

    Raises: UserError for a score among the best that is no number or infinite.
    """
    better = ~(scores <= self._threshold)  # or no number
    places = np.flatnonzero(better)
    if not len(places):
      return
    if len(places) > better.size // _DENSE:
      half = len(scores) // 2
      if half >= max(self._k, _FEWEST):  # the first half leaves less of the second
        self.add(scores[:half], first_row)
        self.add(scores[half:], first_row + half)
        return
      _check_finite(scores)
      rows = np.broadcast_to(first_row + np.arange(len(scores))[:, None], scores.shape)
      self._merge(np.where(better, order.keys(scores, rows), order.NOTHING).T)
      return
    rows, queries = np.divmod(places.astype(np.uint32), np.uint32(scores.shape[1]))
    values = scores[rows, queries]
    _check_finite(values)
    self._waiting.append(_Results(queries, order.keys(values, rows + first_row)))
    self._counts += np.bincount(queries, minlength=len(self._counts))
    if self._counts.max() >= 2 * self._k:  # bounds the matrix that they become, however they are spread
      self.flush()

  def flush(self) -> UInt64[np.ndarray, "q k"]:
    """Returns the keys of the best, all taken in; NOTHING where there are fewer than k."""
    if self._waiting:
      results = _Results(*(np.concatenate(parts) for parts in zip(*self._waiting, strict=True)))
      self._waiting.clear()
      self._counts[:] = 0
      self._merge(_grouped(results, len(self._found)))
    return self._found

  def _merge(self, found: UInt64[np.ndarray, "q x"]) -> None:
    self._found = order.best(np.concatenate([self._found, found], axis=1), self._k).copy()
    self._threshold = order.scores(self._found[:, 0])


def _grouped(results: _Results, count: int) -> UInt64[np.ndarray, "q x"]:
  """Returns the keys as a matrix with a row for each of `count` queries, filled up with NOTHING."""
  short = results.queries.astype(np.min_scalar_type(count))  # a stable sort of 16 bits is a radix sort
  sort = np.argsort(short, kind="stable")
  queries, sizes = results.queries[sort], np.bincount(results.queries, minlength=count)
  column = np.arange(len(queries)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
  grouped = np.full((count, sizes.max()), order.NOTHING)
  grouped[queries, column] = results.keys[sort]
  return grouped


def _check_finite(scores: Float[np.ndarray, "*b"]) -> None:
  if not np.isfinite(scores).all():
    raise UserError(OVERFLOW)


def _round_up(size: int, multiple: int) -> int:
  return -(-size // multiple) * multiple


@jax.jit
def _product(passages: Float[Array, "r d"], queries: Float[Array, "q d"]) -> Float[Array, "r q"]:
  return scoring.dot(passages, queries)


def search(
  corpus: Embeddings,
  queries: Float[np.ndarray, "q d"],
  *,
  k: int,
  chunk_rows: int | None = None,
  query_rows: int = QUERY_ROWS,
) -> Ranking:
  """Returns the k passages with the largest inner products; `exact.search_exact` says more.

  All products have one shape, padded with zeros: equal passages then get equal scores. chunk_rows and query_rows are
  rounded up to a multiple of 16.

  Raises: UserError for a passage that is not finite, and if a score among the best overflows.
  """
  count, width = queries.shape
  blocks = -(-count // query_rows)
  block = _round_up(-(-count // blocks), _MULTIPLE)
  if chunk_rows is None:
    chunk_rows = int(np.clip(_SCORES // block, *_CHUNK_ROWS))
  size = _round_up(min(chunk_rows, len(corpus)), _MULTIPLE)
  padded = np.pad(queries, ((0, blocks * block - count), (0, 0)))
  device = jax.local_devices()[0]
  parts = [jax.device_put(part, device) for part in np.split(padded, blocks)]
  best = [_Best(block, min(k, len(corpus))) for _ in parts]
  for first, chunk in read_blocks(corpus, size):
    rows = len(chunk)
    if rows < size:
      chunk = np.concatenate([chunk, np.zeros((size - rows, width), np.float32)])
    for i, (part, found) in enumerate(zip(parts, best, strict=True)):
      scores = np.asarray(_product(jax.device_put(chunk, device), part))[:rows]
      # One query shows what is not finite: infinity times anything is infinite or no number, also times 0.
      if i == 0 and not np.isfinite(scores[:, 0]).all():
        check_finite("passage", chunk, first)
      found.add(scores, first)
  keys = np.concatenate([found.flush() for found in best])[:count]
  if (keys == order.NOTHING).any():  # a score of -inf is no result
    raise UserError(OVERFLOW)
  return order.ranking(keys, k)
