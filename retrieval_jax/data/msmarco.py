"""Readers of the files of MS MARCO passage ranking: TSV without headers, each plain, .gz or .zst.

The judgements, also those of TREC DL (graded, split at blanks), are read by `trec.read_qrels`, and joined with the
queries by `judged_pairs.judged_pairs`. Texts are taken as they are in the file, whatever is wrong with their encoding:
results can be compared only between equal files, so reports name checksums.
"""

from collections.abc import Iterator
from typing import NamedTuple

from retrieval_jax.data import features
from retrieval_jax.data.lines import Line, Path, read_lines
from retrieval_jax.data.row_ids import consistent_passages
from retrieval_jax.data.text_table import text_id
from retrieval_jax.errors import UserError


class IdTriple(NamedTuple):
  """A query, a passage that answers it and one that does not, by their ids."""

  query_id: str
  positive_id: str
  negative_id: str


class Candidate(NamedTuple):
  """A passage that a first search found for a query."""

  query_id: str
  passage_id: str
  query: str
  passage: str


def read_collection(path: Path) -> Iterator[features.Example]:
  """Yields the passages of collection.tsv (pid, text). Memory: 16 bytes a passage.

  Raises: UserError with file and line number for a line that has not 2 columns, and for a pid with two texts.

  Example: the line "0\\tThe presence of ..." is `features.passage("0", "The presence of ...")`.
  """

  def rows() -> Iterator[tuple[features.Example, str]]:
    for line in read_lines(path):
      passage_id, text = _columns(line, "pid", "text")
      yield features.passage(passage_id, text), line.where

  return consistent_passages(rows)


def read_queries(path: Path) -> dict[str, str]:
  """Returns the queries of queries.<split>.tsv (qid, text) by their ids, judged or not.

  Raises: UserError with file and line number for a line that has not 2 columns, and for a qid with two texts.
  """
  queries: dict[str, str] = {}
  for line in read_lines(path):
    query_id, text = _columns(line, "qid", "text")
    if queries.setdefault(query_id, text) != text:
      raise UserError(
        f"{line.where}: the qid {query_id!r} comes with two texts: {queries[query_id][:80]!r} and {text[:80]!r}. Ids must "
        "be unique: get the file anew."
      )
  return queries


def read_triples(path: Path) -> Iterator[features.Example]:
  """Yields the triples of triples.train.small.tsv (query, positive, negative, all texts) in the file's order.

  Equal texts are one query or passage. Costs no memory.

  Raises: UserError with file and line number for a line that has not 3 columns.
  """
  for line in read_lines(path):
    query, positive, negative = _columns(line, "query", "positive", "negative")
    yield features.pair(
      text_id(query),
      query,
      text_id(positive),
      positive,
      negatives=[negative],
      negative_ids=[text_id(negative)],
    )


def read_id_triples(path: Path) -> Iterator[IdTriple]:
  """Yields the triples of qidpidtriples.train.full.tsv (qid, pid, pid) in the file's order. Costs no memory.

  Raises: UserError with file and line number for a line that has not 3 columns.

  Example: the line "1\\t7\\t9" is `IdTriple("1", "7", "9")`.
  """
  for line in read_lines(path):
    yield IdTriple(*_columns(line, "qid", "positive pid", "negative pid"))


def read_top1000(path: Path) -> Iterator[Candidate]:
  """Yields the lines of top1000.<split>.tsv (qid, pid, query, passage) in the file's order. Costs no memory.

  Raises: UserError with file and line number for a line that has not 4 columns.
  """
  for line in read_lines(path):
    yield Candidate(*_columns(line, "qid", "pid", "query", "passage"))


def _columns(line: Line, *names: str) -> list[str]:
  values = line.text.split("\t")
  if len(values) != len(names):
    raise UserError(
      f"{line.where}: {len(values)} columns, expected {len(names)} split by tabs: {', '.join(names)}."
    )
  return values
