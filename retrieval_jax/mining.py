"""Mining: hard negatives, the passages that a searcher ranks high for a query and that are no answers to it."""

import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Bool, Float, Int
from tqdm import tqdm

from retrieval_jax import progress
from retrieval_jax.data.dataset import RetrievalData
from retrieval_jax.data.known_positives import KnownPositives
from retrieval_jax.data.self_matches import self_matches
from retrieval_jax.index.base import Index
from retrieval_jax.mining_options import RULES, MiningOptions
from retrieval_jax.positive_scores import from_embeddings, from_ranking
from retrieval_jax.records import Ranking
from retrieval_jax.searchers import DenseSearcher, Searcher, SideEmbeddings

RESULTS = 2**23  # of one block of queries: 64 MB, and about seven times that while they are looked at
DEFAULTS = MiningOptions()


class MinedNegatives(NamedTuple):
  """Mined pairs: queries in the order of data.examples, each query's by rank.

  ranks: from 1, among what is no positive and not the query itself. scores: the searcher's.
  per_query: how many each of data.examples has. left_out: rule -> how many results it left out; a result counts for the
  first of mining_options.RULES that does, and those outside the ranks for none.
  """

  query_rows: Int[np.ndarray, "x"]
  passage_rows: Int[np.ndarray, "x"]
  ranks: Int[np.ndarray, "x"]
  scores: Float[np.ndarray, "x"]
  per_query: Int[np.ndarray, "e"]
  left_out: Mapping[str, int]


class _Block(NamedTuple):
  """What was found for some of the examples, and the score of the lowest-scoring positive of each."""

  examples: Int[np.ndarray, "q"]
  found: Ranking
  positive_scores: Float[np.ndarray, "q"]


class _Excluded(NamedTuple):
  """What is no negative, whatever it scores."""

  positives: KnownPositives
  identical: KnownPositives
  filtered: KnownPositives

  @classmethod
  def of(cls, data: RetrievalData) -> "_Excluded":
    known = KnownPositives.of(data.relevance, data.queries, data.passages)
    owners, rows = np.zeros((2, 0), np.int64)
    if data.filtered is not None:
      owners = np.repeat(np.arange(data.filtered.num_queries), np.diff(data.filtered.offsets))
      rows = data.filtered.passage_rows
    filtered = KnownPositives.from_pairs(owners, rows, data.queries, data.passages)
    return cls(known, self_matches(data), filtered)

  def count(self, query_rows: Int[np.ndarray, "e"]) -> Int[np.ndarray, "e"]:
    """Returns how many passages are none for each query, at most."""
    return sum((known.count(query_rows) for known in self), np.zeros(len(query_rows), np.int64))


def mine_negatives(
  searcher: Searcher, data: RetrievalData, options: MiningOptions = DEFAULTS
) -> MinedNegatives:
  """Returns hard negatives of every query with a positive: what the searcher finds, less what answers the query.

  No negative is a known positive, or has the text of one, also of one of a query with the same text; nor the query
  itself: a passage of the query's own text or, where the task drops identical ids (TaskInfo.drop_identical), of its id;
  nor a pair that the task filters (RetrievalData.filtered).
  (Judgements of passages that the corpus lacks name nothing that could be found.) Of passages with equal texts the
  first found stands for all. Then the options' ranks, margins and bounds hold, and per_query of the candidates are taken.

  A margin needs the positives' scores. With embeddings they are inner products (as in mine_with_index). Any other
  searcher says them in its ranking; a positive that is not among the results has at most the last one's score, which is
  taken, or 0 if that is less and there are fewer results than were asked for: so BM25 scores what has no term of a query.

  Where the options ask for more results than the corpus has, all of it is ranked, with a warning. Memory: 8 bytes for
  each result of all queries, which number options.last_rank plus the most positives of a query; less with embeddings.

  Raises: UserError for options that cannot be, and what the searcher raises.

  Example: `mine_negatives(BM25Searcher(), data, MiningOptions(per_query=4)).passage_rows`.
  """
  options.check()
  if isinstance(searcher, DenseSearcher):
    passages = searcher.passages(data)
    queries = searcher.queries(data)[data.examples]
    return mine_with_index(searcher.build_index(passages), queries, passages, data, options)
  excluded = _Excluded.of(data)
  depths = _depths(excluded, data, options)
  ranking = searcher.search(_only_positives(data), k=int(depths.max()))
  blocks = _ranked_blocks(ranking, data)
  return _mined(blocks, excluded, data, options)


