import numpy as np
import pytest

from retrieval_jax.batching.ngame import doubling, fixed, ngame
from retrieval_jax.batching.shuffled import shuffled
from retrieval_jax.errors import UserError

SCHEDULE = ((0, 1), (2, 4), (6, 8))


def embeddings(count: int, topics: int, *, dim: int = 16, seed: int = 0) -> np.ndarray:
  """Rows of `topics` well separated directions: row i is of topic i % topics."""
  rng = np.random.default_rng(seed)
  centres = rng.standard_normal((topics, dim))
  return (centres[np.arange(count) % topics] + 0.05 * rng.standard_normal((count, dim))).astype(np.float32)


def epoch_rows(batcher, plan, epoch):
  steps = batcher.steps_per_epoch(plan)
  return [batcher.rows(plan, epoch * steps + i) for i in range(steps)]


def test_clusters_of_one_are_the_batches_of_shuffled():
  plan = ngame(8, cluster_sizes=((0, 1),)).plan(num_examples=30, seed=3)
  other = shuffled(8).plan(num_examples=30, seed=3)
  for step in range(10):
    rows = ngame(8, cluster_sizes=((0, 1),)).rows(plan, step)
    assert rows.tolist() == shuffled(8).rows(other, step).tolist()


def test_a_batch_is_made_of_whole_clusters():
  batcher = ngame(8, cluster_sizes=((0, 4),))
  plan = batcher.refresh(batcher.plan(num_examples=64, seed=0), embeddings(64, 16), step=0)
  of_row = np.empty(64, int)
  for number, (start, stop) in enumerate(zip(plan.state["offsets"], plan.state["offsets"][1:], strict=False)):
    of_row[plan.state["members"][start:stop]] = number
  for epoch in range(3):
    for rows in epoch_rows(batcher, plan, epoch):
      clusters, counts = np.unique(of_row[rows], return_counts=True)
      assert len(clusters) == 2
      assert counts.tolist() == [4, 4]


def test_clusters_are_topics_where_there_are_as_many():
  batcher = ngame(8, cluster_sizes=((0, 4),))
  plan = batcher.refresh(batcher.plan(num_examples=64, seed=0), embeddings(64, 16), step=0)
  topics = [sorted({int(row) % 16 for row in rows}) for rows in epoch_rows(batcher, plan, 0)]
  assert all(len(found) == 2 for found in topics)


def test_the_order_of_clusters_is_new_in_each_epoch_and_a_function_of_the_seed():
  batcher = ngame(8, cluster_sizes=((0, 4),))
  plan = batcher.refresh(batcher.plan(num_examples=64, seed=0), embeddings(64, 16), step=0)
  first, second = ([rows.tolist() for rows in epoch_rows(batcher, plan, epoch)] for epoch in (0, 1))
  assert first != second
  assert {frozenset(rows) for rows in first} != {
    frozenset(rows) for rows in second
  }  # other pairs of clusters
  again = ngame(8, cluster_sizes=((0, 4),))
  assert [rows.tolist() for rows in epoch_rows(again, plan, 1)] == second


