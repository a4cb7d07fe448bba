"""The values of each query as a table on disk: TSV, one line a query, one column a metric."""

import json
import os
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from retrieval_jax.errors import UserError
from retrieval_jax.paths import atomic_write

FIRST = "query_id"
# A field with any of these would not be read back as it was: it is written as a JSON string.
_UNSAFE = re.compile('^"|[\x00-\x1f\x7f-\x9f\u2028\u2029\ufeff\ud800-\udfff]')


class PerQuery(NamedTuple):
  """What a table holds: the ids of its queries, and the value of each metric for each of them."""

  query_ids: list[str]
  values: dict[str, Float[np.ndarray, "q"]]


def write_per_query(
  path: str | os.PathLike[str], query_ids: Sequence[str], per_query: Mapping[str, np.ndarray]
) -> None:
  """Writes `query_id`, a tab and the names of the metrics, then one such line a query, whole or not at all.

  UTF-8, every line ended by "\\n". Numbers have as many digits as give the same float64 back; "nan" is a query without
  judgements. An id stands as it is unless it begins with a quotation mark or holds a tab, a line end, another control
  character or half a surrogate pair: it is then a JSON string, quotation marks included.

  Raises: UserError for a query id that comes twice, and for a metric with another number of values than there are ids.

  Example: `write_per_query("a.tsv", ["q1"], {"mrr": np.array([0.5])})` writes "query_id\\tmrr\\nq1\\t0.5\\n".
  """
  for name, values in per_query.items():
    if np.shape(values) != (len(query_ids),):
      raise UserError(f"{path}: {name} has the shape {np.shape(values)}; expected {len(query_ids)} queries.")
  if len(set(query_ids)) < len(query_ids):
    raise UserError(f"{path}: the query id {_repeated(query_ids)!r} comes twice; ids must differ.")
  columns = [np.asarray(values, np.float64).tolist() for values in per_query.values()]
  with atomic_write(path) as file:
    file.write("\t".join([FIRST, *map(_field, per_query)]) + "\n")
    for query_id, *numbers in zip(query_ids, *columns, strict=True):
      file.write("\t".join([_field(query_id), *map(repr, numbers)]) + "\n")


def read_per_query(path: str | os.PathLike[str]) -> PerQuery:
  """Returns the table that `write_per_query` wrote.

  Raises: UserError, with the line, for bytes that are not UTF-8, another header, another number of columns, a value
  that is not a number, an id or a metric that comes twice, and a file whose last line has no end: it was cut off.

  Example: `read_per_query("a.tsv").values["mrr"]` is `array([0.5])`.
  """
  *lines, rest = pathlib.Path(path).read_bytes().split(b"\n")
  if rest or not lines:
    raise UserError(
      f"{path}:{len(lines) + 1}: the last line has no end, so the file is cut off; write it again."
    )
  header = _fields(f"{path}:1", lines[0])
  if header[0] != FIRST or len(set(header)) < len(header):
    raise UserError(f"{path}:1: the columns are {header}; expected {FIRST!r} first, then different metrics.")
  ids: dict[str, None] = {}
  table = np.empty((len(lines) - 1, len(header) - 1))
  for number, line in enumerate(lines[1:], start=2):
    where = f"{path}:{number}"
    query_id, *values = _fields(where, line)
    if len(values) != len(header) - 1:
      raise UserError(f"{where}: {1 + len(values)} columns; the header has {len(header)}.")
    if query_id in ids:
      raise UserError(f"{where}: the query id {query_id!r} comes twice; ids must differ.")
    ids[query_id] = None
    table[number - 2] = [_number(where, value) for value in values]
  return PerQuery(list(ids), {name: table[:, i].copy() for i, name in enumerate(header[1:])})


def _field(text: str) -> str:
  return json.dumps(text) if _UNSAFE.search(text) else text


def _fields(where: str, line: bytes) -> list[str]:
  try:
    fields = line.decode().split("\t")
    if any(_UNSAFE.search(field) and not field.startswith('"') for field in fields):
      raise ValueError("a control character, or another program's line ends or byte order mark")
    return [json.loads(field) if field.startswith('"') else field for field in fields]
  except ValueError as error:  # of the bytes or of the JSON string
    raise UserError(f"{where}: not a table of values for each query: {error}") from error


def _number(where: str, text: str) -> float:
  try:
    return float(text)
  except ValueError:
    raise UserError(f"{where}: {text!r} is not a number.") from None


def _repeated(query_ids: Sequence[str]) -> str:
  seen: set[str] = set()
  return next(query_id for query_id in query_ids if query_id in seen or seen.add(query_id))
