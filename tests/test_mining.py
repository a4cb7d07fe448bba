"""Mining: which results become hard negatives, by hand and against a plain loop, with every kind of searcher."""

import pathlib

import numpy as np
import pytest

from retrieval_jax.data import features
from retrieval_jax.data.dataset import RetrievalData, load
from retrieval_jax.data.relevance import Relevance
from retrieval_jax.data.text_inputs import TextInputs
from retrieval_jax.data.vocabularies import WordPiece
from retrieval_jax.errors import UserError
from retrieval_jax.index.ann import faiss_flat
from retrieval_jax.index.exact import exact
from retrieval_jax.mining import MinedNegatives, mine_negatives, mine_with_index
from retrieval_jax.mining_options import MiningOptions
from retrieval_jax.positive_scores import from_embeddings, from_ranking
from retrieval_jax.records import Ranking
from retrieval_jax.searchers import BM25Searcher
from tests.data.toy_source import ListSource, write_tokenizer

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *"abcdefghij", "red", "blue", "green", "old", "new"]
# Scores of one query, whose embedding is [1]: rows 0 to 7 score 8, 7, ... 1, and row 8 has the text of row 1.
TEXTS = ["a", "b", "c", "d", "e", "f", "g", "h", "B"]
SCORES = np.array([[8], [7], [6], [5], [4], [3], [2], [1], [6.5]], np.float32)
QUERY = np.ones((1, 1), np.float32)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> TextInputs:
  path = write_tokenizer(tmp_path_factory.mktemp("vocabulary") / "tokenizer.json", WORDS)
  return TextInputs(WordPiece(str(path)), query_length=12, passage_length=12)


@pytest.fixture
def data_of(inputs: TextInputs, tmp_path: pathlib.Path):
  """data_of(positives of each query id, texts, drop_identical): the data of queries with these passage ids."""

  def data_of(
    positives: dict[str, list[str]], texts=TEXTS, *, query_texts=("i j",), drop_identical=False
  ) -> RetrievalData:
    pairs = [
      features.pair(query, text, passage, "")
      for (query, answers), text in zip(positives.items(), query_texts, strict=True)
      for passage in answers
    ]
    corpus = [features.passage(f"p{i}", text) for i, text in enumerate(texts)]
    splits = {"train": pairs, "corpus": corpus}
    source = ListSource(splits, version=repr(splits), info=features.TaskInfo(drop_identical=drop_identical))
    return load(source, inputs, cache=tmp_path)

  return data_of


def mine(data: RetrievalData, **options) -> MinedNegatives:
  given = MiningOptions(**{"per_query": 2, "last_rank": 5, **options})
  return mine_with_index(exact(SCORES), QUERY, SCORES, data, given)


def test_pairs_that_the_task_filters_are_no_negatives(data_of):
  data = data_of({"q": ["p0"]})
  filtered = Relevance.from_pairs(np.array([0]), np.array([1]), np.ones(1, np.int64), num_queries=1)
  mined = mine(data._replace(filtered=filtered), last_rank=2)
  assert mined.passage_rows.tolist() == [2, 3]  # not row 1, nor row 8, which has its text
  assert mined.ranks.tolist() == [1, 2]
  assert mined.left_out["filtered"] == 2


def test_the_first_results_that_are_no_positives_with_their_ranks_and_scores(data_of):
  found = mine(data_of({"q": ["p0"]}), per_query=3)
  assert found.query_rows.tolist() == [0, 0, 0]
  assert found.passage_rows.tolist() == [1, 2, 3]  # row 8 has the text of row 1
  assert found.ranks.tolist() == [1, 3, 4]
  assert found.scores.tolist() == [7, 6, 5]
  assert found.per_query.tolist() == [3]
  assert found.left_out["positive"] == 1
  assert found.left_out["equal_text"] == 1


def test_texts_of_positives_are_no_negatives_and_take_no_rank(data_of):
  found = mine(data_of({"q": ["p1"]}), per_query=5)
  assert found.passage_rows.tolist() == [0, 2, 3, 4, 5]
  assert found.ranks.tolist() == [1, 2, 3, 4, 5]
  assert found.left_out["positive"] == 2


