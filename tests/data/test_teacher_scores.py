"""A user's file of teacher scores: what is read, what a batch carries of it, and every mistake by file and line."""

import gzip
import logging
import pathlib

import numpy as np
import pytest
from toy_source import ListSource

from retrieval_jax.data import features
from retrieval_jax.data.dataset import load, make_batch
from retrieval_jax.data.teacher_scores import TeacherScores
from retrieval_jax.data.text_inputs import TextInputs
from retrieval_jax.errors import UserError

NO = -np.inf


def write(path: pathlib.Path, *lines: str) -> str:
  path.write_bytes("".join(f"{line}\n" for line in lines).encode())
  return str(path)


@pytest.fixture
def scores_of(toy: ListSource, inputs: TextInputs, tmp_path: pathlib.Path):
  """scores_of(*lines): the scores of a file with these lines for the toy data, and the data."""

  def scores_of(*lines: str):
    data = load(toy, inputs, teacher_scores=write(tmp_path / "scores.tsv", *lines), cache=tmp_path)
    assert data.teacher_scores is not None
    return data.teacher_scores, data

  return scores_of


def test_scores_are_looked_up_by_query_and_passage(scores_of):
  scores, _ = scores_of("q2\tp3\t4.5", "q1\tp2\t-3e0", "q1\tp1\t 0.25", "q3\tp1\t7")
  assert scores.offsets.tolist() == [0, 2, 3, 4]
  assert scores.passage_rows.tolist() == [0, 1, 2, 0]
  expected = [[0.25, -3, NO, NO, 0.25], [NO, NO, NO, NO, NO], [7, NO, NO, NO, 7], [NO, NO, 4.5, NO, NO]]
  found = scores.gather(np.array([0, -1, 2, 1]), np.array([0, 1, 2, -1, 0]))
  assert found.tolist() == expected
  assert found.dtype == np.float32


def test_lookup_equals_a_dictionary():
  rng = np.random.default_rng(0)
  pairs = {(int(q), int(p)): float(np.float32(rng.normal())) for q, p in rng.integers(0, 30, (300, 2))}
  keys = np.array(sorted(pairs))
  offsets = np.searchsorted(keys[:, 0], np.arange(31))
  scores = TeacherScores(
    offsets, keys[:, 1].astype(np.int32), np.array([pairs[q, p] for q, p in keys.tolist()], np.float32), "x"
  )
  queries, passages = rng.integers(-1, 30, 16), rng.integers(-1, 30, 48)
  assert scores.gather(queries, passages).tolist() == [
    [pairs.get((int(q), int(p)), NO) for p in passages] for q in queries
  ]


def test_a_batch_carries_the_scores_and_grades_of_its_pairs(scores_of):
  _, data = scores_of("passage_id\tscore\tquery_id", "p3\t4\tq1", "p3\t5\tq2", "p1\t1\tq1", "p2\t2\tq1")
  batch = make_batch(data, np.array([1, -1, 0]), seed=0, epoch=0)
  own = {0: 1.0, 1: 2.0}[int(batch.passage_rows[2])]
  assert np.asarray(batch.teacher_scores).tolist() == [[5, NO, NO], [NO, NO, NO], [4, NO, own]]
  assert np.asarray(batch.teacher_scores).dtype == np.float32
  assert np.asarray(batch.targets).tolist() == [1, 0, 1]
  assert np.asarray(batch.targets).dtype == np.float32


def test_without_a_file_there_are_none(toy: ListSource, inputs: TextInputs, tmp_path: pathlib.Path):
  data = load(toy, inputs, cache=tmp_path)
  assert data.teacher_scores is None
  assert make_batch(data, np.array([0]), seed=0, epoch=0).teacher_scores is None


def test_targets_are_the_grades_of_the_drawn_pairs(inputs: TextInputs, tmp_path: pathlib.Path):
  grades = [3, 1, 2, -1, 0]
  pairs = [
    features.pair(f"q{q}", f"red {q}", f"p{p}", "abcde"[p], grades[p]) for q in range(20) for p in range(5)
  ]
  data = load(ListSource({"train": pairs}), inputs, cache=tmp_path)
  batch = make_batch(data, np.arange(20), seed=0, epoch=0)
  assert np.asarray(batch.targets).tolist() == [grades[p] for p in batch.passage_rows]
  assert set(np.asarray(batch.targets).tolist()) == {1, 2, 3}


def test_equal_texts_share_their_scores(inputs: TextInputs, tmp_path: pathlib.Path):
  pairs = [features.pair("q1", "red", "p1", "a"), features.pair("q2", "RED", "p2", "A")]
  pairs.append(features.pair("q3", "blue", "p3", "b"))
  path = write(tmp_path / "scores.tsv", "q2\tp1\t1", "q1\tp2\t2", "q3\tp2\t3")
  data = load(ListSource({"train": pairs}), inputs, teacher_scores=path, cache=tmp_path)
  batch = make_batch(data, np.array([0, 1, 2]), seed=0, epoch=0)
  assert np.asarray(batch.teacher_scores).tolist() == [[1, 1, NO], [1, 1, NO], [3, 3, NO]]


