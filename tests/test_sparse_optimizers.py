import jax
import jax.numpy as jnp
import numpy as np
import pytest

from retrieval_jax.errors import UserError
from retrieval_jax.optimizers import linear
from retrieval_jax.sparse_optimizers import (
  Touched,
  apply_sparse,
  rows_of,
  sparse_adagrad,
  sparse_adam,
  sparse_sgd,
)

C, D = 12, 4
BATCHES = ([0, 3, 5], [3, 4, 11], [1, 3, 5])  # rows 2, 6 .. 10 are never touched


def rate(step):
  return jnp.where(step == 0, 0.5, 0.125)


@pytest.fixture
def weights():
  return jnp.asarray(np.random.default_rng(0).normal(size=(C, D)).astype(np.float32))


def gradients():
  rng = np.random.default_rng(1)
  return [rng.normal(size=(3, D)).astype(np.float32) for _ in BATCHES]


def run(optimizer, weights, *, padding=0):
  """Returns (weights, slots) after the batches, each with so many rows of padding behind it."""
  slots = optimizer.init(weights)
  for step, (rows, gradient) in enumerate(zip(BATCHES, gradients(), strict=True)):
    rows = jnp.asarray([*rows, *range(C, C + padding)])
    gradient = jnp.asarray(np.concatenate([gradient, np.full((padding, D), 7, np.float32)]))
    touched = Touched(rows, rows_of(weights, rows), gradient)
    weights, slots = apply_sparse(optimizer, weights, slots, touched, jnp.int32(step))
  return weights, slots


def test_adam_by_hand(weights):
  got, slots = run(sparse_adam(rate), weights)
  w, m, v = np.array(weights, np.float64), np.zeros((C, D)), np.zeros((C, D))
  for t, (rows, g) in enumerate(zip(BATCHES, gradients(), strict=True), start=1):
    for row, one in zip(rows, g.astype(np.float64), strict=True):
      m[row] = 0.9 * m[row] + 0.1 * one
      v[row] = 0.999 * v[row] + 0.001 * one**2
      lr = 0.5 if t == 1 else 0.125
      w[row] -= lr * np.sqrt(1 - 0.999**t) / (1 - 0.9**t) * m[row] / (np.sqrt(v[row]) + 1e-8)
  np.testing.assert_allclose(got, w, atol=1e-5)
  np.testing.assert_allclose(slots["m"], m, atol=1e-6)
  np.testing.assert_allclose(slots["v"], v, atol=1e-6)


def test_adam_is_torch_s_sparse_adam(weights):
  torch = pytest.importorskip("torch")
  parameter = torch.nn.Parameter(torch.tensor(np.asarray(weights)))
  optimizer = torch.optim.SparseAdam([parameter], lr=0.5)
  for step, (rows, g) in enumerate(zip(BATCHES, gradients(), strict=True)):
    optimizer.param_groups[0]["lr"] = float(rate(step))
    parameter.grad = torch.sparse_coo_tensor(
      torch.tensor([rows]), torch.tensor(g), (C, D), check_invariants=False
    )
    optimizer.step()
  got, slots = run(sparse_adam(rate), weights)
  np.testing.assert_allclose(got, parameter.detach().numpy(), atol=1e-5)
  state = optimizer.state[parameter]
  np.testing.assert_allclose(slots["m"], state["exp_avg"].numpy(), atol=1e-6)
  np.testing.assert_allclose(slots["v"], state["exp_avg_sq"].numpy(), atol=1e-6)


def test_sgd_by_hand(weights):
  got, slots = run(sparse_sgd(rate), weights)
  w = np.array(weights)
  for lr, rows, g in zip((0.5, 0.125, 0.125), BATCHES, gradients(), strict=True):
    w[rows] -= lr * g
  np.testing.assert_allclose(got, w, atol=1e-6)
  assert slots == {}


