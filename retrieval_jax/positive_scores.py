"""The scores that a searcher gives to the positives of a query: what mining's margins are measured from."""

import numpy as np
from jaxtyping import Float, Int

from retrieval_jax.data.dataset import RetrievalData
from retrieval_jax.data.relevance import Relevance
from retrieval_jax.records import Ranking
from retrieval_jax.searchers import SideEmbeddings

PAIRS = 2**12  # pairs of query and positive whose embeddings are read at once


def from_embeddings(
  queries: Float[np.ndarray, "e d"],
  passages: SideEmbeddings,
  data: RetrievalData,
  examples: Int[np.ndarray, "q"],
) -> Float[np.ndarray, "q"]:
  """Returns the least inner product of each example's query with one of its positives, float32.

  queries: the embeddings of all of data.examples; examples: which of them.
  """
  owners, rows = _positives(data.relevance, data.examples[examples])
  lowest = np.full(len(examples), np.inf, np.float32)
  for start in range(0, len(rows), PAIRS):
    span = slice(start, start + PAIRS)
    asked = np.asarray(queries[examples[owners[span]]], np.float32)
    answers = np.asarray(passages[rows[span]], np.float32)
    np.minimum.at(lowest, owners[span], np.einsum("pd,pd->p", asked, answers))
  return lowest


def from_ranking(
  found: Ranking, relevance: Relevance, query_rows: Int[np.ndarray, "q"]
) -> Float[np.ndarray, "q"]:
  """Returns the least score of each query's positives in its ranking, float32.

  A positive that is not in it has at most the last result's score, which stands for it; where the ranking has an empty
  place the searcher found no more, and 0 stands for it if that is less.
  """
  there = found.rows >= 0
  owners = np.broadcast_to(query_rows[:, None], found.rows.shape)
  positive = np.zeros(there.shape, bool)
  positive[there] = relevance.has(owners[there], found.rows[there])
  lowest = np.min(np.where(positive, found.scores, np.inf), axis=1, initial=np.inf)
  last = np.min(np.where(there, found.scores, np.inf), axis=1, initial=np.inf)
  absent = np.where(there.all(axis=1), last, np.minimum(last, 0))
  missing = np.count_nonzero(positive, axis=1) < relevance.counts[query_rows]
  return np.where(missing, np.minimum(lowest, absent), lowest).astype(np.float32)


def _positives(
  relevance: Relevance, query_rows: Int[np.ndarray, "q"]
) -> tuple[Int[np.ndarray, "x"], Int[np.ndarray, "x"]]:
  """Returns all positives of the queries: the place of the query in query_rows, and the passage row."""
  counts = relevance.counts[query_rows].astype(np.int64)
  owners = np.repeat(np.arange(len(query_rows)), counts)
  within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
  return owners, relevance.passage_rows[np.repeat(relevance.offsets[query_rows], counts) + within]
