"""FAISS behind the Index interface: all passages (flat), lists of near ones (IVF), or a graph of neighbours (HNSW).

All three score by float32 inner product and keep a copy of the corpus in memory. IVF and HNSW look at part of it, so they
may miss passages; HNSW wants normalised embeddings (a few long ones draw every path to themselves). Results stand in the
order of the Index interface; which of several passages with the k-th best score FAISS returns is its own choice.
"""

import pathlib
from typing import Any, Final

import numpy as np
from jaxtyping import Float
from tqdm.auto import tqdm

from retrieval_jax import progress
from retrieval_jax.errors import UserError
from retrieval_jax.index import order
from retrieval_jax.index.base import (
  Embeddings,
  Index,
  check_corpus,
  check_finite,
  check_queries,
  check_scores,
  read_blocks,
)
from retrieval_jax.paths import atomic_write
from retrieval_jax.records import Ranking

BLOCK_ROWS: Final = 65_536  # added at a time: 100 MB of 384 float32 numbers a row
SHOWN_ROWS: Final = 200_000  # a corpus below that is added without a progress bar
QUERY_ROWS: Final = 1024  # searched at a time, so that results wait in 20 bytes each, not all at once
TRAIN_ROWS_PER_LIST: Final = 64


def _faiss() -> Any:
  try:
    import faiss
  except ImportError as error:
    raise UserError(
      f"This index needs the package faiss ({error}). Install it with `pip install 'retrieval-jax[ann]'`, or search "
      "with indexes/exact.gin."
    ) from error
  return faiss


class FaissIndex:
  """A corpus in an index of the package faiss, made by one of this file's functions."""

  def __init__(self, index: Any) -> None:
    self._index = index

  def search(self, queries: Float[np.ndarray, "q d"], *, k: int) -> Ranking:
    """Returns the k best passages that the index finds for each query, on all cores.

    Raises: UserError for another width, k < 1, and a query that is not finite.
    """
    queries = np.ascontiguousarray(check_queries((len(self), self._index.d), queries, k=k))
    parts = [self._search(queries[i : i + QUERY_ROWS], k) for i in range(0, max(len(queries), 1), QUERY_ROWS)]
    found = Ranking(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))
    check_scores(found)
    return found

  def _search(self, queries: Float[np.ndarray, "q d"], k: int) -> Ranking:
    if not len(queries):
      return Ranking(np.zeros((0, k), np.int32), np.zeros((0, k), np.float32))
    scores, ids = self._index.search(queries, min(k, len(self)))  # id -1: it found no more
    return order.ranking(np.where(ids >= 0, order.keys(scores, np.maximum(ids, 0)), order.NOTHING), k)

  def save(self, path: str | pathlib.Path) -> None:
    """Writes the index, passages included, to a file that appears whole or not at all; `load` reads it."""
    faiss = _faiss()
    with atomic_write(path, "wb") as file:
      faiss.write_index(self._index, faiss.PyCallbackIOWriter(file.write))

  def __len__(self) -> int:
    """Returns the number of passages."""
    return int(self._index.ntotal)


def load(path: str | pathlib.Path) -> FaissIndex:
  """Returns the index that `FaissIndex.save` wrote, with its settings.

  Raises: UserError for a file that is not there, or is no whole index by inner product.
  """
  faiss = _faiss()
  if not pathlib.Path(path).is_file():
    raise UserError(f"{path}: no such file; expected an index that was saved before.")
  try:
    index = faiss.read_index(str(path))
  except (RuntimeError, MemoryError) as error:  # a damaged size may ask for any amount of memory
    raise UserError(f"{path}: not a whole faiss index. Build and save it again.") from error
  if index.metric_type != faiss.METRIC_INNER_PRODUCT:
    raise UserError(f"{path}: an index by another measure than the inner product. Build it here and save it.")
  return FaissIndex(index)


def _filled(index: Any, corpus: Embeddings) -> FaissIndex:
  """Returns the index with every passage added in row order, so that faiss's numbers are our rows."""
  with tqdm(
    total=len(corpus),
    desc="index",
    unit="row",
    disable=len(corpus) < SHOWN_ROWS,
    mininterval=progress.interval(),
  ) as bar:
    for first, block in read_blocks(corpus, BLOCK_ROWS):
      check_finite("passage", block, first)
      index.add(block)
      bar.update(len(block))
  return FaissIndex(index)


def faiss_flat(corpus: Embeddings) -> Index:
  """Returns the index that scores every passage, exact but for ties at the k-th place.

  Time: one copy of the corpus to build; q c d multiplications and additions to search. Memory: 4 c d bytes.

  Raises: UserError if faiss is not installed, or for a corpus that is empty or not finite.

  Source: Johnson, Douze and Jegou, 2019, https://arxiv.org/abs/1702.08734 (the library).

  Example: `faiss_flat(np.eye(3)).search(np.array([[1, 0, 0.5]]), k=2).rows` is `[[0, 2]]`.
  """
  check_corpus(corpus)
  return _filled(_faiss().IndexFlatIP(corpus.shape[1]), corpus)