def mine_with_index(
  index: Index,
  queries: Float[np.ndarray, "e d"],
  passages: SideEmbeddings,
  data: RetrievalData,
  options: MiningOptions = DEFAULTS,
) -> MinedNegatives:
  """Returns what `mine_negatives` does, found by an index of embeddings; all exact ones find the same.

  queries: of data.examples, in that order. passages: those that the index was built of.
  Scores that differ by less than float32 rounding may change places between kinds of index. Equal ones may not: results
  that score as the last one asked for, of which an index may have found any, are left out of account.
  Memory: the queries, and a block of them with 8 million results at a time, several arrays of that size.

  Example: `mine_with_index(faiss_flat(passages), queries, passages, data)`.
  """
  options.check()
  excluded = _Excluded.of(data)
  depths = np.minimum(_depths(excluded, data, options) + 1, data.passages.num_rows)

  def blocks() -> Iterator[_Block]:
    for examples in _blocks(depths):
      found = index.search(queries[examples], k=int(depths[examples].max()))
      positive_scores = np.full(len(examples), np.inf, np.float32)
      if options.has_margin:
        positive_scores = from_embeddings(queries, passages, data, examples)
      yield _Block(examples, _settled(found, depths[examples], data.passages.num_rows), positive_scores)

  return _mined(blocks(), excluded, data, options)


def _settled(found: Ranking, depths: Int[np.ndarray, "q"], corpus_size: int) -> Ranking:
  """Returns each query's results that score above its depth-th: which of equal ones come last is the index's affair.

  Where the depth is the whole corpus every result stands.
  """
  last = np.take_along_axis(found.scores, depths[:, None] - 1, axis=1)
  kept = (found.scores > last) | (depths[:, None] == corpus_size)
  return Ranking(np.where(kept, found.rows, np.int32(-1)), np.where(kept, found.scores, np.float32(-np.inf)))


def _ranked_blocks(ranking: Ranking, data: RetrievalData) -> Iterator[_Block]:
  """Yields the ranking of all examples in blocks."""
  for examples in _blocks(np.full(data.num_examples, ranking.rows.shape[1])):
    found = Ranking(ranking.rows[examples], ranking.scores[examples])
    yield _Block(examples, found, from_ranking(found, data.relevance, data.examples[examples]))


def _depths(excluded: _Excluded, data: RetrievalData, options: MiningOptions) -> Int[np.ndarray, "e"]:
  """Returns how many results each example needs so that last_rank of them are left, as far as the corpus has so many."""
  wanted = options.last_rank + excluded.count(data.examples)
  size = data.passages.num_rows
  if wanted.max() > size and jax.process_index() == 0:
    print(
      f"warning: LAST_RANK={options.last_rank} and the positives of a query make up to {wanted.max()} results, and "
      f"{data.name} has {size} passages: all of them are ranked.",
      file=sys.stderr,
    )
  return np.minimum(wanted, size)


