"""Chunks give the gradient of the whole batch in less memory; microbatches that of smaller pools of negatives."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jaxtyping import Array, Float

from retrieval_jax import sharding
from retrieval_jax.chunked_encoding import encode_in_chunks, spread
from retrieval_jax.freezing import freeze
from retrieval_jax.losses import in_batch
from retrieval_jax.losses.base import DataSizes, Loss
from retrieval_jax.losses.softmax_terms import Options
from retrieval_jax.models.bert import BertEncoder
from retrieval_jax.models.dual_encoder import TowerPair, dual_encoder
from retrieval_jax.models.feature_bag import FeatureBagTower
from retrieval_jax.models.t5 import T5Encoder
from retrieval_jax.models.tower import Tower
from retrieval_jax.partitioning import STANDARD_RULES, Rules, partitioner, standard_rules
from retrieval_jax.records import Batch
from retrieval_jax.step_options import StepOptions
from retrieval_jax.train_state import initial_state, state_shardings
from retrieval_jax.train_step import make_train_step

ONE_WAY = {"temperature": 1 / 20, "bidirectional": False}


def bert(sharing: str = "sde", dropout_rate: float = 0.0) -> TowerPair:
  encoder = BertEncoder(num_layers=1, num_heads=2, embed_dim=16, mlp_dim=32, dropout_rate=dropout_rate)
  return dual_encoder(Tower(encoder=encoder, vocab_size=64), sharing=sharing)


def tokens(rows: int, seed: int, length: int = 5) -> np.ndarray:
  return np.random.default_rng(seed).integers(1, 64, (rows, length)).astype(np.int32)


def batch(q: int, hard: int = 0) -> Batch:
  rows = np.arange(q, dtype=np.int32)
  passages = np.arange(q * (1 + hard), dtype=np.int32)
  weights = np.linspace(0.5, 1.5, q, dtype=np.float32)
  return Batch(tokens(q, 0), tokens(len(passages), 1), rows, passages, rows[:, None], weights)


def update(
  model: TowerPair,
  loss: Loss,
  batch: Batch,
  options: StepOptions = StepOptions(),  # noqa: B008
  *,
  devices: int = 1,
  num_partitions: int = 1,
  frozen: tuple[str, ...] = (),
  rules: Rules = STANDARD_RULES,
) -> tuple[Any, dict[str, float]]:
  """Returns (gradient, metrics) of one step of the jitted train step: with SGD at rate 1 the gradient is the change."""
  transform = freeze(optax.sgd(1.0), frozen)
  part = partitioner(num_partitions=num_partitions, devices=jax.devices()[:devices], rules=rules)
  create = functools.partial(initial_state, jax.random.key(0), model, loss, transform, data=DataSizes(8, 8))
  shardings = state_shardings(jax.eval_shape(create), model, part)
  state = jax.jit(create, out_shardings=shardings)()
  before = jax.device_get(state.params)
  train_step = make_train_step(model, loss, transform, seed=0, frozen=frozen, options=options)
  state, metrics = part.jit_step(train_step, shardings)(state, part.put_batch(batch))
  change = jax.tree.map(np.subtract, before, jax.device_get(state.params))
  return change, {name: float(value) for name, value in metrics.items()}


def assert_close(a: object, b: object, atol: float = 1e-5) -> None:
  jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=atol), a, b)


@functools.cache
def whole(sharing: str) -> tuple:
  return update(bert(sharing), LOSSES[sharing], batch(5))


LOSSES = {"sde": in_batch.samtone(temperature=0.1), "ade": in_batch.in_batch_softmax(temperature=0.1)}


@pytest.mark.parametrize("chunks", [2, 3, 7])  # 5 rows: 3 + 2, 2 + 2 + 1, one each
@pytest.mark.parametrize("sharing", ["sde", "ade"])
def test_chunks_give_the_gradient_of_the_whole_batch(sharing, chunks):
  gradient, metrics = update(bert(sharing), LOSSES[sharing], batch(5), StepOptions(chunks=chunks))
  assert_close(gradient, whole(sharing)[0])
  assert_close(metrics, whole(sharing)[1])


@pytest.mark.parametrize("num_partitions", [1, 2])
def test_chunks_on_eight_devices_with_hard_negatives_are_the_whole_batch_on_one(num_partitions):
  loss, rows = in_batch.samtone(temperature=0.1), batch(24, hard=1)
  one = update(bert(), loss, rows)
  eight = update(bert(), loss, rows, StepOptions(chunks=2), devices=8, num_partitions=num_partitions)
  assert_close(eight, one)


@pytest.mark.parametrize("options", [StepOptions(chunks=2), StepOptions(chunks=3, microbatches=1)])
def test_chunks_of_parameters_that_are_split_over_the_shards(options):
  """FSDP: 24 rows of passages a side on 4 shards, 6 a shard: two chunks of 3, or three of 2."""
  loss, rows = in_batch.samtone(temperature=0.1), batch(12, hard=1)
  one = update(bert(), loss, rows)
  fsdp = standard_rules(parameter_partitioning_dims=2)
  assert_close(update(bert(), loss, rows, options, devices=4, rules=fsdp), one)


@pytest.mark.parametrize(("dtype", "atol"), [("float32", 1e-5), ("bfloat16", 0.05)])  # gradients up to 1.4
def test_chunks_of_a_scanned_t5_on_a_mesh(dtype, atol):
  encoder = T5Encoder(
    num_layers=2, num_heads=2, head_dim=8, embed_dim=16, mlp_dim=32, dtype=dtype, scan_layers=True
  )
  model = dual_encoder(Tower(encoder=encoder, vocab_size=64))
  loss = in_batch.in_batch_softmax(temperature=0.1)
  one = update(model, loss, batch(8))
  four = update(model, loss, batch(8), StepOptions(chunks=2), devices=4, num_partitions=2)
  assert_close(four, one, atol=atol)


def test_frozen_parameters_stay_and_the_others_get_their_gradient():
  loss, frozen = in_batch.in_batch_softmax(temperature=0.1), ("token_embedder/.*",)
  one, _ = update(bert(), loss, batch(8), frozen=frozen)
  two, _ = update(bert(), loss, batch(8), StepOptions(2, 1), devices=2, frozen=frozen)
  assert not np.any(two["model"]["token_embedder"]["embedding"])
  assert_close(two, one)


# Cosines of the four queries with the four passages: 0.8 and 0.6 within a pair of examples, up to 1 across.
UNIT = np.array([[0, 0], [1, 0], [0, 1], [0.6, 0.8], [0.8, 0.6]], np.float32)


def lookup() -> tuple[TowerPair, Any, Batch]:
  """A tower whose embedding of id i is row i of UNIT, its parameters, and four examples that are hard across pairs."""
  model = dual_encoder(FeatureBagTower((("id", 5),), embed_dim=2, hidden_dims=(2,)))
  layer = {"kernel": np.eye(2, dtype=np.float32), "bias": np.zeros(2, np.float32)}
  params = {"token_embedder": {"id": {"embedding": UNIT}}, "encoder": {"layers_0": layer}}
  query, passage = (np.array(ids, np.int32)[:, None] for ids in ([1, 2, 3, 4], [4, 3, 2, 1]))
  rows = np.arange(4, dtype=np.int32)
  return (
    model,
    params,
    Batch({"id": query}, {"id": passage}, rows, rows, rows[:, None], np.ones(4, np.float32)),
  )


def lookup_update(options: StepOptions) -> tuple[Any, dict[str, Array]]:
  model, params, rows = lookup()
  loss, transform = in_batch.in_batch_softmax(**ONE_WAY), optax.sgd(1.0)
  data = DataSizes(4, 4)
  state = initial_state(jax.random.key(0), model, loss, transform, data=data, model_params=params)
  return jax.jit(make_train_step(model, loss, transform, seed=0, options=options))(state, rows)


def test_case_3_chunks_keep_the_pool_of_negatives_and_microbatches_shrink_it():
  queries, passages = UNIT[[1, 2, 3, 4]], UNIT[[4, 3, 2, 1]]
  logits = 20 * queries @ passages.T
  everyone = np.mean(np.log(np.sum(np.exp(logits - np.diag(logits)[:, None]), axis=1)))
  assert round(float(everyone), 4) == 4.2012
  pairs = np.log(1 + np.exp(20 * (0.6 - 0.8)))
  assert round(float(pairs), 4) == 0.0181
  for options, loss, negatives in (
    (StepOptions(), everyone, 3),
    (StepOptions(chunks=2), everyone, 3),
    (StepOptions(chunks=4), everyone, 3),
    (StepOptions(microbatches=2), pairs, 1),
    (StepOptions(chunks=2, microbatches=2), pairs, 1),
  ):
    _, metrics = lookup_update(options)
    assert float(metrics["loss"]) == pytest.approx(loss, rel=1e-5), options
    assert float(metrics["negatives"]) == negatives, options


def examples(batch: Batch, index: np.ndarray) -> Batch:
  """Returns these examples of a batch with one hard negative a query."""
  passages = np.concatenate([index, len(batch.query_rows) + index])
  return Batch(
    np.asarray(batch.query_tokens)[index],
    np.asarray(batch.passage_tokens)[passages],
    batch.query_rows[index],
    batch.passage_rows[passages],
    batch.positives[index],
    batch.weights[index],
  )


def test_microbatches_give_the_mean_of_their_gradients():
  loss, rows = in_batch.in_batch_softmax(temperature=0.1), batch(8, hard=1)
  halves = [examples(rows, np.arange(start, start + 4)) for start in (0, 4)]
  shares = [float(np.sum(half.weights) / np.sum(rows.weights)) for half in halves]
  first, second = (update(bert(), loss, half)[0] for half in halves)
  mean = jax.tree.map(lambda a, b: shares[0] * a + shares[1] * b, first, second)
  both, _ = update(bert(), loss, rows, StepOptions(chunks=3, microbatches=2))
  assert_close(both, mean)


def test_microbatches_on_a_mesh_take_a_part_of_every_shard():
  loss, rows = in_batch.samtone(temperature=0.1), batch(8, hard=1)
  tiled = in_batch.samtone(
    temperature=0.1, options=Options(rows_per_tile=1)
  )  # a kernel of its own on the mesh
  sharded, _ = update(bert(), tiled, rows, StepOptions(chunks=2, microbatches=2), devices=4)
  # Shard s holds the rows 2s and 2s + 1, so the microbatches are the even and the odd rows.
  moved = examples(rows, np.array([0, 2, 4, 6, 1, 3, 5, 7]))
  assert_close(sharded, update(bert(), loss, moved, StepOptions(microbatches=2))[0])


def gradient_of_sum(encode: Any, params: Any, weights: np.ndarray) -> Any:
  """Returns the gradient of a weighted sum of the embeddings that encode(params) returns."""
  return jax.grad(lambda params: jnp.sum(weights * encode(params)))(params)


@pytest.mark.parametrize("shards", [1, 4])
def test_each_piece_has_one_dropout_key_the_same_in_both_passes(shards):
  model, rng, chunks, rows = bert(dropout_rate=0.5), jax.random.key(7), 3, 5 * shards
  params, ids = model.init(jax.random.key(0)), tokens(rows, 0)
  weights = np.random.default_rng(2).normal(size=(rows, 16)).astype(np.float32)
  part = partitioner(devices=jax.devices()[:shards])

  def direct(params: Any) -> Float[Array, "b d"]:
    pieces = []
    for shard in range(shards):
      own = ids[5 * shard : 5 * shard + 5]
      own = np.concatenate([own, own[:1]])  # 2 + 2 + 1 rows, and one to fill the last piece
      for chunk in range(chunks):
        key = jax.random.fold_in(rng, shard * chunks + chunk)
        piece = model.encode_queries(params, own[2 * chunk : 2 * chunk + 2], dropout_rng=key)
        pieces.append(piece[:1] if chunk == 2 else piece)
    return jnp.concatenate(pieces)

  def chunked(params: Any) -> Float[Array, "b d"]:
    return encode_in_chunks(model.encode_queries, spread(params), ids, chunks=chunks, rng=rng)

  assert_close(jax.jit(part.traced(chunked))(params), jax.jit(direct)(params))
  got = jax.jit(part.traced(functools.partial(gradient_of_sum, chunked)))(params, weights)
  assert_close(got, jax.jit(functools.partial(gradient_of_sum, direct))(params, weights))


def test_filling_rows_take_no_part_in_the_gradient():
  """The last piece of three rows in two chunks is filled with row 0, whose gradient must not count twice."""
  params = {"table": jnp.arange(6.0).reshape(3, 2)}

  def encode(params: Any, tokens: Any, *, dropout_rng: Array | None = None) -> Float[Array, "b d"]:
    del dropout_rng
    return params["table"][tokens[:, 0]] ** 2

  def total(params: Any) -> Array:
    ids = np.arange(3)[:, None]
    return jnp.sum(encode_in_chunks(encode, params, ids, chunks=2, rng=jax.random.key(0)))

  assert np.array_equal(jax.grad(total)(params)["table"], 2 * params["table"])


def test_memory_falls_with_the_number_of_chunks():
  model, ids = bert(), tokens(256, 0, length=16)
  params = model.init(jax.random.key(0))
  weights = np.ones((256, 16), np.float32)

  def temporaries(chunks: int) -> int:
    def encode(params: Any) -> Float[Array, "b d"]:
      return encode_in_chunks(model.encode_queries, params, ids, chunks=chunks, rng=jax.random.key(0))

    compiled = jax.jit(functools.partial(gradient_of_sum, encode)).lower(params, weights).compile()
    analysis = compiled.memory_analysis()
    assert analysis is not None
    return analysis.temp_size_in_bytes

  one, four, sixteen = temporaries(1), temporaries(4), temporaries(16)
  assert four < one / 2
  assert sixteen < four / 2


def test_spread_is_the_identity_without_a_mesh():
  params = {"w": jnp.ones((2, 3))}
  assert spread(params) is params
  with sharding.constraining(None, sharding.DataMesh(partitioner(devices=jax.devices()[:1]).mesh, ("data",))):
    assert spread(params) is params
