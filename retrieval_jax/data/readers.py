"""Readers of users' text files: TSV pairs and BEIR folders, plain or gzipped.

Lines end at the byte "\\n" and nowhere else: U+2028, U+0085 and a carriage return inside a text are text.
"""

import gzip
import json
import logging
import os
import pathlib
from collections.abc import Iterator
from typing import Any, NamedTuple

from retrieval_jax.data import features
from retrieval_jax.data.pair_table import MOST_MISSING
from retrieval_jax.data.text_table import text_id
from retrieval_jax.errors import UserError
from retrieval_jax.paths import resolve

LOG = logging.getLogger(__name__)
TSV_COLUMNS = ("query", "passage", "query_id", "passage_id", "relevance", "title")

Path = str | os.PathLike[str]


class Line(NamedTuple):
  """One line without its end, and where it stands: `path:number`, from 1."""

  text: str
  where: str


def read_lines(path: Path) -> Iterator[Line]:
  """Yields the lines of a UTF-8 file that are not empty; a name ending in .gz is decompressed on the way.

  A byte order mark is dropped. A carriage return at a line's end is dropped if the first line has one too.

  Raises: UserError with file and line number if the file is missing, damaged or not UTF-8.
  """
  found = resolve(path)
  number, line_end = 0, b"\n"
  try:
    with gzip.open(found, "rb") if found.suffix == ".gz" else open(found, "rb") as file:
      for number, line in enumerate(file, start=1):
        if number == 1:
          line = line.removeprefix(b"\xef\xbb\xbf")
          line_end = b"\r\n" if line.endswith(b"\r\n") else b"\n"
        text = line.removesuffix(b"\n") if not line.endswith(line_end) else line.removesuffix(line_end)
        if text:
          yield Line(text.decode("utf-8"), f"{found}:{number}")
  except UnicodeDecodeError as error:
    raise UserError(f"{found}:{number}: not UTF-8 ({error.reason}). Convert the file to UTF-8.") from error
  except (EOFError, gzip.BadGzipFile, OSError) as error:
    raise UserError(f"{found}:{number + 1}: cannot be read ({error}). Get the file anew.") from error


def read_tsv_pairs(path: Path) -> Iterator[features.Example]:
  """Yields the pairs of a TSV file: columns query and passage, or those that a header line names.

  A header names at least `query` and `passage`; `query_id`, `passage_id`, `relevance` (an integer) and `title` (the
  passage's) may follow in any order. Without an id column equal texts are one query or passage. Costs no memory.

  Raises: UserError with file and line number for a line with another number of columns (a tab or a line end
  inside a text shows up so), a relevance that is no int32, or a first line that looks like a header and is none.

  Example: a file with the line "what is jax\\tJAX is a library." yields one pair.
  """
  header: list[str] | None = None
  for line in read_lines(path):
    values = line.text.split("\t")
    if header is None:
      header = _tsv_header(values, line.where)
      if {"query", "passage"} <= set(values):
        continue
    if len(values) != len(header):
      raise UserError(
        f"{line.where}: {len(values)} columns, expected {len(header)} ({', '.join(header)}). One pair a line; texts "
        "must hold neither tabs nor line ends."
      )
    row = dict(zip(header, values, strict=True))
    title = row.get("title", "").strip()
    yield features.pair(
      row.get("query_id", text_id(row["query"])),
      row["query"],
      row.get("passage_id", text_id(f"{title}\t{row['passage']}" if title else row["passage"])),
      row["passage"],
      _grade(row.get("relevance", "1"), line.where),
      title=title,
    )


def _tsv_header(values: list[str], where: str) -> list[str]:
  if {"query", "passage"} <= set(values):
    unknown = sorted(set(values) - set(TSV_COLUMNS))
    if unknown or len(set(values)) != len(values):
      raise UserError(
        f"{where}: the header {values} must name each of {', '.join(TSV_COLUMNS)} at most once."
      )
    return values
  if any(value.strip().lower() in TSV_COLUMNS[:5] for value in values):  # "title" alone may well be a query
    raise UserError(
      f"{where}: the first line {values} looks like a header but is none. Column names: {', '.join(TSV_COLUMNS)}, in "
      "lower case without spaces, at least query and passage. If it is a pair, put the line query<TAB>passage above it."
    )
  return ["query", "passage"]


def _grade(text: str, where: str) -> int:
  try:
    grade = int(text)
  except ValueError:
    raise UserError(f"{where}: relevance {text!r}; expected an integer.") from None
  if not -(2**31) <= grade < 2**31:
    raise UserError(f"{where}: relevance {text!r}; expected an integer from -2**31 to 2**31 - 1.")
  return grade


