"""Hard negatives of a user's own file, mined or downloaded: read once into a table in the cache."""

import json
import logging
import pathlib
from array import array
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int
from tqdm import tqdm

from retrieval_jax.data.built_folder import built_folder, reading, short_hash
from retrieval_jax.data.hard_negatives import HardNegatives
from retrieval_jax.data.known_positives import KnownPositives
from retrieval_jax.data.lines import read_lines
from retrieval_jax.data.negative_lines import EXPECTED, negative_lines
from retrieval_jax.data.pair_table import PairTable
from retrieval_jax.data.text_table import hash_text
from retrieval_jax.data.token_store import TokenStore
from retrieval_jax.errors import UserError
from retrieval_jax.paths import resolve
from retrieval_jax.progress import interval

FORMAT_VERSION = 1
CHUNK = 2**18  # lines whose ids are looked up at once
BLOCK = 2**20  # pairs that are looked at at once after sorting
LOG = logging.getLogger(__name__)


class NegativesFile(NamedTuple):
  """table: the file's hard negatives and those of the task itself, a query's in ascending order of rows.

  counts: of the file's lines, and of those that are left out: unknown, positives. fingerprint: of file and data.
  """

  table: HardNegatives
  counts: Mapping[str, Any]
  fingerprint: str


def load_negatives_file(
  path: str, table: PairTable, queries: TokenStore, passages: TokenStore, *, cache: pathlib.Path
) -> NegativesFile:
  """Returns the hard negatives in a TSV file, plain or .gz or .zst, joined with those of the task's own examples.

  One of two layouts. The first line names columns: query_id and passage_id in any order, perhaps rank and score, which
  are for people and not read; `python -m retrieval_jax.mine` writes it so. Or no line names any, and each has three
  ids: query, positive, negative (MS MARCO's triples), of which the positive is not read. The first line is a header
  if and only if one of its values is query_id or passage_id.

  Ids are those of the data. A pair whose query or passage the data lack is left out, with a warning that counts them: a
  file may well cover more than one split. So is a passage that answers the query, or has the text of one that does. A
  pair that comes twice is one.

  The file is read at the first call, as a stream, and again when its size or time changes. Memory then: 8 bytes a pair
  that is kept, and 60 MB; time: about 3 us a line (400 million triples: 3.2 GB, 20 minutes). Later calls map 4 bytes a
  pair and 8 a query from the cache.

  Raises: UserError with file and line number for a line that cannot be read, and if no pair of the file is left.

  Example: the lines "query_id\\tpassage_id" and "q1\\tp7".
  """
  if not isinstance(path, str):
    raise UserError(f"HARD_NEGATIVES_PATH={path!r}: expected the path of a TSV file.")
  file = resolve(path)
  status = file.stat()
  definition = {
    "format": FORMAT_VERSION,
    "file": [str(file.absolute()), status.st_size, status.st_mtime_ns],
    "pairs": table.fingerprint,
    "queries": queries.fingerprint,
    "passages": passages.fingerprint,
  }
  folder = built_folder(
    cache / "hard_negatives" / short_hash(definition),
    definition=definition,
    build=lambda folder: _build(file, folder, table, queries, passages),
  )
  with reading(folder):
    offsets, rows = (np.load(folder / f"{name}.npy", mmap_mode="r") for name in HardNegatives._fields)
    counts = json.loads((folder / "counts.json").read_bytes())
  _warn(file, counts)
  return NegativesFile(HardNegatives(offsets, rows), counts, folder.name)


def _build(
  file: pathlib.Path, folder: pathlib.Path, table: PairTable, queries: TokenStore, passages: TokenStore
) -> None:
  known = KnownPositives.of(table.relevance, queries, passages)
  kept, counts = _read(file, queries, passages, known)
  if table.negatives is not None:
    owners, rows = table.negatives.pairs()
    mine = ~known.has(owners, rows)
    kept.frombytes(_numbers(owners[mine], rows[mine], len(passages)).tobytes())
  numbers = np.frombuffer(kept, np.int64)  # the array's own memory
  numbers.sort()
  numbers = _distinct(numbers)
  bounds = np.arange(queries.num_rows + 1, dtype=np.int64) * len(passages)
  np.save(folder / "offsets.npy", np.searchsorted(numbers, bounds))
  rows = np.lib.format.open_memmap(folder / "passage_rows.npy", "w+", np.int32, numbers.shape)
  for start in range(0, len(numbers), BLOCK):
    rows[start : start + BLOCK] = numbers[start : start + BLOCK] % len(passages)
  rows.flush()
  (folder / "counts.json").write_text(json.dumps(counts), encoding="utf-8")


