"""Hard negatives of queries: the table, the draw, and how they come out of a task's examples and into a batch."""

import logging
import pathlib

import numpy as np
import pytest

from retrieval_jax.data import features
from retrieval_jax.data.dataset import load, make_batch
from retrieval_jax.data.hard_negatives import HardNegatives
from retrieval_jax.data.text_inputs import TextInputs
from retrieval_jax.errors import UserError
from tests.data.toy_source import ListSource

CORPUS = [
  features.passage(id, text) for id, text in zip("pqrs", ["red", "green", "blue", "a b"], strict=True)
]


def _table() -> HardNegatives:
  return HardNegatives.from_pairs(np.array([2, 0, 2, 0, 2, 2]), np.array([9, 5, 7, 5, 8, 9]), num_queries=4)


def test_a_table_keeps_the_order_given_and_each_pair_once():
  table = _table()
  assert [table.row(i).tolist() for i in range(4)] == [[5], [], [9, 7, 8], []]
  assert table.counts.tolist() == [1, 0, 3, 0]


def test_a_draw_has_no_repeats_and_pads_where_there_are_fewer():
  drawn = _table().draw(np.array([2, 0, 1, -1, 2]), per_query=2, seed=1, epoch=0)
  assert drawn.shape == (5, 2)
  assert drawn[1].tolist() == [5, -1]
  assert drawn[2].tolist() == drawn[3].tolist() == [-1, -1]
  assert len(set(drawn[0])) == 2
  assert set(drawn[0]) <= {7, 8, 9}
  np.testing.assert_array_equal(drawn[4], drawn[0])  # of the row, not of its place
  assert sorted(_table().draw(np.array([2]), per_query=5, seed=1, epoch=0)[0].tolist()) == [-1, -1, 7, 8, 9]


def test_every_set_of_negatives_is_drawn_about_as_often():
  table = HardNegatives.from_pairs(np.zeros(5, int), np.arange(5), num_queries=1)
  sets = [
    tuple(sorted(table.draw(np.array([0]), per_query=2, seed=3, epoch=epoch)[0].tolist()))
    for epoch in range(2000)
  ]
  counts = [sets.count(pair) for pair in set(sets)]
  assert len(counts) == 10  # 5 choose 2
  assert 140 < min(counts) <= max(counts) < 260  # 200 each, give or take four deviations


def test_negatives_of_a_task_with_a_corpus_go_by_their_ids(inputs: TextInputs, tmp_path: pathlib.Path):
  train = [
    features.pair("1", "a", "p", "", negative_ids=["r", "q"]),
    features.pair("2", "b", "q", ""),
    features.pair("1", "a", "q", "", negative_ids=["r", "s"]),
  ]
  data = load(ListSource({"train": train, "corpus": CORPUS}), inputs, cache=tmp_path)
  assert data.negatives is not None
  assert [data.negatives.row(i).tolist() for i in range(2)] == [[2, 3], []]  # q is a positive of query 1
  batch = make_batch(data, np.array([0, 1, -1]), seed=0, epoch=0, hard_negatives=2)
  assert sorted(batch.passage_rows[3:5].tolist()) == [2, 3]
  assert batch.passage_rows[5:].tolist() == [-1] * 4
  tokens = np.asarray(batch.passage_tokens)
  assert len(tokens) == 9
  assert not tokens[5:].any()
  np.testing.assert_array_equal(tokens[3:5], data.passages.gather(np.asarray(batch.passage_rows[3:5])))


def test_negatives_without_ids_are_passages_by_their_texts(inputs: TextInputs, tmp_path: pathlib.Path):
  train = [
    features.pair("1", "a", "p", "red", negatives=["green", "blue"]),
    features.pair("2", "b", "q", "blue", negatives=["green"]),
  ]
  data = load(ListSource({"train": train}), inputs, cache=tmp_path)
  assert data.negatives is not None
  assert [[data.passages.texts[int(row)] for row in data.negatives.row(i)] for i in range(2)] == [
    ["green", "blue"],
    ["green"],
  ]
  assert data.passages.num_rows == 4  # blue stands once with its own id and once with its text's


def test_as_many_texts_as_ids(inputs: TextInputs, tmp_path: pathlib.Path):
  train = [features.pair("1", "a", "p", "red", negatives=["green", "blue"], negative_ids=["x"])]
  with pytest.raises(
    UserError, match="query '1' has 2 negative_targets and 1 negative_ids; expected one each"
  ):
    load(ListSource({"train": train}), inputs, cache=tmp_path)


def test_a_judged_passage_that_the_corpus_lacks_stays_in_the_judgements(
  inputs: TextInputs, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
):
  pairs = [features.pair(str(i), f"a {i}", "p", "") for i in range(300)]
  pairs += [features.pair("0", "a 0", "gone", "", 2), features.pair("lost", "c", "gone", "", 1)]
  pairs += [features.pair("bad", "d", "s", "", 0)]
  with caplog.at_level(logging.WARNING):
    data = load(ListSource({"train": pairs, "corpus": CORPUS}), inputs, cache=tmp_path)
  assert "2 of 303 judgements name passages that the corpus lacks ('gone', 'gone')" in caplog.text
  assert [x.tolist() for x in data.judgements(0)] == [[0, 4], [1, 2]]
  lost, bad = data.queries.row_of("lost"), data.queries.row_of("bad")
  assert [x.tolist() for x in data.judgements(lost)] == [[4], [1]]
  assert data.judged.tolist() == list(range(302))
  assert lost not in data.examples
  assert bad not in data.examples


def test_a_report_can_name_what_was_read(inputs: TextInputs, tmp_path: pathlib.Path):
  path = tmp_path / "pairs.tsv"
  path.write_bytes(b"abc")
  source = ListSource({"train": [features.pair("1", "a", "p", "red")]}, paths=[path])
  files = load(source, inputs, cache=tmp_path).files
  assert files == {str(path): {"bytes": 3, "md5": "900150983cd24fb0d6963f7d28e17f72"}}


def test_a_pair_with_another_text_than_the_corpus_is_warned_about(
  inputs: TextInputs, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
):
  pairs = [features.pair("1", "a", "p", "red "), features.pair("2", "b", "q", "another")]
  with caplog.at_level(logging.WARNING):
    load(ListSource({"train": pairs, "corpus": CORPUS}), inputs, cache=tmp_path)
  assert (
    "1 of 2 pairs have another text than the corpus has under the same passage id (the first is 'q')"
    in caplog.text
  )
