"""The lines of a file of hard negatives: which columns they have, and the two ids of each."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from retrieval_jax.data.lines import Line, read_lines
from retrieval_jax.errors import UserError, nearest

COLUMNS = ("query_id", "passage_id", "rank", "score")
# What files of other makers call such columns, beside the words of COLUMNS.
FOREIGN = frozenset(
  {"query", "qid", "passage", "pid", "corpus_id", "doc_id", "docid", "document"}
) | frozenset(
  f"{kind}{end}" for kind in ("pos", "positive", "neg", "negative") for end in ("", "_id", "_ids", "s")
)
EXPECTED = (
  "a header that names query_id and passage_id (and perhaps rank and score), split by tabs, or lines of three ids "
  "without a header: query, positive, negative"
)


class Layout(NamedTuple):
  """The number of columns, the places of the two ids among them, and whether the first line is a header."""

  width: int
  query: int
  passage: int
  header: bool


def negative_lines(lines: Iterable[Line]) -> Iterator[tuple[Line, str, str]]:
  """Yields every line but a header, its query id and the id of its negative.

  The first line is a header if and only if one of its values is query_id or passage_id; without one each line has three
  ids: query, positive, negative.

  Raises: UserError with file and line number for a column that is not one of COLUMNS, a line of another number of
  columns than the first, and a first line that has other names for such columns.

  Example: `[(q, p) for _, q, p in negative_lines(read_lines("negatives.tsv"))]`.
  """
  layout: Layout | None = None
  for line in lines:
    values = line.text.split("\t")
    if layout is None:
      layout = _layout(values, line.where)
      if layout.header:
        continue
    if len(values) != layout.width:
      raise UserError(
        f"{line.where}: {len(values)} columns, expected {layout.width} as in the first line. The file must have {EXPECTED}."
      )
    yield line, values[layout.query], values[layout.passage]


def _layout(values: list[str], where: str) -> Layout:
  if not {"query_id", "passage_id"} & set(values):
    if len(values) != 3:
      raise UserError(f"{where}: {len(values)} columns and no header; expected {EXPECTED}.")
    if any(value.strip().lower().replace("-", "_") in {*COLUMNS, *FOREIGN} for value in values):
      raise UserError(
        f"{where}: the first line {values} looks like a header but is none; expected {EXPECTED}."
      )
    return Layout(3, 0, 2, header=False)
  for value in values:
    if value not in COLUMNS:
      raise UserError(
        f"{where}: unknown column {value!r}{nearest(value, COLUMNS) or '.'} Known columns: {', '.join(COLUMNS)}."
      )
  if len(set(values)) < len(values) or not {"query_id", "passage_id"} <= set(values):
    raise UserError(f"{where}: the header {values} must name query_id and passage_id, each column once.")
  return Layout(len(values), values.index("query_id"), values.index("passage_id"), header=True)


def first_line_of(path: str, query_id: str) -> str | None:
  """Returns `path:number` of the file's first line about a query, or None."""
  for line, found, _ in negative_lines(read_lines(path)):
    if found == query_id:
      return line.where
  return None
