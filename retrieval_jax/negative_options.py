"""NegativeOptions: which hard negatives a training takes, whether the data have them, and what it says of that."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from retrieval_jax.data.dataset import RetrievalData
from retrieval_jax.data.negative_lines import first_line_of
from retrieval_jax.errors import UserError
from retrieval_jax.refresh_options import NegativeRefresh


class NegativeOptions(NamedTuple):
  """The default trains with the other passages of the batch alone.

  path (HARD_NEGATIVES_PATH): a TSV file of query_id, passage_id (data/negatives_file.py), joined with the negatives that
    the task's own examples have. `python -m retrieval_jax.mine` writes one.
  per_query (HARD_NEGATIVES): how many are drawn of each query's, others in each epoch. A batch of q queries then has
    q (1 + per_query) passages. A query that has fewer leaves places empty, which count for nothing.
  allow_fewer (ALLOW_FEWER_NEGATIVES): False makes a query with fewer than per_query an error before training starts.
  refresh (NEGATIVE_REFRESH): when they are mined anew with the model that is being trained; None: never.

  Example: `NegativeOptions("negatives.tsv", per_query=4)`.
  """

  path: str | None = None
  per_query: int = 0
  allow_fewer: bool = True
  refresh: NegativeRefresh | None = None

  def check_number(self) -> None:
    """Raises UserError unless per_query is a whole number of at least 0 and `refresh` can be."""
    if type(self.per_query) is not int or self.per_query < 0:
      raise UserError(f"HARD_NEGATIVES={self.per_query!r}: expected a whole number of at least 0.")
    if self.refresh is not None:
      self.refresh.check(self.per_query)

  def check(self, data: RetrievalData) -> None:
    """Raises UserError if the data have no hard negatives that are asked for, or, unless that is allowed, too few of a
    query: it names the query, and file and line where a file has some of it."""
    if not self.per_query or self.refresh is not None:
      return
    counts = _counts(data)
    if not counts.any():
      raise UserError(
        f"HARD_NEGATIVES={self.per_query}, but {data.name}/{data.split} has none. Name a file of them with "
        "--gin.HARD_NEGATIVES_PATH (python -m retrieval_jax.mine writes one), or give the task the feature "
        "negative_targets or negative_ids."
      )
    short = np.flatnonzero(counts < self.per_query)
    if self.allow_fewer or not len(short):
      return
    query_id = data.queries.ids[int(data.examples[short[0]])]
    raise UserError(
      f"HARD_NEGATIVES={self.per_query}, but {len(short)} of {len(counts)} queries have fewer that can be used: the first "
      f"is {query_id!r} with {counts[short[0]]} ({self._where(query_id)}). Add some, lower HARD_NEGATIVES, or "
      "set ALLOW_FEWER_NEGATIVES=True to leave their places empty."
    )

  def describe(self, data: RetrievalData, batch_size: int) -> list[str]:
    """Returns the lines to print at the start of a training: none where there are no hard negatives.

    Example: with 4 of up to 8 a query, one line says so, and how many passages a batch has.
    """
    counts = _counts(data)
    if self.refresh is not None:
      return [self._describe_refresh(batch_size)]
    if not counts.any():
      return []
    if not self.per_query:
      return [
        f"warning: the data have up to {counts.max()} hard negatives a query ({counts.mean():.1f} on average) and none is "
        "used; --gin.HARD_NEGATIVES=n draws n of each query's in every epoch"
      ]
    n = self.per_query
    lines = [
      f"hard negatives: {n} drawn of up to {counts.max()} a query in every epoch ({counts.mean():.1f} on average); a batch "
      f"has {batch_size} x (1 + {n}) = {batch_size * (1 + n)} passages"
    ]
    short, none = np.count_nonzero(counts < n), np.count_nonzero(counts == 0)
    if short:
      used = np.minimum(counts, n).mean()
      lines.append(
        f"{short:,} of {len(counts):,} queries have fewer than {n}, {none:,} of them none: their places stay empty, which "
        f"makes {used:.2f} a query on average"
      )
    return lines

  def _describe_refresh(self, batch_size: int) -> str:
    assert self.refresh is not None
    n, refresh = self.per_query, self.refresh
    return (
      f"hard negatives: {n} drawn of the {refresh.depth} best a query, mined from epoch {refresh.start} on every "
      f"{refresh.epochs} epochs; a batch has {batch_size} x (1 + {n}) = {batch_size * (1 + n)} passages"
    )

  def _where(self, query_id: str) -> str:
    if self.path is None:
      return "the task's own"
    return first_line_of(self.path, query_id) or f"no line of {self.path} names it"


def _counts(data: RetrievalData) -> Int[np.ndarray, "e"]:
  """Returns the number of hard negatives of each example."""
  if data.negatives is None:
    return np.zeros(data.num_examples, np.int64)
  return data.negatives.counts[data.examples]
