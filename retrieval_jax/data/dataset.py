"""RetrievalData: queries, passages and who answers whom, tokenised and ready for batches."""

import pathlib
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from retrieval_jax import paths
from retrieval_jax.data.built_folder import short_hash
from retrieval_jax.data.pair_table import pair_table
from retrieval_jax.data.relevance import Relevance
from retrieval_jax.data.task_source import Source, TaskSource
from retrieval_jax.data.text_inputs import TextInputs
from retrieval_jax.data.token_store import TokenStore, token_store
from retrieval_jax.errors import UserError
from retrieval_jax.records import Batch

__all__ = ["RetrievalData", "Source", "TaskSource", "load", "make_batch"]


class RetrievalData(NamedTuple):
  """One split, ready to train on or to evaluate with.

  `examples` are the query rows with at least one positive, ascending: example i is query row examples[i].
  """

  name: str
  split: str
  queries: TokenStore
  passages: TokenStore
  relevance: Relevance
  examples: Int[np.ndarray, "e"]
  fingerprint: str

  @property
  def num_examples(self) -> int:
    """The number of queries that can be trained on."""
    return len(self.examples)


def load(source: Source, inputs: TextInputs, *, cache: pathlib.Path | None = None) -> RetrievalData:
  """Returns a split with the tokens that the model wants, from the cache if it is there.

  The first call reads the source once (through seqio: 4 s and 0.8 GB for TensorFlow) and tokenises it once; later
  calls, also of other processes, map the files and load no TensorFlow for the tasks of this package.

  Args:
    source: a TaskSource, BeirFolder or TsvPairs.
    inputs: the model's vocabularies, lengths, prefixes and title template.
    cache: the folder of derived data; `paths.cache_dir()` if None.

  Raises: UserError if the task or split is unknown, or the data are empty or contradict themselves.

  Example: `load(TaskSource("pydocs", "test"), TextInputs(WordPiece(path), 32, 128)).num_examples`.
  """
  cache = cache or paths.cache_dir()
  table = pair_table(source, cache)
  queries = token_store(
    table.queries,
    inputs.query_side,
    source=f"{table.fingerprint} queries",
    name=f"{source.name} {source.split} queries",
    cache=cache,
  )
  passages = token_store(
    table.passages,
    inputs.passage_side,
    source=f"{table.passages_fingerprint} passages",
    name=f"{source.name} passages",
    cache=cache,
  )
  examples = np.flatnonzero(table.relevance.counts > 0).astype(np.int32)
  if not len(examples):
    raise UserError(
      f"{source.name}, split {source.split}: no query has a passage of relevance > 0, so there is nothing to train "
      f"on or to find. Check the relevance column ({len(table.relevance.grades)} judgements, all <= 0)."
    )
  fingerprint = short_hash(
    {"pairs": table.fingerprint, "queries": queries.fingerprint, "passages": passages.fingerprint}
  )
  return RetrievalData(source.name, source.split, queries, passages, table.relevance, examples, fingerprint)


def make_batch(data: RetrievalData, indices: Int[np.ndarray, "q"], *, seed: int, epoch: int) -> Batch:
  """Returns the Batch (numpy) of the given examples; index -1 is padding: weight 0, rows -1, tokens 0.

  The positive of a query that has several is drawn by a pure function of (seed, epoch, query row): the same in
  every batch of an epoch, whatever the batch size and the number of processes, and another one in the next.
  Rows and positives are identities (TokenStore.identity), so that equal texts carry the same number.

  Raises: IndexError for an index outside [-1, num_examples).
  """
  indices = np.asarray(indices, np.int64)
  if indices.size and not (indices.min() >= -1 and indices.max() < data.num_examples):
    raise IndexError(f"indices {indices.min()}..{indices.max()}; expected -1 or 0..{data.num_examples - 1}.")
  query_rows = np.where(indices >= 0, data.examples[np.maximum(indices, 0)], -1)
  positives = data.relevance.positives(query_rows)
  passage_rows = _draw(positives, query_rows, seed=seed, epoch=epoch)
  return Batch(
    query_tokens=data.queries.gather(query_rows),
    passage_tokens=data.passages.gather(passage_rows),
    query_rows=_identities(data.queries, query_rows),
    passage_rows=_identities(data.passages, passage_rows),
    positives=_identities(data.passages, positives),
    weights=(indices >= 0).astype(np.float32),
  )


def _draw(
  positives: Int[np.ndarray, "q r"], query_rows: Int[np.ndarray, "q"], *, seed: int, epoch: int
) -> Int[np.ndarray, "q"]:
  """Returns one positive of each row, or -1 for a padding row."""
  counts = np.maximum(np.count_nonzero(positives >= 0, axis=1), 1)
  choice = (_mixed(query_rows, seed, epoch) % counts.astype(np.uint64)).astype(np.int64)
  return np.take_along_axis(positives, choice[:, None], axis=1)[:, 0]


def _mixed(rows: Int[np.ndarray, "q"], seed: int, epoch: int) -> np.ndarray:
  """Returns a uint64 hash of (seed, epoch, row) for each row: SplitMix64's finalizer (Steele et al. 2014, fig. 15)
  applied once a word."""
  state = np.zeros(len(rows), np.uint64)
  for word in (seed, epoch, rows):
    state = state + np.asarray(word).astype(np.int64).astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    state = state ^ (state >> np.uint64(31))
  return state


def _identities(store: TokenStore, rows: np.ndarray) -> np.ndarray:
  return np.where(rows >= 0, store.identity[np.maximum(rows, 0)], -1).astype(np.int32)
