"""The queries that a search answered worst, with their texts, for a person to look at."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float

from retrieval_jax.data.dataset import RetrievalData
from retrieval_jax.metrics.judgements import Qrels
from retrieval_jax.metrics.ranking import evaluate_ranking
from retrieval_jax.records import Ranking
from retrieval_jax.worst_file import ShownPassage, WorstQuery

WORST = 20  # queries
SHOWN = 5  # passages of each kind that are shown of a query
LONGEST = 300  # characters of a text; the rest is cut off


def worst_queries(
  ranking: Ranking, data: RetrievalData, *, metric: str, values: Float[np.ndarray, "q"], count: int = WORST
) -> list[WorstQuery]:
  """Returns the `count` queries with the lowest values, the worst first.

  Of equal values the query whose first right passage stands deeper in the ranking is worse, and one without any the worst; then
  the one that comes first. Queries without a right passage are left out: no search can answer them.

  ranking, values: of data.judged, in that order; values are those of `metric`.

  Cost: a sort of the values, and the texts of at most 2 x SHOWN x count passages read from disk: 5 ms, and 80 ms where 7,000
  queries share the lowest value; 60 kB as a file.

  Example: `worst_queries(result.ranking, result.data, metric="mrr", values=result.per_query["mrr"])`.
  """
  shown = []
  for place in _worst_places(ranking, data, values, count):
    row = int(data.judged[place])
    rows, grades = data.judgements(row)
    graded = dict(zip(rows.tolist(), grades.tolist(), strict=True))
    found = ranking.rows[place]
    ranks = {int(passage): rank for rank, passage in enumerate(found, start=1) if passage >= 0}
    right = sorted((-grade, passage) for passage, grade in graded.items() if grade >= data.info.relevant_from)

    def passage(
      number: int, graded: dict[int, int] = graded, ranks: dict[int, int] = ranks, place: int = place
    ) -> ShownPassage:
      rank = ranks.get(number)
      score = None if rank is None else float(ranking.scores[place, rank - 1])
      known = number < data.passages.num_rows
      id = data.passages.ids[number] if known else None
      text = _short(data.passages.texts[number]) if known else None
      return ShownPassage(id, text, graded.get(number), rank, score)

    shown.append(
      WorstQuery(
        data.queries.ids[row],
        _short(data.queries.texts[row]),
        metric,
        float(values[place]),
        len(right),
        [passage(number) for number in list(ranks)[:SHOWN]],
        [passage(number) for _, number in right[:SHOWN]],
      )
    )
  return shown


def _worst_places(
  ranking: Ranking, data: RetrievalData, values: Float[np.ndarray, "q"], count: int
) -> Sequence[int]:
  """Returns the places in data.judged of the worst queries."""
  judged, least = data.judged, data.info.relevant_from
  places = np.flatnonzero(_answerable(data, least)[judged] & ~np.isnan(values))
  if len(places) > count:  # only those that may be among the worst are ranked by their first right passage
    highest = np.partition(values[places], count - 1)[count - 1]
    places = places[values[places] <= highest]
  if not len(places):
    return []
  qrels = Qrels.of([data.judgements(int(row)) for row in judged[places]])
  found = evaluate_ranking(ranking.rows[places], qrels=qrels, metrics=["mrr"], relevant_from=least)
  order = np.lexsort((places, found.per_query["mrr"], values[places]))
  return places[order[:count]].tolist()


def _answerable(data: RetrievalData, least: float) -> Bool[np.ndarray, "q"]:
  """Returns whether each query row has a right passage, in the corpus or not."""
  found = np.zeros(data.relevance.num_queries, bool)
  for relevance in (data.relevance, data.dangling):
    if relevance is not None:
      owners = np.repeat(np.arange(relevance.num_queries), np.diff(relevance.offsets))
      found[owners[relevance.grades >= least]] = True
  return found


def _short(text: str) -> str:
  return text if len(text) <= LONGEST else text[: LONGEST - 1] + "\u2026"
