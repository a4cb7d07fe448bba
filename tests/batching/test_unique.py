"""No text twice in a batch, everything tried once, pure in (seed, step), and never more work a batch than a few passes."""

import itertools
import logging

import numpy as np
import pytest

from retrieval_jax.batching import unique as unique_module
from retrieval_jax.batching.base import Group, Texts
from retrieval_jax.batching.shuffled import shuffled
from retrieval_jax.batching.unique import batches, unique
from retrieval_jax.errors import UserError


def _texts(*examples):
  """The texts of each example, as lists of numbers."""
  offsets = np.cumsum([0, *map(len, examples)])
  return Texts(offsets, np.array([number for texts in examples for number in texts], np.int64))


def _pairs(queries, passages):
  """Examples of one query and one passage."""
  return _texts(*([q, 1000 + p] for q, p in zip(queries, passages, strict=True)))


def _plan(batcher, texts, seed=0):
  return batcher.plan(num_examples=len(texts.offsets) - 1, seed=seed, texts=lambda: texts)


def _of(texts, rows):
  return [n for row in rows for n in set(texts.numbers[texts.offsets[row] : texts.offsets[row + 1]].tolist())]


RANDOM = np.random.default_rng(0)
MANY = _texts(
  *(
    [q, *set(p)]
    for q, p in zip(RANDOM.integers(0, 150, 200), RANDOM.integers(200, 260, (200, 2)), strict=True)
  )
)


def test_no_text_stands_twice_in_a_batch():
  batcher = unique(8)
  plan = _plan(batcher, MANY)
  steps = batcher.steps_per_epoch(plan)
  assert 15 <= steps <= 25
  for step in range(4 * steps):
    rows = batcher.rows(plan, step)
    found = _of(MANY, rows[rows >= 0])
    assert len(set(found)) == len(found)


def test_an_epoch_has_no_example_twice_and_other_epochs_leave_out_others():
  batcher = unique(8)
  plan = _plan(batcher, MANY)
  steps = batcher.steps_per_epoch(plan)
  seen = []
  for epoch in range(6):
    rows = np.concatenate([batcher.rows(plan, epoch * steps + i) for i in range(steps)])
    real = rows[rows >= 0].tolist()
    assert len(set(real)) == len(real) >= 8 * (steps - 2)
    seen.append(set(real))
  assert set().union(*seen) == set(range(200))


def test_the_first_epoch_is_full():
  batcher = unique(8)
  plan = _plan(batcher, MANY)
  assert all((batcher.rows(plan, step) >= 0).all() for step in range(batcher.steps_per_epoch(plan)))


def test_different_texts_are_shuffled():
  """Nothing waits, so the batches are those of `shuffled`."""
  texts = _pairs(range(30), range(30))
  batcher, plain = unique(4), shuffled(4)
  plan, plain_plan = _plan(batcher, texts, seed=3), plain.plan(num_examples=30, seed=3)
  assert batcher.steps_per_epoch(plan) == plain.steps_per_epoch(plain_plan)
  for step in range(20):
    assert batcher.rows(plan, step).tolist() == plain.rows(plain_plan, step).tolist()


def test_an_example_that_does_not_fit_comes_first_in_the_next_batch():
  """Examples 0 and 1 have one query, 2 and 4 one passage; 5's first positive is 3's."""
  texts = _texts([0, 10], [0, 11], [1, 12], [2, 13], [3, 12], [4, 13, 14], [5, 15], [6, 16])
  found = [rows.tolist() for rows in batches(texts, np.arange(8), 3)]
  assert found == [[0, 2, 3], [1, 4, 5], [6, 7]]


def test_one_that_is_like_another_that_waits_waits_too():
  """1 is like 0, and 2 is like 1 alone: 2 would fit, but is not told from those that do not until the next batch."""
  texts = _texts([0], [0, 1], [1], [2], [3])
  assert [rows.tolist() for rows in batches(texts, np.arange(5), 3)] == [[0, 3, 4], [1], [2]]


def test_any_step_is_the_same_from_a_fresh_start():
  batcher = unique(8)
  plan = _plan(batcher, MANY)
  run = [batcher.rows(plan, step).tolist() for step in range(60)]
  for step in np.random.default_rng(1).permutation(60).tolist():
    again = unique(8)
    assert again.rows(_plan(again, MANY), step).tolist() == run[step]
  assert run != [batcher.rows(_plan(batcher, MANY, seed=1), step).tolist() for step in range(60)]


def test_other_texts_make_other_batches():
  """Same seed and size: the cache must not mix them up."""
  alike = _pairs([0] * 10 + list(range(1, 11)), range(20))
  batcher = unique(4)
  first, second = _plan(batcher, alike), _plan(batcher, _pairs(range(20), range(20)))
  assert [batcher.rows(first, s).tolist() for s in range(2)] != [
    batcher.rows(second, s).tolist() for s in range(2)
  ]


def test_examples_whose_texts_are_everywhere_are_left_out_and_counted(caplog):
  """Half of the examples have one passage: a batch takes one of them."""
  texts = _pairs(range(80), [0] * 40 + list(range(1, 41)))
  batcher = unique(8)
  with caplog.at_level(logging.WARNING):
    plan = _plan(batcher, texts)
  steps = batcher.steps_per_epoch(plan)
  assert steps == 5  # 40 others fill five batches of 7 and one, with 5 to spare
  assert f"an epoch leaves out {80 - 8 * steps} of 80 examples" in caplog.text
  for step in range(3 * steps):
    rows = batcher.rows(plan, step)
    assert np.count_nonzero((rows >= 0) & (rows < 40)) <= 1


def test_labels_that_repeat_do_not_make_an_epoch_slow(monkeypatch):
  """20 labels, batches of 8: all but a few always wait. Tried are each example once, and LOOKS batches a batch."""
  tried = []
  fitting = unique_module._Room.fitting
  monkeypatch.setattr(
    unique_module._Room,
    "fitting",
    lambda self, rows, batch: tried.append(len(rows)) or fitting(self, rows, batch),
  )
  texts = _pairs(range(4000), np.random.default_rng(0).integers(0, 20, 4000))
  found = list(itertools.takewhile(lambda rows: len(rows) == 8, batches(texts, np.arange(4000), 8)))
  assert len(found) > 300
  assert sum(tried) <= 4000 + (1 + unique_module.LOOKS) * 8 * (len(found) + 1)


def test_fewer_examples_than_a_batch():
  batcher = unique(5)
  plan = _plan(batcher, _pairs([0, 0, 1], [0, 1, 2]))
  assert batcher.steps_per_epoch(plan) == 1
  rows = batcher.rows(plan, 0)
  assert (rows >= 0).sum() == 2
  assert rows[2:].tolist() == [-1] * 3


def test_no_batch_can_be_formed():
  with pytest.raises(
    UserError, match=r"batch of 8 .* cannot be formed of these 50: 3 fit in one. Lower BATCH_SIZE"
  ):
    _plan(unique(8), _pairs(range(50), [i % 3 for i in range(50)]))


def test_texts_of_another_number_of_examples():
  with pytest.raises(UserError, match="the texts of 3 examples came for 4"):
    unique(2).plan(num_examples=4, seed=0, texts=lambda: _pairs(range(3), range(3)))


def test_a_mixture_is_refused():
  with pytest.raises(UserError, match="unique: the training data are a mixture of a, b"):
    unique(2).plan(num_examples=4, seed=0, groups=[Group("a", 2, 1.0), Group("b", 2, 1.0)])
