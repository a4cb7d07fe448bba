"""BM25: lexical search, the baseline that a dense retriever has to beat."""

import logging
from collections.abc import Sequence
from typing import Final

import numpy as np
from jaxtyping import Float, Int
from tqdm.auto import tqdm

from retrieval_jax import progress
from retrieval_jax.errors import UserError
from retrieval_jax.index import order
from retrieval_jax.records import Ranking

SHOWN_QUERIES: Final = 10_000  # fewer are searched without a progress bar
_GROUP = 64  # scores whose maximum is taken at once


def _candidates(scores: Float[np.ndarray, "c"], k: int) -> Int[np.ndarray, "x"]:
  """Returns the rows of the scores above 0 that can be among the k best.

  Of k groups of rows each has one score that is at least the k-th best of the groups' maxima, so no score below that
  bound is among the k best: two fast passes, and few rows are left to sort.
  """
  groups = len(scores) // _GROUP
  if groups >= k:
    maxima = scores[: groups * _GROUP].reshape(groups, _GROUP).max(axis=1)
    bound = np.partition(maxima, groups - k)[groups - k]
    if bound > 0:
      return np.flatnonzero(scores >= bound)
  return np.flatnonzero(scores > 0)


class BM25:
  """An index of texts that is searched with BM25 in Lucene's form.

  The score of a text D for a query is the sum over the query's terms t of
    log(1 + (N - n_t + 0.5) / (n_t + 0.5)) * f / (f + k1 (1 - b + b |D| / mean |D|))
  with f how often t is in D, n_t in how many of the N texts it is, and |D| in terms. Terms are runs of two or more word
  characters, in lower case, without English stop words, cut to their stem by Snowball's English stemmer.

  Time: a minute for a million texts of 60 terms to index, and per query one addition for each text that has a term, and
  three passes over c scores. Memory: 8 bytes for each different term of each text; while indexing, all terms as Python
  lists, about 10 bytes for each term more; while searching, 4 c bytes and 12 bytes for each of the q * k results.

  Raises: UserError if bm25s or PyStemmer is not installed, there is no text, or k1 or b is out of range.

  Source: Robertson & Zaragoza, 2009; Kamphuis et al., 2020, variant "Lucene (accurate)"; made by the package bm25s.

  Example: `BM25(["a cat", "two dogs"]).search(["dog"], k=1).rows` is `[[1]]`.
  """

  def __init__(self, texts: Sequence[str], *, k1: float = 1.2, b: float = 0.75) -> None:
    if not len(texts):
      raise UserError("BM25: there are no texts to index; the corpus is empty.")
    if not (k1 >= 0 and 0 <= b <= 1):
      raise UserError(f"BM25: k1 is {k1} and b is {b}; expected k1 >= 0 and b within 0 .. 1.")
    try:
      import bm25s
      import Stemmer
    except ImportError as error:
      raise UserError(
        f"BM25 needs the packages bm25s and PyStemmer ({error}). Install them with "
        "`pip install 'retrieval-jax[bm25]'`."
      ) from error
    logging.getLogger("bm25s").setLevel(logging.WARNING)  # it is set to DEBUG by the package itself
    self._tokenize = bm25s.tokenize
    self._stemmer = Stemmer.Stemmer("english")
    self._size = len(texts)
    self._index = None
    terms = self._terms(texts)
    if any(terms):  # bm25s cannot index texts that are all without a term
      self._index = bm25s.BM25(k1=k1, b=b, method="lucene")
      self._index.index(terms, show_progress=False)

  def _terms(self, texts: Sequence[str]) -> list[list[str]]:
    """Returns the terms of each text."""
    terms = self._tokenize(
      list(texts), stopwords="english", stemmer=self._stemmer, return_ids=False, show_progress=False
    )
    assert isinstance(terms, list)
    return terms

  def search(self, queries: Sequence[str], *, k: int) -> Ranking:
    """Returns the k best texts of each query, best first; equal scores are ordered by row, the smaller one first.

    A text without any of the query's terms is no result: rows -1 with score -inf fill up the k.

    Raises: UserError for k < 1.
    """
    if k < 1:
      raise UserError(f"BM25: k is {k}; it must be at least 1.")
    rows = np.full((len(queries), k), -1, np.int32)
    scores = np.full((len(queries), k), -np.inf, np.float32)
    if self._index is None or not len(queries):
      return Ranking(rows, scores)
    hidden = len(queries) < SHOWN_QUERIES
    bar = tqdm(
      self._terms(queries), desc="bm25", unit="query", disable=hidden, mininterval=progress.interval()
    )
    for i, terms in enumerate(bar):
      all_scores = self._index.get_scores_from_ids(self._index.get_tokens_ids(terms))
      found = _candidates(all_scores, k)
      best = order.ranking(order.keys(all_scores[found], found)[None], k)
      rows[i], scores[i] = best.rows[0], best.scores[0]
    return Ranking(rows, scores)

  def __len__(self) -> int:
    """Returns the number of texts."""
    return self._size
