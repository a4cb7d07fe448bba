"""Ranking metrics by name, each equal to trec_eval's measure of the same definition.

What trec_eval does, and these do too:
  - Results beyond a cutoff do not count; a ranking shorter than the cutoff counts as padded with misses.
  - Average precision and recall divide by ALL relevant passages of the query (R), found or not, in the corpus or not.
    Where R is above the cutoff, map@k and recall@k therefore cannot reach 1: at most k / R. R-precision can. nDCG can
    too, as its ideal ranking is cut at the same place.
  - p@k divides by k, so it cannot reach 1 where R is below k.
  - A query whose judgements hold no relevant passage counts 0 in every mean; one without any judgement is left out.
  - A judged query without results counts 0 (trec_eval: with -c).
"""

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from retrieval_jax.errors import UserError, nearest
from retrieval_jax.metrics.judgements import Judged, Pair, Placed, Qrels, judge


class Metric(NamedTuple):
  """How a metric is computed.

  value: takes the judged results, already cut at the cutoff, and the cutoff (None: the whole ranking).
  graded: it sees every grade above 0; otherwise only passages graded from `relevant_from`, relevant all alike.
  cutoff: whether its name may, must or cannot carry one.
  """

  value: Callable[[Judged, int | None], Float[np.ndarray, "q"]]
  graded: bool = False
  cutoff: Literal["may", "must", "cannot"] = "may"


class Evaluation(NamedTuple):
  """Metrics of a ranking.

  means: name -> mean over the judged queries.
  per_query: name -> value of each query; NaN for a query without judgements, which is in no mean.
  judged: the number of queries with judgements, the divisor of the means.
  answered: how many of those have at least one result.
  """

  means: dict[str, float]
  per_query: dict[str, Float[np.ndarray, "q"]]
  judged: int
  answered: int


def _ndcg(judged: Judged, cutoff: int | None) -> Float[np.ndarray, "q"]:
  """Sum over the results of grade / log2(1 + rank), divided by the same of the best possible ranking.

  That ranking has all passages of a grade above 0, by falling grade, those that the corpus lacks included. The gain
  is the grade itself, not 2^grade - 1. trec_eval: ndcg, ndcg_cut.

  Source: Järvelin and Kekäläinen (2002), "Cumulated Gain-Based Evaluation of IR Techniques".
  """
  ideal = judged.ideal if cutoff is None else judged.ideal.where(judged.ideal.ranks < cutoff)
  return _divided(_dcg(judged.hits, judged.num_queries), _dcg(ideal, judged.num_queries))


def _average_precision(judged: Judged, cutoff: int | None) -> Float[np.ndarray, "q"]:
  """Sum of the precision at the rank of each relevant result, divided by all relevant passages. trec_eval: map, map_cut.

  Source: Buckley and Voorhees (2000), "Evaluating Evaluation Measure Stability".
  """
  del cutoff
  queries, ranks, _ = judged.hits
  counts = _found(judged)
  before = np.cumsum(counts) - counts  # hits of the queries before
  up_to = 1 + np.arange(len(queries)) - before[queries]  # hits of the query down to this one
  return _divided(_sum(queries, up_to / (1 + ranks), judged.num_queries), judged.relevant)


def _reciprocal_rank(judged: Judged, cutoff: int | None) -> Float[np.ndarray, "q"]:
  """1 / rank of the first relevant result, 0 if there is none. trec_eval: recip_rank, which has no cutoff.

  Source: Voorhees (1999), "The TREC-8 Question Answering Track Report".
  """
  del cutoff
  queries, first = np.unique(judged.hits.queries, return_index=True)
  values = np.zeros(judged.num_queries)
  values[queries] = 1 / (1 + judged.hits.ranks[first])
  return values


def _recall(judged: Judged, cutoff: int | None) -> Float[np.ndarray, "q"]:
  """Relevant results divided by all relevant passages. trec_eval: recall, set_recall.

  Source: Manning, Raghavan and Schütze (2008), "Introduction to Information Retrieval", chapter 8.
  """
  del cutoff
  return _divided(_found(judged), judged.relevant)


def _precision(judged: Judged, cutoff: int | None) -> Float[np.ndarray, "q"]:
  """Relevant results divided by the cutoff, even if there are fewer results. trec_eval: P.

  Source: Manning, Raghavan and Schütze (2008), "Introduction to Information Retrieval", chapter 8.
  """
  assert cutoff is not None
  return _found(judged) / cutoff


def _r_precision(judged: Judged, cutoff: int | None) -> Float[np.ndarray, "q"]:
  """Relevant results among the first R, divided by R, the number of relevant passages. trec_eval: Rprec.

  Source: Manning, Raghavan and Schütze (2008), "Introduction to Information Retrieval", chapter 8.
  """
  del cutoff
  hits = judged.hits.where(judged.hits.ranks < judged.relevant[judged.hits.queries])
  return _divided(_found(judged._replace(hits=hits)), judged.relevant)


def _success(judged: Judged, cutoff: int | None) -> Float[np.ndarray, "q"]:
  """1 if there is a relevant result, otherwise 0; also called hit rate. trec_eval: success.

  Source: trec_eval, m_success.c.
  """
  del cutoff
  return (_found(judged) > 0).astype(np.float64)


METRICS: dict[str, Metric] = {
  "ndcg": Metric(_ndcg, graded=True),
  "map": Metric(_average_precision),
  "mrr": Metric(_reciprocal_rank),
  "recall": Metric(_recall),
  "p": Metric(_precision, cutoff="must"),
  "rprec": Metric(_r_precision, cutoff="cannot"),
  "success": Metric(_success),
}