def faiss_ivf(
  corpus: Embeddings,
  *,
  num_lists: int | None = None,
  num_probes: int = 32,
  train_rows: int | None = None,
  seed: int = 0,
) -> Index:
  """Returns an inverted-file index: passages in lists by their nearest centre, of which a query looks into the best few.

  num_lists: None takes 4 sqrt(c), at most c.
  num_probes: lists that a query looks into; all of them (or more) make the search exact.
  train_rows: passages, drawn evenly with `seed`, that the centres are found from by k-means; None takes 64 per list. FAISS
    advises 39 or more.

  Time: 10 rounds of train_rows * num_lists * d to train, c * num_lists * d to build, and q c d num_probes / num_lists
  and q num_lists d to search. Memory: (4 d + 8) c bytes, and 4 d bytes for each list and row of training.

  Raises: UserError if faiss is not installed, for a corpus that is empty or not finite, and for sizes out of range.

  Source: Jegou, Douze and Schmid, 2011, section IV, without its codes.

  Example: `faiss_ivf(corpus, num_lists=1024, num_probes=16)`.
  """
  check_corpus(corpus)
  faiss, count = _faiss(), len(corpus)
  if num_lists is None:
    num_lists = min(count, round(4 * count**0.5))
  if not 1 <= num_lists <= count:
    raise UserError(f"faiss_ivf: num_lists is {num_lists}; expected 1 .. {count}, the number of passages.")
  if num_probes < 1:
    raise UserError(f"faiss_ivf: num_probes is {num_probes}; it must be at least 1.")
  train_rows = min(count, num_lists * TRAIN_ROWS_PER_LIST if train_rows is None else train_rows)
  if train_rows < num_lists:
    raise UserError(
      f"faiss_ivf: train_rows is {train_rows} for {num_lists} lists; expected at least one passage a list, better 39."
    )
  width = corpus.shape[1]
  index = faiss.IndexIVFFlat(faiss.IndexFlatIP(width), width, num_lists, faiss.METRIC_INNER_PRODUCT)
  index.cp.seed = seed
  index.cp.min_points_per_centroid = 1  # below 39 faiss warns on its own, past our messages
  index.cp.max_points_per_centroid = max(256, -(-train_rows // num_lists))  # it would draw again
  index.train(_sample(corpus, train_rows, seed))
  index.nprobe = min(num_probes, num_lists)
  return _filled(index, corpus)


def _sample(corpus: Embeddings, rows: int, seed: int) -> Float[np.ndarray, "r d"]:
  """Returns that many different passages in row order, read front to back."""
  chosen = np.sort(np.random.default_rng(seed).choice(len(corpus), rows, replace=False))
  sample = np.empty((rows, corpus.shape[1]), np.float32)
  for first, block in read_blocks(corpus, BLOCK_ROWS):
    start, stop = np.searchsorted(chosen, [first, first + len(block)])
    sample[start:stop] = block[chosen[start:stop] - first]
    check_finite("passage", block, first)
  return sample


def faiss_hnsw(
  corpus: Embeddings, *, neighbours: int = 32, ef_construction: int = 200, ef_search: int = 128
) -> Index:
  """Returns a graph index: a search walks from passage to nearer passage.

  neighbours: edges of a passage on each upper level, twice that on the lowest.
  ef_construction, ef_search: passages kept in sight while building and searching (at least k there): more find more, for
    proportional time.

  The graph depends on which thread was first, so two builds may differ in what they miss.

  Time: about c log(c) ef_construction d to build, q log(c) ef_search d to search. Memory: (4 d + 8 neighbours) c bytes
  and some.

  Raises: UserError if faiss is not installed, for a corpus that is empty or not finite, and for sizes out of range.

  Source: Malkov and Yashunin, 2018, https://arxiv.org/abs/1603.09320.

  Example: `faiss_hnsw(corpus, neighbours=32, ef_search=256)`.
  """
  check_corpus(corpus)
  if neighbours < 2 or ef_construction < 1 or ef_search < 1:
    raise UserError(
      f"faiss_hnsw: neighbours is {neighbours}, ef_construction {ef_construction} and ef_search {ef_search}; expected "
      "at least 2, 1 and 1."
    )
  faiss = _faiss()
  index = faiss.IndexHNSWFlat(corpus.shape[1], neighbours, faiss.METRIC_INNER_PRODUCT)
  index.hnsw.efConstruction, index.hnsw.efSearch = ef_construction, ef_search
  return _filled(index, corpus)
