"""Text and judgements of a split on disk, read from its source once: what every vocabulary then tokenises."""

import functools
import hashlib
import json
import pathlib
from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int
from tqdm import tqdm

from retrieval_jax.data import features
from retrieval_jax.data.built_folder import built_folder, reading, short_hash
from retrieval_jax.data.file_task import FileSource
from retrieval_jax.data.filter_pairs import filtered_table
from retrieval_jax.data.hard_negatives import HardNegatives
from retrieval_jax.data.relevance import Relevance
from retrieval_jax.data.row_lookup import RowLookup
from retrieval_jax.data.task_source import Source, TaskSource
from retrieval_jax.data.text_rows import RowWriter
from retrieval_jax.data.text_table import text_id
from retrieval_jax.errors import UserError

FORMAT_VERSION = 4


class PairTable(NamedTuple):
  """Folders of text rows of both sides, who answers whom, and what it was read from."""

  queries: pathlib.Path
  passages: pathlib.Path
  relevance: Relevance
  fingerprint: str
  passages_fingerprint: str
  dangling: Relevance | None  # judgements of passages that the corpus lacks, which are numbered from 0
  negatives: HardNegatives | None
  files: Mapping[str, Mapping[str, Any]]  # what was read: path -> {"bytes", "md5"}
  filtered: Relevance | None = None  # the pairs that are no results, each of grade 1


def pair_table(source: Source, cache: pathlib.Path, split: str | None = None) -> PairTable:
  """Returns the table of a split, read at the first call; a later call does not touch the source.

  Passages are those of the split "corpus" if the source has one, else those of the pairs, in the order they come.
  Memory while reading: 48 bytes a corpus passage and about 100 a pair.

  split: one of pairs; None: the source's own.

  Raises: UserError for an unknown split, no examples, one id with two texts, or (with a corpus) more than 1% of
  the pairs pointing to passages that are not in it.
  """
  split = source.split if split is None else split
  splits = list(source.splits())
  pairs = [name for name in splits if not features.is_corpus(name)]
  if split not in pairs:
    raise UserError(f"{source.name} has no split {split!r}; its splits of pairs: {', '.join(pairs)}.")
  definition: dict[str, Any] = {
    "format": FORMAT_VERSION,
    "source": source.name,
    "source_fingerprint": _pairs_fingerprint(source, split),
  }
  corpus, corpus_split = None, features.corpus_of(split, splits)
  if corpus_split is not None:
    corpus_definition = definition | {
      "split": corpus_split,
      "source_fingerprint": _corpus_fingerprint(source, corpus_split),
    }
    corpus = built_folder(
      cache / "texts" / short_hash(corpus_definition),
      definition=corpus_definition,
      build=lambda folder: _write_corpus(source, corpus_split, folder),
    )
  definition |= {"split": split, "passages": "pairs" if corpus is None else "corpus"}
  fingerprint = short_hash(definition)
  folder = built_folder(
    cache / "texts" / fingerprint,
    definition=definition,
    build=lambda folder: _write_pairs(source, split, folder, corpus),
  )
  home = corpus or folder
  dangling, negatives, filtered = (folder / f"{name}.npz" for name in ("dangling", "negatives", "filtered"))
  with reading(folder):
    return PairTable(
      folder / "queries",
      home / "passages",
      Relevance.read(folder / "relevance.npz"),
      fingerprint,
      home.name,
      dangling=Relevance.read(dangling) if dangling.exists() else None,
      negatives=HardNegatives.read(negatives) if negatives.exists() else None,
      files=json.loads((folder / "files.json").read_bytes()),
      filtered=Relevance.read(filtered) if filtered.exists() else None,
    )


def _pairs_fingerprint(source: Source, split: str) -> str:
  return source.pairs_fingerprint(split) if isinstance(source, FileSource) else source.fingerprint()


def _corpus_fingerprint(source: Source, split: str) -> str:
  return (
    source.corpus_fingerprint(split) if isinstance(source, TaskSource | FileSource) else source.fingerprint()
  )


def _write_corpus(source: Source, split: str, folder: pathlib.Path) -> None:
  rows = RowWriter(folder / "passages")
  for example in _progress(source, split):
    rows.add(*_passage(example))
  rows.finish(f"{source.name}, split {split}, passages")


