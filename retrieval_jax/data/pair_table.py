"""Text and judgements of a split on disk, read from its source once: what every vocabulary then tokenises."""

import logging
import pathlib
from array import array
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int
from tqdm import tqdm

from retrieval_jax.data import features
from retrieval_jax.data.built_folder import built_folder, reading, short_hash
from retrieval_jax.data.relevance import Relevance
from retrieval_jax.data.task_source import Source
from retrieval_jax.data.text_rows import RowWriter, TextRows
from retrieval_jax.data.text_table import TextWriter
from retrieval_jax.errors import UserError

FORMAT_VERSION = 3
MOST_MISSING = 0.01  # beyond this share of dangling judgements the corpus is of another version than they
LOG = logging.getLogger(__name__)


class PairTable(NamedTuple):
  """Folders of text rows of both sides, and who answers whom."""

  queries: pathlib.Path
  passages: pathlib.Path
  relevance: Relevance
  fingerprint: str
  passages_fingerprint: str


def pair_table(source: Source, cache: pathlib.Path) -> PairTable:
  """Returns the table of the source's split, read at the first call; a later call does not touch the source.

  Passages are those of the split "corpus" if the source has one, else those of the pairs, in the order they come.
  Memory while reading: 48 bytes a corpus passage and about 100 a pair.

  Raises: UserError for an unknown split, no examples, one id with two texts, or (with a corpus) more than 1% of
  the pairs pointing to passages that are not in it.
  """
  splits = list(source.splits())
  pairs = [split for split in splits if split != features.CORPUS]
  if source.split not in pairs:
    raise UserError(f"{source.name} has no split {source.split!r}; its splits of pairs: {', '.join(pairs)}.")
  definition: dict[str, Any] = {
    "format": FORMAT_VERSION,
    "source": source.name,
    "source_fingerprint": source.fingerprint(),
  }
  corpus = None
  if features.CORPUS in splits:
    corpus_definition = definition | {"split": features.CORPUS}
    corpus = built_folder(
      cache / "texts" / short_hash(corpus_definition),
      definition=corpus_definition,
      build=lambda folder: _write_corpus(source, folder),
    )
  definition |= {"split": source.split, "passages": "pairs" if corpus is None else "corpus"}
  fingerprint = short_hash(definition)
  folder = built_folder(
    cache / "texts" / fingerprint,
    definition=definition,
    build=lambda folder: _write_pairs(source, folder, corpus),
  )
  with reading(folder):
    relevance = Relevance.read(folder / "relevance.npz")
  home = corpus or folder
  return PairTable(folder / "queries", home / "passages", relevance, fingerprint, home.name)


def _write_corpus(source: Source, folder: pathlib.Path) -> None:
  rows = RowWriter(folder / "passages")
  for example in _progress(source, features.CORPUS):
    rows.add(*_passage(example))
  rows.finish(f"{source.name}, split {features.CORPUS}, passages")


def _write_pairs(source: Source, folder: pathlib.Path, corpus: pathlib.Path | None) -> None:
  where = f"{source.name}, split {source.split}"
  queries = RowWriter(folder / "queries")
  passages = RowWriter(folder / "passages") if corpus is None else RowLookup(corpus / "passages", folder)
  grades = array("i")
  for example in _progress(source, source.split):
    queries.add(str(example[features.QUERY_ID]), str(example[features.QUERY]))
    passages.add(*_passage(example))
    grades.append(int(example.get(features.RELEVANCE, 1)))
  query_rows = queries.finish(f"{where}, queries")
  passage_rows = passages.finish(f"{where}, passages")
  known = passage_rows >= 0
  relevance = Relevance.from_pairs(
    query_rows[known],
    passage_rows[known],
    np.array(grades, np.int32)[known],
    num_queries=int(query_rows.max()) + 1,
  )
  relevance.save(folder / "relevance.npz")


def _passage(example: features.Example) -> tuple[str, str, str]:
  """Returns id, text and title."""
  title = str(example.get(features.TITLE, "")).strip()
  return str(example[features.PASSAGE_ID]), str(example[features.PASSAGE]), title


def _progress(source: Source, split: str) -> Iterator[features.Example]:
  examples = source.examples(split)
  return iter(tqdm(examples, desc=f"read {source.name} {split}", unit=" examples", mininterval=1.0))


class RowLookup:
  """Takes passages as a RowWriter does, but finds them in a corpus that is there already."""

  def __init__(self, corpus: pathlib.Path, folder: pathlib.Path):
    self._corpus = TextRows(corpus)
    self._folder = folder
    self._ids = TextWriter(folder, "wanted")

  def add(self, id: str, text: str, title: str) -> None:
    """Notes a wanted id; text and title are the corpus's own."""
    del text, title
    self._ids.add(id)

  def finish(self, where: str) -> Int[np.ndarray, "e"]:
    """Returns the corpus row of each `add`, -1 for an id that the corpus lacks; says how many those are.

    Raises: UserError if they are more than 1%.
    """
    rows = self._corpus.rows_of_hashes(self._ids.hashes)
    missing = np.flatnonzero(rows < 0)
    if missing.size:
      examples = ", ".join(repr(self._ids.read(int(i))) for i in missing[:3])
      message = (
        f"{where}: {missing.size} of {len(rows)} judgements name passages that the corpus lacks ({examples})"
      )
      if missing.size > MOST_MISSING * len(rows):
        raise UserError(
          f"{message}. Above 1% the corpus is of another version: get the files of one release."
        )
      LOG.warning("%s: they are left out.", message)
    self._ids.close(np.zeros(0, np.int64))
    for path in self._folder.glob("wanted.*"):
      path.unlink()
    return rows
