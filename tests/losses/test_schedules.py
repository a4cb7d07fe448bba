import jax
import jax.numpy as jnp
import numpy as np
import pytest

from retrieval_jax.errors import UserError
from retrieval_jax.losses.schedules import ramp, stage


def _at(schedule, steps):
  return [float(schedule(jnp.int32(step))) for step in steps]


def test_two_stages_share_every_step():
  first, second = stage(end=3), stage(start=3)
  assert _at(first, [0, 2, 3, 10**9]) == [1, 1, 0, 0]
  assert _at(second, [0, 2, 3, 10**9]) == [0, 0, 1, 1]
  assert _at(stage(start=2, end=4), range(6)) == [0, 0, 1, 1, 0, 0]
  assert _at(stage(), [0, 5]) == [1, 1]


def test_ramp_is_a_line_with_exact_ends():
  schedule = ramp(start=10, end=20, initial=0.1, final=0.7)
  assert _at(schedule, [0, 10]) == [np.float32(0.1)] * 2
  assert _at(schedule, [20, 10**9]) == [np.float32(0.7)] * 2
  assert _at(schedule, [12, 15]) == pytest.approx([0.1 + 0.2 * 0.6, 0.4])


@pytest.mark.parametrize("schedule", [stage(end=2), ramp(start=0, end=2, initial=1.0, final=0.0)])
def test_schedules_are_float32_under_jit_and_take_numbers(schedule):
  assert jax.jit(schedule)(jnp.int32(0)).dtype == jnp.float32
  assert float(schedule(2)) == 0


@pytest.mark.parametrize("start, end", [(-1, None), (3, 3), (3, 2), (0, 0), (True, None)])
def test_stage_refuses(start, end):
  with pytest.raises(
    UserError, match=r"stage: start is .*, end is .*; expected whole numbers .* \(or no end\)"
  ):
    stage(start=start, end=end)


def test_ramp_refuses():
  with pytest.raises(UserError, match="ramp: start is 5, end is 5; expected whole numbers of steps"):
    ramp(start=5, end=5, initial=0.0, final=1.0)
  with pytest.raises(UserError, match="ramp: final is nan; expected a finite number"):
    ramp(start=0, end=5, initial=0.0, final=float("nan"))
