"""Ranking metrics by name, each equal to trec_eval's measure of the same definition; psp, psndcg and psrecall: pyxclib's.

What trec_eval does, and these do too:
  - Results beyond a cutoff do not count; a ranking shorter than the cutoff counts as padded with misses.
  - Average precision and recall divide by ALL relevant passages of the query (R), found or not, in the corpus or not.
    Where R is above the cutoff, map@k and recall@k therefore cannot reach 1: at most k / R. R-precision can. nDCG can
    too, as its ideal ranking is cut at the same place.
  - p@k divides by k, so it cannot reach 1 where R is below k.
  - A query whose judgements hold no relevant passage counts 0 in every mean; one without any judgement is left out.
  - A judged query without results counts 0 (trec_eval: with -c).

p, ndcg, recall and success of judgements of 0 and 1 are also what the XC repository's tool (pyxclib) calls P, N, R and
hits; a query whose only judgement is 0 is its point without labels.
"""

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from retrieval_jax.errors import UserError, nearest
from retrieval_jax.metrics.extreme import ps_ndcg, ps_precision, ps_recall
from retrieval_jax.metrics.judgements import Judged, Pair, Qrels, divided, judge, sum_by_query


class Metric(NamedTuple):
  """How a metric is computed.

  value: takes the judged results, already cut at the cutoff, and the cutoff (None: the whole ranking).
  sees: "grades" are all above 0; "relevant", the passages graded from `relevant_from`, all alike; "weights", the same
    passages with the caller's weight of each in place of its grade.
  cutoff: whether its name may, must or cannot carry one.
  """

  value: Callable[[Judged, int | None], Float[np.ndarray, "q"]]
  sees: Literal["grades", "relevant", "weights"] = "relevant"
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
  found, best = (
    placed.discounted().sums(judged.num_queries) for placed in (judged.hits, judged.ideal.before(cutoff))
  )
  return divided(found, best)


def _average_precision(judged: Judged, cutoff: int | None) -> Float[np.ndarray, "q"]:
  """Sum of the precision at the rank of each relevant result, divided by all relevant passages. trec_eval: map, map_cut.

  Source: Buckley and Voorhees (2000), "Evaluating Evaluation Measure Stability".
  """
  del cutoff
  queries, ranks, _ = judged.hits
  counts = _found(judged)
  before = np.cumsum(counts) - counts  # hits of the queries before
  up_to = 1 + np.arange(len(queries)) - before[queries]  # hits of the query down to this one
  return divided(sum_by_query(queries, up_to / (1 + ranks), judged.num_queries), judged.relevant)


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
  return divided(_found(judged), judged.relevant)


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
  return divided(_found(judged._replace(hits=hits)), judged.relevant)


def _success(judged: Judged, cutoff: int | None) -> Float[np.ndarray, "q"]:
  """1 if there is a relevant result, otherwise 0; also called hit rate. trec_eval: success.

  Source: trec_eval, m_success.c.
  """
  del cutoff
  return (_found(judged) > 0).astype(np.float64)


METRICS: dict[str, Metric] = {
  "ndcg": Metric(_ndcg, sees="grades"),
  "map": Metric(_average_precision),
  "mrr": Metric(_reciprocal_rank),
  "recall": Metric(_recall),
  "p": Metric(_precision, cutoff="must"),
  "rprec": Metric(_r_precision, cutoff="cannot"),
  "success": Metric(_success),
  "psp": Metric(ps_precision, sees="weights", cutoff="must"),
  "psndcg": Metric(ps_ndcg, sees="weights"),
  "psrecall": Metric(ps_recall, sees="weights"),
}


def evaluate_ranking(
  rows: Int[np.ndarray, "q k"],
  *,
  qrels: Qrels | Sequence[Pair],
  metrics: Sequence[str],
  relevant_from: float = 1,
  weights: Float[np.ndarray, "c"] | None = None,
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
    psp@K               p@K where a relevant passage counts its weight, over the same of the best possible rankings
    psndcg, psndcg@K    ndcg likewise
    psrecall, psrecall@K  recall likewise
  relevant_from: the lowest grade that is relevant; the passage rankings of TREC Deep Learning take 2. nDCG does not
    look at it: there every grade above 0 is a gain and none is a loss.
  weights: of every passage row, above 0, which the ps metrics alone look at: `extreme.inverse_propensity` makes them.

  A ps metric is the mean over the judged queries of what was found, divided by the mean of what the best rankings find:
  a ratio of means. The value of a query is what was found for it divided by that mean, so that the values' mean is the
  metric; it may be above 1, and changes with the other judgements.

  Search at least as deep as the largest cutoff. Memory is O(q) a metric; `judge` says what it takes. Ps metrics
  look at the results once more, O(q k) time and O(e) memory: 0.25 s and 32 MB for 135,000 queries of 100 results.

  Raises: UserError for an unknown metric, if no query has a relevant passage, for a ps metric without weights or with
    some that cannot be, and for what `judge` refuses.

  Example: `evaluate_ranking(np.array([[3, 7]]), qrels=[([7], [1])], metrics=["mrr"]).means` is `{"mrr": 0.5}`.
  """
  parsed = {name: _parse(name) for name in metrics}
  if not 0 < relevant_from < np.inf:
    raise UserError(f"relevant_from is {relevant_from}; expected a grade above 0, such as 1.")
  qrels = qrels if isinstance(qrels, Qrels) else Qrels.of(qrels)
  graded = judge(rows, qrels)
  sights = {"grades": graded, "relevant": graded.graded_from(relevant_from)}
  if scored := weighted_metrics(metrics):
    sights["weights"] = judge(rows, _weighted(qrels, relevant_from, weights, scored))
  per_query = {}
  for name, (metric, cutoff) in parsed.items():
    seen = sights[metric.sees]
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


def weighted_metrics(metrics: Sequence[str]) -> list[str]:
  """Returns those of the names that need the passages' weights.

  Raises: UserError for an unknown metric.

  Example: `weighted_metrics(["p@5", "psp@5"])` is `["psp@5"]`.
  """
  return [name for name in metrics if _parse(name)[0].sees == "weights"]


def _weighted(
  qrels: Qrels, relevant_from: float, weights: Float[np.ndarray, "c"] | None, scored: Sequence[str]
) -> Qrels:
  """Returns the judgements with the weight of each relevant passage in place of its grade, and 0 for the others."""
  if weights is None:
    raise UserError(
      f"{', '.join(scored)}: the passages have no weights; give weights=inverse_propensity(...) of their training counts."
    )
  if not (np.isfinite(weights).all() and weights.min(initial=1) > 0):
    raise UserError(f"{', '.join(scored)}: every passage must have a finite weight above 0.")
  known = qrels.rows < len(weights)
  if not known.all():
    raise UserError(
      f"{', '.join(scored)}: {np.count_nonzero(~known)} judgements are of passages without a weight, the first of row "
      f"{qrels.rows[~known][0]}; there are {len(weights)} weights, one a passage."
    )
  return qrels._replace(grades=np.where(qrels.grades >= relevant_from, weights[qrels.rows], 0.0))


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
