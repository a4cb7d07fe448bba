"""The check that no id of a file comes with two contents, as the rows stream by."""

from array import array
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import TypeVar

import numpy as np

from retrieval_jax.data import features
from retrieval_jax.errors import UserError

Row = TypeVar("Row")


def consistent(
  read: Callable[[], Iterable[tuple[Row, str]]], key: Callable[[Row], tuple[str, Hashable]]
) -> Iterator[Row]:
  """Yields the rows of a file and, at its end, refuses an id that came with two contents.

  A row that comes again is no fault: it is the same row. Memory: 16 bytes a row, for nothing but hashes are kept; the
  file is read again to name the lines.

  Args:
    read: yields (row, where) from the beginning at each call.
    key: row -> (its id, its content).

  Raises: UserError that names both lines.

  Example: `list(consistent(lambda: iter([(("a", "x"), "f:1")]), lambda row: row))` is `[("a", "x")]`.
  """
  ids, contents = array("q"), array("q")
  for row, _ in read():
    id, content = key(row)
    ids.append(hash(id))
    contents.append(hash(content))
    yield row
  clash = first_repeated(ids, contents)
  if clash is None:
    return
  (row, where), (other, other_where) = nth(read(), clash)
  id = key(row)[0]
  if id == key(other)[0]:  # and not two ids with one hash
    raise UserError(
      f"{other_where}: the id {id!r} comes with another text here than at {where}. Ids must be unique: correct the "
      "text, or give one of them another id."
    )


def consistent_passages(
  read: Callable[[], Iterable[tuple[features.Example, str]]],
) -> Iterator[features.Example]:
  """Yields passages as `consistent` does: an id stands for one title and text."""

  def key(example: features.Example) -> tuple[str, Hashable]:
    return str(example[features.PASSAGE_ID]), (example[features.PASSAGE], example.get(features.TITLE))

  return consistent(read, key)


def first_repeated(ids: array, contents: array | None = None) -> tuple[int, int] | None:
  """Returns the places (earlier, later) of the first id that came before, with other contents if those are given.

  Example: `first_repeated(array("q", [5, 6, 5]))` is `(0, 2)`.
  """
  keys = np.frombuffer(ids, np.int64)
  order = np.argsort(keys, kind="stable")
  ranked = keys[order]
  leads = np.ones(len(keys), bool)
  leads[1:] = ranked[1:] != ranked[:-1]
  firsts = order[leads][np.cumsum(leads) - 1]  # of each sorted place: where its id came first
  wrong = ~leads
  if contents is not None:
    values = np.frombuffer(contents, np.int64)
    wrong &= values[order] != values[firsts]
  if not wrong.any():
    return None
  place = np.flatnonzero(wrong)[np.argmin(order[wrong])]
  return int(firsts[place]), int(order[place])


def nth(rows: Iterable[Row], places: Iterable[int]) -> list[Row]:
  """Returns the rows at the given places, in the order of the places, which ascend.

  Example: `nth("abcd", (1, 3))` is `["b", "d"]`.
  """
  wanted = list(places)
  found: list[Row] = []
  for place, row in enumerate(rows):
    while len(found) < len(wanted) and wanted[len(found)] == place:
      found.append(row)
    if len(found) == len(wanted):
      break
  return found