def test_the_positives_of_a_query_of_the_same_text_are_none(data_of):
  data = data_of({"q": ["p0"], "again": ["p2"]}, query_texts=("i j", "I J"))
  found = mine_with_index(exact(SCORES), np.ones((2, 1), np.float32), SCORES, data, MiningOptions(2, 1, 5))
  assert found.query_rows.tolist() == [0, 0, 1, 1]
  assert found.passage_rows.tolist() == [1, 3, 1, 3]


def test_a_range_of_ranks(data_of):
  data = data_of({"q": ["p0"]})
  assert mine(data, first_rank=4, last_rank=6).passage_rows.tolist() == [3, 4]
  assert mine(data, first_rank=2, last_rank=3).passage_rows.tolist() == [
    2
  ]  # rank 2 is row 8, a copy of rank 1


def test_the_query_itself_is_no_negative(data_of):
  own_text = data_of({"p3": ["p0"]}, query_texts=(" d ",))
  assert mine(own_text, per_query=4, last_rank=4).passage_rows.tolist() == [1, 2, 4]
  assert mine(own_text).left_out["identical"] == 1
  own_id = data_of({"p3": ["p0"]}, texts=[*TEXTS[:8], "j"], drop_identical=True)
  assert mine(own_id, per_query=4).passage_rows.tolist() == [1, 8, 2, 4]
  kept = data_of({"p3": ["p0"]}, texts=[*TEXTS[:8], "j"], drop_identical=False)
  assert mine(kept, per_query=4).passage_rows.tolist() == [1, 8, 2, 3]


def test_margins_are_below_the_lowest_positive(data_of):
  data = data_of({"q": ["p0", "p3"]})  # scores 8 and 5
  assert mine(data, last_rank=7, absolute_margin=0.0).passage_rows.tolist() == [4, 5]
  assert mine(data, last_rank=7, absolute_margin=2.0).passage_rows.tolist() == [5, 6]  # at most 3
  assert mine(data, last_rank=7, relative_margin=0.2).passage_rows.tolist() == [4, 5]  # at most 4
  assert mine(data, last_rank=7, relative_margin=0.7).passage_rows.tolist() == [7]  # at most 1.5
  both = mine(data, last_rank=7, per_query=7, absolute_margin=2.0, relative_margin=0.2)
  assert both.passage_rows.tolist() == [5, 6, 7]
  assert (both.left_out["absolute_margin"], both.left_out["relative_margin"]) == (3, 0)


def test_a_relative_margin_lowers_negative_scores_too(data_of):
  data = data_of({"q": ["p3"]})
  scores = SCORES - 9  # the positive has -4
  options = MiningOptions(9, 1, 9, relative_margin=0.25)
  assert mine_with_index(exact(scores), QUERY, scores, data, options).passage_rows.tolist() == [4, 5, 6, 7]


def test_bounds_of_the_score_are_included(data_of):
  found = mine(data_of({"q": ["p0"]}), per_query=9, last_rank=9, min_score=3.0, max_score=6.0)
  assert found.passage_rows.tolist() == [2, 3, 4, 5]
  assert found.left_out["max_score"] == 1  # row 1; its copy, row 8, is left out as one
  assert found.left_out["min_score"] == 2


def test_a_sample_is_a_function_of_the_seed_alone_and_every_candidate_comes(data_of):
  data = data_of({"q": ["p0"]})
  options = {"per_query": 2, "first_rank": 2, "last_rank": 6, "sample": True}
  drawn = [mine(data, seed=seed, **options) for seed in range(60)]
  assert mine(data, seed=7, **options).passage_rows.tolist() == drawn[7].passage_rows.tolist()
  assert {row for found in drawn for row in found.passage_rows.tolist()} == {2, 3, 4, 5}
  assert {found.per_query[0] for found in drawn} == {2}
  assert all(found.ranks[0] < found.ranks[1] for found in drawn)
  everything = mine(data, seed=1, **{**options, "per_query": 5})
  assert everything.passage_rows.tolist() == [2, 3, 4, 5]


