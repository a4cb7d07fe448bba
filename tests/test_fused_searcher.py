"""Hybrid search: what each searcher is asked for, and what the whole says of itself."""

from typing import NamedTuple

import numpy as np
import pytest

from retrieval_jax.errors import UserError
from retrieval_jax.fused_searcher import FusedSearcher
from retrieval_jax.index.fusion import reciprocal_rank_fusion, weighted_fusion
from retrieval_jax.records import Ranking
from retrieval_jax.searchers import Searcher


class Passages(NamedTuple):
  num_rows: int


class Data(NamedTuple):
  """As much of RetrievalData as a searcher here looks at."""

  passages: Passages


class Fixed(NamedTuple):
  """Finds its rows, best first, as far as it is asked to; `asked` takes down how far."""

  rows: list[int]
  asked: list[int]
  checkpoint: str
  step: int = 0
  name: str = "fixed"

  def search(self, data, *, k):
    self.asked.append(k)
    rows = np.array([(self.rows + [-1] * k)[:k]], np.int32)
    return Ranking(rows, np.where(rows < 0, -np.inf, -np.arange(k)).astype(np.float32))


def _pair(first=(3, 1, 2), second=(1, 0, 3)):
  return Fixed([*first], [], "a/7", step=7), Fixed([*second], [], "bm25")


def test_is_a_searcher_and_names_what_it_is_made_of():
  fused = FusedSearcher(_pair(), name="hybrid_rrf")
  assert isinstance(fused, Searcher)
  assert (fused.name, fused.step, fused.checkpoint) == ("hybrid_rrf", 7, "a/7 + bm25")


def test_the_rankings_are_fused():
  found = FusedSearcher(_pair(), reciprocal_rank_fusion).search(Data(Passages(5)), k=2)
  np.testing.assert_array_equal(found.rows, [[1, 3]])
  np.testing.assert_allclose(found.scores, [[1 / 62 + 1 / 61, 1 / 61 + 1 / 63]], rtol=1e-6)
  found = FusedSearcher(_pair(), weighted_fusion).search(Data(Passages(3)), k=4)
  np.testing.assert_array_equal(found.rows, [[1, 3, 0, 2]])


@pytest.mark.parametrize("k, depth, corpus, asked", [(2, 10, 50, 10), (20, 10, 50, 10), (2, 10, 4, 4)])
def test_each_searcher_is_asked_for_depth_results_whatever_k(k, depth, corpus, asked):
  pair = _pair()
  found = FusedSearcher(pair, depth=depth).search(Data(Passages(corpus)), k=k)
  assert found.rows.shape == (1, k)
  assert [searcher.asked for searcher in pair] == [[asked], [asked]]


def test_a_passage_beyond_k_of_each_may_win():
  first, second = _pair(first=(0, 5), second=(1, 5))
  assert FusedSearcher((first, second), depth=2).search(Data(Passages(9)), k=1).rows.tolist() == [[5]]


def test_mistakes():
  with pytest.raises(UserError, match="hybrid: there is no searcher to fuse"):
    FusedSearcher(()).search(Data(Passages(9)), k=1)
  with pytest.raises(UserError, match="hybrid: depth is 0"):
    FusedSearcher(_pair(), depth=0).search(Data(Passages(9)), k=1)
