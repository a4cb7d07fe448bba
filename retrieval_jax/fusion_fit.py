"""Fitting a fusion of both heads on held-out points, and what it gains there over the better of them."""

from collections.abc import Mapping
from typing import Final, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int
from tqdm.auto import tqdm

from retrieval_jax import progress
from retrieval_jax.classifier_searcher import ClassifierSearcher
from retrieval_jax.data.dataset import RetrievalData
from retrieval_jax.errors import UserError
from retrieval_jax.fusion_candidates import Candidates, ranked
from retrieval_jax.fusion_file import FittedFusion
from retrieval_jax.fusion_model import Fit, FusionModel, PairFeatures
from retrieval_jax.fusion_options import DEFAULTS, FusionOptions
from retrieval_jax.head_fusion import QUERY_ROWS, features_of, open_heads
from retrieval_jax.metrics.extreme import inverse_propensity
from retrieval_jax.metrics.ranking import Evaluation, evaluate_ranking
from retrieval_jax.metrics.significance import Interval, confidence_interval

METRICS: Final = ("p@1", "p@3", "p@5")
WEIGHTED_METRICS: Final = ("psp@1", "psp@5")  # where labels were counted
K: Final = 5
SHOWN_POINTS: Final = 20_000  # fewer are searched without a progress bar


class Gain(NamedTuple):
  """What the fused head has more than the better of the others, by one metric. interval: 95%, over the points."""

  over: str
  difference: float
  interval: Interval


class FusionFit(NamedTuple):
  """A fitted fusion and what it does on the points that it was fitted on.

  metrics: head -> metric -> mean over the points. Of the fused head each half of the points is measured with a model
    that was fitted on the other half; `fitted` is of all of them. gains: of METRICS, the same way.
  points, candidates, labels, found: how many there are, and how many of the points' labels are among the candidates.
  """

  fitted: FittedFusion
  metrics: Mapping[str, Mapping[str, float]]
  gains: Mapping[str, Gain]
  points: int
  candidates: int
  labels: int
  found: int


class LabelledPairs(NamedTuple):
  """The candidates of points, and which of them are labels of their point. query_rows: of the points, in their order."""

  found: Candidates
  targets: Bool[np.ndarray, "x"]
  query_rows: Int[np.ndarray, "q"]


def fit_fusion(
  searcher: ClassifierSearcher, data: RetrievalData, fit: Fit, options: FusionOptions = DEFAULTS
) -> FusionFit:
  """Returns a fusion fitted by `fit` on the candidates of points of `data`, of which data.filtered are none.

  Memory: about 60 bytes for each candidate (at most 2 depth a point), and what `fit` takes for options.max_pairs of them.

  Raises: UserError for data of another corpus than the classifiers', options that cannot be, fewer than 2 points with
  labels, and where one half of the points has no label among its candidates.
  """
  options.check()
  if options.use_propensity and data.info.propensity is None:
    raise UserError(
      f"FUSION_PROPENSITY=True: {data.name} declares no propensities, so nobody counted its labels. Leave it out, or name "
      "the constants where the data are named, as in --gin.PROPENSITY=(0.55, 1.5)."
    )
  places = _drawn_places(data, options)
  pairs = labelled_pairs(searcher, data, places, depth=options.depth)
  propensities = label_weights(data)
  logs = np.zeros(data.passages.num_rows, np.float32)
  if options.use_propensity and propensities is not None:
    logs = np.log(propensities).astype(np.float32)
  features = features_of(pairs.found, logs)
  half = pairs.found.owners % 2 == 0  # the points stand in a random order
  scores = np.empty(len(half), np.float32)
  for measured in (half, ~half):
    model = _fitted(fit, features.where(~measured), pairs.targets[~measured], options)
    scores[measured] = model.scores(features.where(measured))
  model = _fitted(fit, features, pairs.targets, options)
  columns = {"embedding": pairs.found.siamese, "classifiers": pairs.found.classifier, "fused": scores}
  measured = {head: _measured(data, pairs, column, propensities) for head, column in columns.items()}
  return FusionFit(
    FittedFusion(model, logs, options.depth),
    {head: found.means for head, found in measured.items()},
    {metric: _gain(measured, metric) for metric in METRICS},
    len(places),
    len(half),
    int(data.relevance.counts[pairs.query_rows].sum()),
    int(np.count_nonzero(pairs.targets)),
  )


