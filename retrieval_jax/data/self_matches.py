"""Passages that are the query itself: of its text or, where a task says so, of its id."""

import numpy as np
from jaxtyping import Int
from tqdm import tqdm

from retrieval_jax import progress
from retrieval_jax.data.dataset import RetrievalData
from retrieval_jax.data.known_positives import KnownPositives
from retrieval_jax.data.text_table import hash_text
from retrieval_jax.data.token_store import TokenStore

CHUNK = 2**14  # texts read at once
SHOWN = 2**17  # fewer are read before a progress bar could be


def self_matches(data: RetrievalData) -> KnownPositives:
  """Returns the pairs of an example's query and a passage of the same text (white space around it aside) and, where
  the task drops identical ids (TaskInfo.drop_identical), of the same id.

  Reads every text of both sides once: half a minute for ten million. Memory: 16 bytes a query.

  Example: `self_matches(data).has(query_rows, passage_rows)`.
  """
  owners, passages = _equal_texts(data.queries, data.examples, data.passages)
  if data.info.drop_identical:
    hashes = np.array([hash_text(id) for id in data.queries.ids.take(data.examples)], np.uint64)
    rows = data.passages.rows_of_hashes(hashes)
    owners = np.concatenate([owners, data.examples[rows >= 0]])
    passages = np.concatenate([passages, rows[rows >= 0]])
  return KnownPositives.from_pairs(owners, passages, data.queries, data.passages)


def _equal_texts(
  queries: TokenStore, query_rows: Int[np.ndarray, "e"], passages: TokenStore
) -> tuple[Int[np.ndarray, "x"], Int[np.ndarray, "x"]]:
  """Returns the query rows and the passage rows of all pairs of equal texts."""
  hashes = _hashes(queries.texts.take(query_rows))
  order = np.argsort(hashes, kind="stable")
  ranked = hashes[order]
  owners, found = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
  with tqdm(
    total=len(passages),
    desc="compare texts",
    unit=" texts",
    disable=len(passages) < SHOWN,
    mininterval=progress.interval(),
  ) as bar:
    for start in range(0, len(passages), CHUNK):
      chunk = _hashes(passages.texts[start : start + CHUNK])
      first, last = np.searchsorted(ranked, chunk), np.searchsorted(ranked, chunk, side="right")
      for row in np.flatnonzero(first < last):
        owners.append(query_rows[order[first[row] : last[row]]])
        found.append(np.full(last[row] - first[row], start + row))
      bar.update(len(chunk))
  return np.concatenate(owners), np.concatenate(found)


def _hashes(texts: list[str]) -> np.ndarray:
  return np.array([hash_text(text.strip()) for text in texts], np.uint64)
