"""Results that are none, a query's own passage and the pairs that a task filters: taken out of a ranking entry by entry."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Int

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
    order = np.argsort(gone, axis=1, kind="stable")[:, :depth]  # the others keep their order
    rows[block] = np.take_along_axis(np.where(gone, -1, ranking.rows[block]), order, axis=1)
    scores[block] = np.take_along_axis(np.where(gone, -np.inf, ranking.scores[block]), order, axis=1)
  return Ranking(rows, scores), len(places)


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
