"""The watchdog: what stands still is ended, what goes on is not."""

import subprocess
import sys

import pytest

from retrieval_jax.errors import UserError
from retrieval_jax.watchdog import Watchdog, check_timeout

STILL = """
import sys, time
from retrieval_jax.watchdog import Watchdog, beat
with Watchdog(0.3, "process 1 of 2") as watchdog:
  for _ in range(4):  # longer than the timeout, but it goes on
    time.sleep(0.15)
    beat()
  with watchdog.aside():
    time.sleep(0.8)
  print("went on", flush=True)
  def standing_still():
    time.sleep(60)
  standing_still()
"""


def test_what_stands_still_is_ended_with_its_stack():
  done = subprocess.run(
    [sys.executable, "-c", STILL], capture_output=True, text=True, timeout=50, check=False
  )
  assert done.returncode == 75, done.stderr
  assert done.stdout == "went on\n"
  assert "process 1 of 2: nothing went on for 0.3 s (STEP_TIMEOUT)" in done.stderr
  assert "in standing_still" in done.stderr


def test_nothing_is_watched_without_a_timeout():
  with Watchdog(None, "process 0 of 1") as watchdog:
    watchdog.beat()
    with watchdog.aside():
      pass


@pytest.mark.parametrize("timeout", [0, -1, True, "600"])
def test_timeouts_that_cannot_be(timeout):
  with pytest.raises(UserError, match="STEP_TIMEOUT="):
    check_timeout(timeout)
  check_timeout(None)
  check_timeout(0.5)
