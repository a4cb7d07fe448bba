"""Scores that a teacher gave to pairs of query and passage: a user's file, read once, looked up for every batch."""

import logging
import pathlib
from array import array
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from tqdm import tqdm

from retrieval_jax.data.built_folder import built_folder, reading, short_hash
from retrieval_jax.data.lines import Line, read_lines
from retrieval_jax.data.text_table import hash_text
from retrieval_jax.data.token_store import TokenStore
from retrieval_jax.errors import UserError
from retrieval_jax.paths import resolve

FORMAT_VERSION = 1
COLUMNS = ("query_id", "passage_id", "score")
LARGEST = float(np.finfo(np.float32).max)
LOG = logging.getLogger(__name__)


class TeacherScores(NamedTuple):
  """Query i has `scores[offsets[i]:offsets[i + 1]]` for the `passage_rows` at the same places, which ascend.

  Queries and passages are identities (TokenStore.identity): equal texts share their scores.
  """

  offsets: Int[np.ndarray, "q+1"]
  passage_rows: Int[np.ndarray, "e"]
  scores: Float[np.ndarray, "e"]
  fingerprint: str

  def gather(
    self, query_rows: Int[np.ndarray, "q"], passage_rows: Int[np.ndarray, "p"]
  ) -> Float[np.ndarray, "q p"]:
    """Returns float32 [q, p]: the score of each pair of identities, -inf where there is none; row -1 has none.

    O((p + e) log p) time for the e scores that these queries have, and O(q p) memory.

    Example: with the score 0.5 for query 0 and passage 7, `gather([0, -1], [7, 8, 7])` is
    `[[0.5, -inf, 0.5], [-inf, -inf, -inf]]`.
    """
    queries = np.asarray(query_rows, np.int64)
    columns, column_of = np.unique(np.asarray(passage_rows, np.int64), return_inverse=True)
    starts = self.offsets[np.maximum(queries, 0)]
    counts = np.where(queries >= 0, self.offsets[np.maximum(queries, 0) + 1] - starts, 0)
    within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    places = np.repeat(starts, counts) + within
    wanted = self.passage_rows[places]
    found = np.minimum(np.searchsorted(columns, wanted), len(columns) - 1)
    hit = columns[found] == wanted
    table = np.full((len(queries), len(columns)), -np.inf, np.float32)
    table[np.repeat(np.arange(len(queries)), counts)[hit], found[hit]] = self.scores[places[hit]]
    return table[:, column_of]


def load_teacher_scores(
  path: str, queries: TokenStore, passages: TokenStore, *, cache: pathlib.Path
) -> TeacherScores:
  """Returns the scores in a TSV file (or .tsv.gz): query_id, passage_id and score a line, in any order of lines.

  A first line that names these columns, in any order, is a header. Ids are those of the data; a pair whose query or
  passage the data lack is left out, with a warning that counts them: a file may well cover more than one split. A pair
  that comes twice with one score is one. Equal texts with different ids and scores have the score that comes first.

  The file is read at the first call and again when its size or time changes; memory then: about 100 bytes a line. Later
  calls map 8 bytes a score and 8 a query from the cache.

  Raises: UserError with file and line number for a line that cannot be read, a score that is no finite number and a
  pair with two scores, and if the data know no pair of the file.

  Example: the line "q1\\tp7\\t-3.25".
  """
  if not isinstance(path, str):
    raise UserError(f"TEACHER_SCORES_PATH={path!r}: expected the path of a TSV file.")
  file = resolve(path)
  status = file.stat()
  definition = {
    "format": FORMAT_VERSION,
    "file": [str(file.absolute()), status.st_size, status.st_mtime_ns],
    "queries": queries.fingerprint,
    "passages": passages.fingerprint,
  }
  folder = built_folder(
    cache / "teacher_scores" / short_hash(definition),
    definition=definition,
    build=lambda folder: _build(file, folder, queries, passages),
  )
  with reading(folder):
    arrays = [
      np.load(folder / f"{name}.npy", mmap_mode="r") for name in ("offsets", "passage_rows", "scores")
    ]
  return TeacherScores(*arrays, fingerprint=folder.name)


def _build(file: pathlib.Path, folder: pathlib.Path, queries: TokenStore, passages: TokenStore) -> None:
  query_hashes, passage_hashes, scores = _read(file)
  query_rows = queries.rows_of_hashes(query_hashes)
  passage_rows = passages.rows_of_hashes(passage_hashes)
  known = np.flatnonzero((query_rows >= 0) & (passage_rows >= 0))
  _report_unknown(file, query_rows, passage_rows)
  _check_agreement(file, known, query_rows[known], passage_rows[known], scores[known])
  owners, candidates = queries.identity[query_rows[known]], passages.identity[passage_rows[known]]
  order = np.lexsort((candidates, owners))  # stable: of equal texts the first line's score is kept
  owners, candidates, values = owners[order], candidates[order], scores[known][order]
  first = _differs_from_the_one_before(owners, candidates)
  offsets = np.zeros(queries.num_rows + 1, np.int64)
  np.cumsum(np.bincount(owners[first], minlength=queries.num_rows), out=offsets[1:])
  np.save(folder / "offsets.npy", offsets)
  np.save(folder / "passage_rows.npy", candidates[first].astype(np.int32))
  np.save(folder / "scores.npy", values[first])


