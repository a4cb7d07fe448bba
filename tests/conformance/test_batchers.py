"""Every public batcher has every property that the Batcher interface promises."""

import importlib
import inspect
import json
import pkgutil

import numpy as np
import pytest

import retrieval_jax.batching
from retrieval_jax.batching.base import Batcher, Group, Plan
from retrieval_jax.batching.mixture import mixture
from retrieval_jax.batching.ngame import ngame
from retrieval_jax.batching.shuffled import shuffled
from retrieval_jax.batching.unique import unique

BATCH_SIZE, NUM_EXAMPLES = 4, 30
EMBEDDINGS = np.random.default_rng(0).standard_normal((NUM_EXAMPLES, 3)).astype(np.float32)

# The name before the colon is the factory's. Each is made afresh: no test may lean on another one's cache.
BATCHERS = {
  "shuffled": lambda: shuffled(BATCH_SIZE),
  "unique": lambda: unique(BATCH_SIZE),
  "mixture": lambda: mixture(BATCH_SIZE),
  "mixture: one task a batch": lambda: mixture(BATCH_SIZE, one_task_per_batch=True),
  "ngame": lambda: ngame(BATCH_SIZE, cluster_sizes=((0, 1), (1, 2))),
  "ngame: clusters": lambda: ngame(BATCH_SIZE, cluster_sizes=((0, 2),)),
}
# Those whose epoch holds each example once; the tasks of a mixture have passes of their own.
PASSES_ALIKE = {name: make for name, make in BATCHERS.items() if name != "mixture"}

every_batcher = pytest.mark.parametrize("make", BATCHERS.values(), ids=BATCHERS.keys())


def _plan(batcher, seed=5, num_examples=NUM_EXAMPLES, groups=()):
  plan = batcher.plan(num_examples=num_examples, seed=seed, groups=groups)
  if batcher.refresh_due(plan, 0):
    plan = batcher.refresh(plan, EMBEDDINGS[:num_examples], step=0)
  return plan


def test_every_public_factory_has_a_row():
  found = set()
  for module_info in pkgutil.iter_modules(retrieval_jax.batching.__path__, "retrieval_jax.batching."):
    module = importlib.import_module(module_info.name)
    for name, function in inspect.getmembers(module, inspect.isfunction):
      public = function.__module__ == module_info.name and not name.startswith("_")
      if public and inspect.signature(function).return_annotation in (Batcher, "Batcher"):
        found.add(name)
  assert found == {name.partition(":")[0] for name in BATCHERS}


@every_batcher
def test_batches_have_one_shape_and_valid_rows(make):
  batcher = make()
  for num_examples in (1, 3, 4, 5, 30):
    plan = _plan(batcher, num_examples=num_examples)
    for step in range(20):
      rows = batcher.rows(plan, step)
      assert rows.shape == (batcher.batch_size,)
      assert np.issubdtype(rows.dtype, np.integer)
      real = rows[rows >= 0]
      assert len(real) >= 1
      assert real.max() < num_examples
      assert (rows[rows < 0] == -1).all()


@pytest.mark.parametrize("make", PASSES_ALIKE.values(), ids=PASSES_ALIKE.keys())
def test_no_example_twice_in_an_epoch(make):
  batcher = make()
  plan = _plan(batcher)
  steps = batcher.steps_per_epoch(plan)
  for epoch in range(3):
    rows = np.concatenate([batcher.rows(plan, epoch * steps + i) for i in range(steps)])
    real = rows[rows >= 0]
    assert len(set(real.tolist())) == len(real)


@every_batcher
def test_resume_equals_an_uninterrupted_run(make):
  """From any step, in a new object, with the plan gone through JSON."""
  batcher = make()
  plan = _plan(batcher)
  run = [batcher.rows(plan, step).tolist() for step in range(25)]
  for start in (0, 3, 7, 13, 24):
    stored = json.loads(json.dumps(plan._asdict(), default=np.ndarray.tolist))
    resumed = make()
    assert [resumed.rows(Plan(**stored), step).tolist() for step in range(start, 25)] == run[start:]


@every_batcher
def test_epochs_and_seeds_differ_and_two_runs_are_equal(make):
  batcher = make()
  plan = _plan(batcher)
  steps = batcher.steps_per_epoch(plan)

  def run(plan, epoch):
    return [make().rows(plan, epoch * steps + i).tolist() for i in range(steps)]

  assert run(plan, 0) == run(_plan(make()), 0)
  assert run(plan, 0) != run(plan, 1)
  assert run(plan, 0) != run(_plan(batcher, seed=6), 0)


@every_batcher
def test_epoch_of_counts_steps_per_epoch(make):
  batcher = make()
  plan = _plan(batcher)
  steps = batcher.steps_per_epoch(plan)
  assert steps >= 1
  assert [batcher.epoch_of(plan, s) for s in (0, steps - 1, steps, 3 * steps)] == [0, 0, 1, 3]


@every_batcher
def test_no_example_twice_in_a_batch(make):
  batcher = make()
  for num_examples in (1, 3, 5, 30):
    plan = _plan(batcher, num_examples=num_examples)
    for step in range(30):
      rows = batcher.rows(plan, step)
      real = rows[rows >= 0].tolist()
      assert len(set(real)) == len(real)


@every_batcher
def test_epochs_are_of_each_place_and_grow(make):
  batcher = make()
  plan = _plan(batcher)
  steps = batcher.steps_per_epoch(plan)
  for step in (0, steps, 3 * steps):
    epochs = batcher.epochs(plan, step)
    assert epochs.shape == (batcher.batch_size,)
    assert np.issubdtype(epochs.dtype, np.integer)
  assert batcher.epochs(plan, 0).max() == 0
  assert batcher.epochs(plan, 20 * steps).min() > 0


@every_batcher
def test_one_group_is_no_mixture(make):
  batcher = make()
  plan = _plan(batcher, groups=[Group("only", NUM_EXAMPLES, 0.3)])
  assert batcher.rows(plan, 3).tolist() == batcher.rows(_plan(batcher), 3).tolist()


@every_batcher
def test_refresh_returns_a_plan_for_the_same_examples(make):
  batcher = make()
  plan = _plan(batcher)
  refreshed = batcher.refresh(plan, EMBEDDINGS, step=3 * batcher.steps_per_epoch(plan))
  assert refreshed.num_examples == plan.num_examples
  assert batcher.rows(refreshed, 0).shape == (batcher.batch_size,)


@every_batcher
def test_a_refresh_is_due_only_where_a_batcher_ever_refreshes(make):
  batcher = make()
  plan = batcher.plan(num_examples=NUM_EXAMPLES, seed=5)
  due = [step for step in range(60) if batcher.refresh_due(plan, step)]
  assert bool(due) == batcher.refreshes
  assert all(step % batcher.steps_per_epoch(plan) == 0 for step in due)
