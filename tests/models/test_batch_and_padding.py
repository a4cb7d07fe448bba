"""An embedding is its text's alone: neither the size of the batch nor the padding moves it (bits may differ)."""

import jax
import numpy as np
import pytest
from numpy.testing import assert_allclose

from retrieval_jax.models.bert import BertEncoder
from retrieval_jax.models.dual_encoder import dual_encoder
from retrieval_jax.models.t5 import T5Encoder
from retrieval_jax.models.tower import Tower

VOCABULARY = 200
# MiniLM in all but depth and width: 512 positions, heads of 32, weights that spread attention; and a gated T5.
ENCODERS = {
  "minilm": BertEncoder(num_layers=2, num_heads=2, embed_dim=64, mlp_dim=256, init_std=0.2),
  "t5_1_1": T5Encoder(num_layers=2, num_heads=2, head_dim=32, embed_dim=64, mlp_dim=128),
}


@pytest.fixture(scope="module", params=ENCODERS)
def encode(request):
  """Returns tokens -> embeddings, jitted: one program a shape, as in use."""
  model = dual_encoder(Tower(ENCODERS[request.param], vocab_size=VOCABULARY))
  params = jax.jit(model.init)(jax.random.key(0))
  run = jax.jit(model.encode_queries)
  return lambda tokens: np.asarray(run(params, tokens))


def _tokens(rows, longest, length):
  """Returns token ids of random lengths up to `longest`, padded with 0 to `length`."""
  rng = np.random.default_rng(0)
  lengths = rng.integers(1, longest + 1, rows)
  ids = rng.integers(1, VOCABULARY, (rows, length)).astype(np.int32)
  return np.where(np.arange(length) < lengths[:, None], ids, 0).astype(np.int32)


def test_batch_of_1_and_of_64(encode):
  tokens = _tokens(64, 32, 32)
  together = encode(tokens)
  assert np.abs(together[0] - together[1]).max() > 0.01  # or equal embeddings would prove nothing
  for row in (0, 1, 63):
    assert_allclose(encode(tokens[row : row + 1])[0], together[row], atol=1e-5)


def test_padding_to_32_and_to_512(encode):
  tokens = _tokens(4, 32, 32)
  assert_allclose(encode(np.pad(tokens, ((0, 0), (0, 480)))), encode(tokens), atol=1e-5)


def test_a_long_text_in_the_batch_leaves_the_short_ones_alone(encode):
  short = _tokens(3, 16, 32)
  long = np.random.default_rng(1).integers(1, VOCABULARY, (1, 512)).astype(np.int32)
  mixed = np.concatenate([long, np.pad(short, ((0, 0), (0, 480)))])
  assert_allclose(encode(mixed)[1:], encode(short), atol=1e-5)


def test_rows_of_padding_beside_a_text_leave_it_alone(encode):
  tokens = _tokens(4, 32, 32)
  padded = np.concatenate([tokens, np.zeros((60, 32), np.int32)])
  assert_allclose(encode(padded)[:4], encode(tokens), atol=1e-5)
