"""The encoder: few compilations, the values of one by one, whatever the spans and the devices; memory of one span."""

import jax
import numpy as np
import pytest
from numpy.testing import assert_allclose

from retrieval_jax import encoding
from retrieval_jax.encoding import Encoder, RaggedRows
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
  with pytest.raises(
    UserError, match=r"encode passages: the embedding of text 1 is not finite \(1 of a batch of 2\)"
  ):
    Encoder(MODEL, broken, partitioner()).passages(tokens)
