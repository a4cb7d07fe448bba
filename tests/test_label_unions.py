import numpy as np
import pytest
from numpy.testing import assert_array_equal

from retrieval_jax.data import dataset, features
from retrieval_jax.data.hard_negatives import HardNegatives
from retrieval_jax.data.relevance import Relevance
from retrieval_jax.data.text_inputs import TextInputs
from retrieval_jax.data.vocabularies import WordPiece
from retrieval_jax.label_unions import LabelUnions, bucket
from tests.data.toy_source import ListSource, write_tokenizer

LABELS = {0: (2, 7), 1: (7,), 2: (0, 2, 9), 4: (5,)}  # point 3 has none: it is judged and never trained on
ROWS = 768  # of the classifiers' array


@pytest.fixture(scope="module")
def data(tmp_path_factory):
  """Five points and ten labels, of which two have the same text; the points in the data's own order."""
  folder = tmp_path_factory.mktemp("unions")
  examples = [
    features.pair(f"q{i}", "a", f"p{j}", "b", 1 if i in LABELS else 0)
    for i in range(5)
    for j in LABELS.get(i, (0,))
  ]
  corpus = [features.passage(f"p{j}", "b") for j in range(10)]
  inputs = TextInputs(WordPiece(str(write_tokenizer(folder / "tokenizer.json"))), 4, 4)
  source = ListSource({"train": examples, "corpus": corpus})
  return dataset.load(source, inputs, cache=folder / "cache")


@pytest.fixture(scope="module")
def points():
  return np.arange(10, dtype=np.float32).reshape(5, 2) + 1


def epochs(size, epoch=0):
  return np.full(size, epoch)


def named(batch, columns):
  """Returns the labels of each row's columns."""
  return [sorted(int(batch.labels[c]) for c in row if c < len(batch.labels)) for row in columns]


def test_sizes():
  assert [bucket(n) for n in (0, 1, 8, 9, 12, 13, 16, 17, 25, 33, 49)] == [
    8,
    8,
    8,
    12,
    12,
    16,
    16,
    24,
    32,
    48,
    64,
  ]
  sizes = {bucket(n) for n in range(1000, 4001)}
  assert sizes == {1024, 1536, 2048, 3072, 4096}  # 2 log2(4) + 1


def test_the_union_of_all_labels_once_each(data, points):
  """Labels are told apart by their rows although they have one text. Points without labels are no examples."""
  assert data.examples.tolist() == [0, 1, 2, 4]
  batch = LabelUnions(data, points, ROWS, seed=0).batch(np.array([2, 0, 1]), epochs(3))
  assert_array_equal(batch.labels, [0, 2, 7, 9, ROWS, ROWS + 1, ROWS + 2, ROWS + 3])
  assert_array_equal(batch.positives, [[0, 1, 3], [1, 2, 8], [2, 8, 8]])
  assert batch.filtered.shape == (3, 0)
  assert_array_equal(batch.points, [[5, 6], [1, 2], [3, 4]])
  assert_array_equal(batch.weights, [1, 1, 1])
  assert all(own in row for own, row in zip(batch.own, batch.positives, strict=True))


def test_padding_points_have_no_column(data, points):
  batch = LabelUnions(data, points, ROWS, seed=0).batch(np.array([3, -1]), epochs(2))
  assert_array_equal(batch.labels, [5, *range(ROWS, ROWS + 7)])
  assert_array_equal(batch.positives, [[0, 8, 8], [8, 8, 8]])
  assert_array_equal(batch.own, [0, 8])
  assert_array_equal(batch.points, [[9, 10], [0, 0]])
  assert_array_equal(batch.weights, [1, 0])
  empty = LabelUnions(data, points, ROWS, seed=0).batch(np.array([-1]), epochs(1))
  assert_array_equal(empty.labels, np.arange(ROWS, ROWS + 8))
  assert_array_equal(empty.positives, [[8, 8, 8]])


def test_the_own_label_changes_with_the_epoch_and_with_nothing_else(data, points):
  unions = LabelUnions(data, points, ROWS, seed=0)
  drawn = [
    named(
      unions.batch(np.array([2]), epochs(1, e)), [[c] for c in unions.batch(np.array([2]), epochs(1, e)).own]
    )
    for e in range(20)
  ]
  assert {label for ((label,),) in drawn} == {0, 2, 9}
  again, other = (unions.batch(np.array(rows), epochs(len(rows), 3)) for rows in ([2], [1, 2, 0]))
  assert named(again, again.own[:, None])[0] == named(other, other.own[:, None])[1]


def test_hard_negatives_join_the_union(data, points):
  table = HardNegatives.from_pairs(np.array([0, 0, 0, 1]), np.array([1, 3, 8, 2]), num_queries=5)
  unions = LabelUnions(data._replace(negatives=table), points, ROWS, seed=0, hard_negatives=2)
  batch = unions.batch(np.array([0, 1]), epochs(2))
  union = set(batch.labels[batch.labels < ROWS].tolist())
  assert union > {2, 7}
  assert len(union & {1, 3, 8}) == 2  # two of point 0's three; point 1's is a label of point 0
  assert named(batch, batch.positives) == [[2, 7], [7]]
  seen = {
    label for e in range(20) for label in unions.batch(np.array([0]), epochs(1, e)).labels if label < ROWS
  }
  assert seen == {1, 2, 3, 7, 8}


def test_filtered_pairs_are_columns_of_their_own(data, points):
  """Label 9 is no result of point 0, and label 5 is in no batch without point 4."""
  filtered = Relevance.from_pairs(np.array([0, 0]), np.array([9, 5]), np.array([1, 1]), num_queries=5)
  unions = LabelUnions(data._replace(filtered=filtered), points, ROWS, seed=0)
  batch = unions.batch(np.array([0, 2]), epochs(2))
  assert named(batch, batch.filtered) == [[9], []]
  assert named(batch, batch.positives) == [[2, 7], [0, 2, 9]]


def test_shapes_depend_on_the_number_of_labels_alone(data, points):
  unions = LabelUnions(data, points, ROWS, seed=0)
  batches = [unions.batch(np.array(rows), epochs(3)) for rows in ([0, 1, 2], [3, 1, -1], [-1, -1, -1])]
  assert len({tuple(x.shape for x in batch) for batch in batches}) == 1
