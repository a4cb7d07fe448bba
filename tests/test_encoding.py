"""Length batches: every row once, few shapes."""

import numpy as np

from retrieval_jax.encoding import bucket, length_batches


def test_buckets_are_multiples_of_16_then_powers_of_two():
  assert [bucket(n, 512) for n in (0, 1, 16, 17, 128, 129, 257, 600)] == [16, 16, 16, 32, 128, 256, 512, 512]
  assert bucket(10, 8) == 8


def test_every_row_is_in_exactly_one_batch_and_fits():
  lengths = np.random.default_rng(0).integers(0, 200, 1000)
  seen, shapes = [], set()
  for rows, length in length_batches(lengths, 200, 1024, multiple=8):
    real = rows[rows >= 0]
    assert (lengths[real] <= length).all()
    assert len(rows) % 8 == 0
    assert len(rows) * length <= max(1024, 8 * length)
    seen.extend(real)
    shapes.add((len(rows), length))
  assert sorted(seen) == list(range(1000))
  assert len(shapes) == len({length for _, length in shapes}), "one shape a bucket: one compilation each"


def test_longest_rows_come_first():
  batches = list(length_batches(np.array([5, 60, 30]), 64, 64, multiple=1))
  assert [(rows.tolist(), length) for rows, length in batches] == [([1], 64), ([2], 32), ([0], 16)]
