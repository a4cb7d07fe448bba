"""Several searchers that one evaluation measures one after the other, each with results of its own."""

from collections.abc import Sequence
from typing import NamedTuple

from retrieval_jax.data.dataset import RetrievalData
from retrieval_jax.errors import UserError
from retrieval_jax.records import Ranking
from retrieval_jax.searchers import Searcher


class SearcherGroup(NamedTuple):
  """A Searcher in name only: `evaluate` takes its members in turn, and every other program says that it wants one.

  Example: `SearcherGroup((dense, BM25Searcher()))`.
  """

  searchers: Sequence[Searcher]
  name: str = "group"

  @property
  def step(self) -> int:
    """The largest of their training steps."""
    return max(searcher.step for searcher in self.searchers)

  @property
  def checkpoint(self) -> str:
    """What they are made of, one after the other."""
    return " | ".join(searcher.checkpoint for searcher in self.searchers)

  def search(self, data: RetrievalData, *, k: int) -> Ranking:
    """Raises: UserError, always: there is no one ranking."""
    del data, k
    names = ", ".join(searcher.name for searcher in self.searchers)
    raise UserError(
      f"SEARCHER: {self.name} stands for {len(self.searchers)} searchers ({names}), which the program eval measures one "
      "by one. This program needs a single one: name another file of searchers/."
    )


def members(searcher: Searcher) -> Sequence[Searcher]:
  """Returns the searchers of a group, or the one that is none."""
  return searcher.searchers if isinstance(searcher, SearcherGroup) else (searcher,)
