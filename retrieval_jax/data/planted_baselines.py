"""Two rankings of a planted graph that learn nothing: by what was planted, which no model beats but by chance, and by popularity."""

from collections.abc import Mapping

import numpy as np
from jaxtyping import Float, Int

from retrieval_jax.data.planted_plan import MOST_DRAWS, SAMPLE, SPLITS, Plan

QUERIES = 10_000  # about so many items are measured, those that have a test link
CUTOFF = 10
DEEPEST = CUTOFF + MOST_DRAWS + 1  # of an item's links and itself, all may stand before the results


class Baselines:
  """Gathers links as they are drawn, and then measures both rankings as evaluation would: links of other splits are no results.

  Memory: 9 bytes an item, and the links of 10,000 items.

  Example: `baselines = Baselines(plan); baselines.add(links, plan.splits(links)); baselines.measure()`.
  """

  def __init__(self, plan: Plan):
    self._plan = plan
    self._popularity = np.zeros(plan.recipe.items, np.int64)
    share = QUERIES / plan.recipe.items
    self._sampled: np.ndarray = plan.recipe.uniform(np.arange(plan.recipe.items), SAMPLE) < share
    self._links: dict[int, list[tuple[int, bool]]] = {}

  def add(self, links: Int[np.ndarray, "e 2"], splits: Int[np.ndarray, "e"]) -> None:
    """Takes links and the places of their splits."""
    test = splits == SPLITS.index("test")
    train = links[splits == SPLITS.index("train"), 1]
    self._popularity += np.bincount(train, minlength=len(self._popularity))
    kept = self._sampled[links[:, 0]]
    for (source, target), is_test in zip(links[kept].tolist(), test[kept].tolist(), strict=True):
      self._links.setdefault(source, []).append((target, is_test))

  def measure(self) -> Mapping[str, float]:
    """Returns the map@10 of "oracle" and "popularity", and the number of "queries"; 0 queries for a graph without test links."""
    by_topic: dict[int, list[int]] = {}
    for item, links in self._links.items():
      if any(is_test for _, is_test in links):
        by_topic.setdefault(int(self._plan.topics_of(np.array([item]))[0]), []).append(item)
    popular = _best(self._popularity)
    sums, queries = np.zeros(2), 0
    for topic, items in by_topic.items():
      likely = _best(self._plan.likelihoods(topic))
      sums += np.sum([[self._precision(item, best) for best in (likely, popular)] for item in items], axis=0)
      queries += len(items)
    oracle, popularity = (sums / max(queries, 1)).tolist()
    return {"oracle_map@10": oracle, "popularity_map@10": popularity, "queries": queries}

  def _precision(self, item: int, best: list[int]) -> float:
    """Returns the average precision at 10 of the items `best` for a query."""
    relevant = {target for target, is_test in self._links[item] if is_test}
    gone = {item, *(target for target, is_test in self._links[item] if not is_test)}
    results = [target for target in best if target not in gone][:CUTOFF]
    found, total = 0, 0.0
    for rank, target in enumerate(results, start=1):
      if target in relevant:
        found += 1
        total += found / rank
    return total / len(relevant)


def _best(scores: Float[np.ndarray, "n"] | Int[np.ndarray, "n"]) -> list[int]:
  """Returns the items with the highest scores, the highest first; of equal ones the first item."""
  top = (
    np.argpartition(-scores, min(DEEPEST, len(scores) - 1))[:DEEPEST]
    if len(scores) > DEEPEST
    else np.arange(len(scores))
  )
  return top[np.lexsort((top, -scores[top]))].tolist()
