import pytest

from retrieval_jax.errors import UserError
from retrieval_jax.searcher_group import SearcherGroup, members
from retrieval_jax.searchers import BM25Searcher, Searcher, require_dense

PAIR = (BM25Searcher(), BM25Searcher(k1=0.9, name="bm25_short"))


def test_members_of_a_group_and_of_one():
  assert members(SearcherGroup(PAIR)) == PAIR
  assert members(PAIR[0]) == (PAIR[0],)  # though a searcher is a tuple itself


def test_it_names_what_it_is_made_of():
  group = SearcherGroup(PAIR, name="heads")
  assert isinstance(group, Searcher)
  assert (group.name, group.step) == ("heads", 0)
  assert group.checkpoint == "bm25(k1=1.2, b=0.75) | bm25(k1=0.9, b=0.75)"


def test_what_needs_one_searcher_says_so():
  with pytest.raises(
    UserError, match=r"heads stands for 2 searchers \(bm25, bm25_short\), which the program"
  ):
    SearcherGroup(PAIR, name="heads").search(None, k=1)  # pyright: ignore[reportArgumentType]
  with pytest.raises(UserError, match="heads has no embeddings"):
    require_dense(SearcherGroup(PAIR, name="heads"))