@pytest.mark.parametrize("start", [0.0, 0.25])
def test_adagrad_by_hand(weights, start):
  got, slots = run(sparse_adagrad(rate, initial_accumulator=start), weights)
  w, a = np.array(weights, np.float64), np.full((C, D), start)
  for lr, rows, g in zip((0.5, 0.125, 0.125), BATCHES, gradients(), strict=True):
    a[rows] += g.astype(np.float64) ** 2
    w[rows] -= lr * g / (np.sqrt(a[rows]) + 1e-10)
  np.testing.assert_allclose(got, w, atol=1e-6)
  np.testing.assert_allclose(slots["accumulator"], a, rtol=1e-6)


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
def test_adagrad_is_torch_s_of_sparse_gradients(weights):
  torch = pytest.importorskip("torch")
  parameter = torch.nn.Parameter(torch.tensor(np.asarray(weights)))
  optimizer = torch.optim.Adagrad([parameter], lr=0.5, initial_accumulator_value=0.25)
  for step, (rows, g) in enumerate(zip(BATCHES, gradients(), strict=True)):
    optimizer.param_groups[0]["lr"] = float(rate(step))
    parameter.grad = torch.sparse_coo_tensor(
      torch.tensor([rows]), torch.tensor(g), (C, D), check_invariants=False
    )
    optimizer.step()
  got, slots = run(sparse_adagrad(rate, initial_accumulator=0.25), weights)
  np.testing.assert_allclose(got, parameter.detach().numpy(), atol=1e-6)
  np.testing.assert_allclose(slots["accumulator"], optimizer.state[parameter]["sum"].numpy(), rtol=1e-6)


def test_adagrad_does_not_move_a_touched_row_without_a_gradient(weights):
  """Neither the first time, where 0 / sqrt(0) threatens, nor later."""
  optimizer = sparse_adagrad(rate)
  rows, zero = jnp.asarray([2, 7]), jnp.zeros((2, D))
  touched = Touched(rows, rows_of(weights, rows), zero)
  got, slots = apply_sparse(optimizer, weights, optimizer.init(weights), touched, jnp.int32(0))
  np.testing.assert_array_equal(got, weights)
  np.testing.assert_array_equal(slots["accumulator"], 0)


def test_rows_in_any_order(weights):
  """Written where they belong, the padding between them nowhere."""
  optimizer = sparse_adagrad(rate)
  gradient = jnp.asarray(gradients()[0])
  results = []
  for order in ([0, 1, 2], [2, 0, 1]):
    rows = jnp.asarray([[1, C + 1, 8][i] for i in order])
    touched = Touched(rows, rows_of(weights, rows, ascending=False), gradient[jnp.asarray(order)])
    start = optimizer.init(weights)
    results.append(apply_sparse(optimizer, weights, start, touched, jnp.int32(0), ascending=False))
  jax.tree.map(np.testing.assert_array_equal, *results)
  changed = np.abs(np.asarray(results[0][0] - weights)).max(axis=1) > 0
  assert np.flatnonzero(changed).tolist() == [1, 8]


@pytest.mark.parametrize(
  "optimizer",
  [sparse_adam(rate), sparse_sgd(rate), sparse_adagrad(rate)],
  ids=["adam", "sgd", "adagrad"],
)
def test_untouched_rows_keep_their_bits_and_padding_goes_nowhere(weights, optimizer):
  got, slots = run(optimizer, weights)
  never = [2, 6, 7, 8, 9, 10]
  np.testing.assert_array_equal(got[np.array(never)], weights[np.array(never)])
  assert np.abs(np.asarray(got - weights))[[0, 1, 3, 4, 5, 11]].min() > 0
  padded, padded_slots = run(optimizer, weights, padding=2)
  np.testing.assert_array_equal(padded, got)
  for name, slot in slots.items():
    np.testing.assert_array_equal(slot[np.array(never)], 0)
    np.testing.assert_array_equal(padded_slots[name], slot)


