"""Rankings and judgements that name passages by id, as rows that the metrics take."""

from collections.abc import Mapping, Sequence
from itertools import repeat

import numpy as np
from jaxtyping import Int

from retrieval_jax.errors import UserError
from retrieval_jax.metrics.judgements import Qrels


def rows_of_ids(
  found: Sequence[Sequence[str]], qrels: Sequence[Mapping[str, float]]
) -> tuple[Int[np.ndarray, "q k"], Qrels]:
  """Returns a ranking and judgements for `evaluate_ranking`, from passage ids; no corpus is needed.

  found: the ids found for each query, best first; the rankings may differ in length, a query without results has [].
  qrels: id -> grade of each query, in the same order; {} where nothing was judged.

  A row number means a passage within its query alone: the judged ones come first, the other results behind them. It
  is much faster than looking all ids up in a corpus, as nearly all results of a query are not judged.

  Raises: UserError if the numbers of queries differ, and if an id comes twice among the results of a query.

  Example: `rows_of_ids([["a", "b"]], [{"b": 1}])` has the rows [[1, 0]], of which 0 has the grade 1.
  """
  if len(found) != len(qrels):
    raise UserError(f"The ranking has {len(found)} queries and the judgements {len(qrels)}.")
  rows = np.full((len(found), max(map(len, found), default=0)), -1, np.int32)
  for query, (ids, grades) in enumerate(zip(found, qrels, strict=True)):
    if len(set(ids)) < len(ids):
      raise UserError(
        f"The ranking of query {query} names passage {_repeated(ids)!r} twice; each result must be another one."
      )
    numbers = dict(zip(grades, range(len(grades)), strict=True))
    row = np.fromiter(map(numbers.get, ids, repeat(-1)), np.int32, len(ids))
    others = row < 0
    row[others] = len(grades) + np.arange(np.count_nonzero(others))
    rows[query, : len(ids)] = row
  return rows, Qrels.of([(np.arange(len(grades)), np.array(list(grades.values()))) for grades in qrels])


def _repeated(ids: Sequence[str]) -> str:
  seen: set[str] = set()
  return next(name for name in ids if name in seen or seen.add(name))