def labelled_pairs(
  searcher: ClassifierSearcher, data: RetrievalData, places: Int[np.ndarray, "q"], *, depth: int
) -> LabelledPairs:
  """Returns what both heads find for the queries at `places` of data.judged, without what is filtered."""
  heads = open_heads(searcher, data)
  query_rows = data.judged[places]
  parts, targets = [], []
  with tqdm(
    total=len(places), desc="candidates", disable=len(places) < SHOWN_POINTS, mininterval=progress.interval()
  ) as bar:
    for start in range(0, len(places), QUERY_ROWS):
      found = heads.candidates(places[start : start + QUERY_ROWS], depth=depth)
      found = found._replace(owners=found.owners + np.int32(start))
      if data.filtered is not None:
        found = found.where(~data.filtered.has(query_rows[found.owners], found.rows))
      parts.append(found)
      targets.append(data.relevance.has(query_rows[found.owners], found.rows))
      bar.update(min(QUERY_ROWS, len(places) - start))
  columns = Candidates(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))
  return LabelledPairs(columns, np.concatenate(targets), query_rows)


def label_weights(data: RetrievalData) -> Float[np.ndarray, "c"] | None:
  """Returns 1 / p_l of each corpus row, or None where the task declares no propensities."""
  if data.label_counts is None or data.info.propensity is None:
    return None
  a, b = data.info.propensity
  return inverse_propensity(data.label_counts.counts, data.label_counts.num_points, a, b)


def _drawn_places(data: RetrievalData, options: FusionOptions) -> Int[np.ndarray, "q"]:
  """Returns places in data.judged of queries with labels, in a random order."""
  places = np.flatnonzero(data.relevance.counts[data.judged] > 0)
  if len(places) < 2:
    raise UserError(
      f"{data.name}, split {data.split}: {len(places)} points with labels; a fusion is fitted on at least 2, better on "
      "thousands. Hold more points out."
    )
  return np.random.default_rng(options.seed).permutation(places)[: options.max_points]


def _fitted(
  fit: Fit, features: PairFeatures, targets: Bool[np.ndarray, "x"], options: FusionOptions
) -> FusionModel:
  """Returns the model of at most max_pairs pairs: all that are labels, and of the others an even draw with weights."""
  others = np.flatnonzero(~targets)
  room = max(options.max_pairs - (len(targets) - len(others)), 1)
  weights = np.ones(len(targets))
  if len(others) > room:
    drawn = np.random.default_rng(options.seed).choice(others, room, replace=False)
    kept = targets.copy()
    kept[drawn] = True
    weights[drawn] = len(others) / room
    features, targets, weights = features.where(kept), targets[kept], weights[kept]
  return fit(features, targets, weights)


def _measured(
  data: RetrievalData,
  pairs: LabelledPairs,
  scores: Float[np.ndarray, "x"],
  weights: Float[np.ndarray, "c"] | None,
) -> Evaluation:
  """Returns the metrics of the candidates in the order of the scores."""
  ranking = ranked(pairs.found, scores, num_queries=len(pairs.query_rows), k=K)
  return evaluate_ranking(
    ranking.rows,
    qrels=[data.relevance.row(int(row)) for row in pairs.query_rows],
    metrics=[*METRICS, *(() if weights is None else WEIGHTED_METRICS)],
    weights=weights,
  )


def _gain(measured: Mapping[str, Evaluation], metric: str) -> Gain:
  """Returns what the fused head has more than the better of the two others."""
  better = max(("embedding", "classifiers"), key=lambda head: measured[head].means[metric])
  differences = measured["fused"].per_query[metric] - measured[better].per_query[metric]
  return Gain(better, float(differences.mean()), confidence_interval(differences))
