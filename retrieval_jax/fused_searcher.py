"""Hybrid search: several searchers over one corpus, their rankings fused into one."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from retrieval_jax.data.dataset import RetrievalData
from retrieval_jax.errors import UserError
from retrieval_jax.index.fusion import reciprocal_rank_fusion
from retrieval_jax.records import Ranking
from retrieval_jax.searchers import Searcher


class Fuse(Protocol):
  """index/fusion.py has them."""

  def __call__(self, rankings: Sequence[Ranking], /, *, k: int) -> Ranking:
    """Returns the k best of several rankings of the same queries and corpus."""
    ...


class FusedSearcher(NamedTuple):
  """Several searchers as one.

  fuse: makes one ranking of theirs, for example `index.fusion.reciprocal_rank_fusion`.
  depth: results asked of each searcher, whatever k: a passage on the fifth place of two may win, and the scores of the
    others decide how a weighted sum counts it. There are at most depth results of each searcher.
  name: in the folders of results and in run files.

  Time and memory: those of every searcher, one after the other, and 24 bytes for each of their results.

  Example: `FusedSearcher((dense, BM25Searcher()), reciprocal_rank_fusion, name="hybrid_rrf")`.
  """

  searchers: Sequence[Searcher]
  fuse: Fuse = reciprocal_rank_fusion
  depth: int = 1000
  name: str = "hybrid"

  @property
  def step(self) -> int:
    """The largest of their training steps."""
    return max(searcher.step for searcher in self.searchers)

  @property
  def checkpoint(self) -> str:
    """What is fused, one after the other."""
    return " + ".join(searcher.checkpoint for searcher in self.searchers)

  def search(self, data: RetrievalData, *, k: int) -> Ranking:
    """Returns the k best passages of every row of data.examples, in that order.

    Raises: UserError if there is no searcher, or for depth < 1.
    """
    if not self.searchers:
      raise UserError(f"{self.name}: there is no searcher to fuse.")
    if self.depth < 1:
      raise UserError(f"{self.name}: depth is {self.depth}; it must be at least 1.")
    depth = min(self.depth, data.passages.num_rows)
    return self.fuse([searcher.search(data, k=depth) for searcher in self.searchers], k=k)
