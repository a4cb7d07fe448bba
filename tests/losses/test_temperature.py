"""Temperatures: fixed ones, and learned ones that keep their bounds and come back from them."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from retrieval_jax.errors import UserError
from retrieval_jax.losses import temperature
from retrieval_jax.losses.base import DataSizes
from retrieval_jax.losses.in_batch import in_batch_softmax
from retrieval_jax.losses.temperature import learned
from retrieval_jax.records import EmbeddedBatch

LEARNED = learned(initial=0.05, minimum=0.01, maximum=1.0)
LOW, HIGH = math.log(1 / 1.0), math.log(1 / 0.01)


def _scale(log_scale, dtype=None):
  return temperature.scale(LEARNED, {"log_scale": jnp.asarray(log_scale, dtype)})


def test_a_fixed_temperature_has_no_parameters():
  assert temperature.initial_params(0.05) == {}
  assert float(temperature.scale(0.05, {})) == pytest.approx(20)


def test_a_learned_temperature_starts_at_its_initial_value():
  params = temperature.initial_params(LEARNED)
  assert params["log_scale"].dtype == jnp.float32
  assert params["log_scale"].shape == ()
  assert float(params["log_scale"]) == pytest.approx(math.log(20))
  assert float(temperature.scale(LEARNED, params)) == pytest.approx(20)


@pytest.mark.parametrize(
  ("log_scale", "expected"),
  [
    (math.log(20), 20),
    (HIGH + 1, 100),
    (1e30, 100),
    (math.inf, 100),
    (LOW - 1, 1),
    (-1e30, 1),  # far below: still no scale of 0, and never a negative one
    (-math.inf, 1),
  ],
)
def test_the_scale_stays_within_its_bounds(log_scale, expected):
  assert float(_scale(log_scale)) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["eager", "jit"])
@pytest.mark.parametrize(
  ("log_scale", "sign", "expected"),
  [
    # sign * scale is minimised: -1 pulls the scale up, 1 pushes it down. d scale / d log_scale = scale.
    (math.log(20), -1, -20),
    (math.log(20), 1, 20),
    (HIGH + 2, -1, 0),  # further out
    (HIGH + 2, 1, 100),  # back
    (LOW - 2, 1, 0),
    (LOW - 2, -1, -1),
  ],
)
def test_the_gradient_that_leads_further_out_is_0_and_the_one_that_leads_back_is_kept(
  transform, log_scale, sign, expected
):
  gradient = transform(jax.grad(lambda x: sign * _scale(x)))(jnp.asarray(log_scale, jnp.float32))
  assert float(gradient) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(("bound", "outwards"), [(HIGH, -1), (LOW, 1)])
def test_on_the_bound_itself(bound, outwards):
  """A temperature that starts at one of its bounds is not stuck there."""
  start = temperature.initial_params(LEARNED._replace(initial=math.exp(-bound)))["log_scale"]
  gradients = [float(jax.grad(lambda x, s=sign: s * _scale(x))(start)) for sign in (outwards, -outwards)]
  assert gradients == pytest.approx([0, -outwards * math.exp(bound)], rel=1e-5)


def _descend(transform, target, start, steps):
  """Returns (log_scale after each step, scale there) of the descent of log(scale / target)^2."""

  def value(params):
    return (jnp.log(temperature.scale(LEARNED, params)) - math.log(target)) ** 2

  def step(carry, _):
    params, state = carry
    updates, state = transform.update(jax.grad(value)(params), state, params)
    params = optax.apply_updates(params, updates)
    return (params, state), (params["log_scale"], temperature.scale(LEARNED, params))

  carry = start, transform.init(start)
  (params, _), found = jax.jit(functools.partial(jax.lax.scan, step, length=steps))(carry, None)
  return params, *map(np.asarray, found)


@pytest.mark.parametrize("transform", [optax.sgd(0.02), optax.adam(0.05)], ids=["sgd", "adam"])
@pytest.mark.parametrize(("outside", "bound"), [(1e5, HIGH), (1e-5, LOW)], ids=["up", "down"])
def test_a_long_descent_out_of_bounds_stays_at_the_bound_and_comes_back(transform, outside, bound):
  start = temperature.initial_params(LEARNED)
  params, path, scales = _descend(transform, outside, start, 2000)
  assert scales.min() >= 1 - 1e-5
  assert scales.max() <= 100 + 1e-3
  assert float(scales[-1]) == pytest.approx(math.exp(bound), rel=1e-4)
  # The parameter overshoots by a step and by what momentum carries it, and does not run on.
  assert abs(path[-1] - bound) < 1
  assert path[-1] == pytest.approx(path[-500], abs=1e-3)
  _, _, back = _descend(transform, 20.0, params, 300)
  assert float(back[-1]) == pytest.approx(20, rel=0.02)


def test_a_loss_learns_its_temperature_through_jit():
  """All negatives lie far below their positives: the loss falls as the temperature does, down to its minimum."""
  rows = np.arange(3)
  batch = EmbeddedBatch(jnp.eye(3), jnp.eye(3), rows, rows, rows[:, None], np.ones(3, np.float32))
  loss = in_batch_softmax(temperature=learned(initial=0.5, minimum=0.1, maximum=1.0))
  params, state = loss.init(jax.random.key(0), embed_dim=3, data=DataSizes(3, 3))

  @jax.jit
  def step(params):
    def value(params):
      output, _ = loss.apply(params, state, batch, rng=None, train=True)
      return output.loss, output.metrics

    (_, metrics), gradient = jax.value_and_grad(value, has_aux=True)(params)
    return jax.tree.map(lambda p, g: p - 5 * g, params, gradient), metrics

  shown = []
  for _ in range(200):
    params, metrics = step(params)
    shown.append(float(metrics["temperature"]))
    assert float(metrics["temperature"] * metrics["logit_scale"]) == pytest.approx(1)
  assert shown[0] == pytest.approx(0.5)
  assert shown == sorted(shown, reverse=True)
  assert shown[-1] == pytest.approx(0.1)


def test_under_x64():
  with jax.enable_x64(True):
    assert temperature.scale(0.05, {}).dtype == jnp.float64
    assert temperature.initial_params(LEARNED)["log_scale"].dtype == jnp.float32
    got = _scale(HIGH + 2, jnp.float64)
    assert got.dtype == jnp.float64
    assert float(got) == pytest.approx(100, rel=1e-12)
    inwards = jax.jit(jax.grad(_scale))(jnp.asarray(math.log(20), jnp.float64))
    assert float(inwards) == pytest.approx(20, rel=1e-12)


def test_a_parameter_that_is_nan_is_seen_and_not_clipped_away():
  assert math.isnan(float(_scale(math.nan)))


@pytest.mark.parametrize(
  "bounds",
  [
    {"initial": 0.0},
    {"initial": -0.05},
    {"initial": 2.0},
    {"minimum": 0.0},
    {"minimum": -0.01},
    {"minimum": 0.1},
    {"maximum": math.inf},
    {"maximum": 0.01},
    {"initial": math.nan},
    {"initial": 20.0, "maximum": 10.0},  # a scale given for a temperature
  ],
)
def test_bounds_that_cannot_be(bounds):
  with pytest.raises(UserError, match=r"0 < minimum <= initial <= maximum.*scale 100 is temperature 0.01"):
    learned(**bounds)
  with pytest.raises(UserError, match="0 < minimum <= initial <= maximum"):
    temperature.checked("samtone", LEARNED._replace(**bounds))


@pytest.mark.parametrize("value", [0, -1.0, math.nan, math.inf, "abc", None])
def test_a_fixed_temperature_must_be_positive(value):
  with pytest.raises(UserError, match=r"samtone: temperature is .*; it must be above 0.*scale 20 is 0.05"):
    temperature.checked("samtone", value)


def test_what_is_right_is_returned():
  assert temperature.checked("samtone", LEARNED) == LEARNED
  assert temperature.checked("samtone", 0.05) == 0.05
