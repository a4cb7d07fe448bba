"""TREC run files: their order survives tools that forget the rank, and every id has a place in them."""

import numpy as np
import pytest

from retrieval_jax.records import Ranking
from retrieval_jax.run_file import run_token, strictly_decreasing, write_run


def _run(tmp_path, scores, rows=None):
  """Returns the lines of the run file of one query with these scores; passage i is called p<i>."""
  rows = np.arange(len(scores)) if rows is None else np.asarray(rows)
  ranking = Ranking(rows[None], np.asarray(scores, np.float32)[None])
  passage_ids = [f"p{i}" for i in range(len(scores))]
  path = tmp_path / "run.trec"
  write_run(path, ranking, query_ids=["query"], passage_ids=passage_ids, depth=100, tag="dense")
  return [line.split() for line in (tmp_path / "run.trec").read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize(
  "scores",
  [
    [16777217.0, 16777216.0],  # float32 holds only the second
    [1.0, 1.0, 1.0, 0.5],
    [0.99999994, 0.9999999, 0.99999986],  # alike in six decimals
    [0.0, 0.0, -0.0, -1.0],
    [-0.25, -0.25],
    [3.0000002, 3.0, 3.0, 2.9999998],  # the lowered third meets the fourth
    [0.5] * 100,
  ],
)
def test_a_run_file_sorted_by_its_scores_has_our_order(tmp_path, scores):
  """As trec_eval reads it: float32 scores, equal ones by id, the later id first, and no look at the rank."""
  lines = _run(tmp_path, scores)
  by_score = sorted(lines, key=lambda line: (np.float32(line[4]), line[2]), reverse=True)
  assert by_score == lines
  assert [line[3] for line in lines] == [str(rank) for rank in range(1, 1 + len(scores))]
  np.testing.assert_allclose([float(line[4]) for line in lines], scores, rtol=1e-5, atol=1e-30)


def test_a_run_file_keeps_scores_that_differ_and_leaves_empty_places_out(tmp_path):
  assert _run(tmp_path, [0.75, 0.1, -np.inf], rows=[2, 0, -1]) == [
    ["query", "Q0", "p2", "1", "0.75", "dense"],
    ["query", "Q0", "p0", "2", "0.1", "dense"],
  ]


def test_scores_are_lowered_as_little_as_possible():
  below_one = np.float32(1 - 2**-24)
  np.testing.assert_array_equal(
    strictly_decreasing(np.array([1.0, 1.0, 0.5], np.float32)), np.array([1, below_one, 0.5], np.float32)
  )
  assert strictly_decreasing(np.zeros(0)).shape == (0,)


def test_ids_of_any_kind_are_one_column_each(tmp_path, capsys):
  ids = ["1", "01", "1e3", "-0", "\U0001f642", " a ", "a\u2028b", "50%", ""]
  ranking = Ranking(np.arange(9)[None], np.arange(9, 0, -1, np.float32)[None])
  path = tmp_path / "run.trec"
  write_run(path, ranking, query_ids=["q 1"], passage_ids=ids, depth=9, tag="dense")
  lines = [line.split(" ") for line in path.read_bytes().decode().split("\n")[:-1]]
  assert all(len(line) == 6 for line in lines)
  assert {line[0] for line in lines} == {"q%201"}
  assert [line[2] for line in lines] == [*ids[:5], "%20a%20", "a%E2%80%A8b", "50%", "%"]
  assert "white space in ids is written as %XX 12 times" in capsys.readouterr().err


def test_a_percent_sign_is_quoted_only_where_white_space_is():
  assert run_token("5%") == "5%"
  assert run_token("5% a") == "5%25%20a"
