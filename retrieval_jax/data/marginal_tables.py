"""MarginalTables: a gravity's weights of every row of the data, gathered for a batch."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from retrieval_jax.records import Marginals


class SideTables(NamedTuple):
  """mass and share (records.Marginals) of every row of a store, at the row of its identity; 0 elsewhere."""

  mass: Float[np.ndarray, "r"]
  share: Float[np.ndarray, "r"]


class MarginalTables(NamedTuple):
  """Both sides."""

  queries: SideTables
  passages: SideTables

  def gather(self, query_rows: Int[np.ndarray, "q"], passage_rows: Int[np.ndarray, "q"]) -> Marginals:
    """Returns the weights of examples by the identities of their query and own passage; -1 (padding) has zeros.

    Example: `tables.gather(np.array([0, -1]), np.array([4, -1])).query_mass[1]` is 0.
    """
    return Marginals(
      query_mass=_rows(self.queries.mass, query_rows),
      passage_mass=_rows(self.passages.mass, passage_rows),
      query_share=_rows(self.queries.share, query_rows),
      passage_share=_rows(self.passages.share, passage_rows),
    )


def _rows(values: Float[np.ndarray, "r"], rows: Int[np.ndarray, "q"]) -> Float[np.ndarray, "q"]:
  return np.where(rows >= 0, values[np.maximum(rows, 0)], 0).astype(np.float32)
