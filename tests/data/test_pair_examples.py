"""Pairs as examples, and how a gravity weighs their rows, on literal data."""

import pathlib

import numpy as np
import pytest
from toy_source import ListSource

from retrieval_jax.data import features
from retrieval_jax.data.dataset import RetrievalData, load, make_batch
from retrieval_jax.data.marginals import MarginalOptions, marginal_tables
from retrieval_jax.data.pair_examples import by_pair, drawn_pairs
from retrieval_jax.data.task_part import TaskPart
from retrieval_jax.data.text_inputs import TextInputs
from retrieval_jax.errors import UserError


@pytest.fixture
def data(toy: ListSource, inputs: TextInputs, tmp_path: pathlib.Path) -> RetrievalData:
  """Query 0 has the positives 0 and 1, query 1 has 2."""
  return load(toy, inputs, cache=tmp_path)


@pytest.fixture
def popular(inputs: TextInputs, tmp_path: pathlib.Path) -> RetrievalData:
  """Passage p1 answers both queries, p2 the first alone; p3 none."""
  pairs = [
    features.pair("q1", "red", "p1", "a"),
    features.pair("q1", "red", "p2", "b"),
    features.pair("q2", "blue", "p1", "a"),
    features.pair("q2", "blue", "p3", "c", relevance=0),
  ]
  return load(ListSource({"train": pairs}), inputs, cache=tmp_path)


def test_every_pair_is_an_example(data: RetrievalData):
  pairs = by_pair(data)
  assert pairs.num_examples == 3
  assert pairs.examples.tolist() == [0, 0, 1]
  for epoch in (0, 1):  # the passage is the pair's own in any epoch
    batch = make_batch(pairs, np.array([2, 1, -1, 0]), seed=0, epoch=epoch)
    assert batch.query_rows.tolist() == [1, 0, -1, 0]
    assert batch.passage_rows.tolist() == [2, 1, -1, 0]
    assert batch.positives.tolist() == [[2, -1], [0, 1], [-1, -1], [0, 1]]
    assert batch.targets is not None
    assert np.asarray(batch.targets).tolist() == [1, 1, 0, 1]


def test_pairs_are_other_data_than_queries(data: RetrievalData):
  assert by_pair(data).fingerprint != data.fingerprint


def test_pairs_are_drawn_alike_and_queries_alike(data: RetrievalData):
  for examples, expected in ((data, [1 / 4, 1 / 4, 1 / 2]), (by_pair(data), [1 / 3] * 3)):
    queries, passages, probabilities = drawn_pairs(examples)
    assert queries.tolist() == [0, 0, 1]
    assert passages.tolist() == [0, 1, 2]
    assert probabilities.tolist() == pytest.approx(expected)


@pytest.mark.parametrize(
  ("kind", "share", "mass"),
  [
    ("frequency", [2 / 3, 1 / 3, 0], [1, 1, 0]),
    ("uniform", [1 / 2, 1 / 2, 0], [3 / 4, 3 / 2, 0]),
    (
      "sqrt",
      [2**0.5 / (2**0.5 + 1), 1 / (2**0.5 + 1), 0],
      [1.5 * 2**0.5 / (2**0.5 + 1), 3 / (2**0.5 + 1), 0],
    ),
  ],
)
def test_marginals_of_passages(popular: RetrievalData, kind: str, share: list, mass: list):
  tables = marginal_tables(by_pair(popular), MarginalOptions(passage=kind))
  assert tables.passages.share.tolist() == pytest.approx(share)
  assert tables.passages.mass.tolist() == pytest.approx(mass)
  assert tables.queries.mass.tolist() == [1, 1]  # the other side stays as it is drawn


def test_the_mass_of_drawn_rows_has_mean_1(popular: RetrievalData):
  for data in (popular, by_pair(popular)):
    queries, passages, probabilities = drawn_pairs(data)
    tables = marginal_tables(data, MarginalOptions("sqrt", "uniform"))
    assert np.sum(probabilities * tables.queries.mass[queries]) == pytest.approx(1)
    assert np.sum(probabilities * tables.passages.mass[passages]) == pytest.approx(1)


def test_a_batch_has_the_marginals_of_its_own_pairs(popular: RetrievalData):
  data = by_pair(popular)
  data = data._replace(marginals=marginal_tables(data, MarginalOptions(passage="uniform")))
  marginals = make_batch(data, np.array([1, -1, 2]), seed=0, epoch=0, hard_negatives=2).marginals
  assert marginals is not None
  assert np.asarray(marginals.passage_mass).tolist() == [1.5, 0, 0.75]
  assert np.asarray(marginals.passage_share).tolist() == [0.5, 0, 0.5]
  assert np.asarray(marginals.query_mass).tolist() == [1, 0, 1]
  assert np.asarray(marginals.query_share).tolist() == pytest.approx([2 / 3, 0, 1 / 3])


