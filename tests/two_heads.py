"""A checkpoint of given embeddings with classifiers, over a task of given labels: what the tests of fusion search with."""

import pathlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from retrieval_jax.classifier_searcher import ClassifierSearcher
from retrieval_jax.classifiers import LabelClassifiers
from retrieval_jax.data import dataset, features
from retrieval_jax.data.dataset import RetrievalData
from retrieval_jax.data.text_inputs import TextInputs
from retrieval_jax.data.vocabularies import WordPiece
from retrieval_jax.index.exact import exact
from retrieval_jax.searchers import EmbeddedTask
from tests.data.toy_source import ListSource, write_tokenizer


class GivenDense(NamedTuple):
  """Stands for a DenseSearcher whose encoder gives these embeddings."""

  query_embeddings: np.ndarray
  passage_embeddings: np.ndarray
  name: str = "dense"
  step: int = 5
  checkpoint: str = "checkpoint_5"
  build_index: Callable[..., Any] = exact

  def queries(self, data):
    return self.query_embeddings

  def embedded(self, data):
    return EmbeddedTask(self.query_embeddings[data.judged], self.passage_embeddings, self.build_index)

  def search(self, data, *, k):
    return self.embedded(data).search(k=k)


def labelled(folder: pathlib.Path, labels: Sequence[Sequence[int]], num_labels: int) -> RetrievalData:
  """Returns the split "held_out" of points with these labels; one without any is judged, with label 0 as no result."""
  points = [
    features.pair(f"q{i}", f"point {i}", f"p{label}", f"label {label}")
    if own
    else features.pair(f"q{i}", f"point {i}", "p0", "label 0", 0)
    for i, own in enumerate(labels)
    for label in (own or [0])
  ]
  corpus = [features.passage(f"p{j}", f"label {j}") for j in range(num_labels)]
  inputs = TextInputs(WordPiece(str(write_tokenizer(folder / "tokenizer.json"))), 4, 4)
  source = ListSource({"held_out": points, "corpus": corpus}, "held_out", version=repr((labels, num_labels)))
  return dataset.load(source, inputs, cache=folder / "cache")


def two_heads(
  folder: pathlib.Path,
  data: RetrievalData,
  queries: np.ndarray,
  passages: np.ndarray,
  classifiers: np.ndarray,
) -> ClassifierSearcher:
  """Returns the searcher; its classifiers are taken to lie in `folder`."""
  record = {"passages_fingerprint": data.passages.fingerprint, "task": "toy"}
  found = LabelClassifiers(classifiers, 9, folder, record)  # pyright: ignore[reportArgumentType]
  return ClassifierSearcher(GivenDense(queries, passages), found)  # pyright: ignore[reportArgumentType]
