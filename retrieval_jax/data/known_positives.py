"""KnownPositives: the pairs of query and passage that must never be negatives, equal texts included."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int

from retrieval_jax.data.relevance import Relevance
from retrieval_jax.data.token_store import TokenStore


class KnownPositives(NamedTuple):
  """Pairs of identities (TokenStore.identity), as sorted numbers: a pair of equal texts is the same pair.

  A passage answers a query if it, or a passage of the same text, is a positive of the query or of one of the same text.
  """

  keys: Int[np.ndarray, "x"]
  query_identity: Int[np.ndarray, "q"]
  passage_identity: Int[np.ndarray, "c"]

  @classmethod
  def of(cls, relevance: Relevance, queries: TokenStore, passages: TokenStore) -> "KnownPositives":
    """Returns the pairs of grade > 0. Memory: 8 bytes a positive; the identities stay on disk."""
    positive = relevance.grades > 0
    owners = np.repeat(np.arange(relevance.num_queries), np.diff(relevance.offsets))[positive]
    return cls.from_pairs(owners, relevance.passage_rows[positive], queries, passages)

  @classmethod
  def from_pairs(
    cls,
    query_rows: Int[np.ndarray, "e"],
    passage_rows: Int[np.ndarray, "e"],
    queries: TokenStore,
    passages: TokenStore,
  ) -> "KnownPositives":
    """Returns the given pairs of rows, in any order."""
    empty = cls(np.zeros(0, np.int64), queries.identity, passages.identity)
    return empty._replace(keys=np.unique(empty.key(query_rows, passage_rows)))

  def key(
    self, query_rows: Int[np.ndarray, "*b"], passage_rows: Int[np.ndarray, "*b"]
  ) -> Int[np.ndarray, "*b"]:
    """Returns the int64 number of each pair of rows; pairs of equal texts have one number."""
    owners = self.query_identity[query_rows].astype(np.int64)
    return owners * len(self.passage_identity) + self.passage_identity[passage_rows]

  def has(
    self, query_rows: Int[np.ndarray, "*b"], passage_rows: Int[np.ndarray, "*b"]
  ) -> Bool[np.ndarray, "*b"]:
    """Returns whether each passage row answers the query row at its place. O(b log x) time.

    Example: `known.has(np.array([0]), np.array([5]))` is `[True]` if a passage with the text of row 5 answers query 0.
    """
    wanted = self.key(query_rows, passage_rows)
    if not len(self.keys):
      return np.zeros(wanted.shape, bool)
    return self.keys[np.minimum(np.searchsorted(self.keys, wanted), len(self.keys) - 1)] == wanted

  def count(self, query_rows: Int[np.ndarray, "q"]) -> Int[np.ndarray, "q"]:
    """Returns the number of corpus rows that answer each query: its positives and every copy of their texts."""
    width = len(self.passage_identity)
    copies = np.bincount(self.passage_identity, minlength=width)
    sums = np.concatenate([[0], np.cumsum(copies[self.keys % width])])
    owners = self.query_identity[query_rows].astype(np.int64)
    first, last = (np.searchsorted(self.keys, bound * width) for bound in (owners, owners + 1))
    return sums[last] - sums[first]
