"""Pairs as examples: every (query, positive passage) is trained on as often as any other, however many its query has."""

import numpy as np
from jaxtyping import Float, Int

from retrieval_jax.data.built_folder import short_hash
from retrieval_jax.data.dataset import RetrievalData
from retrieval_jax.errors import UserError


def by_pair(data: RetrievalData) -> RetrievalData:
  """Returns the data with an example for each pair of a query and one of its positives, in the order of the queries.

  An epoch so has every pair once; a query with many positives comes up as many times, which is how the links of a graph
  are drawn (Krichene et al. 2019, arXiv 1807.07187). Without it an epoch has every query once, with one positive. 12
  bytes a pair.

  Raises: UserError for a mixture, whose rates are of queries.

  Example: with the positives (4, 7) of query 0 and (4,) of query 2, `examples` is [0, 0, 2] and `chosen` [0, 1, 0].
  """
  if data.tasks:
    raise UserError(
      "TRAIN_EXAMPLES='pairs' with a mixture: its rates are of queries. Train on one task, or leave TRAIN_EXAMPLES='queries'."
    )
  counts = data.relevance.counts[data.examples]
  return data._replace(
    examples=np.repeat(data.examples, counts),
    chosen=_places(counts),
    fingerprint=short_hash({"queries": data.fingerprint, "examples": "pairs"}),
  )


def drawn_pairs(
  data: RetrievalData,
) -> tuple[Int[np.ndarray, "e"], Int[np.ndarray, "e"], Float[np.ndarray, "e"]]:
  """Returns (query rows, passage rows, probabilities) of all pairs that a batch may draw, as `make_batch` draws them.

  Example: of the pairs (0, 4), (0, 7), (2, 4) each has 1/3 by pairs; by queries they have 1/4, 1/4 and 1/2.
  """
  relevance, examples = data.relevance, data.examples
  each = _example_probabilities(data)
  if data.chosen is not None:
    places = relevance.offsets[examples] + data.chosen
    return examples, relevance.passage_rows[places], each
  counts = relevance.counts[examples]
  places = np.repeat(relevance.offsets[examples], counts) + _places(counts)
  probabilities = np.repeat(each / counts, counts)
  return np.repeat(examples, counts), relevance.passage_rows[places], probabilities


def _example_probabilities(data: RetrievalData) -> Float[np.ndarray, "e"]:
  """Returns how often each example is drawn: alike, and of a mixture at the rates of its tasks."""
  if not data.tasks:
    return np.full(data.num_examples, 1 / max(data.num_examples, 1))
  total = sum(task.rate for task in data.tasks)
  each = [task.rate / total / task.num_examples for task in data.tasks]
  return np.repeat(each, [task.num_examples for task in data.tasks])


def _places(counts: Int[np.ndarray, "q"]) -> Int[np.ndarray, "e"]:
  """Returns 0 .. count - 1 for each of the counts, one after the other."""
  total = np.cumsum(counts, dtype=np.int64)
  return np.arange(total[-1] if len(total) else 0) - np.repeat(total - counts, counts)