def test_a_row_that_was_left_alone_keeps_its_moments(weights):
  """Row 0 is touched in the first step only: dense Adam would go on moving it by its momentum."""
  optimizer = sparse_adam(rate)
  got, slots = run(optimizer, weights)
  gradient = gradients()[0][0]
  np.testing.assert_allclose(slots["m"][0], 0.1 * gradient, rtol=1e-6)
  np.testing.assert_allclose(got[0], weights[0] - 0.5 * np.sign(gradient), atol=1e-4)


def test_the_first_step_of_a_row_late_is_at_most_three_times_as_long():
  """(1 - .9) / sqrt(1 - .999) = 3.16: corrected by a count of all steps."""
  optimizer = sparse_adam(lambda step: jnp.ones(()))
  slots = {name: jnp.zeros((1, 1)) for name in optimizer.slots}
  early, _ = optimizer.update(jnp.ones((1, 1)), slots, jnp.int32(0))
  late, _ = optimizer.update(jnp.ones((1, 1)), slots, jnp.int32(100_000))
  np.testing.assert_allclose(early, -1, rtol=1e-5)
  np.testing.assert_allclose(late, -0.1 / np.sqrt(0.001), rtol=1e-5)


def test_a_warm_up_and_an_exact_end():
  optimizer = sparse_adam(linear(peak=1e-3, total_steps=2000, warmup_steps=500))
  rates = [float(jnp.asarray(optimizer.learning_rate(step))) for step in (0, 250, 500, 1250, 1999)]
  np.testing.assert_allclose(rates, [0, 5e-4, 1e-3, 5e-4, 1e-3 / 1500], rtol=1e-5)


@pytest.mark.parametrize(
  "options, message",
  [
    ({"b1": 1.0}, "b1 is 1.0"),
    ({"b2": -0.1}, r"b2 is -0\.1"),
    ({"eps": 0.0}, "eps is 0.0; it must be above 0"),
  ],
)
def test_numbers_that_cannot_be(options, message):
  with pytest.raises(UserError, match=f"sparse_adam: {message}"):
    sparse_adam(rate, **options)


@pytest.mark.parametrize(
  "options, message",
  [
    ({"initial_accumulator": -1.0}, r"initial_accumulator is -1\.0; it must be 0 or more"),
    ({"initial_accumulator": float("nan")}, "initial_accumulator is nan"),
    ({"eps": 0.0}, r"eps is 0\.0; it must be above 0"),
  ],
)
def test_numbers_that_adagrad_cannot_have(options, message):
  with pytest.raises(UserError, match=f"sparse_adagrad: {message}"):
    sparse_adagrad(rate, **options)


def test_nothing_of_the_size_of_the_weights_is_computed(weights):
  """In place: the compiled update of 10,000 rows more needs no more scratch memory, and no more arithmetic."""
  optimizer = sparse_adam(rate)

  def update(weights, slots, rows, gradient):
    touched = Touched(rows, rows_of(weights, rows), gradient)
    return apply_sparse(optimizer, weights, slots, touched, jnp.int32(0))

  def compiled(c):
    matrix = jax.ShapeDtypeStruct((c, D), jnp.float32)
    arguments = (
      matrix,
      dict.fromkeys(optimizer.slots, matrix),
      jax.ShapeDtypeStruct((3,), jnp.int32),
      jax.ShapeDtypeStruct((3, D), jnp.float32),
    )
    return jax.jit(update, donate_argnums=(0, 1)).lower(*arguments).compile()

  def numbers(c):
    """(scratch bytes, bytes written in place, arithmetic) of the program for c rows."""
    program = compiled(c)
    memory, cost = program.memory_analysis(), program.cost_analysis()
    assert memory is not None
    assert cost is not None
    return memory.temp_size_in_bytes, memory.alias_size_in_bytes, cost["flops"]

  small, large = numbers(100), numbers(10_100)
  assert large[0] <= small[0] + 64
  assert large[1] == 3 * 10_100 * D * 4  # weights and both moments
  assert large[2] == small[2]
