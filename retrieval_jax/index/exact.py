"""Exact search by inner product: every passage is scored, in chunks of bounded memory."""

from collections.abc import Sequence

import jax
import numpy as np
from jaxtyping import Float

from retrieval_jax.errors import UserError
from retrieval_jax.index import device_top_k, host_top_k
from retrieval_jax.index.base import Embeddings, Index, check_corpus, check_queries, check_scores
from retrieval_jax.records import Ranking


def search_exact(
  corpus: Embeddings,
  queries: Float[np.ndarray, "q d"],
  *,
  k: int,
  chunk_rows: int | None = None,
  query_rows: int | None = None,
  devices: Sequence[jax.Device] | None = None,  # pyright: ignore[reportInvalidTypeForm]  (jax assigns the class)
) -> Ranking:
  """Returns the k passages with the largest inner products for each query, best first.

  corpus may be a memory-mapped file or several, of any float type: it is read once, front to back, in parts of
  chunk_rows. Scores are float32 inner products (cosines if the embeddings are normalised). Equal scores are ordered by
  row, the smaller one first, across chunks and devices too. Where the corpus has fewer than k passages, rows are -1 and
  scores -inf.

  Equal passages get equal scores within a search. The last bit of a score may change with chunk_rows, query_rows,
  the devices or the number of queries: a matrix product sums in an order that its shape decides.

  devices: those to use, each for a contiguous part of the corpus. By default all of this process; where these are CPUs,
    one product on all cores and numpy's scan of it take their place, which is several times faster there.
  chunk_rows, query_rows: by default 50,000 and 256; on CPUs 1,024 .. 8,192 (the more, the fewer queries) and 1,024.

  Time: c * q * d multiplications and additions; on CPUs one pass over the scores more, elsewhere one top-k of each chunk.
  Memory on CPUs: chunk_rows * query_rows scores, one chunk, 8 bytes for each of q * k results and about 200 more while
  those of query_rows queries are merged. Devices, each: query_rows * chunk_rows scores, two chunks, and q * k results;
  on the host, two chunks per device. The last chunk and the last block of queries are padded there, so that one shape is
  compiled.

  Raises: UserError for an empty corpus, different widths, k < 1, and an embedding that is not finite (with its row).

  Example: `search_exact(np.eye(3), np.array([[1, 0, 0.5]]), k=2).rows` is `[[0, 2]]`.
  """
  check_corpus(corpus)
  queries = check_queries(corpus.shape, queries, k=k)
  for name, size in {"chunk_rows": chunk_rows, "query_rows": query_rows}.items():
    if size is not None and size < 1:
      raise UserError(f"search_exact: {name} is {size}; it must be at least 1.")
  if not len(queries):
    return Ranking(np.zeros((0, k), np.int32), np.zeros((0, k), np.float32))
  if devices is None and all(device.platform == "cpu" for device in jax.local_devices()):
    found = host_top_k.search(
      corpus, queries, k=k, chunk_rows=chunk_rows, query_rows=query_rows or host_top_k.QUERY_ROWS
    )
  else:
    found = device_top_k.search(
      corpus,
      queries,
      k=k,
      chunk_rows=chunk_rows or device_top_k.CHUNK_ROWS,
      query_rows=query_rows or device_top_k.QUERY_ROWS,
      devices=jax.local_devices() if devices is None else devices,
    )
  check_scores(found)
  return found


class ExactIndex:
  """A corpus as it is, searched by `search_exact`: no time to build, no memory of its own."""

  def __init__(self, corpus: Embeddings) -> None:
    check_corpus(corpus)
    self._corpus = corpus

  def search(self, queries: Float[np.ndarray, "q d"], *, k: int) -> Ranking:
    """Returns the k passages with the largest inner products for each query."""
    return search_exact(self._corpus, queries, k=k)

  def __len__(self) -> int:
    """Returns the number of passages."""
    return len(self._corpus)


def exact(corpus: Embeddings) -> Index:
  """Returns the index that scores every passage.

  Raises: UserError if the corpus is not [c, d] or has no row.

  Example: `exact(np.eye(3)).search(np.array([[1, 0, 0.5]]), k=2).rows` is `[[0, 2]]`.
  """
  return ExactIndex(corpus)
