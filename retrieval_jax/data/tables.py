"""Readers of users' own tables of pairs and triples, TSV or JSON lines, and of files of passages to search."""

import pathlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from retrieval_jax.data import features
from retrieval_jax.data.lines import ENDINGS, Line, Path, json_lines, read_lines
from retrieval_jax.data.pair_columns import (
  NAMES,
  Columns,
  Layout,
  check_columns,
  layout,
  pair_of,
  passage_text_id,
)
from retrieval_jax.data.row_ids import consistent_passages
from retrieval_jax.errors import UserError

IDS, TEXTS = ("passage_id", "id", "_id"), ("passage", "text")  # what files of passages call them
# What headers of other programs call their columns: a first line of nothing else is hardly a pair or a passage.
HEADER_WORD = re.compile(
  "(q|p|doc|doc_)?id|query|questions?|answers?|passage|texts?|contents?|documents?|sentence|title|body|label|score|input|"
  "target|anchor|positive|negative|url"
)
JSON = (".jsonl", ".json", ".ndjson")


def read_tsv_pairs(
  path: Path, columns: Columns | None = None, *, with_corpus: bool = False
) -> Iterator[features.Example]:
  """Yields the pairs of a TSV file: columns query and passage, or those that a header line names.

  A header names at least `query` and `passage`; `query_id`, `passage_id`, `relevance` (an integer), `title` (the
  passage's), `negative` or `negative_1`, `negative_2`, ... and `negative_id` likewise may follow in any order. Without
  an id column equal texts are one query or passage. Costs no memory.

  Args:
    path: the file, plain, .gz or .zst.
    columns: our names -> the header's; or -> numbers from 1, if there is no header. Columns not named are left alone.
    with_corpus: the passages are in a file of their own, so that passage_id and negative_id do without texts.

  Raises: UserError with file and line number for a line with another number of columns (a tab or a line end
  inside a text shows up so), a relevance that is no int32, or a first line that looks like a header and is none.

  Example: a file with the line "what is jax\\tJAX is a library." yields one pair.
  """
  given = check_columns(columns, str(path))
  numbers = _all_numbers(columns, str(path))
  header: Sequence[str] = ()
  places: Layout | None = None
  for line in read_lines(path):
    values = line.text.split("\t")
    if places is None:
      is_header = not numbers and (bool(given) or _is_header(values, line, with_corpus))
      header = values if is_header else [str(n) for n in range(1, len(values) + 1)] if numbers else NAMES[:2]
      _check_named(given, header, line.where)
      places = layout(given, header, line.where, with_corpus=with_corpus)
      if is_header:
        continue
    if len(values) != len(header):
      raise UserError(
        f"{line.where}: {len(values)} columns, expected {len(header)} ({', '.join(header)}). One pair a line; texts "
        "must hold neither tabs nor line ends. More columns than two need a header that names them."
      )
    yield pair_of(dict(zip(header, values, strict=True)), places, line.where)


def _all_numbers(columns: Columns | None, where: str) -> bool:
  """Returns whether columns are named by numbers."""
  values = [
    value
    for theirs in (columns or {}).values()
    for value in ([theirs] if isinstance(theirs, str | int) else theirs)
  ]
  numbers = [isinstance(value, int) for value in values]
  if any(numbers) and not (all(numbers) and min(map(int, values)) >= 1):
    raise UserError(
      f"{where}: COLUMNS={dict(columns or {})!r}: expected the names of a header's columns or, for a file without one, "
      "their numbers from 1."
    )
  return any(numbers)


def _check_named(given: Mapping[str, tuple[str, ...]], header: Sequence[str], where: str) -> None:
  missing = [column for names in given.values() for column in names if column not in header]
  if missing:
    raise UserError(
      f"{where}: COLUMNS names the column {missing[0]!r}, but the columns are {list(header)}. Without a header give "
      'numbers from 1: {"query": 1, "passage": 2}.'
    )


def _is_header(values: Sequence[str], line: Line, with_corpus: bool) -> bool:
  if "query" in values and ("passage" in values or (with_corpus and "passage_id" in values)):
    return True
  if any(value.strip().lower() in NAMES[:5] for value in values):  # "title" alone may well be a query
    raise UserError(
      f"{line.where}: the first line {list(values)} looks like a header but is none. Column names: {', '.join(NAMES)}, in "
      "lower case without spaces, at least query and passage. If it is a pair, put the line query<TAB>passage above it."
    )
  if _header_words(values):
    raise UserError(
      f"{line.where}: the first line {list(values)} looks like a header whose names are not ours. Say which column is what, "
      'such as COLUMNS = {"query": "question", "passage": "answer"}. If it is a pair, put the line query<TAB>passage '
      "above it."
    )
  return False


def _header_words(values: Sequence[str]) -> bool:
  return all(HEADER_WORD.fullmatch(value.strip().lower()) for value in values)


