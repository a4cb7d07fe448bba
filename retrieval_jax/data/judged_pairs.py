"""Judgements joined with the texts of their queries."""

import logging
from collections.abc import Iterator, Mapping

from retrieval_jax.data import features
from retrieval_jax.data.lines import Path
from retrieval_jax.data.trec import read_qrels
from retrieval_jax.errors import UserError

MOST_MISSING = 0.01  # beyond this share of dangling judgements the queries are of another version than they
LOG = logging.getLogger(__name__)


def judged_pairs(queries: Mapping[str, str], qrels: Path, *, where: str) -> Iterator[features.Example]:
  """Yields a pair for each judgement, in the order of the file; the passage's text is "", for it is the corpus's.

  A judgement of an unknown query is left out, with a warning that counts them.

  Args:
    queries: the texts by their ids.
    qrels: a file as `trec.read_qrels` takes it.
    where: what the warning begins with.

  Raises: UserError if more than 1% of the judgements name unknown queries.
  """
  missing: list[str] = []
  total = 0
  for query_id, passage_id, grade in read_qrels(qrels):
    total += 1
    if query_id in queries:
      yield features.pair(query_id, queries[query_id], passage_id, "", grade)
    else:
      missing.append(query_id)
  if missing:
    named = ", ".join(map(repr, missing[:3]))
    message = (
      f"{where}: {len(missing)} of {total} judgements name queries that the file of queries lacks ({named})"
    )
    if len(missing) > MOST_MISSING * total:
      raise UserError(f"{message}. Above 1% it is of another version: get the files of one release.")
    LOG.warning("%s: they are left out.", message)
