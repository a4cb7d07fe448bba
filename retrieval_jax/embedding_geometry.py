"""How the embeddings of a task lie, measured on a sample, and a warning when they have collapsed."""

import sys
from collections.abc import Mapping

import numpy as np
from jaxtyping import Float, Int

from retrieval_jax.data.dataset import RetrievalData
from retrieval_jax.metrics.geometry import alignment, mean_cosine, uniformity
from retrieval_jax.searchers import EmbeddedTask

SAMPLE = 2000  # rows of a side that the geometry is measured on: 0.2 s
COLLAPSED = 0.95  # mean cosine of two passages above which a model hardly tells them apart


def measure_geometry(embedded: EmbeddedTask, data: RetrievalData) -> dict[str, float]:
  """Returns numbers that say how the embeddings lie, on at most 2,000 queries and passages, always the same ones:
  alignment (of queries with their first positive), uniformity_queries, uniformity_passages, mean_cosine_passages.

  They are those of metrics/geometry.py: of directions, so embeddings of zeros are left out. A number that takes more
  rows than there are is left out too.
  """
  queries = _sample(len(embedded.queries))
  answers_of = data.relevance.positives(data.judged[queries])
  answered = answers_of[:, 0] >= 0 if answers_of.shape[1] else np.zeros(len(queries), bool)
  asked = embedded.queries[queries]
  found = {}
  if answered.any():
    answers = embedded.passages[answers_of[answered, 0]]
    both = _nonzero(answers) & _nonzero(asked[answered])
    if both.any():
      found["alignment"] = alignment(asked[answered][both], answers[both])
  asked = asked[_nonzero(asked)]
  passages = embedded.passages[_sample(len(embedded.passages))]
  passages = passages[_nonzero(passages)]
  if len(asked) > 1:
    found["uniformity_queries"] = uniformity(asked)
  if len(passages) > 1:
    found["uniformity_passages"] = uniformity(passages)
    found["mean_cosine_passages"] = mean_cosine(passages)
  return found


def warn_of_collapse(name: str, geometry: Mapping[str, float]) -> None:
  """Prints a warning when two passages of the task `name` have nearly the same embedding on average."""
  found = geometry.get("mean_cosine_passages", 0.0)
  if found > COLLAPSED:
    print(
      f"warning: {name}: two passages have the mean cosine {found:.3f}, above {COLLAPSED}: their embeddings hardly "
      "differ. Either the model is not trained yet, or its pooling sees what all texts share (a special token, a "
      "prefix): compare POOLING and the prefixes with those the model was made with.",
      file=sys.stderr,
    )


def _sample(count: int) -> Int[np.ndarray, "e"]:
  """Returns at most SAMPLE of the rows, ascending: a function of their number alone."""
  if count <= SAMPLE:
    return np.arange(count)
  return np.sort(np.random.default_rng(0).choice(count, SAMPLE, replace=False))


def _nonzero(rows: Float[np.ndarray, "e d"]) -> np.ndarray:
  return np.any(rows != 0, axis=1)
