import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from numpy.testing import assert_allclose

from retrieval_jax import optimizers
from retrieval_jax.errors import UserError
from retrieval_jax.losses.in_batch import in_batch_softmax
from retrieval_jax.models.dual_encoder import dual_encoder
from retrieval_jax.models.layer_stack import stacked, unstacked
from retrieval_jax.models.t5 import T5Encoder
from retrieval_jax.models.tower import Tower
from retrieval_jax.records import EmbeddedBatch
from retrieval_jax.sparse_optimizers import sparse_adagrad

T5X_SCHEDULES = {
  "linear_decay_w1000_df1e-4": optimizers.schedule(
    "linear_decay", base_learning_rate=1e-3, warmup_steps=1000, decay_factor=1e-4
  ),
  "readme_msmarco": optimizers.schedule(
    "linear_decay", base_learning_rate=1e-3, warmup_steps=1000, decay_factor=1.25e-6, step_offset=999_900
  ),
  "rsqrt_pretrain": optimizers.schedule(
    "constant * rsqrt_decay", base_learning_rate=1.0, warmup_steps=10_000
  ),
  "default": optimizers.schedule(),
  "cosine": optimizers.schedule(
    "constant * linear_warmup * cosine_decay",
    base_learning_rate=1e-3,
    warmup_steps=100,
    steps_per_cycle=10_000,
  ),
  "decay_every": optimizers.schedule(
    "constant * decay_every", base_learning_rate=1e-3, decay_factor=0.5, steps_per_decay=2000
  ),
}


@pytest.mark.parametrize("name", T5X_SCHEDULES)
def test_schedule_oracle_equals_t5x(oracles, name):
  values = np.load(oracles / "lr_schedules.npz")
  got = [T5X_SCHEDULES[name](int(step)) for step in values["steps"]]
  assert all(rate.dtype == jnp.float32 for rate in got)
  # cosine_decay: float32 near the zero of 1 + cos loses digits, in T5X too
  np.testing.assert_allclose(got, values[name], rtol=1e-5, atol=1e-9)


def test_schedule_can_be_traced():
  rate = optimizers.schedule("linear_decay", base_learning_rate=1e-3, warmup_steps=10, decay_factor=1e-3)
  np.testing.assert_allclose(jax.jit(rate)(jnp.int32(5)), 1e-3 * 5 / 10, rtol=1e-6)


def test_rsqrt_normalized_decay_is_one_at_the_end_of_warm_up():
  rate = optimizers.schedule("constant*rsqrt_normalized_decay", base_learning_rate=2.0, warmup_steps=100)
  assert float(rate(100)) == pytest.approx(2)
  assert float(rate(400)) == pytest.approx(2 * np.sqrt(100 / 400))


def test_schedule_with_an_unknown_factor():
  with pytest.raises(
    UserError, match=r"unknown factor 'linear_warmpu'.*did you mean 'linear_warmup'.*\? Known"
  ):
    optimizers.schedule("constant * linear_warmpu")


def test_schedule_without_warm_up_steps():
  with pytest.raises(UserError, match="warmup_steps is 0; it must be at least 1"):
    optimizers.schedule("linear_decay", warmup_steps=0)


def test_linear_falls_from_the_peak_to_zero():
  rate = optimizers.linear(peak=1e-3, total_steps=20_000)
  got = [float(rate(step)) for step in (0, 5_000, 19_999, 20_000, 30_000)]
  np.testing.assert_allclose(got, [1e-3, 1e-3 * 15 / 20, 1e-3 / 20_000, 0, 0], rtol=1e-5)


def test_linear_rises_first():
  rate = optimizers.linear(peak=1.0, total_steps=100, warmup_steps=20)
  got = [float(rate(step)) for step in (0, 10, 20, 60)]
  np.testing.assert_allclose(got, [0, 0.5, 1, (100 - 60) / (100 - 20)], rtol=1e-6)


@pytest.mark.parametrize("warmup, total", [(10, 10), (-1, 10)])
def test_linear_with_no_room(warmup, total):
  with pytest.raises(UserError, match="the warm-up must be shorter than the run"):
    optimizers.linear(peak=1.0, total_steps=total, warmup_steps=warmup)


