"""Pairs of a query and a passage that are no results, as row numbers: removed before ranking, and no negatives."""

import itertools
import pathlib
from array import array
from collections.abc import Callable, Iterable

import numpy as np

from retrieval_jax.data.relevance import Relevance
from retrieval_jax.data.text_rows import TextRows
from retrieval_jax.data.text_table import hash_text
from retrieval_jax.errors import UserError


def filtered_table(
  read: Callable[[], Iterable[tuple[str, str]]], queries: pathlib.Path, passages: pathlib.Path, *, where: str
) -> Relevance | None:
  """Returns the (query id, passage id) pairs as a table in which each has grade 1; None if there are none.

  Memory: 16 bytes a pair.

  Args:
    read: yields the pairs, in any order, from the beginning at each call; one that comes twice is one.
    queries, passages: the folders of the split's text rows.
    where: how a message begins.

  Raises: UserError for a pair whose query or passage is not there.

  Example: of the pair ("q1", "p7") the table's `row(0)` is `([7], [1])`, if these ids stand at the rows 0 and 7.
  """
  owners, targets = array("Q"), array("Q")
  for query_id, passage_id in read():
    owners.append(hash_text(query_id))
    targets.append(hash_text(passage_id))
  if not owners:
    return None
  query_rows = TextRows(queries).rows_of_hashes(np.array(owners, np.uint64))
  passage_rows = TextRows(passages).rows_of_hashes(np.array(targets, np.uint64))
  lost = np.flatnonzero((query_rows < 0) | (passage_rows < 0))
  if lost.size:
    first = next(itertools.islice(read(), int(lost[0]), None))
    what = "query" if query_rows[lost[0]] < 0 else "passage"
    raise UserError(
      f"{where}: {lost.size} of {len(owners)} filter pairs name what is not there, the first one {first!r}, whose "
      f"{what} is unknown. Get the files of one release."
    )
  return Relevance.from_pairs(
    query_rows, passage_rows, np.ones(len(owners), np.int32), num_queries=len(TextRows(queries))
  )