def test_equal_texts_share_their_marginal(inputs: TextInputs, tmp_path: pathlib.Path):
  pairs = [
    features.pair("q1", "red", "p1", "a"),
    features.pair("q2", "blue", "p2", "A"),
    features.pair("q3", "green", "p3", "b"),
  ]
  data = by_pair(load(ListSource({"train": pairs}), inputs, cache=tmp_path))
  tables = marginal_tables(data, MarginalOptions(passage="uniform"))
  assert tables.passages.share.tolist() == [0.5, 0, 0.5]  # p2 is p1
  batch = make_batch(data._replace(marginals=tables), np.array([1]), seed=0, epoch=0)
  assert batch.marginals is not None
  assert np.asarray(batch.marginals.passage_mass).tolist() == [0.75]


def test_given_marginals(popular: RetrievalData, tmp_path: pathlib.Path):
  file = tmp_path / "weights.tsv"
  file.write_text("p1\t1\np2\t3\np3\t100\n")  # p3 is never drawn
  tables = marginal_tables(by_pair(popular), MarginalOptions(passage=str(file)))
  assert tables.passages.share.tolist() == [0.25, 0.75, 0]
  assert tables.passages.mass.tolist() == pytest.approx([0.25 * 3 / 2, 0.75 * 3, 0])


@pytest.mark.parametrize(
  ("text", "message"),
  [
    ("p1\n", r"weights.tsv:1: 1 columns, expected 2"),
    ("p1\t1\np2\tmany\n", r"weights.tsv:2: the weight is 'many'; expected a number of at least 0"),
    ("p1\t-1\n", r"weights.tsv:1: the weight is '-1'"),
    ("p1\tnan\n", r"weights.tsv:1: the weight is 'nan'"),
    ("p1\t1\np9\t1\n", r"weights.tsv:2: no row of the data has the id 'p9'"),
    ("p1\t1\np1\t2\n", r"weights.tsv:2: the id 'p1' stands in the file twice"),
    ("p3\t1\n", r"PASSAGE_MARGINAL=.*no row that the training draws has a weight above 0"),
  ],
)
def test_files_of_marginals_that_are_refused(
  popular: RetrievalData, tmp_path: pathlib.Path, text: str, message: str
):
  (tmp_path / "weights.tsv").write_text(text)
  with pytest.raises(UserError, match=message):
    marginal_tables(popular, MarginalOptions(passage=str(tmp_path / "weights.tsv")))


def test_a_marginal_that_is_none(popular: RetrievalData):
  with pytest.raises(
    UserError, match=r"QUERY_MARGINAL='unifrom': expected frequency, sqrt, uniform.*uniform"
  ):
    marginal_tables(popular, MarginalOptions(query="unifrom"))


def test_weights_whose_sum_overflows_are_weights(popular: RetrievalData, tmp_path: pathlib.Path):
  (tmp_path / "weights.tsv").write_text("p1\t1e308\np2\t1e308\n")
  tables = marginal_tables(by_pair(popular), MarginalOptions(passage=str(tmp_path / "weights.tsv")))
  assert tables.passages.share.tolist() == [0.5, 0.5, 0]


def test_a_file_may_name_rows_that_held_out_data_lack(popular: RetrievalData, tmp_path: pathlib.Path):
  (tmp_path / "weights.tsv").write_text("p1\t1\nelsewhere\t5\n")
  options = MarginalOptions(passage=str(tmp_path / "weights.tsv"))
  assert marginal_tables(popular, options, held_out=True).passages.share.tolist() == [1, 0, 0]


def test_a_mixture_draws_its_tasks_at_their_rates(data: RetrievalData):
  """Query 0, of a task that comes three times as often, and query 1 of another."""
  mixed = data._replace(tasks=(TaskPart("a", 1, 3.0), TaskPart("b", 1, 1.0)))
  assert drawn_pairs(mixed)[2].tolist() == pytest.approx([3 / 8, 3 / 8, 1 / 4])
  tables = marginal_tables(mixed, MarginalOptions(query="uniform"))
  assert tables.queries.mass[:2].tolist() == pytest.approx([0.5 / 0.75, 0.5 / 0.25])
