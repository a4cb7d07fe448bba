"""Which columns of a user's table hold what: our names, theirs, and how a row becomes an example."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from retrieval_jax.data import features
from retrieval_jax.data.text_table import text_id
from retrieval_jax.data.trec import grade
from retrieval_jax.errors import UserError, nearest

NAMES = ("query", "passage", "query_id", "passage_id", "relevance", "title", "negative", "negative_id")
LISTS = ("negative", "negative_id")
# Our name -> the column's name, or its number from 1 in a TSV file without a header; several for negatives.
Columns = Mapping[str, str | int | Sequence[str | int]]


class Layout(NamedTuple):
  """The columns of one table by their own names; None or () where there is none."""

  query: str
  passage: str | None
  query_id: str | None
  passage_id: str | None
  relevance: str | None
  title: str | None
  negative: tuple[str, ...]
  negative_id: tuple[str, ...]


def check_columns(columns: Columns | None, where: str) -> Mapping[str, tuple[str, ...]]:
  """Returns our names and those that a user gave for them.

  Raises: UserError for a name that is not ours, for one that stands for several columns and may not, and for a column
  that is neither a name nor a number.
  """
  if not isinstance(columns, Mapping | None):
    raise UserError(
      f"{where}: COLUMNS is {columns!r}; expected a dict of our names ({', '.join(NAMES)}) to those of your file, such as "
      '{"query": "question"}.'
    )
  found = {}
  for name, theirs in (columns or {}).items():
    if name not in NAMES:
      raise UserError(
        f"{where}: COLUMNS names {name!r}{nearest(name, NAMES) or '.'} It maps our names ({', '.join(NAMES)}) to those of your "
        'file, such as {"query": "question"}.'
      )
    values = tuple(theirs) if isinstance(theirs, list | tuple) else (theirs,)
    usable = all(isinstance(value, str | int) and not isinstance(value, bool) for value in values)
    if not values or not usable or (len(values) > 1 and name not in LISTS):
      raise UserError(
        f"{where}: COLUMNS maps {name!r} to {theirs!r}; expected the name of one column or its number"
        f"{', or a list of them' if name in LISTS else ''}."
      )
    found[name] = tuple(str(value) for value in values)
  return found


def layout(
  given: Mapping[str, tuple[str, ...]], present: Sequence[str], where: str, *, with_corpus: bool
) -> Layout:
  """Returns where a table with the columns `present` has what.

  A name that the user gave no column for is that of its column. Negatives may stand in negative, negative_1,
  negative_2, ..., their ids likewise. Where the user named columns, others are left alone; else every column is ours.

  Raises: UserError, beginning with `where`, if a column is unknown, comes twice or is two texts of an example, or if
  query or passage has none.
  """
  found = {name: given.get(name) or _own(name, present) for name in NAMES}
  if len(set(present)) != len(present):
    raise UserError(f"{where}: the header {list(present)} must name each of {', '.join(NAMES)} at most once.")
  unknown = sorted(set(present) - {column for names in found.values() for column in names})
  if unknown and not given:
    raise UserError(
      f"{where}: the column {unknown[0]!r} is not known{nearest(unknown[0], NAMES) or '.'} The header {list(present)} must name "
      f"each of {', '.join(NAMES)} at most once; or say in COLUMNS which of your columns to read, such as "
      f'{{"query": "question"}}: then others are left alone.'
    )
  if not found["query"] or not (found["passage"] or (with_corpus and found["passage_id"])):
    raise UserError(
      f"{where}: the columns {list(present)} lack query or passage. Say in COLUMNS what yours are called, such as "
      '{"query": "question", "passage": "answer"}; with CORPUS_PATH passage_id does for passage.'
    )
  _check_texts_differ(found, where)
  if found["negative_id"] and not found["negative"] and not with_corpus:
    raise UserError(f"{where}: negative_id without negative needs a file of passages: CORPUS_PATH.")
  if found["negative"] and found["negative_id"] and len(found["negative"]) != len(found["negative_id"]):
    raise UserError(
      f"{where}: {len(found['negative'])} columns of negatives ({', '.join(found['negative'])}) and "
      f"{len(found['negative_id'])} of their ids; expected one each."
    )
  single = {name: next(iter(names), None) for name, names in found.items() if name not in LISTS}
  return Layout(**(single | {name: found[name] for name in LISTS}))  # pyright: ignore[reportArgumentType]  (LISTS are tuples)


def _check_texts_differ(found: Mapping[str, Sequence[str]], where: str) -> None:
  roles: dict[str, str] = {}
  for name in ("query", "passage", "negative"):
    for column in found[name]:
      if roles.setdefault(column, name) != name:
        raise UserError(
          f"{where}: the column {column!r} is read as {roles[column]} and as {name}; expected a column of its own for "
          "each. Correct COLUMNS."
        )


def _own(name: str, present: Sequence[str]) -> tuple[str, ...]:
  if name not in LISTS:
    return (name,) if name in present else ()
  numbers = {column: re.fullmatch(rf"{name}(?:_([0-9]+))?", column) for column in present}
  return tuple(
    sorted((c for c, m in numbers.items() if m), key=lambda c: int((numbers[c] or [0, 0])[1] or 0))
  )


def pair_of(row: Mapping[str, Any], places: Layout, where: str) -> features.Example:
  """Returns the example of a row: its cells are text, or values of JSON.

  Without an id column equal texts are one query or passage. An empty cell among the negatives is none.

  Raises: UserError, beginning with `where`, for a cell that is missing or of another kind.
  """
  query = _text(row, places.query, where)
  passage = "" if places.passage is None else _text(row, places.passage, where)
  title = "" if places.title is None else _text(row, places.title, where, absent="").strip()
  relevance = 1
  if places.relevance is not None and places.relevance in row:
    relevance = grade(str(row[places.relevance]), where)
  negatives, negative_ids = _negatives(row, places, where)
  return features.pair(
    text_id(query) if places.query_id is None else _id(row, places.query_id, where),
    query,
    passage_text_id(passage, title) if places.passage_id is None else _id(row, places.passage_id, where),
    passage,
    relevance,
    title=title,
    negatives=negatives,
    negative_ids=negative_ids,
  )


def passage_text_id(text: str, title: str) -> str:
  """Returns the id of a passage that has none: equal titles and texts have one."""
  return text_id(f"{title}\t{text}" if title else text)


def _negatives(row: Mapping[str, Any], places: Layout, where: str) -> tuple[list[str], list[str]]:
  """Returns texts and ids of the row's negatives; the first is empty if the file has ids alone."""
  texts = _several(row, places.negative, where)
  if not places.negative_id:
    texts = [text for text in texts if text]
    return texts, [text_id(text) for text in texts]
  ids = _several(row, places.negative_id, where)
  if not places.negative:
    return [], [id for id in ids if id]
  if len(texts) != len(ids):
    raise UserError(f"{where}: {len(texts)} negatives and {len(ids)} ids of negatives; expected one each.")
  both = [(text, id) for text, id in zip(texts, ids, strict=True) if text or id]
  if any(not id for _, id in both):
    raise UserError(
      f"{where}: a negative without an id; the others have one ({', '.join(places.negative_id)})."
    )
  return [text for text, _ in both], [id for _, id in both]