@pytest.mark.parametrize("total", [0, -1])
def test_linear_needs_steps(total):
  with pytest.raises(UserError, match=f"TRAIN_STEPS={total}: expected a whole number of at least 1"):
    optimizers.linear(peak=1.0, total_steps=total)


def test_linear_needs_a_peak():
  with pytest.raises(UserError, match="peak is 0"):
    optimizers.linear(peak=0, total_steps=10)


def _one_step(optimizer, params, gradients):
  state = optimizer.transform.init(params)
  updates, _ = optimizer.transform.update(gradients, state, params)
  return optax.apply_updates(params, updates)


def test_adamw_decays_matrices_but_not_biases_and_norms():
  params = {"kernel": jnp.full((2, 2), 4.0), "scale": jnp.full((2,), 4.0), "bias": jnp.float32(4.0)}
  optimizer = optimizers.adamw(0.1, weight_decay=0.5)
  after = _one_step(optimizer, params, jax.tree.map(jnp.zeros_like, params))
  np.testing.assert_allclose(after["kernel"], np.full((2, 2), 4 - 0.1 * 0.5 * 4), rtol=1e-6)
  np.testing.assert_allclose(after["scale"], np.full(2, 4.0))
  np.testing.assert_allclose(after["bias"], 4.0)


def test_adamw_first_step_is_the_rate_in_the_gradients_direction():
  after = _one_step(optimizers.adamw(0.1, weight_decay=0.0), jnp.zeros(3), jnp.array([2.0, -3.0, 0.0]))
  np.testing.assert_allclose(after, [-0.1, 0.1, 0], rtol=1e-5)


def test_adamw_clips_the_global_norm():
  gradients = {"a": jnp.array([3.0]), "b": jnp.array([4.0])}  # norm 5
  optimizer = optimizers.adamw(0.1, eps=1.0, b1=0.0, b2=0.0, weight_decay=0.0, clip_norm=1.0)
  after = _one_step(optimizer, jax.tree.map(jnp.zeros_like, gradients), gradients)
  np.testing.assert_allclose(after["a"], [-0.1 * 0.6 / (0.6 + 1)], rtol=1e-5)
  np.testing.assert_allclose(after["b"], [-0.1 * 0.8 / (0.8 + 1)], rtol=1e-5)


def test_optimizer_tells_the_rate_it_uses():
  schedule = optimizers.linear(peak=0.5, total_steps=4)
  for make in (optimizers.adamw, optimizers.adafactor):
    optimizer = make(schedule)
    assert [float(optimizer.learning_rate(s)) for s in range(4)] == [0.5, 0.375, 0.25, 0.125]
    assert float(make(0.25).learning_rate(7)) == 0.25
  # The second update is made with the rate of step 1.
  optimizer, params = optimizers.adamw(schedule, weight_decay=0.0), jnp.zeros(1)
  state = optimizer.transform.init(params)
  for rate in (0.5, 0.375):
    update, state = optimizer.transform.update(jnp.ones(1), state, params)
    np.testing.assert_allclose(update, [-rate], rtol=1e-4)


@pytest.mark.parametrize("make", [optimizers.adamw, optimizers.adafactor, optimizers.sgd, optimizers.adagrad])
@pytest.mark.parametrize("rate", [0, -1e-3, float("nan")])
def test_learning_rate_must_be_positive(make, rate):
  with pytest.raises(UserError, match=r"learning_rate is .*; it must be above 0"):
    make(rate)


@pytest.mark.parametrize("name", ["adamw", "sgd", "adagrad"])
def test_clip_norm_must_be_positive(name):
  with pytest.raises(UserError, match=f"{name}: clip_norm is 0"):
    getattr(optimizers, name)(1e-3, clip_norm=0)


