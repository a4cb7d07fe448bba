"""T5Encoder and the dual encoders made of it, against T5X Retrieval's outputs and gradients."""

import ast
import json

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import tree_util
from numpy.testing import assert_allclose

from retrieval_jax.models.dual_encoder import TowerPair, dual_encoder
from retrieval_jax.models.relative_position import RelativePositionBias, bucket
from retrieval_jax.models.t5 import T5Encoder
from retrieval_jax.models.tower import Tower

TINY = T5Encoder(num_layers=2, num_heads=4, head_dim=8, embed_dim=24, mlp_dim=40)
TOWER = Tower(TINY, vocab_size=96, projection_dim=16)

# T5X says left and right for our query and passage.
OUR_NAMES = {
  "left_encoder": "query_encoder",
  "right_encoder": "passage_encoder",
  "left_token_embedder": "query_token_embedder",
  "right_token_embedder": "passage_token_embedder",
}


def nested(archive, prefix: str) -> dict:
  """The arrays under `prefix` as a tree with our names."""
  tree: dict = {}
  for key in archive.files:
    if key.startswith(prefix):
      top, *rest = key.removeprefix(prefix).split("/")
      node = tree
      for name in [OUR_NAMES.get(top, top), *rest[:-1]]:
        node = node.setdefault(name, {})
      node[rest[-1]] = archive[key]
  return tree


def paths(tree) -> dict[str, np.ndarray]:
  leaves = tree_util.tree_leaves_with_path(tree, is_leaf=lambda leaf: isinstance(leaf, tuple))
  return {tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}


def t5x_loss(model: TowerPair, params, archive):
  """T5X Retrieval's training loss, from its definition: cross entropy of rows plus that of columns."""
  query = model.encode_queries(params, archive["left_tokens"])
  passage = model.encode_passages(params, archive["right_tokens"])
  logits = archive["grad_scale"] * query @ passage.T
  rows = jnp.mean(jnp.diagonal(jax.nn.log_softmax(logits, axis=1)))
  columns = jnp.mean(jnp.diagonal(jax.nn.log_softmax(logits, axis=0)))
  return -rows - columns, (query, passage)


@pytest.fixture(scope="module", params=["sde", "ade_spl"])
def case(request, oracles):
  """(model, parameters, archive, embeddings, gradients) of one sharing scheme."""
  archive = np.load(oracles / f"{request.param}_t5_1_1_f32.npz")
  model = dual_encoder(TOWER, sharing=request.param)
  params = nested(archive, "params/")
  run = jax.jit(jax.value_and_grad(lambda p: t5x_loss(model, p, archive), has_aux=True))
  (loss, embeddings), gradients = run(params)
  return model, params, archive, (loss, embeddings), gradients


def test_t5_oracle_embeddings_and_loss(case):
  _, _, archive, (loss, (query, passage)), _ = case
  assert query.dtype == jnp.float32
  assert_allclose(query, archive["left_emb"], atol=1e-5)
  assert_allclose(passage, archive["right_emb"], atol=1e-5)
  assert_allclose(loss, archive["loss_for_grad"], rtol=1e-5)


def test_t5_oracle_gradients(case):
  _, _, archive, _, gradients = case
  got, expected = paths(gradients), paths(nested(archive, "grads/"))
  assert got.keys() == expected.keys()
  for name, value in expected.items():
    assert_allclose(got[name], value, rtol=1e-4, atol=1e-4 * np.abs(value).max(), err_msg=name)


def test_t5_oracle_parameter_tree_is_t5x_s(case):
  model, params, _, _, _ = case
  fresh = jax.eval_shape(model.init, jax.random.key(0))
  assert {name: leaf.shape for name, leaf in paths(fresh).items()} == {
    name: leaf.shape for name, leaf in paths(params).items()
  }


def test_t5_oracle_encoder_output_and_pooled(oracles):
  archive = np.load(oracles / "sde_t5_1_1_f32.npz")
  params = nested(archive, "params/")
  tokens = archive["left_tokens"]
  pooled = Tower(TINY, vocab_size=96, normalize=False).apply(
    {"params": {part: params[part] for part in ("token_embedder", "encoder")}}, tokens, train=False
  )
  assert_allclose(pooled, archive["left_pooled"], rtol=1e-5, atol=1e-5)
  hidden = TINY.apply(
    {"params": params["encoder"]},
    jnp.asarray(params["token_embedder"]["embedding"][tokens]),
    jnp.asarray(tokens != 0),
    train=False,
  )
  seen = tokens != 0  # T5X zeroes what stands at padding; no pooling looks there
  assert_allclose(hidden[seen], archive["left_encoder_out"][seen], rtol=1e-5, atol=1e-5)
  projected = Tower(TINY, vocab_size=96, projection_dim=16, normalize=False).apply(
    {"params": params}, tokens, train=False
  )
  assert_allclose(projected, archive["left_projected"], rtol=1e-5, atol=1e-5)