@pytest.mark.parametrize(
  ("num_examples", "size"), [(64, 4), (61, 4), (70, 4), (67, 8), (5, 4), (16, 16), (100, 1)]
)
def test_every_batch_is_full_but_for_clusters_that_lack_one(num_examples, size):
  """61 examples in clusters of 4 make 16 clusters, 3 of which have 3: an epoch is padded by at most 3 places."""
  batcher = ngame(16, cluster_sizes=((0, size),))
  plan = batcher.plan(num_examples=num_examples, seed=1)
  if size > 1:
    plan = batcher.refresh(plan, embeddings(num_examples, 7), step=0)
  rows = np.concatenate(epoch_rows(batcher, plan, 0))
  real = rows[rows >= 0]
  assert len(set(real.tolist())) == len(real)
  assert batcher.steps_per_epoch(plan) == max(1, num_examples // 16)
  clusters = -(-num_examples // size)
  assert len(real) >= min(num_examples, len(rows)) - (clusters * size - num_examples)


def test_over_epochs_every_example_comes_up():
  batcher = ngame(16, cluster_sizes=((0, 4),))
  plan = batcher.refresh(batcher.plan(num_examples=70, seed=1), embeddings(70, 9), step=0)
  seen = np.unique(np.concatenate([rows for epoch in range(12) for rows in epoch_rows(batcher, plan, epoch)]))
  assert seen[seen >= 0].tolist() == list(range(70))


def test_a_refresh_is_due_at_the_schedule_and_every_so_many_epochs_after():
  batcher = ngame(8, cluster_sizes=SCHEDULE, refresh_epochs=3)
  plan = batcher.plan(num_examples=32, seed=0)  # 4 steps an epoch
  found = []
  for step in range(4 * 13):
    if batcher.refresh_due(plan, step):
      plan = batcher.refresh(plan, embeddings(32, 8), step=step)
      found.append((step // 4, plan.state["cluster_size"]))
      assert step % 4 == 0
      assert not batcher.refresh_due(plan, step)
  assert found == [(2, 4), (5, 4), (6, 8), (9, 8), (12, 8)]


def test_the_interval_is_counted_in_steps_whatever_the_batch_size_was():
  """Clusters of step 4 with 4 steps an epoch; a resumed run of half the batch size has 8 steps an epoch."""
  plan = ngame(8, cluster_sizes=((0, 4),)).plan(num_examples=32, seed=0)
  plan = ngame(8, cluster_sizes=((0, 4),)).refresh(plan, embeddings(32, 8), step=4)
  smaller = ngame(4, cluster_sizes=((0, 4),), refresh_epochs=2)
  assert next(step for step in range(4, 60) if smaller.refresh_due(plan, step)) == 24


def test_without_an_interval_clusters_are_made_when_their_size_changes_alone():
  batcher = ngame(8, cluster_sizes=SCHEDULE, refresh_epochs=None)
  plan = batcher.plan(num_examples=32, seed=0)
  found = []
  for step in range(4 * 30):
    if batcher.refresh_due(plan, step):
      plan = batcher.refresh(plan, embeddings(32, 8), step=step)
      found.append(step // 4)
  assert found == [2, 6]


def test_a_schedule_can_go_back_to_random_batches():
  batcher = ngame(8, cluster_sizes=((0, 4), (1, 1)), refresh_epochs=1)
  plan = batcher.refresh(batcher.plan(num_examples=32, seed=0), embeddings(32, 8), step=0)
  assert batcher.refresh_due(plan, 4)
  plan = batcher.refresh(plan, np.zeros((32, 16)), step=4)  # no clustering, so no embedding is looked at
  assert (
    batcher.rows(plan, 5).tolist() == shuffled(8).rows(shuffled(8).plan(num_examples=32, seed=0), 5).tolist()
  )
  assert not any(batcher.refresh_due(plan, step) for step in range(5, 60))


def test_larger_clusters_make_harder_batches():
  """NGAME's premise: the mean cosine of a row to the nearest in its batch rises with the size of the clusters."""
  rows = embeddings(512, 128, dim=32, seed=4)
  rows /= np.linalg.norm(rows, axis=1, keepdims=True)
  found = []
  for size in (1, 2, 4):
    batcher = ngame(32, cluster_sizes=((0, size),))
    plan = batcher.plan(num_examples=512, seed=0)
    if size > 1:
      plan = batcher.refresh(plan, rows, step=0)
    values = []
    for batch in epoch_rows(batcher, plan, 0):
      cosines = rows[batch] @ rows[batch].T
      np.fill_diagonal(cosines, -np.inf)
      values.append(np.sort(cosines, axis=1)[:, -3:].mean())
    found.append(np.mean(values))
  assert found[0] + 0.1 < found[1]
  assert found[1] + 0.1 < found[2]


def test_a_cold_bank_is_not_clustered():
  batcher = ngame(8, cluster_sizes=((0, 4),))
  plan = batcher.plan(num_examples=32, seed=0)
  rows = embeddings(32, 8)
  rows[5] = 0
  with pytest.raises(UserError, match="zero"):
    batcher.refresh(plan, rows, step=0)


def test_embeddings_of_other_examples_are_refused():
  batcher = ngame(8, cluster_sizes=((0, 4),))
  with pytest.raises(ValueError, match="31 embeddings, expected one for each of 32 examples"):
    batcher.refresh(batcher.plan(num_examples=32, seed=0), embeddings(31, 8), step=0)


@pytest.mark.parametrize(
  ("sizes", "message"),
  [
    (((0, 3),), "3 examples in a cluster from epoch 0 on.*3 does not divide it. Nearest valid sizes: 2 or 4"),
    (((0, 16),), "16 does not divide it. Nearest valid sizes: 8"),
    (((0, 0),), "0 examples in a cluster"),
    (((1, 4),), "expected epochs that rise from 0"),
    (((0, 1), (3, 2), (3, 4)), "expected epochs that rise from 0"),
    ((), "expected epochs that rise from 0"),
    (16, r"CLUSTER_SIZES=16; expected pairs .*, or \(\(0, 16\),\) for clusters of 16"),
    (None, "CLUSTER_SIZES=None; expected pairs"),
    ("16", "CLUSTER_SIZES='16'; expected pairs"),
    ((5,), r"CLUSTER_SIZES has 5; expected pairs \(epoch, size\)"),
    (((0, 2.0),), r"CLUSTER_SIZES has \(0, 2.0\)"),
  ],
)
def test_schedules_that_cannot_be(sizes, message):
  with pytest.raises(UserError, match=message):
    ngame(8, cluster_sizes=sizes)


def test_other_settings_that_cannot_be():
  with pytest.raises(UserError, match="REFRESH_EPOCHS=0"):
    ngame(8, refresh_epochs=0, cluster_sizes=((0, 4),))
  with pytest.raises(UserError, match="FIRST_CLUSTER_SIZE=0"):
    doubling(start=1, every=1, first=0)
  with pytest.raises(
    UserError, match="LARGEST_CLUSTER_SIZE=4; expected a whole number of at least FIRST_CLUSTER_SIZE=8"
  ):
    doubling(start=1, every=1, first=8, largest=4)


def test_the_curriculum_of_the_paper():
  assert doubling(start=10, every=25, first=8, largest=32) == ((0, 1), (10, 8), (35, 16), (60, 32))
  assert fixed(size=16) == ((0, 16),)
