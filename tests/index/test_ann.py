import sys

import numpy as np
import pytest

from retrieval_jax.errors import UserError
from retrieval_jax.index import ann
from retrieval_jax.index.exact import search_exact


def _clusters(count, seed=0):
  """Unit vectors around 20 centres."""
  rng = np.random.default_rng(seed)
  centres = np.random.default_rng(9).normal(size=(20, 16))
  rows = centres[rng.integers(0, 20, count)] + 0.4 * rng.normal(size=(count, 16))
  return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


CORPUS, QUERIES = _clusters(2000), _clusters(30, seed=1)


def _recall(found, k):
  expected = search_exact(CORPUS, QUERIES, k=k).rows
  return np.mean([np.isin(want, got).mean() for want, got in zip(expected, found.rows, strict=True)])


def test_more_probes_find_more_and_all_of_them_everything():
  recalls = [
    _recall(ann.faiss_ivf(CORPUS, num_lists=40, num_probes=probes).search(QUERIES, k=10), 10)
    for probes in (1, 5, 40, 1000)
  ]
  assert 0.2 < recalls[0] < recalls[1] <= recalls[2] == recalls[3] == 1


def test_a_search_in_few_lists_ends_with_what_was_not_found():
  """One list of about 50 passages: it cannot give 200."""
  found = ann.faiss_ivf(CORPUS, num_lists=40, num_probes=1).search(QUERIES, k=200)
  counts = (found.rows >= 0).sum(axis=1)
  assert ((counts > 0) & (counts < 200)).all()
  for rows, scores, count in zip(found.rows, found.scores, counts, strict=True):
    assert (rows[:count] >= 0).all()
    assert (rows[count:] == -1).all()
    assert (scores[count:] == -np.inf).all()
    assert np.isfinite(scores[:count]).all()


@pytest.mark.parametrize("train_rows", [400, 2000])
def test_lists_depend_on_the_seed_alone(train_rows):
  """By the sample, and by k-means' first centres where all passages are in it."""

  def rows(seed):
    index = ann.faiss_ivf(CORPUS, num_lists=40, num_probes=2, train_rows=train_rows, seed=seed)
    return index.search(QUERIES, k=50).rows

  np.testing.assert_array_equal(rows(3), rows(3))
  assert (rows(3) != rows(4)).any()


def test_lists_are_trained_on_a_sample_read_in_blocks(monkeypatch):
  monkeypatch.setattr(ann, "BLOCK_ROWS", 300)
  sample = ann._sample(CORPUS, 500, seed=0)
  assert sample.shape == (500, 16)
  chosen = [np.flatnonzero((row == CORPUS).all(axis=1)).item() for row in sample]
  assert chosen == sorted(set(chosen))
  assert min(chosen) < 100
  assert max(chosen) > 1900
  found = ann.faiss_ivf(CORPUS, num_lists=5, num_probes=5).search(QUERIES, k=10)
  np.testing.assert_array_equal(found.rows, search_exact(CORPUS, QUERIES, k=10).rows)


def test_nothing_is_printed_for_few_training_rows(capfd):
  ann.faiss_ivf(CORPUS[:50], num_lists=10, train_rows=10)
  assert capfd.readouterr() == ("", "")


def test_the_number_of_lists_follows_the_corpus():
  assert ann.faiss_ivf(CORPUS)._index.nlist == round(4 * 2000**0.5)
  assert ann.faiss_ivf(CORPUS[:3])._index.nlist == 3


def test_a_wider_graph_search_finds_more():
  few, many = (
    _recall(ann.faiss_hnsw(CORPUS, neighbours=4, ef_construction=10, ef_search=ef).search(QUERIES, k=5), 5)
    for ef in (1, 500)
  )
  assert 0.2 < few < many
  assert many > 0.95


def test_queries_in_blocks_are_searched_as_one(monkeypatch):
  index = ann.faiss_flat(CORPUS)
  whole = index.search(QUERIES, k=10)
  monkeypatch.setattr(ann, "QUERY_ROWS", 7)
  np.testing.assert_array_equal(index.search(QUERIES, k=10).rows, whole.rows)


