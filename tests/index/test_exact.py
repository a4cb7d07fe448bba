import jax
import numpy as np
import pytest

from retrieval_jax.errors import UserError
from retrieval_jax.index.exact import search_exact


def _devices(count):
  """None: numpy's product; the number of devices: the compiled kernel."""
  return None if count is None else jax.devices()[:count]


def _full_sort(corpus, queries, k):
  """Returns (rows, scores) by sorting all scores: higher score, then smaller row."""
  scores = np.asarray(queries, np.float64) @ np.asarray(corpus, np.float64).T
  order = np.lexsort((np.broadcast_to(np.arange(len(corpus)), scores.shape), -scores), axis=1)[:, :k]
  return order, np.take_along_axis(scores, order, axis=1)


def _small_integers(seed, count, width=8):
  """Embeddings whose inner products are exact and tie often."""
  return np.random.default_rng(seed).integers(-2, 3, (count, width)).astype(np.float32)


@pytest.mark.parametrize("devices", [None, 1, 3, 8])
@pytest.mark.parametrize("chunk_rows", [1, 7, 10, 100])
def test_sharded_search_equals_a_full_sort_with_ties(devices, chunk_rows):
  corpus, queries = _small_integers(0, 60), _small_integers(1, 13)
  rows, scores = _full_sort(corpus, queries, 20)
  assert np.mean(scores[:, 1:] == scores[:, :-1]) > 0.5  # most neighbours do tie
  found = search_exact(corpus, queries, k=20, chunk_rows=chunk_rows, query_rows=5, devices=_devices(devices))
  np.testing.assert_array_equal(found.rows, rows)
  np.testing.assert_array_equal(found.scores, scores)


@pytest.mark.parametrize("devices", [None, 1, 8])
def test_sharded_all_equal_passages_come_in_row_order(devices):
  corpus = np.ones((37, 4), np.float32)
  found = search_exact(corpus, corpus[:2], k=37, chunk_rows=3, devices=_devices(devices))
  np.testing.assert_array_equal(found.rows, [np.arange(37)] * 2)


@pytest.mark.parametrize("devices", [None, 1, 8])
def test_sharded_search_on_real_valued_embeddings(devices):
  rng = np.random.default_rng(0)
  corpus, queries = rng.normal(size=(500, 32)), rng.normal(size=(20, 32))
  rows, scores = _full_sort(corpus, queries, 30)
  found = search_exact(corpus, queries, k=30, chunk_rows=17, devices=_devices(devices))
  np.testing.assert_array_equal(found.rows, rows)
  np.testing.assert_allclose(found.scores, scores, rtol=1e-5, atol=1e-5)
  assert found.rows.dtype == np.int32
  assert found.scores.dtype == np.float32


@pytest.mark.parametrize("queries", [1, 2, 5])
@pytest.mark.parametrize("devices", [None, 1, 8])
def test_sharded_equal_passages_get_equal_scores_wherever_they_stand(devices, queries):
  """Also when the inner products are not exact: the rows of a matrix product must not depend on their place."""
  rng = np.random.default_rng(1)  # one that gives two values to a single query when its block is not padded
  corpus = rng.normal(size=(203, 100)).astype(np.float32)
  same = np.sort(rng.permutation(203)[:100])
  corpus[same] = corpus[same[0]]
  found = search_exact(corpus, corpus[[same[0], *range(queries - 1)]], k=100, devices=_devices(devices))
  assert len(set(found.scores[0].tolist())) == 1
  np.testing.assert_array_equal(found.rows[0], same)


def test_negative_scores_beat_padding():
  corpus = -np.ones((5, 2), np.float32)
  found = search_exact(corpus, np.ones((1, 2)), k=5, chunk_rows=2, devices=jax.devices()[:2])
  np.testing.assert_array_equal(found.rows, [range(5)])
  np.testing.assert_array_equal(found.scores, [[-2.0] * 5])


@pytest.mark.parametrize("devices", [None, 1])
def test_zero_and_minus_zero_tie(devices):
  corpus = np.array([[-0.0, 0.0], [0.0, 0.0], [-0.0, -0.0], [0.0, 0.0]], np.float32)
  for query in ([[1.0, 0.0]], [[-1.0, 0.0]]):
    found = search_exact(corpus, np.array(query), k=4, devices=_devices(devices))
    np.testing.assert_array_equal(found.rows, [range(4)])


