"""The sparse table of judgements."""

import pathlib

import numpy as np
import pytest

from retrieval_jax.data.relevance import Relevance
from retrieval_jax.errors import UserError


@pytest.fixture
def table() -> Relevance:
  """Query 0: positives 2 and 5, judged 1 with 0; query 1: nothing; query 2: positive 7, judged 3 with -1."""
  return Relevance.from_pairs(
    np.array([2, 0, 0, 0, 2]), np.array([3, 5, 1, 2, 7]), np.array([-1, 1, 0, 3, 1]), num_queries=3
  )


def test_rows_have_positives_first(table: Relevance):
  rows, grades = table.row(0)
  assert (rows.tolist(), grades.tolist()) == ([2, 5, 1], [3, 1, 0])
  assert [column.tolist() for column in table.row(1)] == [[], []]
  assert [column.tolist() for column in table.row(2)] == [[7, 3], [1, -1]]
  assert table.num_queries == 3


def test_positives_are_padded_to_the_widest_query(table: Relevance):
  assert table.width == 2
  assert table.counts.tolist() == [2, 0, 1]
  assert table.positives(np.array([2, -1, 0, 1])).tolist() == [[7, -1], [-1, -1], [2, 5], [-1, -1]]


def test_a_pair_given_twice_keeps_its_highest_grade():
  table = Relevance.from_pairs(np.array([0, 0, 0]), np.array([4, 4, 4]), np.array([0, 2, 1]), num_queries=1)
  assert [column.tolist() for column in table.row(0)] == [[4], [2]]


def test_no_judgements_at_all():
  none = np.zeros(0, np.int64)
  table = Relevance.from_pairs(none, none, none, num_queries=2)
  assert table.width == 0
  assert table.positives(np.array([0, 1])).shape == (2, 0)


def test_rows_out_of_range_are_refused():
  with pytest.raises(UserError, match=r"query rows 0\.\.3, .*; expected query rows in 0\.\.2"):
    Relevance.from_pairs(np.array([0, 3]), np.array([0, 0]), np.array([1, 1]), num_queries=3)


def test_saved_and_read(table: Relevance, tmp_path: pathlib.Path):
  table.save(tmp_path / "relevance.npz")
  again = Relevance.read(tmp_path / "relevance.npz")
  for ours, theirs in zip(table, again, strict=True):
    np.testing.assert_array_equal(ours, theirs)
  assert isinstance(again.width, int)
