"""Texts and pairs of ids as people have them: lines, TSV or JSON lines, each with an id."""

import json
from collections.abc import Iterator

from retrieval_jax.data import features
from retrieval_jax.data.lines import Line, Path, read_lines
from retrieval_jax.data.tables import is_json, passage_lines
from retrieval_jax.data.text_rows import titled
from retrieval_jax.errors import UserError

PAIR_HEADER = ("point_id", "label_id")


def read_texts(path: Path) -> Iterator[features.Example]:
  """Yields the texts of a file as passages; an id comes once.

  A file whose name is not that of JSON lines (.jsonl, .json, .ndjson) and whose first line holds no tab is of texts alone,
  a line each, whose ids are their numbers from 0; an empty line is an empty text. Others have ids: JSON lines with id, text
  and perhaps title, or TSV of id, text and perhaps title (tables.read_passages).

  Raises: UserError with file and line number for a line that cannot be read, an id that comes twice, and JSON lines in a
    file of another name.

  Example: the lines "Cats" and "Dogs" have the ids "0" and "1".
  """
  first = next(read_lines(path, empty=True), Line("", f"{path}:1"))
  if is_json(path):
    return _distinct(path)
  if _is_object(first.text):
    raise UserError(
      f"{first.where}: a JSON object, but by its name no file of JSON lines. Give it a name that ends in .jsonl."
    )
  return _distinct(path) if "\t" in first.text else _plain(path)


def _is_object(text: str) -> bool:
  try:
    return text.startswith("{") and isinstance(json.loads(text), dict)
  except (ValueError, RecursionError):
    return False


def _plain(path: Path) -> Iterator[features.Example]:
  for number, line in enumerate(read_lines(path, empty=True)):
    if "\t" in line.text:
      raise UserError(f"{line.where}: a tab, but the first line has none: ids and texts, or texts alone?")
    yield features.passage(str(number), line.text.strip())


def _distinct(path: Path) -> Iterator[features.Example]:
  """Yields the texts of a file that has ids. Memory: a hash of each id; the file is read again to name the first line."""
  seen: set[int] = set()
  for passage, where in passage_lines(path):
    id = id_of(passage)
    key = hash(id)
    if key in seen:
      first = next(place for other, place in passage_lines(path) if id_of(other) == id)
      if first != where:  # else two ids have one hash
        raise UserError(
          f"{where}: the id {id!r} comes again; it is that of {first} too. An id comes once: leave out one of the lines, or "
          "give it another id."
        )
    seen.add(key)
    yield passage


def read_id_pairs(path: Path) -> Iterator[tuple[str, str, str]]:
  """Yields (point id, label id, where) of a TSV file; the first line may name its columns, point_id and label_id.

  Raises: UserError with file and line number for a line that has not two columns.
  """
  for number, line in enumerate(read_lines(path)):
    values = line.text.split("\t")
    if number == 0 and tuple(values) == PAIR_HEADER:
      continue
    if len(values) != 2:
      raise UserError(
        f"{line.where}: {len(values)} columns, expected 2 split by a tab: {', '.join(PAIR_HEADER)}."
      )
    yield values[0], values[1], line.where


def id_of(text: features.Example) -> str:
  """Returns the id of what `read_texts` yields."""
  return str(text[features.PASSAGE_ID])


def text_of(text: features.Example) -> str:
  """Returns the whole text, a title before it."""
  return titled(str(text.get(features.TITLE, "")), str(text[features.PASSAGE]))


def same_text(text: str) -> str:
  """Returns what two texts share that differ in upper and lower case or in white space alone.

  Example: `same_text("Light  reading")` is `"light reading"`.
  """
  return " ".join(text.casefold().split())
