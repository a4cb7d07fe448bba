import numpy as np
import pytest

from retrieval_jax.batching.base import Plan
from retrieval_jax.batching.shuffled import shuffled
from retrieval_jax.errors import UserError


def _epoch(batcher, plan, epoch):
  steps = batcher.steps_per_epoch(plan)
  return np.concatenate([batcher.rows(plan, epoch * steps + i) for i in range(steps)])


def test_an_epoch_has_each_example_at_most_once_and_drops_the_partial_batch():
  batcher = shuffled(4)
  plan = batcher.plan(num_examples=11, seed=3)
  assert batcher.steps_per_epoch(plan) == 2
  for epoch in range(20):
    rows = _epoch(batcher, plan, epoch)
    assert len(set(rows.tolist())) == 8
    assert rows.min() >= 0
    assert rows.max() <= 10


def test_every_example_comes_up_over_the_epochs():
  batcher = shuffled(4)
  plan = batcher.plan(num_examples=11, seed=3)
  seen = np.concatenate([_epoch(batcher, plan, epoch) for epoch in range(20)])
  assert set(seen.tolist()) == set(range(11))


def test_epochs_differ_seeds_differ_and_two_runs_are_equal():
  batcher = shuffled(8)
  plan = batcher.plan(num_examples=64, seed=7)
  first = _epoch(batcher, plan, 0)
  assert not np.array_equal(first, _epoch(batcher, plan, 1))
  assert not np.array_equal(first, _epoch(batcher, batcher.plan(num_examples=64, seed=8), 0))
  np.testing.assert_array_equal(first, _epoch(shuffled(8), Plan(64, 7, {}), 0))


def test_random_access_equals_sequential_so_a_resume_replays_and_skips_nothing():
  batcher = shuffled(3)
  plan = batcher.plan(num_examples=10, seed=1)
  sequential = [batcher.rows(plan, step) for step in range(30)]
  for step in np.random.default_rng(0).permutation(30).tolist():  # far from any cached epoch
    np.testing.assert_array_equal(shuffled(3).rows(plan, step), sequential[step])


def test_epoch_of_a_step():
  batcher = shuffled(3)
  plan = batcher.plan(num_examples=10, seed=1)
  assert [batcher.epoch_of(plan, step) for step in (0, 2, 3, 5, 6)] == [0, 0, 1, 1, 2]


def test_fewer_examples_than_a_batch_gives_one_padded_batch_an_epoch():
  batcher = shuffled(5)
  plan = batcher.plan(num_examples=3, seed=0)
  assert batcher.steps_per_epoch(plan) == 1
  rows = batcher.rows(plan, 4)
  assert sorted(rows[:3].tolist()) == [0, 1, 2]
  assert rows[3:].tolist() == [-1, -1]


def test_exactly_one_batch():
  batcher = shuffled(3)
  assert sorted(batcher.rows(batcher.plan(num_examples=3, seed=0), 0).tolist()) == [0, 1, 2]


def test_a_caller_cannot_damage_the_cached_order():
  batcher = shuffled(2)
  plan = batcher.plan(num_examples=2, seed=0)
  batcher.rows(plan, 0)[:] = 99
  assert sorted(batcher.rows(plan, 0).tolist()) == [0, 1]


def test_seeds_up_to_64_bits_are_distinct():
  batcher = shuffled(64)
  rows = [
    batcher.rows(batcher.plan(num_examples=64, seed=seed), 0).tolist() for seed in (0, 2**63, 2**64 - 1)
  ]
  assert rows[0] != rows[1] != rows[2]


@pytest.mark.parametrize("size", [0, -4])
def test_batch_size_below_one(size):
  with pytest.raises(UserError, match=f"batch_size is {size}; it must be at least 1"):
    shuffled(size)


def test_empty_data():
  with pytest.raises(UserError, match="hold 0 examples"):
    shuffled(2).plan(num_examples=0, seed=0)


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_seed_out_of_range(seed):
  with pytest.raises(UserError, match="must lie in 0"):
    shuffled(2).plan(num_examples=4, seed=seed)