def _write_pairs(source: Source, split: str, folder: pathlib.Path, corpus: pathlib.Path | None) -> None:
  where = f"{source.name}, split {split}"
  queries = RowWriter(folder / "queries")
  passages = RowWriter(folder / "passages") if corpus is None else RowLookup(corpus / "passages")
  grades, owners = (
    array("i"),
    array("q"),
  )  # a passage's owner: the number n of its pair, or -1 - n for a negative
  for number, example in enumerate(_progress(source, split)):
    queries.add(str(example[features.QUERY_ID]), str(example[features.QUERY]))
    passages.add(*_passage(example))
    grades.append(int(example.get(features.RELEVANCE, 1)))  # pyright: ignore[reportArgumentType]  (never a list)
    owners.append(number)
    for identifier, text in _negatives(example, where):
      passages.add(identifier, text, "")
      owners.append(-1 - number)
  query_rows = queries.finish(f"{where}, queries")
  passage_rows = passages.finish(f"{where}, passages")
  _save_pairs(folder, query_rows, passage_rows, np.array(owners), np.array(grades, np.int32))
  if isinstance(source, TaskSource | FileSource):
    read = functools.partial(source.filter_pairs, split)
    filtered = filtered_table(read, folder / "queries", (corpus or folder) / "passages", where=where)
    if filtered is not None:
      filtered.save(folder / "filtered.npz")
  with open(folder / "files.json", "w", encoding="utf-8") as file:
    json.dump(describe_files(source.files()), file)


def _save_pairs(
  folder: pathlib.Path,
  query_rows: Int[np.ndarray, "e"],
  passage_rows: Int[np.ndarray, "x"],
  owners: Int[np.ndarray, "x"],
  grades: Int[np.ndarray, "e"],
) -> None:
  """Writes the judgements, those of passages that are not there (rows below 0), and the hard negatives."""
  num_queries = int(query_rows.max()) + 1
  judged = passage_rows if (owners >= 0).all() else passage_rows[owners >= 0]
  lost = judged < 0
  if lost.any():
    there = ~lost
    known = Relevance.from_pairs(query_rows[there], judged[there], grades[there], num_queries=num_queries)
  else:  # without copies
    known = Relevance.from_pairs(query_rows, judged, grades, num_queries=num_queries)
  known.save(folder / "relevance.npz")
  if lost.any():
    dangling = Relevance.from_pairs(
      query_rows[lost], -1 - judged[lost], grades[lost], num_queries=num_queries
    )
    dangling.save(folder / "dangling.npz")
  negative = (owners < 0) & (passage_rows >= 0)
  if negative.any():
    of_queries, rows = query_rows[-1 - owners[negative]], passage_rows[negative]
    kept = ~known.has(of_queries, rows)  # a pair's negative may be the positive of another pair of its query
    HardNegatives.from_pairs(of_queries[kept], rows[kept], num_queries).save(folder / "negatives.npz")


def _negatives(example: features.Example, where: str) -> Iterator[tuple[str, str]]:
  """Yields id and text of each hard negative of an example; a text without an id gets the one of its hash."""
  if features.NEGATIVES not in example and features.NEGATIVE_IDS not in example:
    return
  texts, ids = (list(example.get(name, ())) for name in features.LISTS)  # pyright: ignore[reportArgumentType]  (lists by name)
  if texts and ids and len(texts) != len(ids):
    raise UserError(
      f"{where}: query {example[features.QUERY_ID]!r} has {len(texts)} negative_targets and {len(ids)} negative_ids; "
      "expected one each, or none of one of them."
    )
  for text, identifier in zip(texts or [""] * len(ids), ids or map(text_id, texts), strict=True):
    yield str(identifier), str(text)


def _passage(example: features.Example) -> tuple[str, str, str]:
  """Returns id, text and title."""
  title = str(example.get(features.TITLE, "")).strip()
  return str(example[features.PASSAGE_ID]), str(example[features.PASSAGE]), title


def _progress(source: Source, split: str) -> Iterator[features.Example]:
  examples = source.examples(split)
  return iter(tqdm(examples, desc=f"read {source.name} {split}", unit=" examples", mininterval=1.0))


def describe_files(paths: Sequence[pathlib.Path]) -> dict[str, dict[str, Any]]:
  """Returns size and md5 of each file, by its path: what a report names, so that two can be compared."""
  found = {}
  for path in paths:
    digest = hashlib.md5(usedforsecurity=False)
    with open(path, "rb") as file:
      while block := file.read(2**20):
        digest.update(block)
    found[str(path)] = {"bytes": path.stat().st_size, "md5": digest.hexdigest()}
  return found