def test_t5_oracle_bfloat16_stays_within_t5x_s_band(oracles):
  """T5X's own bfloat16 run of the same parameters differs from its float32 run by 0.012; ours from either by no more."""
  archive, half = np.load(oracles / "sde_t5_1_1_f32.npz"), np.load(oracles / "sde_t5_1_1_bf16.npz")
  model = dual_encoder(TOWER).with_dtype("bfloat16")
  params = nested(archive, "params/")
  for name, encode in (("left", model.encode_queries), ("right", model.encode_passages)):
    got = jax.jit(encode)(params, archive[f"{name}_tokens"])
    assert got.dtype == jnp.float32
    assert_allclose(got, archive[f"{name}_emb"], atol=0.012)
    assert_allclose(got, half[f"{name}_emb"], atol=0.012)


def test_t5_oracle_logical_axes(oracles):
  recorded = json.loads((oracles / "meta_sde.json").read_text())["sde_t5_1_1_f32"]["axes"]
  expected = {
    name.removesuffix("_axes"): ast.literal_eval(text.removeprefix("AxisMetadata(names=").removesuffix(")"))
    for name, text in recorded.items()
  }
  assert paths(dual_encoder(TOWER).logical_axes()) == expected


def test_relpos_oracle_buckets(oracles):
  archive = np.load(oracles / "relpos_bucket.npz")
  np.testing.assert_array_equal(bucket(archive["rel_k_minus_q"]), archive["bucket"])


def test_relative_position_bias_is_the_table_at_the_bucket_of_key_minus_query():
  module = RelativePositionBias(num_heads=3, num_buckets=32, max_distance=128)
  params = nn.unbox(module.init(jax.random.key(0), 7))
  table = params["params"]["rel_embedding"]
  distance = np.arange(7)[None, :] - np.arange(7)[:, None]
  assert_allclose(module.apply(params, 7)[0], table[:, bucket(distance)], rtol=1e-6)


def test_initial_scales():
  """Rough: the standard deviations that T5X's initialisers name."""
  encoder = T5Encoder(num_layers=1, num_heads=8, head_dim=16, embed_dim=128, mlp_dim=256)
  params = jax.jit(dual_encoder(Tower(encoder, vocab_size=500, projection_dim=64)).init)(jax.random.key(0))
  layer = params["encoder"]["layers_0"]
  deviations = {
    "embedding": (params["token_embedder"]["embedding"], 1.0),
    "query": (layer["attention"]["query"]["kernel"], (128 * 16) ** -0.5),
    "key": (layer["attention"]["key"]["kernel"], 128**-0.5),
    "out": (layer["attention"]["out"]["kernel"], 128**-0.5),
    "wi_0": (layer["mlp"]["wi_0"]["kernel"], 128**-0.5),
    "wo": (layer["mlp"]["wo"]["kernel"], 256**-0.5),
    "projection": (params["projection_layer"]["kernel"], 128**-0.5),
    "relpos": (params["encoder"]["relpos_bias"]["rel_embedding"], ((8 + 32) / 2) ** -0.5),
  }
  for name, (value, expected) in deviations.items():
    assert_allclose(np.std(value), expected, rtol=0.1, err_msg=name)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_activations_past_the_largest_float16_stay_finite(dtype):
  """The published large T5s reach 66246 in the MLP's output; 1e6 here. Embeddings and gradients are finite."""
  model = dual_encoder(TOWER).with_dtype(dtype)
  tokens = np.arange(1, 9, dtype=np.int32).reshape(2, 4)
  params = jax.jit(model.init)(jax.random.key(0))
  largest = jax.tree.map(lambda x: x, params)
  for layer in ("layers_0", "layers_1"):
    kernel = largest["encoder"][layer]["mlp"]["wo"]["kernel"]
    largest["encoder"][layer]["mlp"]["wo"]["kernel"] = kernel * 1e6

  def outer(params):
    embeddings = model.encode_queries(params, tokens)
    return jnp.sum(embeddings * jnp.arange(16)[None, :]), embeddings

  gradient, embeddings = jax.jit(jax.grad(outer, has_aux=True))(largest)
  assert_allclose(np.linalg.norm(embeddings, axis=1), 1, rtol=1e-5)
  assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))
