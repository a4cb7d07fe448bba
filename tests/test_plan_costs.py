"""The count of a step's products: by hand, and against XLA's analysis where that counts everything."""

import jax
import jax.numpy as jnp
import optax
import pytest
from jax.sharding import PartitionSpec

from retrieval_jax.losses.base import DataSizes
from retrieval_jax.losses.in_batch import in_batch_softmax
from retrieval_jax.models.bert import BertEncoder
from retrieval_jax.models.dual_encoder import TowerPair, dual_encoder
from retrieval_jax.models.feature_bag import FeatureBagTower
from retrieval_jax.models.t5 import T5Encoder
from retrieval_jax.models.tower import Tower
from retrieval_jax.partitioning import partitioner
from retrieval_jax.records import Batch
from retrieval_jax.step_costs import Products, products
from retrieval_jax.step_options import StepOptions
from retrieval_jax.train_state import initial_state
from retrieval_jax.train_step import make_train_step

B, L = 8, 32  # texts a side, tokens of each
D, HEADS, WIDTH, HIDDEN, LAYERS, OUT = 128, 4, 128, 512, 2, 64
PROJECTIONS = 2 * B * L * (4 * D * WIDTH)  # query, key, value, out: a multiplication and a sum each
ATTENTION = 2 * 2 * B * L * L * WIDTH  # logits and mixture


def t5(**options) -> TowerPair:
  encoder = T5Encoder(LAYERS, HEADS, WIDTH // HEADS, D, HIDDEN, **options)
  return dual_encoder(Tower(encoder, vocab_size=50, projection_dim=OUT))


MODELS = {
  # Gated: two products up and one down. The projection, the mean over the tokens and the biases of 2 L - 1 distances come once.
  "t5": (
    t5(),
    LAYERS * (PROJECTIONS + ATTENTION + 2 * B * L * 3 * D * HIDDEN)
    + 2 * B * D * OUT
    + 2 * B * L * D
    + 2 * HEADS * (2 * L - 1) * 32,
  ),
  "bert": (
    dual_encoder(Tower(BertEncoder(LAYERS, HEADS, D, HIDDEN), vocab_size=50)),
    LAYERS * (PROJECTIONS + ATTENTION + 2 * B * L * 2 * D * HIDDEN) + 2 * B * L * D,
  ),
  # The mean of L ids, then two layers.
  "bag": (
    dual_encoder(FeatureBagTower((("id", 50),), embed_dim=D, hidden_dims=(HIDDEN, OUT), columns=(L,))),
    2 * B * L * D + 2 * B * (D * HIDDEN + HIDDEN * OUT),
  ),
}


def ints(*shape: int) -> jax.ShapeDtypeStruct:
  return jax.ShapeDtypeStruct(shape, jnp.int32)


def forward(model: TowerPair):
  params = jax.eval_shape(model.init, jax.random.key(0))
  return jax.jit(model.encode_queries).trace(params, ints(B, L))


@pytest.mark.parametrize("name", MODELS)
def test_an_encoder_has_the_products_of_its_formula(name):
  model, expected = MODELS[name]
  assert products(forward(model).jaxpr).flops == expected


@pytest.mark.parametrize("encoder", [T5Encoder(2, 8, 64, 512, 1024), BertEncoder(2, 8, 512, 2048)])
def test_xla_counts_a_little_more_of_unscanned_layers(encoder):
  """XLA counts what is done element by element too, which the matrix unit does not do."""
  traced = forward(dual_encoder(Tower(encoder, vocab_size=50)))
  analysed = traced.lower().compile().cost_analysis()["flops"]
  assert products(traced.jaxpr).flops <= analysed <= 1.04 * products(traced.jaxpr).flops


def step_products(model: TowerPair, *, chunks: int = 1) -> Products:
  loss, transform = in_batch_softmax(temperature=0.1), optax.sgd(0.1)
  state = jax.eval_shape(
    lambda: initial_state(jax.random.key(0), model, loss, transform, data=DataSizes(B, B))
  )
  floats = jax.ShapeDtypeStruct((B,), jnp.float32)
  batch = Batch(ints(B, L), ints(B, L), ints(B), ints(B), ints(B, 1), floats)
  step = make_train_step(model, loss, transform, seed=0, options=StepOptions(chunks=chunks))
  return products(jax.jit(step).trace(state, batch).jaxpr)


@pytest.fixture(scope="module")
def plain() -> float:
  return step_products(t5()).flops


# Of the scores: the products of all pairs, forward once and backward twice, and of each with its own.
SCORES = 3 * (2 * B * B * OUT + 2 * B * OUT)


def test_a_step_is_three_forward_passes_of_both_sides_and_the_scores(plain):
  assert plain == pytest.approx(2 * 3 * MODELS["t5"][1] + SCORES, rel=1e-3)


def test_scanned_layers_count_as_often_as_there_are_layers(plain):
  assert step_products(t5(scan_layers=True)).flops == pytest.approx(plain, rel=1e-3)


@pytest.mark.parametrize("scan", [False, True])
def test_remat_adds_the_forward_pass_of_the_layers(plain, scan):
  again = step_products(t5(scan_layers=scan, remat_policy="full")).flops - plain
  # All but what nothing in a layer's backward pass reads: the last product's result.
  layers = 2 * LAYERS * (PROJECTIONS + ATTENTION + 2 * B * L * 3 * D * HIDDEN)
  last = 2 * LAYERS * 2 * B * L * D * HIDDEN
  assert layers - last <= again <= layers


def test_chunks_add_a_forward_pass_of_both_sides(plain):
  again = step_products(t5(), chunks=4).flops - plain
  assert again == pytest.approx(2 * MODELS["t5"][1], rel=0.15)


def test_products_of_all_devices_count():
  mesh = partitioner().mesh
  spec = PartitionSpec("data")
  mapped = jax.shard_map(lambda x, y: x @ y, mesh=mesh, in_specs=(spec, PartitionSpec()), out_specs=spec)
  x, y = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((16, 3), (3, 5)))
  assert products(jax.make_jaxpr(mapped)(x, y)).flops == 2 * 16 * 3 * 5


def test_the_highest_precision_of_float32_takes_six_passes():
  x = jax.ShapeDtypeStruct((2, 3), jnp.float32)
  dot = jax.make_jaxpr(lambda x: jnp.einsum("ab,cb->ac", x, x, precision="highest"))
  assert products(dot(x)) == Products(24, 6 * 24)
  half = jax.ShapeDtypeStruct((2, 3), jnp.bfloat16)
  assert products(dot(half)) == Products(24, 24)


def test_of_two_branches_the_dearer_one_counts():
  def either(x):
    return jax.lax.cond(x[0, 0] > 0, lambda: x @ x, lambda: x @ x @ x)

  assert products(jax.make_jaxpr(either)(jax.ShapeDtypeStruct((4, 4), jnp.float32))).flops == 2 * 2 * 64
