"""Search with three heads: a label's text, its classifier, and both, fused by a model that was fitted on held-out points."""

import sys
from typing import Final, NamedTuple

import jax
import numpy as np
from jaxtyping import Float, Int

from retrieval_jax.classifier_searcher import ClassifierSearcher
from retrieval_jax.data.dataset import RetrievalData
from retrieval_jax.errors import UserError
from retrieval_jax.fusion_candidates import Candidates, HeadResults, candidates, ranked
from retrieval_jax.fusion_file import FittedFusion, load_fusion
from retrieval_jax.fusion_model import PairFeatures
from retrieval_jax.fusion_options import DEFAULTS
from retrieval_jax.index.base import Index
from retrieval_jax.records import Ranking
from retrieval_jax.searcher_group import SearcherGroup
from retrieval_jax.searchers import EXACT, SideEmbeddings

QUERY_ROWS: Final = (
  2048  # searched at a time: 600 results each are 20 MB of candidates, and 100 MB while they are made
)


class Heads(NamedTuple):
  """Both heads over one corpus, ready to search. *_queries [e d]: the queries' embeddings as each head takes them."""

  classifier_queries: Float[np.ndarray, "e d"]
  siamese_queries: Float[np.ndarray, "e d"]
  classifiers: SideEmbeddings
  passages: SideEmbeddings
  classifier_index: Index
  siamese_index: Index

  def candidates(self, places: Int[np.ndarray, "q"], *, depth: int) -> Candidates:
    """Returns the `depth` best of each head for the queries at these places, with both scores."""
    found = []
    for queries, corpus, index in (
      (self.classifier_queries, self.classifiers, self.classifier_index),
      (self.siamese_queries, self.passages, self.siamese_index),
    ):
      asked = np.asarray(queries[places], np.float32)
      found.append(HeadResults(index.search(asked, k=min(depth, len(index))), asked, corpus))
    return candidates(*found)


def open_heads(searcher: ClassifierSearcher, data: RetrievalData) -> Heads:
  """Returns both heads for the queries data.judged; the corpus is encoded unless its embeddings are kept.

  Raises: UserError for data of another corpus than the classifiers'.
  """
  classifier_index = searcher.index(data)  # first: it refuses another corpus before anything is encoded
  embedded = searcher.dense.embedded(data)
  return Heads(
    searcher.queries(data),
    embedded.queries,
    searcher.classifiers.weights,
    embedded.passages,
    classifier_index,
    embedded.build_index(embedded.passages),
  )


def features_of(found: Candidates, log_inverse_propensity: Float[np.ndarray, "c"]) -> PairFeatures:
  """Returns the features of candidates, in their order."""
  return PairFeatures(found.classifier, found.siamese, log_inverse_propensity[found.rows])


class FusedHeads(NamedTuple):
  """Ranks the union of what both heads find by a fusion model.

  classifiers: the one head, with the checkpoint (the other) in it. fusion: of `load_fusion`.
  depth: results asked of each head, whatever k; there are at most 2 depth candidates of a query.
  name: "fused", or "fused_<index>" with an index that is not exact.

  Time: that of two searches, and of the scores that only one head has: at most 4 depth d operations a query.

  Example: `FusedHeads(searcher, load_fusion(searcher.classifiers)).search(data, k=5)`.
  """

  classifiers: ClassifierSearcher
  fusion: FittedFusion
  depth: int = DEFAULTS.depth
  name: str = "fused"

  @property
  def step(self) -> int:
    """The step of the classifiers' own training."""
    return self.classifiers.step

  @property
  def checkpoint(self) -> str:
    """The folder of the classifiers and the checkpoint of the encoder."""
    return f"fusion in {self.classifiers.checkpoint}"

  def search(self, data: RetrievalData, *, k: int) -> Ranking:
    """Returns the k best passages of every row of data.judged, in that order; row -1 where there are fewer candidates.

    Raises: UserError for data of another corpus than the classifiers', and for depth < 1.
    """
    _check_depth(self.depth)
    heads = open_heads(self.classifiers, data)
    count = len(heads.siamese_queries)
    parts = []
    for start in range(0, max(count, 1), QUERY_ROWS):
      places = np.arange(start, min(start + QUERY_ROWS, count))
      found = heads.candidates(places, depth=self.depth)
      scores = self.fusion.model.scores(features_of(found, self.fusion.log_inverse_propensity))
      parts.append(ranked(found, scores, num_queries=len(places), k=k))
    return Ranking(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))


def fused_heads(classifiers: ClassifierSearcher, *, depth: int | None = None) -> FusedHeads:
  """Returns the searcher that fuses the heads as `python -m retrieval_jax.fuse` found best for these classifiers.

  depth: results of each head; None: as many as the fusion was fitted with. Another number is warned of on stderr: the
    candidates are then of another kind than those that the fusion knows.

  Raises: UserError if nothing was fitted for them, and for a depth below 1.
  """
  if depth is not None:
    _check_depth(depth)
  index = classifiers.dense.name
  name = "fused" if index == EXACT else f"fused_{index}"
  fusion = load_fusion(classifiers.classifiers)
  if depth is not None and fusion.depth not in (None, depth) and jax.process_index() == 0:
    print(
      f"warning: FUSION_DEPTH={depth}, and the fusion was fitted with {fusion.depth}: leave FUSION_DEPTH out to search with "
      "the same, or fit it anew.",
      file=sys.stderr,
    )
  return FusedHeads(classifiers, fusion, depth or fusion.depth or DEFAULTS.depth, name)


def head_searchers(classifiers: ClassifierSearcher, *, depth: int | None = None) -> SearcherGroup:
  """Returns the three heads, each a searcher of its own: the checkpoint's embeddings, the classifiers, and both fused.

  depth: as in `fused_heads`.

  Raises: UserError if no fusion was fitted for these classifiers.
  """
  return SearcherGroup((classifiers.dense, classifiers, fused_heads(classifiers, depth=depth)), name="heads")


def _check_depth(depth: int) -> None:
  if type(depth) is not int or depth < 1:
    raise UserError(f"FUSION_DEPTH={depth!r}: expected a whole number of at least 1, results of each head.")
