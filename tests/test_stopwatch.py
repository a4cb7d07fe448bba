"""The numbers of the log that are of time, by a clock that the test sets."""

import pytest

from retrieval_jax import training_log
from retrieval_jax.training_log import Stopwatch


@pytest.fixture
def clock(monkeypatch):
  """Returns a list whose sum is the time."""
  passed = [100.0]
  monkeypatch.setattr(training_log.time, "perf_counter", lambda: sum(passed))
  return passed


def test_rates_are_of_the_time_since_the_last_ones_without_pauses(clock):
  watch = Stopwatch(batch_size=8)
  for _ in range(3):
    clock.append(1.0)  # the batch
    with watch.on_device():
      clock.append(4.0)
    watch.tick()
  with watch.paused():  # an evaluation that waits for the step first
    with watch.on_device():
      clock.append(7.0)
    clock.append(50.0)
  assert watch.rates() == pytest.approx({"examples_per_second": 3 * 8 / 15, "host_share": 3 / 15})

  with watch.on_device():
    clock.append(2.0)
  watch.tick()
  assert watch.rates() == pytest.approx({"examples_per_second": 8 / 2, "host_share": 0})