def _blocks(depths: Int[np.ndarray, "e"]) -> Iterator[Int[np.ndarray, "q"]]:
  """Yields the examples in blocks of at most RESULTS results (or one example), those that need few results first, so
  that a query with very many positives makes no others search as deep."""
  order = np.argsort(depths, kind="stable")
  start = 0
  while start < len(order):
    size = max(1, RESULTS // int(depths[order[start]]))
    while size > 1 and size * int(depths[order[min(start + size, len(order)) - 1]]) > RESULTS:
      size = -(-size // 2)
    yield order[start : start + size]
    start += size


def _only_positives(data: RetrievalData) -> RetrievalData:
  """Returns the data with no other judgements than positives: the queries that are judged are then the examples."""
  positive = data.relevance.grades > 0
  offsets = np.concatenate([[0], np.cumsum(data.relevance.counts, dtype=np.int64)])
  relevance = data.relevance._replace(
    offsets=offsets,
    passage_rows=data.relevance.passage_rows[positive],
    grades=data.relevance.grades[positive],
  )
  return data._replace(relevance=relevance, dangling=None)


def _mined(
  blocks: Iterable[_Block], excluded: _Excluded, data: RetrievalData, options: MiningOptions
) -> MinedNegatives:
  per_query = np.zeros(data.num_examples, np.int64)
  left_out: dict[str, int] = dict.fromkeys(RULES, 0)
  parts = []
  with tqdm(
    total=data.num_examples,
    desc="mine",
    unit="query",
    disable=jax.process_index() != 0,
    mininterval=progress.interval(),
  ) as bar:
    for block in blocks:
      taken, ranks, counts = _take(block, excluded, data, options)
      per_query[block.examples] = np.count_nonzero(taken, axis=1)
      for rule, count in counts.items():
        left_out[rule] += count
      examples = np.broadcast_to(block.examples[:, None], taken.shape)
      columns = (examples, block.found.rows, ranks.astype(np.int32), block.found.scores)
      parts.append([column[taken] for column in columns])
      bar.update(len(block.examples))
  examples, rows, ranks, scores = (np.concatenate(columns) for columns in zip(*parts, strict=True))
  order = np.lexsort((ranks, examples))
  return MinedNegatives(
    data.examples[examples[order]], rows[order], ranks[order], scores[order], per_query, left_out
  )


def _take(
  block: _Block, excluded: _Excluded, data: RetrievalData, options: MiningOptions
) -> tuple[Bool[np.ndarray, "q k"], Int[np.ndarray, "q k"], dict[str, int]]:
  """Returns which results are taken, their ranks, and how many of the others each rule left out."""
  there = block.found.rows >= 0
  rows = np.where(there, block.found.rows, 0)
  owners = np.broadcast_to(data.examples[block.examples][:, None], rows.shape)
  left_out = {
    "positive": excluded.positives.has(owners, rows),
    "identical": excluded.identical.has(owners, rows),
    "filtered": excluded.filtered.has(owners, rows),
  }
  others = there & ~left_out["positive"] & ~left_out["identical"] & ~left_out["filtered"]
  ranks = np.cumsum(others, axis=1)
  in_range = (ranks >= options.first_rank) & (ranks <= options.last_rank)
  left_out["equal_text"] = _repeated(np.where(others, data.passages.identity[rows], -1))
  left_out |= options.by_score(block.found.scores, block.positive_scores)
  candidates, counts = there, {}
  for rule in RULES:
    if rule in left_out:
      counts[rule] = int(np.count_nonzero(candidates & left_out[rule] & (in_range | ~others)))
      candidates = candidates & ~left_out[rule]
  numbers = owners.astype(np.int64) * data.passages.num_rows + rows
  return options.choose(candidates & in_range, numbers), ranks, counts


def _repeated(identities: Int[np.ndarray, "q k"]) -> Bool[np.ndarray, "q k"]:
  """Returns which places have a number, 0 or more, that stands further to the left in the same row too."""
  order = np.argsort(identities, axis=1, kind="stable")
  ranked = np.take_along_axis(identities, order, axis=1)
  again = np.zeros(ranked.shape, bool)
  again[:, 1:] = (ranked[:, 1:] == ranked[:, :-1]) & (ranked[:, 1:] >= 0)
  repeated = np.zeros(ranked.shape, bool)
  np.put_along_axis(repeated, order, again, axis=1)
  return repeated
