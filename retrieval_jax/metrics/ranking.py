"""Ranking metrics by name: precision, reciprocal rank, nDCG and recall, as trec_eval defines them."""

from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Float, Int

from retrieval_jax.errors import UserError, nearest
from retrieval_jax.metrics.judgements import Judged, Pair, Qrels, judge

# A metric takes the judged results, already cut at the cutoff, and the cutoff (None: the whole ranking).
Metric = Callable[[Judged, int | None], Float[np.ndarray, "q"]]


def _precision(judged: Judged, cutoff: int | None) -> Float[np.ndarray, "q"]:
  # Over the cutoff even if there are fewer results: places left empty are misses.
  return np.sum(judged.gains > 0, axis=1) / (cutoff or max(1, judged.gains.shape[1]))


def _reciprocal_rank(judged: Judged, cutoff: int | None) -> Float[np.ndarray, "q"]:
  del cutoff
  ranks = np.arange(1, 1 + judged.gains.shape[1])
  return np.max((judged.gains > 0) / ranks, axis=1, initial=0.0)


def _ndcg(judged: Judged, cutoff: int | None) -> Float[np.ndarray, "q"]:
  found = judged.gains @ (1 / np.log2(np.arange(2, 2 + judged.gains.shape[1])))
  kept = judged.ideal_ranks < (np.inf if cutoff is None else cutoff)
  ideal = np.bincount(
    judged.ideal_queries[kept],
    weights=judged.ideal_grades[kept] / np.log2(2 + judged.ideal_ranks[kept]),
    minlength=judged.num_queries,
  )
  return np.divide(found, ideal, out=np.zeros(judged.num_queries), where=ideal > 0)


def _recall(judged: Judged, cutoff: int | None) -> Float[np.ndarray, "q"]:
  del cutoff
  found = np.sum(judged.gains > 0, axis=1)
  return np.divide(found, judged.relevant, out=np.zeros(judged.num_queries), where=judged.relevant > 0)


_METRICS: dict[str, Metric] = {
  "p": _precision,
  "mrr": _reciprocal_rank,
  "ndcg": _ndcg,
  "recall": _recall,
}


def _parse(name: str) -> tuple[Metric, int | None]:
  """Returns the metric and the cutoff that `name` ("ndcg@10", "mrr") asks for."""
  base, at, cutoff = name.partition("@")
  if base not in _METRICS:
    raise UserError(
      f"Unknown metric {name!r}{nearest(base, _METRICS)}. Known: {', '.join(_METRICS)}, each also with a cutoff, "
      "as in 'ndcg@10'."
    )
  if not at:
    return _METRICS[base], None
  if not cutoff.isdecimal() or int(cutoff) < 1:
    raise UserError(
      f"Metric {name!r}: the cutoff after '@' must be a whole number from 1, as in '{base}@10'."
    )
  return _METRICS[base], int(cutoff)


def evaluate_ranking(
  rows: Int[np.ndarray, "q k"], *, qrels: Qrels | Sequence[Pair], metrics: Sequence[str]
) -> tuple[dict[str, float], dict[str, Float[np.ndarray, "q"]]]:
  """Returns the mean of each metric and its value for each query, by name.

  rows: the passages found for each query, best first; -1 is an empty place.
  qrels: per query the judged passage rows and their grades, or the same as `Qrels`.
  metrics: names, with or without a cutoff K ("mrr" looks at all k results, "mrr@10" at the first ten):
    p@K       relevant results among the first K, divided by K
    mrr@K     1 / rank of the first relevant result, 0 if there is none
    ndcg@K    sum over the results of grade / log2(1 + rank), divided by the same of the best possible ranking of all
              relevant passages, those that the corpus lacks included; the gain is the grade itself
    recall@K  relevant results divided by all relevant passages
  A passage is relevant if its grade is above 0; a negative grade counts as 0.

  Means are over the queries with at least one relevant passage, whether or not anything was found for them. The others
  are left out, their values are NaN: no ranking could be good or bad for them. (trec_eval counts them as 0, and leaves
  out the queries without results.) In all else these are trec_eval's values.

  A ranking shallower than the cutoff counts as padded, so search at least as deep as the largest cutoff.

  Raises: UserError for an unknown metric, if no query has a relevant passage, and for what `judge` refuses.

  Example: `evaluate_ranking(np.array([[3, 7]]), qrels=[([7], [1])], metrics=["mrr"])[0]` is `{"mrr": 0.5}`.
  """
  parsed = {name: _parse(name) for name in metrics}
  judged = judge(rows, qrels if isinstance(qrels, Qrels) else Qrels.of(qrels))
  counted = judged.relevant > 0
  if not counted.any():
    raise UserError(
      f"None of the {judged.num_queries} queries has a relevant passage, so there is nothing to measure. "
      "Check that the judgements belong to these queries and that some grades are above 0."
    )
  per_query = {}
  for name, (metric, cutoff) in parsed.items():
    values = metric(judged._replace(gains=judged.gains[:, :cutoff]), cutoff)
    per_query[name] = np.where(counted, values, np.nan)
  return {name: float(np.mean(values[counted])) for name, values in per_query.items()}, per_query
