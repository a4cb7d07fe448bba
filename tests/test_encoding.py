"""Batches by length: every row once, few shapes; and the encoder over them: few compilations, the values of one by one."""

import jax
import numpy as np
import pytest
from numpy.testing import assert_allclose

from retrieval_jax import encoding
from retrieval_jax.encoding import Encoder, RaggedRows, bucket, length_batches, row_counts
from retrieval_jax.errors import UserError
from retrieval_jax.models.bert import BertEncoder
from retrieval_jax.models.dual_encoder import SIDES, dual_encoder
from retrieval_jax.models.tower import Tower
from retrieval_jax.partitioning import partitioner

MODEL = dual_encoder(Tower(BertEncoder(1, 2, 8, 16, max_positions=64), vocab_size=50))


@pytest.fixture(scope="module")
def params():
  return jax.jit(MODEL.init)(jax.random.key(0))


def rows(count: int, longest: int, seed: int = 0) -> RaggedRows:
  rng = np.random.default_rng(seed)
  lengths = rng.integers(1, longest + 1, count)
  return RaggedRows([rng.integers(1, 50, n).astype(np.int32) for n in lengths], longest)


def test_buckets_are_multiples_of_16_then_powers_of_two():
  assert [bucket(n, 512) for n in (0, 1, 16, 17, 128, 129, 257, 600)] == [16, 16, 16, 32, 128, 256, 512, 512]
  assert bucket(10, 8) == 8


def test_row_counts_are_quarters_down_to_eight():
  assert row_counts(16, 8192, multiple=1) == [512, 128, 32, 8]
  assert row_counts(512, 8192, multiple=1) == [16, 8]
  assert row_counts(512, 1024, multiple=1) == [2]
  assert row_counts(128, 8192, multiple=6) == [60, 18, 12]
  assert row_counts(16, 8192, multiple=32) == [512, 128, 32]


def test_every_row_is_in_exactly_one_batch_and_fits():
  lengths = np.random.default_rng(0).integers(0, 200, 1000)
  seen = []
  batches = list(length_batches(lengths, 200, 1024, multiple=8))
  for number, (rows, length) in enumerate(batches):
    real = rows[rows >= 0]
    assert (lengths[real] <= length).all()
    assert len(rows) in row_counts(length, 1024, multiple=8)
    assert len(real) == len(rows) or number == len(batches) - 1, "only the last batch may have room"
    seen.extend(real)
  assert sorted(seen) == list(range(1000))
  lengths_seen = [length for _, length in batches]
  assert lengths_seen == sorted(lengths_seen, reverse=True)
  assert len({(len(rows), length) for rows, length in batches}) <= len(set(lengths_seen)) + 1


def test_longest_rows_come_first_and_leftovers_share_a_batch():
  batches = list(length_batches(np.array([5, 60, 30]), 64, 64, multiple=1))
  assert [(rows.tolist(), length) for rows, length in batches] == [([1], 64), ([2, 0], 32)]


def test_nothing_to_encode(params):
  encoder = Encoder(MODEL, params, partitioner())
  assert encoder.queries(RaggedRows([], 16)).shape == (0, 8)


@pytest.mark.parametrize("count", [1, 64])
def test_bucketed_equals_one_by_one_unpadded(params, count):
  tokens = rows(count, 40)
  got = Encoder(MODEL, params, partitioner(), tokens_per_batch=256).passages(tokens)
  encode = jax.jit(MODEL.encode_passages)
  for row in range(0, count, 9):
    assert_allclose(got[row], encode(params, tokens.tokens[row][None])[0], atol=1e-5, err_msg=f"{row}")


def test_no_more_compilations_than_shapes(params):
  encoder = Encoder(MODEL, params, partitioner(), tokens_per_batch=512)
  run = encoding._compiled(MODEL, "float32", "query", encoder.partitioner)
  before = run._cache_size()
  for count in (1, 3, 9, 20, 70, 200):
    for seed in range(2):
      encoder.queries(rows(count, 32, seed))
  shapes = encoder.shapes(32)
  assert shapes == [(32, 16), (8, 16), (16, 32), (8, 32)]
  assert run._cache_size() - before <= len(shapes)


def test_one_tower_compiles_once_for_both_sides(params):
  """The width is this test's own, so that nothing was compiled before."""
  model = dual_encoder(Tower(BertEncoder(1, 2, 12, 16, max_positions=64), vocab_size=50))
  two = dual_encoder(model.query_tower, sharing="ade")
  tokens = rows(8, 16)
  for pair, expected in ((model, 1), (two, 2)):
    encoder = Encoder(pair, jax.jit(pair.init)(jax.random.key(0)), partitioner())
    query, passage = encoder.queries(tokens), encoder.passages(tokens)
    programs = {encoding._compiled(pair, "float32", side, encoder.partitioner) for side in SIDES}
    assert sum(program._cache_size() for program in programs) == expected
    assert (np.abs(query - passage).max() < 1e-6) == (expected == 1)


def test_embeddings_that_are_not_finite_name_the_text(params):
  broken = jax.tree.map(lambda x: x, params)
  broken["token_embedder"] = {"embedding": params["token_embedder"]["embedding"].at[7].set(np.nan)}
  tokens = RaggedRows([np.array([1, 2]), np.array([3, 7])], 16)
  with pytest.raises(UserError, match="encode passages: 1 embeddings are not finite, the first of text 1"):
    Encoder(MODEL, broken, partitioner()).passages(tokens)