def _read(
  file: pathlib.Path, queries: TokenStore, passages: TokenStore, known: KnownPositives
) -> tuple[array, dict[str, Any]]:
  """Returns the numbers of the pairs that are kept, one 64-bit number each, and how many are not."""
  kept = array("q")
  counts: dict[str, Any] = {
    "lines": 0,
    "unknown": 0,
    "queries": 0,
    "passages": 0,
    "positives": 0,
    "first": None,
  }
  for query_hashes, passage_hashes in _hashes(file):
    query_rows, passage_rows = queries.rows_of_hashes(query_hashes), passages.rows_of_hashes(passage_hashes)
    unknown = (query_rows < 0) | (passage_rows < 0)
    if counts["first"] is None and unknown.any():
      counts["first"] = counts["lines"] + int(np.argmax(unknown))
    counts["lines"] += len(unknown)
    counts["unknown"] += int(np.count_nonzero(unknown))
    counts["queries"] += int(np.count_nonzero(query_rows < 0))
    counts["passages"] += int(np.count_nonzero(passage_rows < 0))
    query_rows, passage_rows = query_rows[~unknown], passage_rows[~unknown]
    positive = known.has(query_rows, passage_rows)
    counts["positives"] += int(np.count_nonzero(positive))
    kept.frombytes(_numbers(query_rows[~positive], passage_rows[~positive], len(passages)).tobytes())
  if counts["first"] is not None:
    counts["first"] = _nth(file, counts["first"])
  _check_some(file, counts)
  return kept, counts


def _hashes(file: pathlib.Path) -> Iterator[tuple[np.ndarray, np.ndarray]]:
  """Yields the hashes of the query ids and of the passage ids of the lines, in their order, many at a time."""
  queries, passages = array("Q"), array("Q")
  last_id, last_hash = "", hash_text("")
  lines = tqdm(read_lines(file), desc=f"read {file.name}", unit=" lines", mininterval=interval())
  for _, query_id, passage_id in negative_lines(lines):
    if query_id != last_id:  # files are grouped by query as a rule
      last_id, last_hash = query_id, hash_text(query_id)
    queries.append(last_hash)
    passages.append(hash_text(passage_id))
    if len(queries) == CHUNK:
      yield np.array(queries, np.uint64), np.array(passages, np.uint64)
      del queries[:], passages[:]
  yield np.array(queries, np.uint64), np.array(passages, np.uint64)


def _numbers(
  query_rows: Int[np.ndarray, "e"], passage_rows: Int[np.ndarray, "e"], width: int
) -> Int[np.ndarray, "e"]:
  """Returns a number for each pair of rows, which ascends with the query and then with the passage."""
  return query_rows.astype(np.int64) * width + passage_rows


def _distinct(numbers: Int[np.ndarray, "e"]) -> Int[np.ndarray, "x"]:
  """Returns each of the ascending numbers once, moved to the front of the same array."""
  count = 0
  for start in range(0, len(numbers), BLOCK):
    block = numbers[start : start + BLOCK].copy()
    first = np.ones(len(block), bool)
    first[1:] = np.diff(block) != 0
    first[0] = count == 0 or block[0] != numbers[count - 1]
    block = block[first]
    numbers[count : count + len(block)] = block
    count += len(block)
  return numbers[:count]


def _check_some(file: pathlib.Path, counts: Mapping[str, Any]) -> None:
  """Raises UserError if no pair of the file is left."""
  if not counts["lines"]:
    raise UserError(f"{file}: no pairs in it. Expected {EXPECTED}.")
  if counts["unknown"] == counts["lines"]:
    raise UserError(
      f"{_unknown(file, counts)}. Use the ids of the data as they are ('1' is not '01'); a TSV file of pairs has ids "
      "only if its header names query_id and passage_id. Is this the negatives' file of another task or split?"
    )
  if counts["unknown"] + counts["positives"] == counts["lines"]:
    raise UserError(
      f"{file}: all of its {counts['positives']} pairs that are of these data are known positives, so there is no "
      "negative in it. In a file of three ids the last one is the negative: are the columns in another order?"
    )


def _warn(file: pathlib.Path, counts: Mapping[str, Any]) -> None:
  if counts["unknown"]:
    LOG.warning("%s: they are left out.", _unknown(file, counts))
  if counts["positives"]:
    LOG.warning(
      "%s: %d of %d pairs are left out, for the passage answers the query, or has the text of one that does.",
      file,
      counts["positives"],
      counts["lines"],
    )


def _unknown(file: pathlib.Path, counts: Mapping[str, Any]) -> str:
  query_id, passage_id = counts["first"]
  return (
    f"{file}: {counts['unknown']} of {counts['lines']} pairs are not of these data ({counts['queries']} by their query, "
    f"{counts['passages']} by their passage; the first is {query_id!r}, {passage_id!r})"
  )


def _nth(file: pathlib.Path, wanted: int) -> tuple[str, str]:
  """Returns the ids of one pair; reads the file anew, so that no id need be kept in memory."""
  for number, (_, query_id, passage_id) in enumerate(negative_lines(read_lines(file))):
    if number == wanted:
      return query_id, passage_id
  raise UserError(f"{file} was changed while it was read. Run again.")