def test_a_sample_does_not_depend_on_the_ranks_of_others(data_of):
  data = data_of({"q": ["p0"]})
  options = MiningOptions(2, 1, 7, sample=True, seed=3)
  upside_down = -SCORES  # other ranks, the same candidates
  found = mine_with_index(exact(upside_down), QUERY, upside_down, data, options)
  wanted = mine(data, last_rank=7, sample=True, seed=3)
  kept = set(wanted.passage_rows.tolist()) - {1, 8}
  assert kept <= set(found.passage_rows.tolist())


@pytest.mark.parametrize("kind", [exact, faiss_flat])
def test_more_results_than_the_corpus_has_are_all_of_it_with_a_warning(data_of, kind, capsys):
  found = mine_with_index(
    kind(SCORES), QUERY, SCORES, data_of({"q": ["p0"]}), MiningOptions(per_query=100, last_rank=1000)
  )
  assert found.passage_rows.tolist() == [1, 2, 3, 4, 5, 6, 7]
  assert "LAST_RANK=1000 and the positives of a query make up to 1001 results" in capsys.readouterr().err


def test_a_corpus_that_is_large_enough_is_no_cause_for_a_warning(data_of, capsys):
  mine(data_of({"q": ["p0"]}), last_rank=8)
  assert not capsys.readouterr().err.count("warning")


def _plain(scores, data: RetrievalData, options: MiningOptions) -> list[tuple[int, int, int]]:
  """The same by a loop: (query row, passage row, rank)."""
  found = []
  texts = list(data.passages.texts)
  for i, row in enumerate(data.examples.tolist()):
    positives = data.relevance.row(row)[0].tolist()
    answers = {texts[p] for p in positives}
    limit = min(scores[i, p] for p in positives) - (options.absolute_margin or 0)
    rank, seen, taken = 0, set(), 0
    ranking = sorted(range(len(texts)), key=lambda p: (-scores[i, p], p))
    depth = options.last_rank + sum(text in answers for text in texts) + 1
    for p in ranking:
      if depth < len(texts) and scores[i, p] <= scores[i, ranking[depth - 1]]:
        break  # which of equal ones are found is the index's affair
      if texts[p] in answers:
        continue
      rank += 1
      new = texts[p] not in seen
      seen.add(texts[p])
      close = options.absolute_margin is not None and scores[i, p] > limit
      if new and not close and options.first_rank <= rank <= options.last_rank and taken < options.per_query:
        found.append((row, p, rank))
        taken += 1
  return found


@pytest.mark.parametrize("results", [1, 150, 2**23])  # of a block of queries
@pytest.mark.parametrize("margin", [None, 3.0])
def test_exact_and_faiss_find_what_a_plain_loop_finds(data_of, monkeypatch, results: int, margin):
  from retrieval_jax import mining

  monkeypatch.setattr(mining, "RESULTS", results)
  rng = np.random.default_rng(0)
  words = [f"{a} {b}" for a in "abcdefgh" for b in "abcdefgh"]
  texts = [words[i] for i in rng.integers(0, 64, 90)]  # some texts stand in several passages
  # Small whole numbers: every product is exact, and there are many equal scores.
  passages = rng.integers(-3, 4, (90, 4)).astype(np.float32)
  queries = rng.integers(-3, 4, (20, 4)).astype(np.float32)
  best = np.argsort(-queries @ passages.T, axis=1)
  positives = {f"q{i}": [f"p{p}" for p in rng.choice(best[i, :20], 1 + i % 4, False)] for i in range(20)}
  data = data_of(positives, texts, query_texts=[f"i j {a} {b}" for a in "abcd" for b in "efghi"])
  for options in (
    MiningOptions(4, 1, 30, absolute_margin=margin),
    MiningOptions(6, 5, 80, absolute_margin=margin),
  ):
    expected = _plain(queries @ passages.T, data, options)
    assert len(expected) > 15
    for kind in (exact, faiss_flat):
      found = mine_with_index(kind(passages), queries, passages, data, options)
      got = zip(found.query_rows.tolist(), found.passage_rows.tolist(), found.ranks.tolist(), strict=True)
      assert list(got) == expected
      assert found.per_query.tolist() == [sum(q == row for q, _, _ in expected) for row in range(20)]


