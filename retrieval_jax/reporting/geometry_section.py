"""The section of the embeddings: how the two towers' embeddings lie, in figures and numbers."""

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from jaxtyping import Float

from retrieval_jax.embedding_sample import EmbeddingSample, read_sample
from retrieval_jax.metrics.geometry import effective_rank, tower_ratios
from retrieval_jax.reporting.embedding_maps import neighbour_map, principal_map
from retrieval_jax.reporting.markup import Html, element, figures, missing, note, section, table
from retrieval_jax.reporting.metrics_section import eval_command
from retrieval_jax.reporting.plots import histogram, point_map
from retrieval_jax.reporting.run_folder import Evaluation, Run
from retrieval_jax.result_files import GEOMETRY_FILE

ANCHOR, TITLE = "embeddings", "Embeddings"
DRAWN: Final = 8  # tasks that are drawn, so that the page stays small
MAPPED: Final = 200  # pairs in the maps: t-SNE takes a second
RATIOS: Final = (-1.0, 3.0)  # what the histogram of ratios shows
NEAR: Final = 0.1  # of 1: a ratio that counts as near it
_RECORDED: Final = {
  "alignment": "alignment: mean squared distance of a query and its positive",
  "uniformity_queries": "uniformity of queries (lower: further apart)",
  "uniformity_passages": "uniformity of passages",
  "mean_cosine_passages": "mean cosine of two passages",
}


def geometry_section(run: Run, others: Sequence[Run] = ()) -> Html:
  """Returns maps and histograms of the newest evaluation of each task, with the other runs' histograms over them."""
  found = run.newest_with(GEOMETRY_FILE)
  if not found:
    why = f"No evaluation has a {GEOMETRY_FILE}: a search with embeddings writes it. Evaluate with"
    return section(ANCHOR, TITLE, missing(why, eval_command(run)))
  parts: list[Html] = []
  for evaluation in found[:DRAWN]:
    parts += _of_task(run, evaluation, others)
  if found[DRAWN:]:
    parts.append(note(f"Not drawn: {', '.join(e.title for e in found[DRAWN:])}."))
  return section(ANCHOR, TITLE, *parts)


def _of_task(run: Run, evaluation: Evaluation, others: Sequence[Run]) -> list[Html]:
  same = {other.name: found for other in others if (found := _same(other, evaluation)) is not None}
  evaluations = {run.name: evaluation, **same}
  samples = {name: read_sample(one.folder / GEOMETRY_FILE) for name, one in evaluations.items()}
  rows = {name: {"step": f"{one.step:,}", **_numbers(samples[name])} for name, one in evaluations.items()}
  for name, one in evaluations.items():
    rows[name] |= {
      said: f"{one.record[number]:.3f}" for number, said in _RECORDED.items() if number in one.record
    }
  names = list(dict.fromkeys(name for numbers in rows.values() for name in numbers))
  numbers = table(
    [evaluation.title, *rows],
    [[name, *(numbers.get(name, "-") for numbers in rows.values())] for name in names],
  )
  return [element("h3", evaluation.title), _figures(samples), numbers]


def _same(other: Run, evaluation: Evaluation) -> Evaluation | None:
  """Returns another run's newest evaluation of the same task by the same searcher, if it kept embeddings."""
  for one in other.newest():
    if (one.task, one.kind) == (evaluation.task, evaluation.kind) and (one.folder / GEOMETRY_FILE).is_file():
      return one
  return None


def _figures(samples: Mapping[str, EmbeddingSample]) -> Html:
  """Returns what is drawn: the maps of the first run, the histograms of all."""
  name, sample = next(iter(samples.items()))
  kept = _whole(sample)
  queries, passages = (side[kept].astype(np.float32) for side in (sample.queries, sample.passages))
  made, some = [], slice(0, MAPPED)
  if len(queries) >= 2:
    plane = principal_map(queries[some], passages[some])
    share = 0.0 if plane.share is None else plane.share
    made.append(
      point_map("Both towers, PCA", plane, caption=f"{100 * share:.0f}% of the variance lies in this plane")
    )
  if len(queries) >= 3:
    neighbours = neighbour_map(queries[some], passages[some])
    made.append(
      point_map("Both towers, t-SNE", neighbours, caption="near points are near; distances mean little")
    )
  cosines: dict[str, np.ndarray] = {n: s.top_cosines for n, s in samples.items() if len(s.top_cosines)}
  if len(samples) == 1 and name in cosines:
    cosines = {"first result": cosines[name], "own positive": _pair_cosines(sample)}
  if cosines:
    low = min(0.0, *(float(values.min()) for values in cosines.values()))
    made.append(
      histogram("Query to its first result", cosines, bounds=(np.floor(10 * low) / 10, 1.0), axis="cosine")
    )
  ratios = {n: _ratios(s) for n, s in samples.items()}
  ratios = {n: values for n, values in ratios.items() if len(values)}
  if ratios:
    made.append(
      histogram(
        "Same tower to cross tower",
        ratios,
        bounds=RATIOS,
        axis="cos(q_i, q_j) / cos(q_i, p_j), i and j differ",
        mark=1.0,
      )
    )
  return figures(made)


def _numbers(sample: EmbeddingSample) -> dict[str, str]:
  """Returns what is measured on the sample, as text."""
  kept = _whole(sample)
  queries, passages = (side[kept].astype(np.float32) for side in (sample.queries, sample.passages))
  found = {"pairs": f"{len(sample.query_norms):,}", "dimensions": f"{sample.queries.shape[1]:,}"}
  for side, norms in (("queries", sample.query_norms), ("passages", sample.passage_norms)):
    if len(norms):
      found[f"length of {side}, mean and deviation"] = f"{norms.mean():.3f} \u00b1 {norms.std():.3f}"
  for side, rows in (("queries", queries), ("passages", passages)):
    if len(rows):
      found[f"effective rank of {side}"] = f"{effective_rank(rows):.1f}"
  if len(sample.top_cosines):
    found["cosine of a query and its first result, median"] = f"{np.median(sample.top_cosines):.3f}"
  if len(queries):
    found["cosine of a query and its positive, median"] = f"{np.median(_pair_cosines(sample)):.3f}"
  ratios = _ratios(sample)
  if len(ratios):
    low, middle, high = np.quantile(ratios, [0.25, 0.5, 0.75])
    found["ratio of same tower to cross tower, median and quartiles"] = (
      f"{middle:.2f} ({low:.2f} to {high:.2f})"
    )
    share = np.mean(np.abs(ratios - 1) <= NEAR)
    found[f"ratios within {NEAR} of 1"] = f"{100 * share:.0f}%"
  return found


def _whole(sample: EmbeddingSample) -> np.ndarray:
  """Returns which pairs have a direction on both sides."""
  return (sample.query_norms > 0) & (sample.passage_norms > 0)


def _pair_cosines(sample: EmbeddingSample) -> Float[np.ndarray, "e"]:
  kept = _whole(sample)
  return np.sum(sample.queries[kept].astype(np.float32) * sample.passages[kept].astype(np.float32), axis=1)


def _ratios(sample: EmbeddingSample) -> Float[np.ndarray, "pairs"]:
  kept = _whole(sample)
  if np.count_nonzero(kept) < 2:
    return np.zeros(0)
  return tower_ratios(sample.queries[kept].astype(np.float32), sample.passages[kept].astype(np.float32))