def _read(file: pathlib.Path) -> tuple[np.ndarray, np.ndarray, Float[np.ndarray, "e"]]:
  """Returns the hashes of the query ids and of the passage ids, and the scores, of every line in its order."""
  queries, passages, scores = array("Q"), array("Q"), array("f")
  last_id, last_hash = "", hash_text("")
  for _, (query_id, passage_id, score) in _rows(
    tqdm(read_lines(file), desc=f"read {file.name}", unit=" lines", mininterval=1.0)
  ):
    if query_id != last_id:  # files are grouped by query as a rule
      last_id, last_hash = query_id, hash_text(query_id)
    queries.append(last_hash)
    passages.append(hash_text(passage_id))
    scores.append(score)
  if not scores:
    raise UserError(f"{file}: no scores in it. Expected lines of {', '.join(COLUMNS)}, split by tabs.")
  return np.array(queries, np.uint64), np.array(passages, np.uint64), np.array(scores, np.float32)


def _rows(lines: Iterable[Line]) -> Iterator[tuple[Line, tuple[str, str, float]]]:
  """Yields every line but a header with its query id, passage id and score."""
  order: tuple[int, int, int] | None = None
  for line in lines:
    values = line.text.split("\t")
    if len(values) != len(COLUMNS):
      raise UserError(
        f"{line.where}: {len(values)} columns, expected 3: {', '.join(COLUMNS)}, split by tabs."
      )
    if order is None:
      order = (0, 1, 2)
      if set(values) == set(COLUMNS):
        order = (values.index("query_id"), values.index("passage_id"), values.index("score"))
        continue
    yield line, (values[order[0]], values[order[1]], _score(values[order[2]], line.where))


def _score(text: str, where: str) -> float:
  try:
    score = float(text)
  except ValueError:
    score = float("nan")
  if not abs(score) <= LARGEST:
    raise UserError(
      f"{where}: score {text!r}; expected a finite number. The columns are {', '.join(COLUMNS)}; a header names them "
      "just so. Leave a pair out that the teacher did not score."
    )
  return score


def _report_unknown(
  file: pathlib.Path, query_rows: Int[np.ndarray, "e"], passage_rows: Int[np.ndarray, "e"]
) -> None:
  """Warns of pairs that the data do not know; raises UserError if they know none."""
  unknown = (query_rows < 0) | (passage_rows < 0)
  if not unknown.any():
    return
  [(_, (query_id, passage_id, _))] = _nth(file, [int(np.argmax(unknown))])
  message = (
    f"{file}: {np.count_nonzero(unknown)} of {len(unknown)} pairs are not of these data "
    f"({np.count_nonzero(query_rows < 0)} by their query, {np.count_nonzero(passage_rows < 0)} by their passage; "
    f"the first is {query_id!r}, {passage_id!r})"
  )
  if unknown.all():
    raise UserError(
      f"{message}. Use the ids of the data as they are ('1' is not '01'); a TSV file of pairs has ids only if "
      "its header names query_id and passage_id."
    )
  LOG.warning("%s: they are left out.", message)


def _check_agreement(
  file: pathlib.Path,
  lines: Int[np.ndarray, "e"],
  queries: Int[np.ndarray, "e"],
  passages: Int[np.ndarray, "e"],
  scores: Float[np.ndarray, "e"],
) -> None:
  """Raises UserError for a pair with two scores, naming both lines."""
  order = np.lexsort((passages, queries))
  repeated = ~_differs_from_the_one_before(queries[order], passages[order])
  contradicted = np.flatnonzero(repeated[1:] & (np.diff(scores[order]) != 0))
  if contradicted.size:
    place = contradicted[0]
    both = [int(lines[order[place]]), int(lines[order[place + 1]])]
    (one, (query_id, passage_id, score)), (two, (_, _, other)) = _nth(file, both)
    raise UserError(
      f"{two.where}: the pair {query_id!r}, {passage_id!r} has the score {other} here and {score} at {one.where}. "
      "Keep one of the two lines."
    )


def _nth(file: pathlib.Path, wanted: list[int]) -> list[tuple[Line, tuple[str, str, float]]]:
  """Returns the wanted rows, ascending; reads the file anew, so that no line number need be kept in memory."""
  found = []
  for number, row in enumerate(_rows(read_lines(file))):
    if number in wanted:
      found.append(row)
      if len(found) == len(wanted):
        break
  return found


def _differs_from_the_one_before(a: Int[np.ndarray, "e"], b: Int[np.ndarray, "e"]) -> np.ndarray:
  """Returns for each place whether the pair (a, b) is another than at the place before; the first is."""
  differs = np.ones(len(a), bool)
  differs[1:] = (a[1:] != a[:-1]) | (b[1:] != b[:-1])
  return differs
