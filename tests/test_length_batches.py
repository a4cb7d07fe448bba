"""Batches by length: every row once, few shapes."""

import numpy as np

from retrieval_jax.length_batches import bucket, length_batches, row_counts


def test_buckets_are_multiples_of_16_then_powers_of_two():
  assert [bucket(n, 512) for n in (0, 1, 16, 17, 128, 129, 257, 600)] == [16, 16, 16, 32, 128, 256, 512, 512]
  assert bucket(10, 8) == 8


def test_row_counts_are_quarters_down_to_eight():
  assert row_counts(16, 8192, multiple=1) == [512, 128, 32, 8]
  assert row_counts(512, 8192, multiple=1) == [16, 8]
  assert row_counts(512, 1024, multiple=1) == [2]
  assert row_counts(128, 8192, multiple=6) == [60, 18, 12]
  assert row_counts(16, 8192, multiple=32) == [512, 128, 32]


def test_every_row_is_in_exactly_one_batch_and_fits():
  lengths = np.random.default_rng(0).integers(0, 200, 1000)
  seen = []
  batches = list(length_batches(lengths, 200, 1024, multiple=8))
  for number, (rows, length) in enumerate(batches):
    real = rows[rows >= 0]
    assert (lengths[real] <= length).all()
    assert len(rows) in row_counts(length, 1024, multiple=8)
    assert len(real) == len(rows) or number == len(batches) - 1, "only the last batch may have room"
    seen.extend(real)
  assert sorted(seen) == list(range(1000))
  lengths_seen = [length for _, length in batches]
  assert lengths_seen == sorted(lengths_seen, reverse=True)
  assert len({(len(rows), length) for rows, length in batches}) <= len(set(lengths_seen)) + 1


def test_longest_rows_come_first_and_leftovers_share_a_batch():
  batches = list(length_batches(np.array([5, 60, 30]), 64, 64, multiple=1))
  assert [(rows.tolist(), length) for rows, length in batches] == [([1], 64), ([2, 0], 32)]
