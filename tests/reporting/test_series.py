"""Curves out of the log: superseded steps, what is not finite, and how many points are left."""

import numpy as np

from retrieval_jax.reporting.series import Series, all_series, thinned


def test_a_resumed_training_supersedes_the_steps_it_repeats():
  steps = [1, 2, 3, 4, 5, 3, 4]
  log = [{"step": step, "time": 0.5, "loss": 10.0 * i} for i, step in enumerate(steps)]
  found = all_series(log)
  assert list(found) == ["loss"]
  assert found["loss"].steps.tolist() == [1, 2, 3, 4]
  assert found["loss"].values.tolist() == [0, 10, 50, 60]


def test_numbers_keep_their_order_and_what_is_no_number_is_left_out():
  log = [
    {"step": 1, "time": 0, "loss": None, "epoch": 0, "name": "x", "flag": True},
    {"step": 2, "time": 0, "loss": 2, "epoch": 1},
  ]
  found = all_series(log)
  assert list(found) == ["epoch", "loss"]
  assert found["loss"].steps.tolist() == [2]
  assert found["epoch"].values.tolist() == [0, 1]


def test_a_long_curve_is_thinned_by_means_of_neighbours():
  series = Series(np.arange(1.0, 8), np.array([0.0, 2, 4, 6, 8, 10, 100]))
  found = thinned(series, most=3)
  assert found.group == 3
  assert found.steps.tolist() == [2, 5, 7]
  assert found.values.tolist() == [2, 8, 100]
  assert thinned(series, most=7) is series