def test_bm25_mines_what_shares_words(data_of):
  texts = ["red old a", "red old b", "red green c", "blue green", "Red Old B"]
  data = data_of({"q": ["p0"], "r": ["p3"]}, texts, query_texts=("red old", "blue"))
  found = mine_negatives(BM25Searcher(), data, MiningOptions(3, 1, 4))
  assert found.query_rows.tolist() == [0, 0]  # only the positive of r has its word
  assert found.passage_rows.tolist() == [1, 2]
  assert found.ranks.tolist() == [1, 3]
  assert found.per_query.tolist() == [2, 0]
  assert found.scores[0] > found.scores[1] > 0


def test_bm25_ranks_only_queries_with_a_positive(data_of, inputs: TextInputs, tmp_path: pathlib.Path):
  texts = ["red old a", "red old b", "blue"]
  pairs = [features.pair("judged", "blue", "p2", "", relevance=0), features.pair("q", "red old", "p0", "")]
  pairs.append(features.pair("q", "red old", "p1", "", relevance=0))
  corpus = [features.passage(f"p{i}", text) for i, text in enumerate(texts)]
  data = load(ListSource({"train": pairs, "corpus": corpus}), inputs, cache=tmp_path / "other")
  found = mine_negatives(BM25Searcher(), data, MiningOptions(1, 1, 2, absolute_margin=0.0))
  assert found.query_rows.tolist() == [1]
  assert found.passage_rows.tolist() == [1]  # it was judged, and is no answer


def test_scores_of_positives_in_a_ranking():
  relevance = Relevance.from_pairs(
    np.array([0, 0, 1, 2, 3]), np.array([1, 2, 5, 6, 7]), np.ones(5, int), num_queries=4
  )
  found = Ranking(
    np.array([[1, 2, 9], [4, 5, -1], [3, 4, -1], [3, 4, 5]], np.int32),
    np.array([[5, 4, 3], [5, 4, -np.inf], [5, 4, -np.inf], [5, 4, 3]], np.float32),
  )
  # Both found; found beside an empty place; not found, nor anything else; not found among as many as were asked for.
  assert from_ranking(found, relevance, np.arange(4)).tolist() == [4, 4, 0, 3]
  nothing = Ranking(np.full((1, 2), -1, np.int32), np.full((1, 2), -np.inf, np.float32))
  assert from_ranking(nothing, relevance, np.array([1])).tolist() == [0]


def test_scores_of_positives_by_embeddings(data_of):
  data = data_of({"q": ["p0", "p3"], "r": ["p5"]}, query_texts=("i j", "j i"))
  queries = np.array([[1], [-2]], np.float32)
  assert from_embeddings(queries, SCORES, data, np.array([1, 0])).tolist() == [-6, 5]


@pytest.mark.parametrize(
  "options, message",
  [
    ({"per_query": 0}, "NEGATIVES_PER_QUERY=0: expected a whole number of at least 1"),
    ({"first_rank": 0}, "FIRST_RANK=0: expected a whole number of at least 1"),
    ({"per_query": 3, "last_rank": 2}, "LAST_RANK=2: ranks 1 to 2 have room for fewer than .*at least 3"),
    ({"absolute_margin": float("nan")}, "ABSOLUTE_MARGIN=nan: expected a finite number, or None"),
    ({"relative_margin": True}, "RELATIVE_MARGIN=True: expected a finite number"),
    ({"min_score": 2, "max_score": 1}, "MIN_SCORE=2 is above MAX_SCORE=1"),
    ({"seed": -1}, "MINING_SEED=-1: expected a whole number of at least 0"),
  ],
)
def test_options_that_cannot_be(data_of, options, message):
  with pytest.raises(UserError, match=message):
    mine(data_of({"q": ["p0"]}), **options)
