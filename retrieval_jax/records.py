"""The records that pass between the parts, and the axis letters of the whole project.

Axis letters: q queries, p passages in the batch, n hard negatives per query, r positives per query, l/m tokens,
d embedding, c corpus rows, k top-k, e examples, s clusters, v vocabulary.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Array, Bool, Float, Int

AnyArray = Array | np.ndarray
# What a tower reads: token ids, 0 pads; or, for a feature-bag tower, the ids of every feature.
Tokens = Int[AnyArray, "b l"] | Mapping[str, Int[AnyArray, "b _"]]


class Marginals(NamedTuple):
  """How the gravity of gramian.py weighs the two sides of each example, whose query and own passage the data draw with the
  probabilities w_x and w_y: it is to weigh them with rho_x and rho_y, two distributions over the queries and passages.

  mass: rho / w, the importance weight of a drawn row; its mean over the draws is 1, and it is 1 throughout where the
    gravity follows the data. share: rho, the part of the row in the whole Gramian; all different rows' shares sum to 1.
  Padding has zeros.
  """

  query_mass: Float[AnyArray, "q"]
  passage_mass: Float[AnyArray, "q"]
  query_share: Float[AnyArray, "q"]
  passage_share: Float[AnyArray, "q"]


class Batch(NamedTuple):
  """One global batch. Passages: the q positives first (row i belongs to query i), then hard negatives, row-major.

  Tokens are [q l] and [p m], or a feature-bag tower's mapping of feature to ids. p = q * (1 + n). A padding example has weight 0, rows -1 and tokens 0; its passages are padding too.
  Rows are identities, not mere positions: two rows with equal tokens carry the same (first) row number.
  """

  query_tokens: Tokens
  passage_tokens: Tokens
  query_rows: Int[AnyArray, "q"]
  passage_rows: Int[AnyArray, "p"]
  positives: Int[
    AnyArray, "q r"
  ]  # every known positive row of each query; -1 pads. What must not act as a negative.
  weights: Float[AnyArray, "q"]  # 0 = padding
  targets: Float[AnyArray, "q"] | None = None  # grade of each query's own positive
  teacher_scores: Float[AnyArray, "q p"] | None = None  # -inf: the teacher did not score the pair
  # False: the example's negatives are its own hard negatives, and it is none of others. None: all are True.
  in_batch: Bool[AnyArray, "q"] | None = None
  marginals: Marginals | None = None  # of a gravity (losses/gramian.py)
  # Examples of a draw of its own, for a loss that estimates something from examples other than those it learns from.
  estimation: "Batch | None" = None


class EmbeddedBatch(NamedTuple):
  """A Batch after the towers: what a Loss sees. Fields as in Batch, tokens replaced by embeddings."""

  query: Float[AnyArray, "q d"]
  passage: Float[AnyArray, "p d"]
  query_rows: Int[AnyArray, "q"]
  passage_rows: Int[AnyArray, "p"]
  positives: Int[AnyArray, "q r"]
  weights: Float[AnyArray, "q"]
  targets: Float[AnyArray, "q"] | None = None
  teacher_scores: Float[AnyArray, "q p"] | None = None
  in_batch: Bool[AnyArray, "q"] | None = None
  marginals: Marginals | None = None

  @classmethod
  def of(cls, batch: Batch, query: AnyArray, passage: AnyArray) -> "EmbeddedBatch":
    """Returns `batch` with its tokens replaced by the embeddings `query` [q, d] and `passage` [p, d]."""
    return cls(query, passage, **{name: getattr(batch, name) for name in cls._fields[2:]})


class LossOutput(NamedTuple):
  """The scalar to minimise (float32) and the scalars to log beside it."""

  loss: Float[AnyArray, ""]
  metrics: Mapping[str, Any]


class Ranking(NamedTuple):
  """The k best corpus rows of each query, best first. Ties: higher score, then smaller row. Row -1 pads: fewer than k results."""

  rows: Int[np.ndarray, "q k"]
  scores: Float[np.ndarray, "q k"]