def test_sgd_by_hand():
  """Warm-up over 2 steps to 0.5, momentum 0.5: the rates 0 (1e-8), 0.25, 0.5 on the momenta 1, 1.5, 1.75."""
  rate = optimizers.schedule("constant * linear_warmup", base_learning_rate=0.5, warmup_steps=2)
  transform = optimizers.sgd(rate, momentum=0.5).transform
  params = {"w": jnp.asarray([4.0])}
  state, found = transform.init(params), []
  for _ in range(3):
    updates, state = transform.update({"w": jnp.ones(1)}, state, params)
    params = optax.apply_updates(params, updates)
    found.append(float(params["w"][0]))
  np.testing.assert_allclose(found, [4, 4 - 0.25 * 1.5, 4 - 0.25 * 1.5 - 0.5 * 1.75], rtol=1e-6)


def test_sgd_and_adagrad_clip_the_global_norm():
  gradients = {"a": jnp.array([3.0]), "b": jnp.array([4.0])}  # norm 5
  zeros = jax.tree.map(jnp.zeros_like, gradients)
  after = _one_step(optimizers.sgd(0.1, clip_norm=1.0), zeros, gradients)
  np.testing.assert_allclose([after["a"][0], after["b"][0]], [-0.1 * 0.6, -0.1 * 0.8], rtol=1e-6)
  after = _one_step(optimizers.adagrad(0.1, initial_accumulator=0.5, clip_norm=1.0), zeros, gradients)
  np.testing.assert_allclose(after["a"], [-0.1 * 0.6 / np.sqrt(0.5 + 0.6**2)], rtol=1e-5)


def test_adagrad_by_hand():
  params = jnp.asarray([1.0, 1.0])
  transform = optimizers.adagrad(0.1, initial_accumulator=0.25).transform
  state = transform.init(params)
  for gradient in ([2.0, 0.0], [1.0, 0.0]):
    updates, state = transform.update(jnp.asarray(gradient), state, params)
    params = optax.apply_updates(params, updates)
  expected = 1 - 0.1 * 2 / np.sqrt(0.25 + 4) - 0.1 * 1 / np.sqrt(0.25 + 4 + 1)
  np.testing.assert_allclose(params, [expected, 1], rtol=1e-6)


@pytest.mark.parametrize(
  "make, message",
  [
    (lambda: optimizers.sgd(0.1, momentum=1.0), r"sgd: momentum is 1\.0; expected 0 or more and less than 1"),
    (lambda: optimizers.adagrad(0.1, initial_accumulator=-1), "adagrad: initial_accumulator is -1"),
    (lambda: optimizers.adagrad(0.1, eps=0), "adagrad: eps is 0; it must be above 0"),
  ],
)
def test_numbers_that_cannot_be(make, message):
  with pytest.raises(UserError, match=message):
    make()


def test_an_optimizer_with_tables_keeps_the_rest_s_rate():
  tables = sparse_adagrad(lambda step: jnp.full((), 0.1))
  rest = optimizers.sgd(0.03)
  both = optimizers.with_tables(rest, tables)
  assert both.transform is rest.transform
  assert both.tables is tables
  assert rest.tables is None
  np.testing.assert_allclose(both.learning_rate(0), 0.03)


def _paths(npz, prefix):
  return {key.removeprefix(prefix): jnp.asarray(npz[key]) for key in npz.files if key.startswith(prefix)}


@pytest.mark.parametrize("factor_from", [128, 8])
def test_adafactor_first_step_oracle_by_hand(oracles, factor_from):
  """One step on T5X's parameters and gradients against the paper's algorithm 4 in numpy.

  Step 1 has decay 1 - 1^-0.8 = 0, so the second moment is the squared gradient (plus 1e-30) itself.
  """
  t5x = np.load(oracles / "sde_t5_1_1_f32.npz")
  params, gradients = _paths(t5x, "params/"), _paths(t5x, "grads/")
  optimizer = optimizers.adafactor(1e-2, min_dim_size_to_factor=factor_from)
  after = _one_step(optimizer, params, gradients)
  for path, before in params.items():
    x, g = np.array(before, np.float64), np.array(gradients[path], np.float64)
    moment = g * g + 1e-30
    if x.ndim == 2 and min(x.shape) >= factor_from:
      rows, columns = moment.mean(axis=1, keepdims=True), moment.mean(axis=0, keepdims=True)
      moment = rows * columns / rows.mean()
    update = g / np.sqrt(moment)
    update /= max(1.0, np.sqrt(np.mean(update**2)))
    expected = x - 1e-2 * max(1e-3, np.sqrt(np.mean(x**2))) * update
    np.testing.assert_allclose(after[path], expected, rtol=1e-5, atol=1e-6, err_msg=path)