def _several(row: Mapping[str, Any], columns: Iterable[str], where: str) -> list[str]:
  found = []
  for column in columns:
    value = row.get(column)
    for item in value if isinstance(value, list) else [value]:
      if not isinstance(item, str | int | None) or isinstance(item, bool):
        raise UserError(f"{where}: {column} is {value!r:.80}; expected text or a list of texts.")
      found.append("" if item is None else str(item))
  return found if found != [""] else []


def _text(row: Mapping[str, Any], column: str, where: str, absent: str | None = None) -> str:
  value = row.get(column)
  if value is None and absent is not None:
    return absent
  if column not in row:
    raise UserError(f"{where}: {column!r} is not in it; its keys: {', '.join(map(repr, row)):.200}.")
  if not isinstance(value, str):
    raise UserError(f"{where}: {column} is {value!r:.80}; expected text.")
  return value


def _id(row: Mapping[str, Any], column: str, where: str) -> str:
  value = row.get(column)
  if column not in row:
    raise UserError(
      f"{where}: {column!r} is not in it, but in lines before. Give each an id, or none: then equal texts are one."
    )
  if not isinstance(value, str | int) or isinstance(value, bool):
    raise UserError(f"{where}: {column} is {value!r:.80}; expected text or a whole number.")
  return str(value)
