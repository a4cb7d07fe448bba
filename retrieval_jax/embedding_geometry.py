"""How the embeddings of a task lie, measured on a sample, a sample to keep, and a warning when they have collapsed."""

import sys
from collections.abc import Mapping

import numpy as np
from jaxtyping import Float

from retrieval_jax.data.dataset import RetrievalData
from retrieval_jax.embedding_sample import TOPS, EmbeddingSample, fixed_sample, most_pairs, sample_of
from retrieval_jax.metrics.geometry import alignment, mean_cosine, uniformity
from retrieval_jax.records import Ranking
from retrieval_jax.searchers import EmbeddedTask

SAMPLE = 2000  # rows of a side that the geometry is measured on: 0.2 s
COLLAPSED = 0.95  # mean cosine of two passages above which a model hardly tells them apart


def measure_geometry(embedded: EmbeddedTask, data: RetrievalData) -> dict[str, float]:
  """Returns numbers that say how the embeddings lie, on at most 2,000 queries and passages, always the same ones:
  alignment (of queries with their first positive), uniformity_queries, uniformity_passages, mean_cosine_passages.

  They are those of metrics/geometry.py: of directions, so embeddings of zeros are left out. A number that takes more
  rows than there are is left out too.
  """
  queries = fixed_sample(len(embedded.queries), SAMPLE)
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
  passages = embedded.passages[fixed_sample(len(embedded.passages), SAMPLE)]
  passages = passages[_nonzero(passages)]
  if len(asked) > 1:
    found["uniformity_queries"] = uniformity(asked)
  if len(passages) > 1:
    found["uniformity_passages"] = uniformity(passages)
    found["mean_cosine_passages"] = mean_cosine(passages)
  return found


def sample_embeddings(embedded: EmbeddedTask, data: RetrievalData, ranking: Ranking) -> EmbeddingSample:
  """Returns the embeddings that an evaluation keeps (embedding_sample.py): of judged queries with a positive and of their first
  positive, and the cosine of judged queries with their first result. The same rows for every model, as far as there is a result.

  ranking: of data.judged, in that order.

  Cost: at most 5,000 rows are read, some 30 ms, and 5,000 x d float32 of memory for a moment.
  """
  judged = data.judged
  able = np.flatnonzero(data.relevance.counts[judged] > 0)
  pairs = able[fixed_sample(len(able), most_pairs(embedded.queries.shape[1]))]
  positives = data.relevance.passage_rows[
    data.relevance.offsets[judged[pairs]]
  ]  # positives come first in their row
  asked = fixed_sample(len(judged), TOPS)
  asked = asked[ranking.rows[asked, 0] >= 0]
  return sample_of(
    (embedded.queries[pairs], embedded.passages[positives]),
    (embedded.queries[asked], embedded.passages[ranking.rows[asked, 0]]),
  )


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


def _nonzero(rows: Float[np.ndarray, "e d"]) -> np.ndarray:
  return np.any(rows != 0, axis=1)