def _nested(flat):
  tree: dict = {}
  for path, leaf in flat.items():
    *parents, name = path.split("/")
    node = tree
    for parent in parents:
      node = node.setdefault(parent, {})
    node[name] = leaf
  return tree


@pytest.fixture(scope="module")
def t5x_gradient(oracles):
  """(params -> (loss, gradients), initial params) of T5X Retrieval's tiny dual encoder: scale 20, directions summed."""
  t5x = np.load(oracles / "sde_t5_1_1_f32.npz")
  encoder = T5Encoder(num_layers=2, num_heads=4, head_dim=8, embed_dim=24, mlp_dim=40)
  model = dual_encoder(Tower(encoder, vocab_size=96, projection_dim=16), sharing="sde")
  rows = np.arange(6)

  def loss(params):
    query = model.encode_queries(params, t5x["left_tokens"])
    passage = model.encode_passages(params, t5x["right_tokens"])
    batch = EmbeddedBatch(query, passage, rows, rows, rows[:, None], np.ones(6, np.float32))
    output, _ = in_batch_softmax(temperature=1 / 20).apply({}, {}, batch, rng=None, train=True)
    return 2 * output.loss

  return jax.jit(jax.value_and_grad(loss)), _nested(_paths(t5x, "params/"))


@pytest.mark.parametrize("name, factor_from", [("default", 128), ("factored8", 8)])
def test_adafactor_three_training_steps_oracle_equal_t5x(oracles, t5x_gradient, name, factor_from):
  gradient, params = t5x_gradient
  transform = optimizers.adafactor(1e-2, min_dim_size_to_factor=factor_from).transform
  state, losses = transform.init(params), []
  for _ in range(3):
    loss, gradients = gradient(params)
    losses.append(float(loss))
    updates, state = transform.update(gradients, state, params)
    params = optax.apply_updates(params, updates)
  t5x = np.load(oracles / "sde_t5_1_1_f32.npz")
  np.testing.assert_allclose(losses, t5x[f"adafactor_{name}_losses"], rtol=1e-4)
  expected = _nested(_paths(t5x, f"adafactor_{name}_step3/"))
  jax.tree.map(
    lambda got, want: np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5), params, expected
  )


@pytest.mark.parametrize(
  "optimizer",
  [optimizers.adafactor(1e-2, min_dim_size_to_factor=8), optimizers.adamw(1e-2, weight_decay=0.1)],
)
def test_scanned_layers_train_as_unrolled_ones(optimizer):
  rng = np.random.default_rng(0)
  draw = lambda: {"kernel": rng.normal(size=(8, 12)).astype(np.float32), "scale": np.ones(8, np.float32)}  # noqa: E731
  encoder = {"layers_0": draw(), "layers_1": draw(), "norm": {"scale": np.ones(8, np.float32)}}
  encoder["layers_1"]["kernel"] *= 50  # Adafactor's parameter scale must not mix the layers
  gradient = {"layers_0": draw(), "layers_1": draw(), "norm": {"scale": np.ones(8, np.float32)}}
  results = []
  for params, updates in ((encoder, gradient), (stacked(encoder, 2), stacked(gradient, 2))):
    params = {"model": {"encoder": params, "pair": {"a": np.ones((3, 2), np.float32)}}}
    updates = {"model": {"encoder": updates, "pair": {"a": np.ones((3, 2), np.float32)}}}
    state = optimizer.transform.init(params)
    for _ in range(2):
      change, state = optimizer.transform.update(updates, state, params)
      params = optax.apply_updates(params, change)
    results.append(params["model"]["encoder"])
  unrolled, scanned = results
  jax.tree.map(lambda a, b: assert_allclose(a, b, rtol=1e-6), unstacked(scanned, 2), unrolled)
