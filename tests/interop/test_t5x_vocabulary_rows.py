"""Token tables with rows added or cut."""

import numpy as np
import pytest

from retrieval_jax.errors import UserError
from retrieval_jax.interop import vocabulary_rows

TABLE = np.arange(12, dtype=np.float32).reshape(4, 3)


def test_a_larger_table_gets_rows_of_zeros():
  got = vocabulary_rows.resized(TABLE, 6)
  np.testing.assert_array_equal(got[:4], TABLE)
  np.testing.assert_array_equal(got[4:], np.zeros((2, 3)))
  assert got.dtype == np.float32


def test_a_smaller_table_loses_its_last_rows():
  np.testing.assert_array_equal(vocabulary_rows.resized(TABLE, 2), [[0, 1, 2], [3, 4, 5]])


def test_the_same_size_is_the_same_table():
  assert vocabulary_rows.resized(TABLE, 4) is TABLE


@pytest.mark.parametrize("rows", [0, -1, True, "9", 6.0])
def test_rows_must_be_a_positive_number(rows):
  with pytest.raises(UserError, match=r"vocab_size=.*expected the rows of the token table.*file's 4 rows"):
    vocabulary_rows.resized(TABLE, rows)


def test_rows_beyond_any_vocabulary_are_not_made():
  with pytest.raises(UserError, match=r"vocab_size=1000000000000: expected at most 10,000,000 rows"):
    vocabulary_rows.resized(TABLE, 10**12)


@pytest.mark.parametrize(
  "old, new, expected",
  [
    (32_100, 32_128, "28 rows of zeros added: 32,100 -> 32,128"),
    (32_128, 32_100, "last 28 rows cut: 32,128 -> 32,100"),
    (9, 9, ""),
  ],
)
def test_note(old, new, expected):
  assert vocabulary_rows.note(old, new) == expected