# --- files --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [ann.faiss_flat, ann.faiss_ivf, ann.faiss_hnsw])
def test_a_saved_index_searches_the_same(make, tmp_path):
  index = make(CORPUS)
  index.save(tmp_path / "new" / "index")
  loaded = ann.load(tmp_path / "new" / "index")
  assert len(loaded) == 2000
  for found, expected in zip(loaded.search(QUERIES, k=9), index.search(QUERIES, k=9), strict=True):
    np.testing.assert_array_equal(found, expected)


def test_search_settings_are_saved_with_the_index(tmp_path):
  ann.faiss_ivf(CORPUS, num_lists=40, num_probes=7).save(tmp_path / "ivf")
  ann.faiss_hnsw(CORPUS[:100], ef_search=77).save(tmp_path / "hnsw")
  assert ann.load(tmp_path / "ivf")._index.nprobe == 7
  assert ann.load(tmp_path / "hnsw")._index.hnsw.efSearch == 77


def test_a_write_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
  import faiss

  def fail(index, writer):
    raise OSError("disk full")

  ann.faiss_flat(CORPUS[:5]).save(tmp_path / "index")
  monkeypatch.setattr(faiss, "write_index", fail)
  with pytest.raises(OSError, match="disk full"):
    ann.faiss_flat(CORPUS).save(tmp_path / "index")
  assert [path.name for path in tmp_path.iterdir()] == ["index"]
  assert len(ann.load(tmp_path / "index")) == 5


def test_a_file_that_is_not_there_or_not_whole(tmp_path):
  with pytest.raises(UserError, match="no such file"):
    ann.load(tmp_path / "none")
  ann.faiss_flat(CORPUS).save(tmp_path / "index")
  whole = (tmp_path / "index").read_bytes()
  for damaged in (b"", whole[:40], whole[:5000], b"\xff" * 100):
    (tmp_path / "index").write_bytes(damaged)
    with pytest.raises(UserError, match="not a whole faiss index"):
      ann.load(tmp_path / "index")


def test_an_index_by_another_measure(tmp_path):
  import faiss

  faiss.write_index(faiss.IndexFlatL2(16), str(tmp_path / "l2"))
  with pytest.raises(UserError, match="another measure than the inner product"):
    ann.load(tmp_path / "l2")


# --- mistakes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [ann.faiss_flat, ann.faiss_ivf, ann.faiss_hnsw])
def test_faiss_is_not_installed(make, monkeypatch):
  monkeypatch.setitem(sys.modules, "faiss", None)  # what import sees for a package that is not there
  with pytest.raises(UserError, match=r"needs the package faiss.*retrieval-jax\[ann\]"):
    make(CORPUS)


@pytest.mark.parametrize(
  "settings, message",
  [
    ({"num_lists": 0}, "num_lists is 0; expected 1 .. 2000"),
    ({"num_lists": 2001}, "num_lists is 2001; expected 1 .. 2000"),
    ({"num_probes": 0}, "num_probes is 0"),
    ({"num_lists": 40, "train_rows": 39}, "train_rows is 39 for 40 lists"),
  ],
)
def test_lists_that_cannot_be(settings, message):
  with pytest.raises(UserError, match=message):
    ann.faiss_ivf(CORPUS, **settings)


@pytest.mark.parametrize("name, value", [("neighbours", 1), ("ef_construction", 0), ("ef_search", 0)])
def test_a_graph_that_cannot_be(name, value):
  with pytest.raises(UserError, match=f"{name} is {value}|{name} {value}"):
    ann.faiss_hnsw(CORPUS, **{name: value})


def test_scores_that_overflow():
  with pytest.raises(UserError, match="overflow float32"):
    ann.faiss_flat(np.full((2, 2), 1e30)).search(np.full((1, 2), 1e30), k=1)
