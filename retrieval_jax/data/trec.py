"""Judgements (qrels) and runs in the formats of TREC, and BEIR's form of the first."""

import math
import re
from array import array
from collections.abc import Iterator
from typing import NamedTuple

from retrieval_jax.data.lines import Line, Path, read_lines
from retrieval_jax.data.row_ids import first_repeated, nth
from retrieval_jax.errors import UserError

BLANKS = re.compile(r"[ \t]+")  # not every white space of Unicode: that may stand in an id
WHOLE = re.compile(r"[+-]?[0-9]+(\.0*)?")
RUN_COLUMNS = "query, Q0, passage, rank, score, tag"


class Judgement(NamedTuple):
  """A passage was found to answer a query by `grade`; 0 and less: it does not."""

  query_id: str
  passage_id: str
  grade: int


class RunLine(NamedTuple):
  """A passage stands at `rank` of a query's results, from 1 or 0 as the file counts."""

  query_id: str
  passage_id: str
  rank: int
  score: float
  tag: str


def read_qrels(path: Path) -> Iterator[Judgement]:
  """Yields the judgements of a qrels file in its order; the first line decides how all are split.

  Holds it tabs, lines are split at tabs alone: 3 columns are BEIR's query, passage, grade, 4 are TREC's query,
  iteration, passage, grade; a first line whose last column is no number is a header, whatever its names. Without tabs
  they are TREC's 4 columns, split at blanks, without a header. Grades are whole numbers; "1.0" is one.

  Raises: UserError with file and line number for a line of another form or a grade that is no int32.

  Example: the line "q1\\t0\\tp7\\t2" is `Judgement("q1", "p7", 2)`.
  """
  tabs, width = False, 0
  for line in read_lines(path):
    if not width:
      tabs = "\t" in line.text
      values = _columns(line, tabs)
      width = len(values)
      if width != 4 and not (tabs and width == 3):
        raise UserError(
          f"{line.where}: {width} columns, expected 3 split by tabs (query-id, corpus-id, score) or 4 (query, 0, "
          "passage, grade)."
        )
      if tabs and not is_number(values[-1]):
        continue
    else:
      values = _columns(line, tabs)
    if len(values) != width:
      raise UserError(f"{line.where}: {len(values)} columns, expected {width} as in the first line.")
    yield Judgement(values[0], values[-2], grade(values[-1], line.where))


def read_run(path: Path) -> Iterator[RunLine]:
  """Yields the results of a TREC run in the order of the file: 6 columns, query, Q0, passage, rank, score, tag.

  Columns are split at blanks. Memory: 8 bytes a line.

  Raises: UserError with file and line number for a line of another form, a rank that is no whole number, a score that
  is not finite and, at the end of the file, a passage that comes twice for one query.

  Example: the line "q1 Q0 p7 1 12.5 bm25" is `RunLine("q1", "p7", 1, 12.5, "bm25")`.
  """
  pairs = array("q")
  for result, _ in _results(path):
    pairs.append(hash(result[:2]))
    yield result
  places = first_repeated(pairs)
  if places is None:
    return
  (first, where), (second, other_where) = nth(_results(path), places)
  if first[:2] == second[:2]:  # and not two pairs with one hash
    raise UserError(
      f"{other_where}: the passage {second.passage_id!r} comes twice for the query {second.query_id!r}, first at "
      f"{where}. A run names a passage once a query."
    )


def _results(path: Path) -> Iterator[tuple[RunLine, str]]:
  for line in read_lines(path):
    values = _columns(line, tabs=False)
    if len(values) != 6:
      raise UserError(f"{line.where}: {len(values)} columns, expected 6: {RUN_COLUMNS}, split by blanks.")
    query_id, _, passage_id, rank, score, tag = values
    if not (WHOLE.fullmatch(rank) and is_number(score) and math.isfinite(float(score))):
      raise UserError(
        f"{line.where}: rank {rank!r} and score {score!r}; expected a whole number and a finite one. The columns are "
        f"{RUN_COLUMNS}."
      )
    yield RunLine(query_id, passage_id, int(float(rank)), float(score), tag), line.where


def _columns(line: Line, tabs: bool) -> list[str]:
  return line.text.split("\t") if tabs else BLANKS.split(line.text.strip(" \t\r"))


def grade(text: str, where: str) -> int:
  """Returns the whole number that a relevance column holds.

  Raises: UserError, beginning with `where`, if it holds none or one beyond int32.
  """
  plain = text.strip()
  if not WHOLE.fullmatch(plain) or len(plain) > 40:
    raise UserError(f"{where}: relevance {text!r:.80}; expected an integer.")
  value = int(plain.partition(".")[0])
  if not -(2**31) <= value < 2**31:
    raise UserError(f"{where}: relevance {text!r}; expected an integer from -2**31 to 2**31 - 1.")
  return value


def is_number(text: str) -> bool:
  """Returns whether Python reads a number in the text."""
  try:
    float(text)
  except ValueError:
    return False
  return True