def evaluate_ranking(
  rows: Int[np.ndarray, "q k"],
  *,
  qrels: Qrels | Sequence[Pair],
  metrics: Sequence[str],
  relevant_from: float = 1,
) -> Evaluation:
  """Returns the mean of each metric, its value for each query, and how many queries were judged and answered.

  rows: the passages found for each query, best first, ties as they stand; -1 is an empty place.
  qrels: per query the judged passage rows and their grades, or the same as `Qrels`.
  metrics: names, with or without a cutoff K ("mrr" looks at all k results, "mrr@10" at the first ten):
    ndcg, ndcg@K        discounted gain divided by that of the best possible ranking; the gain is the grade
    map, map@K          mean of the precision at each relevant passage, those not found counting 0
    mrr, mrr@K          1 / rank of the first relevant result, 0 if there is none
    recall, recall@K    relevant results divided by all relevant passages
    p@K                 relevant results among the first K, divided by K
    rprec               p@R, where R is the number of the query's relevant passages
    success, success@K  1 if there is a relevant result, else 0
  relevant_from: the lowest grade that is relevant; the passage rankings of TREC Deep Learning take 2. nDCG does not
    look at it: there every grade above 0 is a gain and none is a loss.

  Search at least as deep as the largest cutoff. Memory is O(q) a metric; `judge` says what it takes.

  Raises: UserError for an unknown metric, if no query has a relevant passage, and for what `judge` refuses.

  Example: `evaluate_ranking(np.array([[3, 7]]), qrels=[([7], [1])], metrics=["mrr"]).means` is `{"mrr": 0.5}`.
  """
  parsed = {name: _parse(name) for name in metrics}
  if not 0 < relevant_from < np.inf:
    raise UserError(f"relevant_from is {relevant_from}; expected a grade above 0, such as 1.")
  graded = judge(rows, qrels if isinstance(qrels, Qrels) else Qrels.of(qrels))
  binary = graded.graded_from(relevant_from)
  per_query = {}
  for name, (metric, cutoff) in parsed.items():
    seen = graded if metric.graded else binary
    if not seen.relevant.any():
      raise UserError(_nothing_to_measure(name, graded, relevant_from))
    per_query[name] = np.where(seen.judged, metric.value(seen.first(cutoff), cutoff), np.nan)
  means = {name: float(np.mean(values[graded.judged])) for name, values in per_query.items()}
  answered = graded.judged & np.any(rows >= 0, axis=1)
  return Evaluation(means, per_query, int(np.sum(graded.judged)), int(np.sum(answered)))


def deepest_cutoff(metrics: Sequence[str]) -> int:
  """Returns the largest cutoff among the names, 0 if none has one: how deep to search at least.

  Raises: UserError for an unknown metric.

  Example: `deepest_cutoff(["mrr", "ndcg@10", "recall@100"])` is 100.
  """
  return max((_parse(name)[1] or 0 for name in metrics), default=0)


def _parse(name: str) -> tuple[Metric, int | None]:
  """Returns the metric and the cutoff that `name` ("ndcg@10", "mrr") asks for."""
  base, at, cutoff = name.partition("@")
  if base not in METRICS:
    raise UserError(
      f"Unknown metric {name!r}{nearest(base, METRICS) or '.'} Known: {', '.join(METRICS)}, all but rprec also with a "
      "cutoff, as in 'ndcg@10'."
    )
  metric = METRICS[base]
  if at and metric.cutoff == "cannot":
    raise UserError(f"Metric {name!r} takes no cutoff: write {base!r}.")
  if not at and metric.cutoff == "must":
    raise UserError(f"Metric {name!r} needs a cutoff, as in '{base}@10'.")
  if at and not (cutoff.isascii() and cutoff.isdecimal() and int(cutoff) >= 1):
    raise UserError(
      f"Metric {name!r}: the cutoff after '@' must be a whole number from 1, as in '{base}@10'."
    )
  return metric, int(cutoff) if at else None


def _nothing_to_measure(name: str, judged: Judged, relevant_from: float) -> str:
  best = judged.ideal.grades.max(initial=0)
  if best:
    return (
      f"{name}: none of the {judged.num_queries} queries has a passage of grade {relevant_from:g} or more; the best "
      f"grade is {best:g}. Lower relevant_from."
    )
  return (
    f"None of the {judged.num_queries} queries has a relevant passage, so there is nothing to measure. Check that the "
    "judgements belong to these queries and that some grades are above 0."
  )


def _found(judged: Judged) -> Int[np.ndarray, "q"]:
  return np.bincount(judged.hits.queries, minlength=judged.num_queries)


def _dcg(placed: Placed, count: int) -> Float[np.ndarray, "q"]:
  return _sum(placed.queries, placed.grades / np.log2(2 + placed.ranks), count)


def _sum(queries: Int[np.ndarray, "e"], values: Float[np.ndarray, "e"], count: int) -> Float[np.ndarray, "q"]:
  """Returns the sum of the values of each of `count` queries."""
  return np.bincount(queries, values, minlength=count).astype(np.float64)  # of no values it makes integers


def _divided(part: np.ndarray, whole: np.ndarray) -> Float[np.ndarray, "q"]:
  """Returns part / whole, 0 where there is no whole."""
  return np.divide(part, whole, out=np.zeros(len(whole)), where=whole > 0)