def _is_number(text: str) -> bool:
  try:
    float(text)
  except ValueError:
    return False
  return True


def beir_splits(path: Path) -> list[str]:
  """Returns the splits that a BEIR folder has judgements for: the names in qrels/, sorted.

  Raises: UserError if there is none.
  """
  folder = resolve(path)
  names = [file.name.removesuffix(".gz") for file in (folder / "qrels").glob("*.tsv*")]
  splits = sorted({name.removesuffix(".tsv") for name in names if name.endswith(".tsv")})
  if not splits:
    raise UserError(
      f"{folder}: no qrels/<split>.tsv in it. A BEIR folder holds corpus.jsonl, queries.jsonl and qrels/train.tsv, "
      "qrels/dev.tsv or qrels/test.tsv, each perhaps with .gz."
    )
  return splits


def beir_file(path: Path, name: str) -> pathlib.Path:
  """Returns a BEIR folder's file `name`, or the one with .gz behind it."""
  folder = resolve(path)
  for candidate in (folder / name, folder / f"{name}.gz"):
    if candidate.is_file():
      return candidate
  raise UserError(f"{folder}: neither {name} nor {name}.gz is in it.")


def read_beir_corpus(path: Path) -> Iterator[features.Example]:
  """Yields the passages of corpus.jsonl, title and text stripped; a missing, null or blank title is none.

  Raises: UserError with file and line number for a line that is no JSON object with _id and text.
  """
  for record, _ in _json_lines(beir_file(path, "corpus.jsonl")):
    title = str(record.get("title") or "").strip()
    yield features.passage(record["_id"], record["text"].strip(), title=title)


def read_beir_folder(path: Path, split: str) -> Iterator[features.Example]:
  """Yields the judged pairs of one split, in the order of qrels/<split>.tsv (a header, then query, passage, grade).

  The passage's text is "": it is the corpus's, see `read_beir_corpus`. A judgement whose query is not in
  queries.jsonl is left out, with a warning that counts them. A first line whose third column is no number is a
  header, whatever its names. The queries' texts are held in memory.

  Raises: UserError with file and line number for a line that cannot be read or a query id with two texts, and if
  more than 1% of the judgements name unknown queries.
  """
  queries = _beir_queries(beir_file(path, "queries.jsonl"))
  missing: list[str] = []
  total = 0
  for number, line in enumerate(read_lines(beir_file(path, f"qrels/{split}.tsv"))):
    values = line.text.split("\t")
    if len(values) != 3:
      raise UserError(f"{line.where}: {len(values)} columns, expected 3: query-id, corpus-id, score.")
    if number == 0 and not _is_number(values[2]):
      continue
    total += 1
    query_id, passage_id, grade = values
    if query_id not in queries:
      missing.append(query_id)
      continue
    yield features.pair(query_id, queries[query_id], passage_id, "", _grade(grade, line.where))
  if missing:
    message = (
      f"{path}, split {split}: {len(missing)} of {total} judgements name queries that queries.jsonl lacks "
      f"({', '.join(map(repr, missing[:3]))})"
    )
    if len(missing) > MOST_MISSING * total:
      raise UserError(
        f"{message}. Above 1% queries.jsonl is of another version: get the files of one release."
      )
    LOG.warning("%s: they are left out.", message)


def _beir_queries(path: pathlib.Path) -> dict[str, str]:
  """Returns the queries' texts by their ids."""
  queries: dict[str, str] = {}
  for record, where in _json_lines(path):
    id, text = record["_id"], record["text"]
    if queries.setdefault(id, text) != text:
      raise UserError(
        f"{where}: the id {id!r} comes with two texts: {queries[id][:80]!r} and {text[:80]!r}. Ids must be unique: "
        "correct the text, or give one of them another id."
      )
  return queries


def _json_lines(path: pathlib.Path) -> Iterator[tuple[dict[str, Any], str]]:
  for line in read_lines(path):
    try:
      record = json.loads(line.text)
      sound = isinstance(record["_id"], str) and isinstance(record["text"], str)
    except (ValueError, KeyError, TypeError) as error:
      raise UserError(
        f"{line.where}: expected a JSON object with _id and text; {type(error).__name__}: {error}."
      ) from error
    if not sound:
      raise UserError(
        f"{line.where}: _id and text must be strings; got {record['_id']!r} and {record['text']!r}."
      )
    yield record, line.where
