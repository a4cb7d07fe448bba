"""Search with the label classifiers: a query's embedding against the trained vector of every passage."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from retrieval_jax.classifiers import FOLDER, LabelClassifiers, load_classifiers, unit_rows
from retrieval_jax.data.dataset import RetrievalData
from retrieval_jax.index.base import Embeddings, Index
from retrieval_jax.index.exact import exact
from retrieval_jax.paths import output_dir
from retrieval_jax.records import Ranking
from retrieval_jax.searchers import DenseSearcher, name_of


class ClassifierSearcher(NamedTuple):
  """Ranks a corpus by the cosine of the query's embedding with each passage's classifier.

  dense: the encoder that the classifiers were trained on, which embeds the queries; its passages are not asked for.
  build_index: what is searched, made of the classifiers; `exact` scores every one.
  name: "classifiers", or "classifiers_<index>" with an index that is not exact: results of the two lie apart.

  Example: `ClassifierSearcher(dense, load_classifiers("/tmp/run")).search(data, k=5)`.
  """

  dense: DenseSearcher
  classifiers: LabelClassifiers
  build_index: Callable[[Embeddings], Index] = exact
  name: str = FOLDER

  @property
  def step(self) -> int:
    """The step of the classifiers' own training."""
    return self.classifiers.step

  @property
  def checkpoint(self) -> str:
    """The folder of the classifiers and the checkpoint of the encoder."""
    return f"{self.classifiers.folder} on {self.dense.checkpoint}"

  def search(self, data: RetrievalData, *, k: int) -> Ranking:
    """Returns the k best passages of every row of data.judged, in that order.

    Raises: UserError for data of another corpus than the classifiers'.
    """
    return self.index(data).search(self.queries(data), k=k)

  def queries(self, data: RetrievalData) -> Float[np.ndarray, "e d"]:
    """Returns the embeddings of the rows of data.judged, at unit length."""
    return unit_rows(self.dense.queries(data)[data.judged])

  def index(self, data: RetrievalData) -> Index:
    """Returns the index of the corpus's classifiers. Raises: UserError for data of another corpus."""
    self.classifiers.check_corpus(data)
    return self.build_index(self.classifiers.weights)


def classifier_searcher(
  dense: DenseSearcher,
  *,
  model_dir: str,
  step: int | None = None,
  build_index: Callable[[Embeddings], Index] = exact,
) -> ClassifierSearcher:
  """Returns the searcher of MODEL_DIR's classifiers of `step` (None: the newest).

  Raises: UserError if there are none, or if they were trained on the embeddings of another encoder than `dense`'s.
  """
  classifiers = load_classifiers(output_dir(model_dir, "MODEL_DIR"), step)
  classifiers.check_encoder(dense.encoder)
  index = name_of(build_index)
  name = FOLDER if index == "exact" else f"{FOLDER}_{index}"
  return ClassifierSearcher(dense, classifiers, build_index, name)
