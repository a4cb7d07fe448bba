"""Every public index of embeddings has every property that the Index interface promises."""

import importlib
import inspect
import pkgutil

import numpy as np
import pytest

import retrieval_jax.index
from retrieval_jax.embeddings import ShardedEmbeddings
from retrieval_jax.errors import UserError
from retrieval_jax.index.ann import faiss_flat, faiss_hnsw, faiss_ivf
from retrieval_jax.index.base import Index
from retrieval_jax.index.exact import exact

# The name before the colon is the factory's. The approximate ones are set so that they look at every passage.
INDEXES = {
  "exact": exact,
  "faiss_flat": faiss_flat,
  "faiss_ivf: all lists": lambda corpus: faiss_ivf(corpus, num_lists=min(4, len(corpus)), num_probes=4),
  "faiss_hnsw": lambda corpus: faiss_hnsw(corpus, ef_search=1000),
}
EXACT_TIES = {"exact"}  # the others choose freely among passages with the k-th best score
C, D = 120, 16

every_index = pytest.mark.parametrize("make", INDEXES.values(), ids=INDEXES.keys())


def _corpus(seed=0, count=C):
  """Unit vectors, as an encoder makes them."""
  rows = np.random.default_rng(seed).normal(size=(count, D)).astype(np.float32)
  return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def _queries(count=21):
  return _corpus(1, count)


def _full_sort(corpus, queries, k):
  """Returns the rows of the k best scores: higher score, then smaller row."""
  scores = queries.astype(np.float64) @ np.asarray(corpus, np.float64).T
  rows = np.broadcast_to(np.arange(len(corpus)), scores.shape)
  return np.lexsort((rows, -scores), axis=1)[:, :k]


def test_every_public_factory_has_a_row():
  found = set()
  for module_info in pkgutil.iter_modules(retrieval_jax.index.__path__, "retrieval_jax.index."):
    module = importlib.import_module(module_info.name)
    for name, function in inspect.getmembers(module, inspect.isfunction):
      public = function.__module__ == module_info.name and not name.startswith("_")
      if public and inspect.signature(function).return_annotation in (Index, "Index"):
        found.add(name)
  assert found == {name.partition(":")[0] for name in INDEXES}


@every_index
def test_results_are_the_best_passages_in_order(make):
  corpus, queries = _corpus(), _queries()
  index = make(corpus)
  assert isinstance(index, Index)
  assert len(index) == C
  found = index.search(queries, k=10)
  np.testing.assert_array_equal(found.rows, _full_sort(corpus, queries, 10))
  np.testing.assert_allclose(
    found.scores, np.take_along_axis(queries @ corpus.T, found.rows, axis=1), rtol=1e-5, atol=1e-6
  )
  assert (found.rows.dtype, found.scores.dtype) == (np.int32, np.float32)


@every_index
def test_equal_scores_come_in_row_order(make):
  """Copies of passages all over the corpus; all of it is asked for, so none is cut off."""
  corpus = _corpus(count=30)[np.random.default_rng(2).integers(0, 30, C)]
  queries = _queries()
  found = make(corpus).search(queries, k=C)
  np.testing.assert_array_equal(found.rows, _full_sort(corpus, queries, C))
  assert (np.diff(found.scores, axis=1) <= 0).all()


@pytest.mark.parametrize("name", sorted(EXACT_TIES))
def test_the_smaller_row_wins_at_the_cut(name):
  corpus = _corpus(count=30)[np.random.default_rng(2).integers(0, 30, C)]
  queries = _queries()
  for k in (1, 5, 17):
    np.testing.assert_array_equal(
      INDEXES[name](corpus).search(queries, k=k).rows, _full_sort(corpus, queries, k)
    )


@every_index
def test_more_results_than_passages_are_filled_up_at_the_end_only(make):
  corpus, queries = _corpus(count=9), _queries()
  found = make(corpus).search(queries, k=14)
  np.testing.assert_array_equal(found.rows[:, :9], _full_sort(corpus, queries, 9))
  assert (found.rows[:, 9:] == -1).all()
  assert (found.scores[:, 9:] == -np.inf).all()


@every_index
def test_all_passages_are_found_when_all_are_asked_for(make):
  found = make(_corpus()).search(_queries(), k=C)
  np.testing.assert_array_equal(np.sort(found.rows, axis=1), np.broadcast_to(np.arange(C), (21, C)))


