import tracemalloc

import numpy as np
import pytest

from retrieval_jax.errors import UserError
from retrieval_jax.index import host_top_k


def _full_sort(scores, k):
  """Returns the rows of the k best scores: higher score, then smaller row."""
  rows = np.broadcast_to(np.arange(scores.shape[1]), scores.shape)
  return np.lexsort((rows, -scores), axis=1)[:, :k]


def _small_integers(seed, count, width=8):
  """Embeddings whose inner products are exact and tie often."""
  return np.random.default_rng(seed).integers(-2, 3, (count, width)).astype(np.float32)


def _search(corpus, queries, k, chunk_rows=16, query_rows=16):
  return host_top_k.search(corpus, queries, k=k, chunk_rows=chunk_rows, query_rows=query_rows)


@pytest.mark.parametrize("chunk_rows", [16, 48, 1000])
@pytest.mark.parametrize("k", [1, 5, 40, 1000])
@pytest.mark.parametrize("queries", [1, 16, 35])
def test_equals_a_full_sort_with_ties(queries, k, chunk_rows):
  corpus, asked = _small_integers(0, 1000), _small_integers(1, queries)
  found = _search(corpus, asked, k, chunk_rows)
  scores = asked @ corpus.T
  np.testing.assert_array_equal(found.rows, _full_sort(scores, k))
  np.testing.assert_array_equal(found.scores, np.take_along_axis(scores, found.rows, axis=1))


@pytest.mark.parametrize("step", [1, -1])
def test_a_corpus_in_the_order_of_its_scores(step):
  """Rising, every chunk has better ones than all before it; falling, only the first has any."""
  corpus = np.repeat(np.arange(300), 2)[::step, None].astype(np.float32)
  queries = np.array([[1.0], [-1.0]], np.float32)
  np.testing.assert_array_equal(_search(corpus, queries, 25).rows, _full_sort(queries @ corpus.T, 25))


def test_results_that_wait_are_taken_in_when_they_are_many():
  """One better passage per chunk: too few to sort the chunk, and more of them than k before the end."""
  corpus = np.zeros((64 * 16, 1), np.float32)
  corpus[5::16, 0] = np.arange(1, 65)
  np.testing.assert_array_equal(_search(corpus, np.ones((1, 1), np.float32), 3).rows, [[1013, 997, 981]])


def test_one_query_with_all_the_better_passages_takes_no_room_of_the_others():
  """Every chunk has better ones for one query and none for the others: a matrix of all that wait would be wide."""
  corpus = np.stack([np.arange(4096.0), np.zeros(4096)], axis=1).astype(np.float32)
  queries = np.zeros((512, 2), np.float32)
  queries[7, 0] = 1
  tracemalloc.start()
  try:
    found = _search(corpus, queries, 50, chunk_rows=64, query_rows=512)
    assert tracemalloc.get_traced_memory()[1] < 512 * 50 * 200 + 2**20
  finally:
    tracemalloc.stop()
  np.testing.assert_array_equal(found.rows[7], np.arange(4095, 4045, -1))
  np.testing.assert_array_equal(found.rows[8], np.arange(50))


def test_equal_passages_in_several_chunks_get_equal_scores():
  rng = np.random.default_rng(0)
  corpus = rng.normal(size=(333, 100)).astype(np.float32)
  same = np.sort(rng.permutation(333)[:150])
  corpus[same] = corpus[same[0]]
  queries = np.concatenate([corpus[same[:1]], rng.normal(size=(20, 100)).astype(np.float32)] * 2)
  found = _search(corpus, queries, 333, chunk_rows=64, query_rows=16)
  for rows, scores in zip(found.rows, found.scores, strict=True):
    assert len(set(scores[np.isin(rows, same)].tolist())) == 1
    np.testing.assert_array_equal(rows[np.isin(rows, same)], same)
  np.testing.assert_array_equal(found.scores[0], found.scores[21])


def test_the_corpus_is_read_once_front_to_back_in_chunks():
  class Corpus:
    shape, dtype, reads = (100, 4), np.dtype(np.float16), []

    def __len__(self):
      return 100

    def __getitem__(self, rows):
      self.reads.append((rows.start, min(rows.stop, 100)))
      return np.ones((min(rows.stop, 100) - rows.start, 4), np.float16)

  _search(Corpus(), np.ones((40, 4), np.float32), 3, chunk_rows=48)
  assert Corpus.reads == [(0, 48), (48, 96), (96, 100)]


def test_long_embeddings_whose_products_stay_finite():
  corpus = np.full((200, 1), 1e38, np.float32)
  found = _search(corpus, np.array([[3.0]], np.float32), 2, chunk_rows=208)
  np.testing.assert_array_equal(found.rows, [[0, 1]])


@pytest.mark.parametrize("query", [[9.0, 0.0], [-9.0, 0.0], [9.0, -9.0]])
@pytest.mark.parametrize("place", [0, 150])
def test_products_that_overflow(query, place):
  """To infinity, to minus infinity, and infinity less infinity; in a chunk all of which is sorted, or in a later one."""
  corpus = np.zeros((160, 2), np.float32)
  corpus[place] = 1e38
  k = 160 if query == [-9.0, 0.0] else 3  # minus infinity is far from the best of many, and no harm there
  with pytest.raises(UserError, match="overflow float32"):
    _search(corpus, np.array([query], np.float32), k)


def test_a_passage_that_is_not_finite_is_found_by_a_query_of_zeros():
  corpus = np.ones((100, 3), np.float32)
  corpus[77, 1] = np.inf
  with pytest.raises(UserError, match="embedding of passage 77 is not finite"):
    _search(corpus, np.zeros((1, 3), np.float32), 3)
