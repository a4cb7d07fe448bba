"""Candidates of a fusion: what either head finds for a query, each pair with the scores of both heads."""

from typing import Final, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from retrieval_jax.index import order
from retrieval_jax.index.base import Embeddings
from retrieval_jax.records import Ranking

PAIRS: Final = 2**13  # pairs whose embeddings are gathered at once: 24 MB of 384 float32 numbers and as many


class HeadResults(NamedTuple):
  """What one head found. queries: the embeddings that were searched with. corpus: what was searched, a row a label."""

  ranking: Ranking
  queries: Float[np.ndarray, "q d"]
  corpus: Embeddings


class Candidates(NamedTuple):
  """Pairs of a query and a label, by query and then by label.

  owners: the place of the query among those that were searched for. rows: of the labels in the corpus.
  classifier, siamese: the score that each head gives the pair, also where only the other head found it.
  """

  owners: Int[np.ndarray, "x"]
  rows: Int[np.ndarray, "x"]
  classifier: Float[np.ndarray, "x"]
  siamese: Float[np.ndarray, "x"]

  def where(self, kept: Bool[np.ndarray, "x"]) -> "Candidates":
    """Returns the pairs that are marked."""
    return Candidates(*(column[kept] for column in self))


def candidates(classifier: HeadResults, siamese: HeadResults) -> Candidates:
  """Returns the union of what the heads found for the same queries; a score that a head lacks is computed, not taken as 0.

  A score of 0 for "not found" would put a label that one head misses by a hair below one that it likes least, or, among
  negative scores, above all.

  Time: a sort of the results, and 2 d operations for each score that is missing. Memory: 16 bytes for each pair,
  and about 90 for each result while they are made.
  """
  width = len(siamese.corpus)
  results = [(*_keys(head.ranking, width), head) for head in (classifier, siamese)]
  keys = np.unique(np.concatenate([found for found, _, _ in results]))
  owners, rows = np.divmod(keys, width)
  columns = []
  for found, scores, head in results:
    column = np.full(len(keys), np.nan, np.float32)
    column[np.searchsorted(keys, found)] = scores
    missing = np.flatnonzero(np.isnan(column))
    column[missing] = pair_scores(head.queries, head.corpus, owners[missing], rows[missing])
    columns.append(column)
  return Candidates(owners.astype(np.int32), rows.astype(np.int32), *columns)


def pair_scores(
  queries: Float[np.ndarray, "q d"],
  corpus: Embeddings,
  owners: Int[np.ndarray, "x"],
  rows: Int[np.ndarray, "x"],
) -> Float[np.ndarray, "x"]:
  """Returns the inner product of each query `owners` with the corpus's row at the same place of `rows`, float32."""
  scores = np.empty(len(owners), np.float32)
  for start in range(0, len(owners), PAIRS):
    span = slice(start, start + PAIRS)
    asked = np.asarray(queries[owners[span]], np.float32)
    answers = np.asarray(corpus[rows[span]], np.float32)  # pyright: ignore[reportArgumentType]  (by row numbers too)
    scores[span] = np.einsum("pd,pd->p", asked, answers)
  return scores


def ranked(found: Candidates, scores: Float[np.ndarray, "x"], *, num_queries: int, k: int) -> Ranking:
  """Returns the k candidates with the highest scores of each query; of equal ones the smaller row comes first.

  Example: the rows [3, 5] of one query with scores [1, 2] and k=3 give rows [[5, 3, -1]].
  """
  counts = np.bincount(found.owners, minlength=num_queries)
  starts = np.cumsum(counts) - counts
  keys = np.full((num_queries, int(counts.max(initial=0))), order.NOTHING)
  keys[found.owners, np.arange(len(found.owners)) - starts[found.owners]] = order.keys(scores, found.rows)
  return order.ranking(keys, k)


def _keys(ranking: Ranking, width: int) -> tuple[Int[np.ndarray, "x"], Float[np.ndarray, "x"]]:
  """Returns one number for each result, owner * width + row, and the results' scores."""
  there = ranking.rows >= 0
  owners = np.broadcast_to(np.arange(len(there))[:, None], there.shape)
  return owners[there] * width + ranking.rows[there].astype(np.int64), ranking.scores[there]