@every_index
@pytest.mark.parametrize("k", [1, 3])
def test_one_query_and_one_passage(make, k):
  found = make(np.full((1, D), 0.25, np.float32)).search(np.ones((1, D), np.float32), k=k)
  np.testing.assert_array_equal(found.rows, [[0, -1, -1][:k]])
  np.testing.assert_array_equal(found.scores, [[0.25 * D, -np.inf, -np.inf][:k]])


@every_index
def test_no_query(make):
  found = make(_corpus()).search(np.zeros((0, D), np.float32), k=4)
  assert found.rows.shape == found.scores.shape == (0, 4)


@every_index
def test_one_query_is_searched_as_among_others(make):
  index, queries = make(_corpus()), _queries()
  together = index.search(queries, k=10)
  for i in (0, 20):
    alone = index.search(queries[i : i + 1], k=10)
    np.testing.assert_array_equal(alone.rows[0], together.rows[i])
    np.testing.assert_allclose(alone.scores[0], together.scores[i], rtol=1e-5, atol=1e-6)


@every_index
def test_the_order_of_the_queries_does_not_matter(make):
  index, queries = make(_corpus()), _queries()
  shuffled = np.random.default_rng(3).permutation(len(queries))
  np.testing.assert_array_equal(
    index.search(queries[shuffled], k=10).rows, index.search(queries, k=10).rows[shuffled]
  )


@every_index
def test_the_order_of_the_passages_does_not_matter(make):
  corpus, queries = _corpus(), _queries()
  shuffled = np.random.default_rng(3).permutation(C)
  found = make(corpus[shuffled]).search(queries, k=10)
  np.testing.assert_array_equal(shuffled[found.rows], make(corpus).search(queries, k=10).rows)


@every_index
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("kind", ["memory-mapped", "sharded"])
def test_a_corpus_in_files_equals_the_array(make, kind, dtype, tmp_path):
  corpus, queries = _corpus().astype(dtype), _queries()
  np.save(tmp_path / "corpus.npy", corpus)
  mapped = np.load(tmp_path / "corpus.npy", mmap_mode="r")
  inside = mapped if kind == "memory-mapped" else ShardedEmbeddings([mapped[:50], mapped[50:51], mapped[51:]])
  found, expected = make(inside).search(queries, k=10), make(corpus.astype(np.float32)).search(queries, k=10)
  np.testing.assert_array_equal(found.rows, expected.rows)
  np.testing.assert_array_equal(found.scores, expected.scores)


@every_index
def test_queries_of_any_layout(make):
  index, queries = make(_corpus()), _queries()
  expected = index.search(queries, k=10).rows
  np.testing.assert_array_equal(index.search(np.asfortranarray(queries), k=10).rows, expected)
  np.testing.assert_array_equal(index.search(queries.astype(np.float64), k=10).rows, expected)


@every_index
def test_negative_scores_are_results_too(make):
  corpus = -np.abs(_corpus())
  found = make(corpus).search(np.ones((1, D), np.float32), k=C)
  assert (found.rows >= 0).all()
  assert (found.scores < 0).all()


# --- mistakes -----------------------------------------------------------------------------------------------------


@every_index
def test_an_empty_corpus_and_one_of_another_shape(make):
  with pytest.raises(UserError, match="corpus has 0 passages"):
    make(np.zeros((0, D), np.float32))
  with pytest.raises(UserError, match=r"corpus has the shape \(16,\)"):
    make(np.zeros(D, np.float32))


@every_index
def test_queries_that_do_not_fit(make):
  index = make(_corpus())
  with pytest.raises(UserError, match=r"corpus has the shape \(120, 16\) and the queries \(2, 15\)"):
    index.search(np.zeros((2, 15), np.float32), k=1)
  with pytest.raises(UserError, match="k is 0"):
    index.search(_queries(), k=0)


@every_index
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_passage_or_a_query_that_is_not_finite_is_named(make, value):
  corpus, queries = _corpus(), _queries()
  corpus[33, 1] = queries[7, 2] = value
  with pytest.raises(UserError, match="embedding of passage 33 is not finite"):
    make(corpus).search(_queries(), k=1)
  with pytest.raises(UserError, match="embedding of query 7 is not finite"):
    make(_corpus()).search(queries, k=1)
