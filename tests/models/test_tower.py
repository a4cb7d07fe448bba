"""Properties every encoder must have in a tower: one row an encoder, one test a property."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from retrieval_jax.errors import UserError
from retrieval_jax.models import layer_stack
from retrieval_jax.models import pooling as poolings
from retrieval_jax.models.bert import BertEncoder
from retrieval_jax.models.dual_encoder import TowerPair, dual_encoder
from retrieval_jax.models.t5 import T5Encoder
from retrieval_jax.models.tower import Tower
from retrieval_jax.partitioning import partitioner

ENCODERS = {
  "bert": BertEncoder(num_layers=2, num_heads=2, embed_dim=8, mlp_dim=16, dropout_rate=0.2, init_std=0.3),
  "distilbert": BertEncoder(2, 2, 8, 16, dropout_rate=0.2, init_std=0.3, token_types=0),
  "t5_1_1": T5Encoder(num_layers=2, num_heads=2, head_dim=4, embed_dim=8, mlp_dim=16, dropout_rate=0.2),
  "t5_1_0": T5Encoder(2, 2, 4, 8, 16, dropout_rate=0.2, activation="relu", gated=False),
  "umt5_scanned": T5Encoder(2, 2, 4, 8, 16, dropout_rate=0.2, relpos_per_layer=True, scan_layers=True),
}
TOKENS = np.array([[5, 6, 7, 8], [9, 10, 3, 0], [4, 0, 0, 0], [0, 0, 0, 0]], np.int32)


@pytest.fixture(scope="module", params=ENCODERS)
def model(request) -> TowerPair:
  return dual_encoder(Tower(ENCODERS[request.param], vocab_size=16, projection_dim=4))


@pytest.fixture(scope="module")
def params(model):
  return jax.jit(model.init)(jax.random.key(0))


@pytest.fixture(scope="module")
def embeddings(model, params):
  return jax.jit(model.encode_queries)(params, TOKENS)


def test_embeddings_are_float32_unit_vectors(model, embeddings):
  assert embeddings.dtype == jnp.float32
  assert embeddings.shape == (4, model.embed_dim) == (4, 4)
  assert_allclose(np.linalg.norm(embeddings[:3], axis=1), 1.0, rtol=1e-5)


def test_more_padding_changes_nothing(model, params, embeddings):
  padded = np.pad(TOKENS, ((0, 0), (0, 12)))
  longer = np.pad(TOKENS, ((0, 0), (0, 28)))
  encode = jax.jit(model.encode_queries)
  assert_allclose(encode(params, padded), embeddings, atol=1e-5)
  assert_allclose(encode(params, longer), encode(params, padded), atol=1e-5)


def test_rows_do_not_see_each_other(model, params, embeddings):
  assert_allclose(jax.jit(model.encode_queries)(params, TOKENS[::-1])[::-1], embeddings, atol=1e-6)


def test_a_row_of_padding_gives_zero_and_finite_gradients(model, params, embeddings):
  assert_allclose(embeddings[3], 0.0, atol=1e-6)
  # Through the norm of a zero vector too: the gradient must not be NaN.
  gradient = jax.jit(jax.grad(lambda p: jnp.sum(model.encode_queries(p, TOKENS) ** 2)))(params)
  assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))


def test_dropout_only_with_a_key_and_the_same_for_the_same_key(model, params, embeddings):
  train = jax.jit(lambda key: model.encode_queries(params, TOKENS, dropout_rng=key))
  first = train(jax.random.key(1))
  assert_array_equal(train(jax.random.key(1)), first)
  assert np.abs(train(jax.random.key(2)) - first)[:3].max() > 1e-3
  assert np.abs(first - embeddings)[:3].max() > 1e-3


def test_bfloat16_activations_keep_float32_parameters_and_embeddings(model, params, embeddings):
  half = model.with_dtype("bfloat16")
  assert all(
    leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(jax.eval_shape(half.init, jax.random.key(0)))
  )
  got = jax.jit(half.encode_queries)(params, TOKENS)
  assert got.dtype == jnp.float32
  assert_allclose(np.sum(got[:3] * embeddings[:3], axis=1), 1.0, atol=0.02)
  assert np.abs(got - embeddings).max() > 0  # or the setting would have done nothing


@pytest.mark.parametrize("pooling", poolings.NAMES)
def test_every_pooling_fits_a_tower(pooling):
  tower = Tower(ENCODERS["bert"], vocab_size=16, pooling=pooling, normalize=False)
  shape = jax.eval_shape(lambda: tower.init_with_output(jax.random.key(0), TOKENS, train=False)[0])
  assert (shape.shape, shape.dtype) == ((4, 8), jnp.float32)


@pytest.mark.parametrize("scan_layers", [False, True], ids=["unrolled", "scanned"])
@pytest.mark.parametrize("remat_policy", layer_stack.REMAT_POLICIES)
def test_scan_and_remat_change_no_value_and_no_gradient(
  request, model, params, embeddings, scan_layers, remat_policy
):
  encoder = model.query_tower.encoder.clone(scan_layers=scan_layers, remat_policy=remat_policy)
  other = dual_encoder(model.query_tower.clone(encoder=encoder))
  portable = model.portable_params(params, "query")
  theirs = other.with_pretrained(jax.eval_shape(other.init, jax.random.key(0)), portable)
  jax.tree.map(assert_array_equal, other.portable_params(theirs, "query"), portable)

  def loss(model, params):
    query = model.encode_queries(params, TOKENS)
    return jnp.sum(query**3), query

  (_, got), gradient = jax.jit(jax.value_and_grad(partial(loss, other), has_aux=True))(theirs)
  expected = jax.jit(jax.grad(lambda p: loss(model, p)[0]))(params)
  assert_allclose(got, embeddings, atol=1e-5)
  jax.tree.map(
    lambda a, b: assert_allclose(a, b, atol=1e-5),
    other.portable_params(gradient, "query"),
    model.portable_params(expected, "query"),
  )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_minimal_keeps_what_the_parameters_multiply_and_full_keeps_nothing(dtype):
  """A layer has 6 products with parameters and 2 in the attention; a gradient repeats those that are not kept."""

  def products(policy: str) -> int:
    encoder = BertEncoder(2, 2, 8, 16, dtype=dtype, remat_policy=policy)
    model = dual_encoder(Tower(encoder, vocab_size=16))
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    gradient = jax.grad(lambda p: jnp.sum(model.encode_queries(p, TOKENS) ** 2))
    return str(jax.make_jaxpr(gradient)(shapes)).count("dot_general[")

  layers = 2
  none, minimal, full = (products(policy) for policy in layer_stack.REMAT_POLICIES)
  assert minimal - none == 2 * layers
  assert full - none == (6 + 2) * layers


def test_scanned_layers_start_different():
  encoder = T5Encoder(2, 2, 4, 8, 16, scan_layers=True)
  tree = jax.jit(dual_encoder(Tower(encoder, vocab_size=16)).init)(jax.random.key(0))
  kernel = tree["encoder"]["layers"]["mlp"]["wo"]["kernel"]
  assert kernel.shape == (2, 16, 8)
  assert (kernel[0] != kernel[1]).all()
  axes = dual_encoder(Tower(encoder, vocab_size=16)).logical_axes()
  assert axes["encoder"]["layers"]["mlp"]["wo"]["kernel"] == ("layers", "mlp", "embed")


def test_unknown_remat_policy_names_the_nearest():
  model = dual_encoder(Tower(ENCODERS["bert"].clone(remat_policy="ful"), vocab_size=16))
  with pytest.raises(
    UserError, match=r"unknown remat_policy 'ful'; set REMAT_POLICY to one of none.*did you mean 'full'"
  ):
    jax.eval_shape(model.init, jax.random.key(0))


def test_activations_are_laid_out_on_the_mesh(model, params, embeddings):
  """Rows over 'data', MLP and heads over 'model'; the values stay the same."""
  mesh = partitioner(num_partitions=2)
  encode = jax.jit(mesh.traced(model.encode_queries))
  lowered = encode.lower(params, TOKENS).as_text()
  assert lowered.count("sdy.sharding_constraint") >= 5
  assert_allclose(encode(params, TOKENS), embeddings, atol=1e-5)
  assert "sharding_constraint" not in jax.jit(model.encode_queries).lower(params, TOKENS).as_text()


def test_token_order_matters(model, params):
  encode = jax.jit(model.encode_queries)
  assert np.abs(encode(params, TOKENS[:1, ::-1]) - encode(params, TOKENS[:1])).max() > 1e-4