def read_jsonl_pairs(
  path: Path, columns: Columns | None = None, *, with_corpus: bool = False
) -> Iterator[features.Example]:
  """Yields the pairs of a file of JSON objects, one a line, with the keys that `read_tsv_pairs` calls columns.

  `negative` and `negative_id` may be lists. Ids may be whole numbers. title, relevance and negatives may be missing in
  some of the objects, the others are in all or in none. Costs no memory.

  Args: as of `read_tsv_pairs`, without numbers.

  Raises: UserError with file and line number for a line that is no such object, and if no object has a key that
  `columns` names.

  Example: the line {"query": "what is jax", "passage": "JAX is a library.", "negative": ["a bird"]}.
  """
  given = check_columns(columns, str(path))
  layouts: dict[tuple[str, ...], Layout] = {}  # by the keys of an object: few in a file
  first: Layout | None = None
  for record, where in json_lines(path, ()):
    keys = tuple(record)
    if keys not in layouts:
      layouts[keys] = layout(given, keys, where, with_corpus=with_corpus)
    places = layouts[keys]
    first = first or places
    if (places.query_id, places.passage_id) != (first.query_id, first.passage_id):
      raise UserError(
        f"{where}: its keys are {', '.join(keys)}, those of objects before differ in query_id or passage_id. Give each "
        "an id, or none: then equal texts are one."
      )
    yield pair_of(record, places, where)
  seen = {key for keys in layouts for key in keys}
  never = [column for names in given.values() for column in names if column not in seen]
  if never and seen:
    raise UserError(
      f"{path}: COLUMNS names {never[0]!r}, but no object has it; their keys: {', '.join(sorted(seen))}."
    )


def is_json(path: Path) -> bool:
  """Returns whether a file's name says that it holds JSON lines."""
  name = pathlib.Path(path).name
  return name.endswith(tuple(kind + ending for kind in JSON for ending in ENDINGS))


def read_passages(path: Path) -> Iterator[features.Example]:
  """Yields the passages of a user's file: JSON lines if its name ends in .jsonl, .json or .ndjson, else TSV.

  They have an id ("passage_id", "id" or "_id"), a text ("passage" or "text") and perhaps a "title"; other keys and
  columns are left alone. A TSV file without a header has the columns text, or id, text, or id, text, title. A passage
  without an id has that of its text, as in a file of pairs. Memory: 16 bytes a passage.

  Raises: UserError with file and line number for a line of another form and for an id with two texts.

  Example: `read_passages("corpus.jsonl.gz")`, a file as BEIR has them.
  """
  return consistent_passages(lambda: passage_lines(path))


def passage_lines(path: Path) -> Iterator[tuple[features.Example, str]]:
  """Yields the passages of a file as `read_passages` does, each with where it stands; an id may come with other texts.

  Raises: UserError with file and line number for a line of another form.
  """
  rows = _json_rows if is_json(path) else _tsv_rows
  return ((_passage(row, where), where) for row, where in rows(path))


def _json_rows(path: Path) -> Iterator[tuple[Mapping[str, Any], str]]:
  yield from json_lines(path, ())


def _tsv_rows(path: Path) -> Iterator[tuple[Mapping[str, Any], str]]:
  header: Sequence[str] | None = None
  for line in read_lines(path):
    values = line.text.split("\t")
    if header is None:
      header = {1: ["text"], 2: ["id", "text"], 3: ["id", "text", "title"]}.get(len(values), [])
      if set(TEXTS) & set(values) and (len(values) == 1 or set(IDS) & set(values)):
        header = values
        continue
      if _header_words(values):
        raise UserError(
          f"{line.where}: the first line {values} looks like a header whose names are not ours: one of {', '.join(IDS)}, "
          f"one of {', '.join(TEXTS)}, and perhaps title. Rename its columns. If it is a passage, put the line "
          f"{'<TAB>'.join(header) or 'id<TAB>text'} above it."
        )
    if len(values) != len(header):
      raise UserError(
        f"{line.where}: {len(values)} columns, expected {len(header) or '1 to 3'} ({', '.join(header) or 'id, text, title'}"
        "). One passage a line; texts must hold neither tabs nor line ends."
      )
    yield dict(zip(header, values, strict=True)), line.where


def _passage(row: Mapping[str, Any], where: str) -> features.Example:
  ids, texts = [name for name in IDS if name in row], [name for name in TEXTS if name in row]
  if len(texts) != 1 or len(ids) > 1:
    raise UserError(
      f"{where}: its keys are {', '.join(row)}; expected one of {', '.join(TEXTS)}, at most one of {', '.join(IDS)}, and "
      "perhaps title."
    )
  text, title = row[texts[0]], row.get("title") or ""
  id = row[ids[0]] if ids else None
  if not (isinstance(text, str) and isinstance(title, str)) or isinstance(id, bool | float | list | dict):
    raise UserError(f"{where}: expected text as {texts[0]} and title, and text or a whole number as the id.")
  title = title.strip()
  if ids and id is None:
    raise UserError(f"{where}: {ids[0]} is null; expected text or a whole number.")
  return features.passage(passage_text_id(text, title) if id is None else str(id), text, title=title)
