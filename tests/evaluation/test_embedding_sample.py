"""geometry.npz: directions and lengths, its size, and files that are none."""

import numpy as np
import pytest

from retrieval_jax import embedding_sample
from retrieval_jax.embedding_sample import fixed_sample, most_pairs, read_sample, sample_of, write_sample
from retrieval_jax.errors import UserError


def _rows(*rows: list[float]) -> np.ndarray:
  return np.array(rows, np.float32)


def test_directions_lengths_and_cosines_by_hand():
  sample = sample_of(
    (_rows([3, 4], [0, 0]), _rows([0, 70000], [1, 0])),
    (_rows([1, 0], [1, 1], [0, 0]), _rows([-2, 0], [0, 5], [1, 1])),
  )
  np.testing.assert_allclose(sample.queries, [[0.6, 0.8], [0, 0]], atol=1e-3)
  assert sample.passages.tolist() == [[0, 1], [1, 0]]  # 70000 is no float16
  assert sample.queries.dtype == sample.passages.dtype == np.float16
  assert sample.query_norms.tolist() == [5, 0]
  assert sample.passage_norms.tolist() == [70000, 1]
  assert sample.top_cosines == pytest.approx([-1, 1 / np.sqrt(2)])


def test_a_sample_is_read_back_and_stays_below_2_mb(tmp_path):
  for dim in (8, 384, 768, 1024, 4096):
    count = most_pairs(dim)
    side = np.random.default_rng(0).normal(size=(count, dim)).astype(np.float32)
    tops = np.ones((embedding_sample.TOPS, dim), np.float32)
    sample = sample_of((side, side), (tops, tops))
    write_sample(tmp_path / "geometry.npz", sample)
    assert (tmp_path / "geometry.npz").stat().st_size < 2_000_000
    found = read_sample(tmp_path / "geometry.npz")
    assert all(np.array_equal(a, b) for a, b in zip(sample, found, strict=True))
  assert (most_pairs(768), most_pairs(1024), most_pairs(4096)) == (500, 463, 115)


def test_a_fixed_sample_has_no_row_twice():
  assert fixed_sample(3, 5).tolist() == [0, 1, 2]
  found = fixed_sample(400, 50)
  assert found.tolist() == sorted(set(found.tolist())) == fixed_sample(400, 50).tolist()
  assert (len(found), found[0] >= 0, found[-1] < 400) == (50, True, True)


def test_files_that_are_no_sample_are_refused(tmp_path):
  path = tmp_path / "geometry.npz"
  path.write_bytes(b"PK not a zip")
  with pytest.raises(UserError, match=r"geometry.npz: not a whole sample of embeddings"):
    read_sample(path)
  sample = sample_of((_rows([1, 0], [0, 1]),) * 2, (_rows([1, 0]),) * 2)
  write_sample(path, sample)
  path.write_bytes(path.read_bytes()[:-40])
  with pytest.raises(UserError, match=r"geometry.npz: not a whole sample of embeddings"):
    read_sample(path)
  np.savez(path, queries=sample.queries)
  with pytest.raises(UserError, match=r"not a whole sample of embeddings .*passages"):
    read_sample(path)
  write_sample(path, sample._replace(query_norms=np.ones(7, np.float32)))
  with pytest.raises(UserError, match="its arrays do not fit together"):
    read_sample(path)
  write_sample(path, sample._replace(top_cosines=np.array([np.nan], np.float32)))
  with pytest.raises(UserError, match="holds numbers that are not finite"):
    read_sample(path)