def test_a_gzipped_file_with_the_line_ends_of_windows(toy, inputs: TextInputs, tmp_path: pathlib.Path):
  path = tmp_path / "scores.tsv.gz"
  path.write_bytes(gzip.compress(b"query_id\tpassage_id\tscore\r\nq1\tp1\t0.5\r\n\r\n"))
  data = load(toy, inputs, teacher_scores=str(path), cache=tmp_path)
  assert data.teacher_scores is not None
  assert data.teacher_scores.scores.tolist() == [0.5]


def test_a_pair_that_comes_twice_with_one_score_is_one(scores_of):
  scores, _ = scores_of("q1\tp1\t0.1", "q2\tp1\t3", "q1\tp1\t0.10")
  assert scores.offsets.tolist() == [0, 1, 2, 2]


def test_pairs_of_other_data_are_counted_and_left_out(scores_of, caplog: pytest.LogCaptureFixture):
  with caplog.at_level(logging.WARNING):
    scores, _ = scores_of("q1\tp1\t1", "q1\tp99\t2", "q01\tp1\t3", "x\ty\t4")
  assert scores.scores.tolist() == [1]
  assert "scores.tsv: 3 of 4 pairs are not of these data (2 by their query, 2 by their passage" in caplog.text
  assert "the first is 'q1', 'p99'): they are left out." in caplog.text


def test_the_file_is_read_once_and_again_when_it_changes(
  toy: ListSource, inputs: TextInputs, tmp_path: pathlib.Path
):
  path = write(tmp_path / "scores.tsv", "q1\tp1\t1")
  first = load(toy, inputs, teacher_scores=path, cache=tmp_path)
  (built,) = tmp_path.glob("teacher_scores/*/scores.npy")
  stamp = built.stat()
  again = load(toy, inputs, teacher_scores=path, cache=tmp_path)
  assert (built.stat().st_ino, built.stat().st_mtime_ns) == (stamp.st_ino, stamp.st_mtime_ns)
  assert again.fingerprint == first.fingerprint
  write(tmp_path / "scores.tsv", "q1\tp1\t1", "q1\tp2\t2")
  changed = load(toy, inputs, teacher_scores=path, cache=tmp_path)
  assert changed.teacher_scores is not None
  assert changed.teacher_scores.scores.tolist() == [1, 2]
  assert changed.queries.fingerprint == first.queries.fingerprint
  plain = load(toy, inputs, cache=tmp_path)
  assert len({plain.fingerprint, first.fingerprint, changed.fingerprint}) == 3  # a resumed run says so


@pytest.mark.parametrize(
  "lines, message",
  [
    (["q1\tp1"], r"scores\.tsv:1: 2 columns, expected 3: query_id, passage_id, score, split by tabs"),
    (["q1\tp1\t1", "", "q1\tp2\t1\t2"], r"scores\.tsv:3: 4 columns, expected 3"),
    (["q1\tp1\t1", "q1\tp2\thigh"], r"scores\.tsv:2: score 'high'; expected a finite number"),
    (["q1\tp1\tnan"], r"scores\.tsv:1: score 'nan'; expected a finite number"),
    (["q1\tp1\t-inf"], r"scores\.tsv:1: score '-inf'; .* Leave a pair out that the teacher did not score"),
    (["q1\tp1\t1e39"], r"scores\.tsv:1: score '1e39'; expected a finite number"),
    (["query\tpassage\tscore", "q1\tp1\t1"], r"scores\.tsv:1: score 'score'; .* a header names them just so"),
    (
      ["query_id\tpassage_id\tscore", "q1\tp1\t1", "x\tp1\t1", "q2\tp1\t1", "", "q1\tp1\t2"],
      r"scores\.tsv:6: the pair 'q1', 'p1' has the score 2.0 here and 1.0 at .*scores\.tsv:2\. Keep one",
    ),
    (
      ["1\t1\t1"],
      r"1 of 1 pairs are not of these data .*'1' is not '01'.* header names query_id and passage_id",
    ),
    ([], r"scores\.tsv: no scores in it"),
    (["query_id\tpassage_id\tscore"], r"scores\.tsv: no scores in it"),
  ],
)
def test_mistakes_name_file_and_line(scores_of, lines: list[str], message: str, tmp_path: pathlib.Path):
  with pytest.raises(UserError, match=message):
    scores_of(*lines)
  assert not [path for path in tmp_path.glob("teacher_scores/*") if not path.name.startswith(".")]


def test_a_file_that_is_none(toy: ListSource, inputs: TextInputs, tmp_path: pathlib.Path):
  with pytest.raises(UserError, match="no such file"):
    load(toy, inputs, teacher_scores=str(tmp_path / "gone.tsv"), cache=tmp_path)
  with pytest.raises(UserError, match="cannot be read"):
    load(toy, inputs, teacher_scores=str(tmp_path), cache=tmp_path)
  with pytest.raises(UserError, match="TEACHER_SCORES_PATH=5: expected the path of a TSV file"):
    load(toy, inputs, teacher_scores=5, cache=tmp_path)  # pyright: ignore[reportArgumentType]
