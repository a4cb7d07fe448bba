"""Results that are none, a query's own passage, filtered pairs, other queries' candidates: taken out of a ranking."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from retrieval_jax.data.dataset import RetrievalData
from retrieval_jax.data.text_table import hash_text
from retrieval_jax.records import Ranking

BLOCK = 1 << 20  # results looked at together: a few arrays of 8 MB


class Unwanted(NamedTuple):
  """Passages that are no results: passage rows[i] for the query of the ranking's row places[i]. No pair comes twice."""

  places: Int[np.ndarray, "e"]
  rows: Int[np.ndarray, "e"]

  @property
  def most(self) -> int:
    """The most that any query has: so many results more must be searched for, to keep as many as are wanted."""
    return int(np.bincount(self.places).max(initial=0))


NOTHING = Unwanted(np.zeros(0, np.int64), np.zeros(0, np.int64))


def own_passages(data: RetrievalData) -> Unwanted:
  """Returns for each of data.judged the corpus row with the query's own id, where there is one."""
  hashes = np.array([hash_text(data.queries.ids[int(row)]) for row in data.judged], np.uint64)
  rows = data.passages.rows_of_hashes(hashes)
  places = np.flatnonzero(rows >= 0)
  return Unwanted(places, rows[places])


def filtered_passages(data: RetrievalData) -> Unwanted:
  """Returns the pairs of data.filtered, of the queries of data.judged."""
  if data.filtered is None:
    return NOTHING
  place = np.full(data.filtered.num_queries, -1, np.int64)
  place[data.judged] = np.arange(len(data.judged))
  places = np.repeat(place, np.diff(data.filtered.offsets))
  searched = places >= 0
  return Unwanted(places[searched], np.asarray(data.filtered.passage_rows, np.int64)[searched])


def without(ranking: Ranking, unwanted: Unwanted, *, depth: int) -> tuple[Ranking, int]:
  """Returns the ranking without the unwanted results, cut at `depth`, and how many were left out.

  An unwanted result is taken out, not scored lower: scores may be negative, and those behind it move up. So the ranking
  must be `unwanted.most` deeper than what is wanted.

  O(e k) time for e unwanted pairs and k results; memory above that of the two rankings is O(e) and some arrays of 8 MB.

  Example: row 5 unwanted for a query with the results [7, 5, 2] leaves [7, 2].
  """
  rows, scores = ranking.rows[:, :depth].copy(), ranking.scores[:, :depth].astype(np.float32)
  places, ranks = _found(ranking.rows, unwanted)
  changed = np.unique(places)
  step = max(1, BLOCK // max(1, ranking.rows.shape[1]))
  for start in range(0, len(changed), step):
    block = changed[start : start + step]
    gone = np.zeros((len(block), ranking.rows.shape[1]), bool)
    here = (places >= block[0]) & (places <= block[-1])
    gone[np.searchsorted(block, places[here]), ranks[here]] = True
    rows[block], scores[block] = _left(ranking.rows[block], ranking.scores[block], gone, depth=depth)
  return Ranking(rows, scores), len(places)


def candidates_alone(ranking: Ranking, data: RetrievalData, *, depth: int) -> Ranking:
  """Returns the ranking of data.judged without passages that are no candidates of a query (data.shared), cut at `depth`.

  As in `without`, the ranking must be deeper than what is wanted: by `number_unshared`.

  Example: where row 5 is not shared and judged for another query alone, the results [7, 5, 2] leave [7, 2].
  """
  if data.shared is None:
    return Ranking(ranking.rows[:, :depth], ranking.scores[:, :depth])
  rows = np.empty((len(ranking.rows), min(depth, ranking.rows.shape[1])), ranking.rows.dtype)
  scores = np.empty(rows.shape, np.float32)
  step = max(1, BLOCK // max(1, ranking.rows.shape[1]))
  for start in range(0, len(rows), step):
    block = slice(start, start + step)
    gone = _of_others(ranking.rows[block], data, start)
    rows[block], scores[block] = _left(ranking.rows[block], ranking.scores[block], gone, depth=depth)
  return Ranking(rows, scores)


def number_unshared(data: RetrievalData) -> int:
  """Returns how many passages are candidates of some queries alone."""
  return 0 if data.shared is None else int(np.count_nonzero(~data.shared))


def _of_others(results: Int[np.ndarray, "q k"], data: RetrievalData, start: int) -> Bool[np.ndarray, "q k"]:
  """Returns which results of the queries data.judged[start:] are no candidates of theirs."""
  assert data.shared is not None
  gone = (results >= 0) & ~data.shared[results]
  for place, row in enumerate(data.judged[start : start + len(results)]):
    gone[place] &= ~np.isin(results[place], data.relevance.row(int(row))[0])
  return gone


def _left(
  rows: Int[np.ndarray, "q k"],
  scores: Float[np.ndarray, "q k"],
  gone: Bool[np.ndarray, "q k"],
  *,
  depth: int,
) -> tuple[Int[np.ndarray, "q d"], Float[np.ndarray, "q d"]]:
  """Returns the rows and scores without those that are gone; the others keep their order."""
  order = np.argsort(gone, axis=1, kind="stable")[:, :depth]
  return (
    np.take_along_axis(np.where(gone, -1, rows), order, axis=1),
    np.take_along_axis(np.where(gone, -np.inf, scores), order, axis=1),
  )


def _found(
  results: Int[np.ndarray, "q k"], unwanted: Unwanted
) -> tuple[Int[np.ndarray, "f"], Int[np.ndarray, "f"]]:
  """Returns the place and the rank of each unwanted pair that is among the results."""
  step = max(1, BLOCK // max(1, results.shape[1]))
  places, ranks = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
  for start in range(0, len(unwanted.places), step):
    asked = unwanted.places[start : start + step]
    pairs, found = np.nonzero(results[asked] == unwanted.rows[start : start + step, None])
    places.append(asked[pairs])
    ranks.append(found)
  return np.concatenate(places), np.concatenate(ranks)
