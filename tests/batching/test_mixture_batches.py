"""Tasks come up at their rates, walk through their examples pass after pass, and go on from any step."""

import numpy as np
import pytest

from retrieval_jax.batching.base import Group
from retrieval_jax.batching.mixture import mixture
from retrieval_jax.batching.shuffled import shuffled
from retrieval_jax.errors import UserError

GROUPS = (Group("a", 20, 3.0), Group("b", 100, 2.0), Group("c", 60, 1.0))  # rows 0..19, 20..119, 120..179
ENDS = (20, 120)


def _plan(batcher, groups=GROUPS, seed=0):
  return batcher.plan(num_examples=sum(group.size for group in groups), seed=seed, groups=groups)


def _tasks(rows):
  return np.digitize(rows, ENDS)


def test_an_epoch_has_each_tasks_share_exactly():
  batcher = mixture(6)
  plan = _plan(batcher)
  steps = batcher.steps_per_epoch(plan)
  assert steps == 180 // 6
  for epoch in range(4):
    rows = np.concatenate([batcher.rows(plan, epoch * steps + i) for i in range(steps)])
    # Of 180 places 3/6, 2/6 and 1/6; a place may be empty where a pass of a ends inside a batch.
    assert np.bincount(_tasks(rows[rows >= 0]), minlength=3)[1:].tolist() == [60, 30]
    assert 90 - 5 <= np.count_nonzero(_tasks(rows[rows >= 0]) == 0) <= 90


def test_each_task_walks_through_all_its_examples_before_one_comes_again():
  batcher = mixture(6)
  plan = _plan(batcher)
  rows = np.concatenate([batcher.rows(plan, step) for step in range(100)])
  epochs = np.concatenate([batcher.epochs(plan, step) for step in range(100)])
  for task, first, size in ((1, 20, 100), (2, 120, 60)):
    of_task = rows[_tasks(rows) == task]
    of_task_epochs = epochs[_tasks(rows) == task]
    passes = len(of_task) // size
    assert passes >= 1
    for k in range(passes):
      assert sorted(of_task[k * size : (k + 1) * size]) == list(range(first, first + size))
      assert set(of_task_epochs[k * size : (k + 1) * size]) == {k}
  small = rows[(_tasks(rows) == 0) & (rows >= 0)]
  counts = np.bincount(small, minlength=20)
  assert counts.max() - counts.min() <= 3  # 15 passes, some places empty


def test_the_passes_of_a_task_differ():
  batcher = mixture(8)
  plan = _plan(batcher, (Group("a", 64, 1.0), Group("b", 64, 1.0)))
  rows = np.concatenate([batcher.rows(plan, step) for step in range(32)])
  of_a = rows[(rows < 64) & (rows >= 0)]
  of_b = rows[rows >= 64]
  assert of_a[:60].tolist() != of_a[64:124].tolist()
  assert of_a[:60].tolist() != (of_b[:60] - 64).tolist()


def test_batches_of_one_task_at_a_time():
  batcher = mixture(8, one_task_per_batch=True)
  plan = _plan(batcher)
  steps = batcher.steps_per_epoch(plan)
  assert steps == 180 // 8
  seen = []
  for step in range(3 * steps):
    rows = batcher.rows(plan, step)
    assert len(set(_tasks(rows).tolist())) == 1
    assert len(set(rows.tolist())) == 8  # 20 examples are two batches a pass, 60 seven, 100 twelve
    seen.append(int(_tasks(rows)[0]))
  # 22 batches an epoch, 11 : 7.33 : 3.67.
  assert np.bincount(seen).tolist() == [3 * 11, 3 * 7, 3 * 4]


def test_a_task_smaller_than_a_batch_of_its_own_is_padded():
  batcher = mixture(8, one_task_per_batch=True)
  plan = _plan(batcher, (Group("a", 3, 1.0), Group("b", 40, 1.0)))
  batches = [batcher.rows(plan, step) for step in range(10)]
  small = [rows for rows in batches if rows.min() < 3]
  assert small
  assert all(sorted(rows[:3].tolist()) == [0, 1, 2] and set(rows[3:].tolist()) == {-1} for rows in small)


def test_a_task_of_a_low_rate_comes_up_in_every_epoch():
  batcher = mixture(4)
  plan = _plan(batcher, (Group("rare", 5, 0.01), Group("b", 10, 0.99)))
  steps = batcher.steps_per_epoch(plan)
  assert steps == 25  # 100 places
  rows = np.concatenate([batcher.rows(plan, step) for step in range(steps)])
  assert np.count_nonzero((rows >= 0) & (rows < 5)) == 1


def test_the_order_depends_on_seed_and_step_alone():
  run = [mixture(6).rows(_plan(mixture(6)), step).tolist() for step in range(70)]
  fresh = mixture(6)
  plan = _plan(fresh)
  for step in np.random.default_rng(0).permutation(70).tolist():
    assert fresh.rows(plan, step).tolist() == run[step]
  assert run[:30] != run[30:60]
  assert run[0] != fresh.rows(_plan(fresh, seed=1), 0).tolist()


def test_rates_need_no_unit():
  twice = [group._replace(rate=2 * group.rate) for group in GROUPS]
  batcher = mixture(6)
  assert batcher.rows(_plan(batcher, twice), 5).tolist() == batcher.rows(_plan(batcher), 5).tolist()


@pytest.mark.parametrize(
  "groups, message",
  [
    ([Group("a", 20, 1.0), Group("b", 9, 1.0)], "30 examples in groups of a 20, b 9: the sizes must add up"),
    ([Group("a", 30, 1.0), Group("b", 0, 1.0)], "b holds no examples"),
    ([Group("a", 20, 1.0), Group("b", 10, 0.0)], r"the rate of b is 0\.0; expected a finite number above 0"),
    ([Group("a", 20, 1.0), Group("b", 10, 1e-7)], "the rate of b is 1e-07 of all; below 1e-06"),
    (
      [Group("a", 28, 1.0), Group("b", 2, 1.0)],
      "b has 2 examples and, by its rate, 4 places in a batch of 8. Lower its rate",
    ),
  ],
)
def test_what_cannot_be_mixed(groups, message):
  with pytest.raises(UserError, match=message):
    mixture(8).plan(num_examples=30, seed=0, groups=groups)


def test_a_batcher_that_keeps_no_rates_refuses_a_mixture():
  with pytest.raises(UserError, match=r"shuffled: .* a mixture of a, b, c.*batching/mixture\.gin"):
    _plan(shuffled(4))


def test_batch_size_below_one():
  with pytest.raises(UserError, match="mixture: batch_size is 0"):
    mixture(0)
