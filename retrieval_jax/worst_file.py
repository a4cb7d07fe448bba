"""worst.jsonl: the queries that an evaluation answered worst, with what was retrieved and what was right."""

import json
import pathlib
from collections.abc import Sequence
from typing import Any, NamedTuple

from retrieval_jax.errors import UserError
from retrieval_jax.paths import atomic_write


class ShownPassage(NamedTuple):
  """A passage as a person sees it.

  passage_id, text: None of a judged passage that the corpus lacks. grade: None of a passage that nobody judged. rank: where the
  search found it, from 1; None: not at all. score: None where it was not found.
  """

  passage_id: str | None
  text: str | None
  grade: int | None
  rank: int | None
  score: float | None


class WorstQuery(NamedTuple):
  """A query, its value of the metric, the first results, and some of its `relevant` right passages, the best grades first."""

  query_id: str
  text: str
  metric: str
  value: float
  relevant: int
  retrieved: Sequence[ShownPassage]
  right: Sequence[ShownPassage]


def write_worst(path: pathlib.Path, queries: Sequence[WorstQuery]) -> None:
  """Writes one JSON object a line, the worst query first, whole or not at all; its keys are the fields' names."""
  with atomic_write(path) as file:
    for query in queries:
      record = query._asdict()
      for name in ("retrieved", "right"):
        record[name] = [passage._asdict() for passage in record[name]]
      file.write(json.dumps(record, allow_nan=False) + "\n")


def read_worst(path: pathlib.Path) -> list[WorstQuery]:
  """Returns what `write_worst` wrote.

  Raises: UserError, with the line, for a line of another form and for one that is cut off.
  """
  *lines, rest = path.read_bytes().split(b"\n")
  if rest:
    raise UserError(
      f"{path}:{len(lines) + 1}: the last line has no end, so the file is cut off: evaluate again."
    )
  return [_read_line(f"{path}:{number}", line) for number, line in enumerate(lines, start=1)]


def _read_line(where: str, line: bytes) -> WorstQuery:
  try:
    record: dict[str, Any] = json.loads(line)
    for name in ("retrieved", "right"):
      record[name] = [ShownPassage(**passage) for passage in record[name]]
    query = WorstQuery(**record)
    float(query.value)
    return query
  except (ValueError, TypeError, KeyError, AttributeError) as error:
    raise UserError(
      f"{where}: not a query as the evaluation writes it ({type(error).__name__}: {error}). Evaluate again."
    ) from error
