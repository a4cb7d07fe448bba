"""Shards read as one array, and what is said of folders that cannot be read."""

import json

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from retrieval_jax.embedding_writer import Manifest, writing
from retrieval_jax.embeddings import Layout, ShardedEmbeddings, open_embeddings
from retrieval_jax.errors import UserError
from retrieval_jax.index.exact import search_exact

WHOLE = np.arange(20, dtype=np.float32).reshape(10, 2)
SHARDED = ShardedEmbeddings([WHOLE[:4], WHOLE[4:8], WHOLE[8:]])


@pytest.fixture
def folder(tmp_path):
  """Ten rows in shards of four."""
  manifest = Manifest({"model": "m"}, Layout(10, 2, 4), {})
  with writing(tmp_path / "passages", manifest) as writer:
    for number in writer.missing():
      span = writer.layout.span(number)
      writer.write(number, WHOLE[span.start : span.stop], [f"id {row}" for row in span])
  return tmp_path / "passages"


@pytest.mark.parametrize(
  "index",
  [
    *(0, 3, 4, 9, -1, -10, np.int64(5)),
    *(
      slice(None),
      slice(2, 6),
      slice(4, 8),
      slice(3, 9),
      slice(-3, None),
      slice(5, 5),
      slice(8, 2),
      slice(0, 99),
    ),
    *(slice(None, None, 3), slice(7, 1, -2)),
    *([], [9, 0, 4, 4, -1], np.array([3, 7, 8], np.int32), np.array([[0, 9], [5, 4]])),
  ],
  ids=str,
)
def test_reads_as_one_array_would(index):
  expected = WHOLE[np.asarray(index, int) if isinstance(index, list) else index]
  found = SHARDED[index]
  assert_array_equal(found, expected)
  assert found.dtype == np.float32
  assert found.shape == expected.shape


@pytest.mark.parametrize("index", [10, -11, [0, 10], [-11]], ids=str)
def test_a_row_that_is_not_there(index):
  with pytest.raises(IndexError, match="there are 10"):
    SHARDED[index]


@pytest.mark.parametrize("index", [(1, 2.5), 1.0, "a", np.ones(10, bool), None], ids=str)
def test_other_kinds_of_index_are_refused(index):
  with pytest.raises(IndexError, match="row number, slice or array of row numbers"):
    SHARDED[index]


def test_looks_like_one_array():
  assert (SHARDED.shape, SHARDED.ndim, len(SHARDED), SHARDED.dtype) == ((10, 2), 2, 10, np.float32)
  assert_array_equal(np.asarray(SHARDED), WHOLE)
  assert_array_equal(np.stack(list(SHARDED)), WHOLE)
  assert np.asarray(SHARDED, np.float64).dtype == np.float64
  with pytest.raises(ValueError, match="3 shards of float32 are no single array without a copy"):
    np.asarray(SHARDED, copy=False)


def test_a_slice_of_one_shard_and_a_single_shard_are_no_copies():
  assert np.shares_memory(SHARDED[4:8], WHOLE)
  assert np.shares_memory(SHARDED[5:7], WHOLE)
  assert not np.shares_memory(SHARDED[3:5], WHOLE)
  one = ShardedEmbeddings([WHOLE])
  assert np.shares_memory(np.asarray(one), WHOLE)
  assert not np.shares_memory(np.array(one), WHOLE)


def test_search_over_shards_equals_search_over_one_array():
  rng = np.random.default_rng(0)
  corpus, queries = (
    rng.integers(-3, 4, (50, 3)).astype(np.float32),
    rng.integers(-3, 4, (4, 3)).astype(np.float32),
  )
  shards = ShardedEmbeddings([corpus[:7], corpus[7:14], corpus[14:]])
  for one, other in zip(search_exact(shards, queries, k=9), search_exact(corpus, queries, k=9), strict=True):
    assert_array_equal(one, other)


def test_a_folder_is_mapped_and_not_read(folder):
  found = open_embeddings(folder)
  assert [type(shard) for shard in found.shards] == [np.memmap] * 3
  assert_array_equal(found[:], WHOLE)
  assert [json.loads(line) for line in (folder / "00002.ids.jsonl").read_bytes().split(b"\n")[:-1]] == [
    "id 8",
    "id 9",
  ]


def test_a_folder_of_no_rows(tmp_path):
  with writing(tmp_path / "queries", Manifest({}, Layout(0, 2), {})) as writer:
    assert writer.missing() == []
  found = open_embeddings(tmp_path / "queries")
  assert found.shape == (0, 2)
  assert found[[]].shape == (0, 2)


def test_no_manifest(tmp_path):
  with pytest.raises(UserError, match=r"manifest\.json is missing or no manifest of embeddings"):
    open_embeddings(tmp_path)


@pytest.mark.parametrize(
  "text",
  [
    "{",
    "[]",
    '{"rows": 3}',
    '{"rows": "3", "embed_dim": 2, "rows_per_shard": 4, "embedding_dtype": "float32"}',
  ],
)
def test_a_manifest_that_is_none(folder, text):
  (folder / "manifest.json").write_text(text, encoding="utf-8")
  with pytest.raises(UserError, match="no manifest of embeddings"):
    open_embeddings(folder)


@pytest.mark.parametrize("name", ["00001.npy", "00001.ids.jsonl"])
def test_a_missing_shard_is_named(folder, name):
  (folder / name).unlink()
  with pytest.raises(UserError, match=rf"{name} is missing, one of 3 shards"):
    open_embeddings(folder)


@pytest.mark.parametrize("damage", ["cut", "empty", "header", "rows", "dtype", "folder"])
def test_a_damaged_shard_is_named(folder, damage):
  path = folder / "00001.npy"
  content = path.read_bytes()
  if damage == "cut":
    path.write_bytes(content[:-1])
  elif damage == "empty":
    path.write_bytes(b"")
  elif damage == "header":
    path.write_bytes(b"garbage" + content[7:])
  elif damage == "rows":
    np.save(path, WHOLE[:3])
  elif damage == "dtype":
    np.save(path, WHOLE[4:8].astype(np.float16))
  else:
    path.unlink()
    path.mkdir()
  with pytest.raises(UserError, match=r"00001\.npy is damaged"):
    open_embeddings(folder)


@pytest.mark.parametrize(
  "layout, message",
  [
    (Layout(3, 2, 0), "ROWS_PER_SHARD=0: expected a whole number of at least 1"),
    (Layout(3, 2, 2.0), r"ROWS_PER_SHARD=2\.0: expected"),
    (Layout(3, 2, True), "ROWS_PER_SHARD=True: expected"),
    (
      Layout(3, 2, 4, "float61"),
      "EMBEDDING_DTYPE='float61': expected 'float32' or 'float16'; did you mean 'float",
    ),
    (Layout(3, 2, 4, "bfloat16"), "EMBEDDING_DTYPE='bfloat16': expected 'float32' or 'float16'"),
  ],
)
def test_layouts_that_cannot_be(tmp_path, layout, message):
  with pytest.raises(UserError, match=message):
    layout.check()


def test_spans_cover_every_row_once():
  layout = Layout(10, 384, 4)
  assert [layout.span(number) for number in range(layout.num_shards)] == [range(4), range(4, 8), range(8, 10)]
  assert Layout(8, 384, 4).num_shards == 2
  assert Layout(0, 384, 4).num_shards == 0