@pytest.mark.parametrize("devices", [None, 1, 8])
def test_k_beyond_the_corpus_is_padded(devices):
  corpus = np.array([[1.0, 0], [3, 0], [2, 0]])
  found = search_exact(corpus, np.ones((1, 2)), k=5, chunk_rows=2, devices=_devices(devices))
  np.testing.assert_array_equal(found.rows, [[1, 2, 0, -1, -1]])
  np.testing.assert_array_equal(found.scores, [[3, 2, 1, -np.inf, -np.inf]])


@pytest.mark.parametrize("devices", [None, 8])
@pytest.mark.parametrize("count", [1, 2, 7, 8, 9])
def test_no_minus_one_within_the_corpus(count, devices):
  """Corpora around the number of devices: some devices have nothing."""
  corpus = _small_integers(count, count)
  found = search_exact(corpus, corpus, k=count, devices=_devices(devices))
  np.testing.assert_array_equal(found.rows, _full_sort(corpus, corpus, count)[0])


def test_one_query_one_passage():
  found = search_exact(np.array([[2.0]]), np.array([[3.0]]), k=1)
  assert (found.rows.tolist(), found.scores.tolist()) == ([[0]], [[6.0]])


def test_no_query():
  assert search_exact(np.ones((3, 2)), np.ones((0, 2)), k=4).rows.shape == (0, 4)


@pytest.mark.parametrize("devices", [None, 8])
def test_memory_mapped_half_precision_corpus(tmp_path, devices):
  corpus = _small_integers(0, 40).astype(np.float16)
  np.save(tmp_path / "corpus.npy", corpus)
  mapped = np.load(tmp_path / "corpus.npy", mmap_mode="r")
  found = search_exact(mapped, _small_integers(1, 3), k=9, chunk_rows=4, devices=_devices(devices))
  np.testing.assert_array_equal(found.rows, _full_sort(corpus, _small_integers(1, 3), 9)[0])


def test_one_shape_is_compiled_for_all_chunks_and_blocks():
  compiled = []
  jax.monitoring.register_event_duration_secs_listener(
    lambda name, _, **__: compiled.append(name) if name.endswith("backend_compile_duration") else None
  )
  corpus = _small_integers(0, 101)
  search_exact(corpus, _small_integers(1, 11), k=3, chunk_rows=5, query_rows=4, devices=jax.devices())
  compiled.clear()
  search_exact(corpus, _small_integers(2, 9), k=3, chunk_rows=5, query_rows=4, devices=jax.devices())
  assert not compiled


# --- mistakes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("devices", [None, 8])
def test_an_embedding_that_is_not_finite_is_named(value, devices):
  corpus = np.ones((50, 3), np.float32)
  corpus[33, 1] = value
  with pytest.raises(UserError, match="embedding of passage 33 is not finite"):
    search_exact(corpus, np.ones((1, 3)), k=1, chunk_rows=4, devices=_devices(devices))
  with pytest.raises(UserError, match="embedding of query 33 is not finite"):
    search_exact(np.ones((2, 3)), corpus, k=1)


@pytest.mark.parametrize("devices", [None, 1])
def test_scores_that_overflow(devices):
  with pytest.raises(UserError, match="overflow float32"):
    search_exact(np.full((2, 2), 1e30), np.full((1, 2), 1e30), k=1, devices=_devices(devices))


def test_an_empty_corpus():
  with pytest.raises(UserError, match="corpus has 0 passages"):
    search_exact(np.ones((0, 3)), np.ones((1, 3)), k=1)


def test_another_width():
  with pytest.raises(UserError, match=r"corpus has the shape \(2, 3\) and the queries \(1, 4\)"):
    search_exact(np.ones((2, 3)), np.ones((1, 4)), k=1)


@pytest.mark.parametrize("name", ["k", "chunk_rows", "query_rows"])
def test_sizes_below_one(name):
  with pytest.raises(UserError, match=f"{name} is 0"):
    search_exact(np.ones((2, 3)), np.ones((1, 3)), **{"k": 1, name: 0})
