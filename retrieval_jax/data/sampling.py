"""A part of a task: some of its queries and a smaller corpus, for an evaluation that takes seconds."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int

from retrieval_jax.data.built_folder import short_hash
from retrieval_jax.data.dataset import RetrievalData
from retrieval_jax.data.label_counts import LabelCounts
from retrieval_jax.data.relevance import Relevance
from retrieval_jax.data.text_table import Texts
from retrieval_jax.data.token_store import TokenStore, first_equal
from retrieval_jax.errors import UserError


class Sample(NamedTuple):
  """How much of a task is taken. None: all of it.

  queries: so many of the judged queries, drawn by `seed`.
  passages: so many of the corpus: every passage that is judged for one of these queries, and others drawn by `seed`. A
    search among fewer passages finds more, so the numbers compare with each other and with no other corpus.
  candidates: each query is searched for among so many of the corpus, drawn by `seed` and the same for all queries, and the
    passages that are judged for this query; those of other queries are not in its way. A search then is as much deeper as
    there are of those: with many queries, set `queries` too.

  Example: `Sample(queries=500, passages=20_000)`.
  """

  queries: int | None = None
  passages: int | None = None
  seed: int = 0
  candidates: int | None = None

  @property
  def is_all(self) -> bool:
    """Whether nothing is left out."""
    return self.queries is None and self.passages is None and self.candidates is None

  @property
  def suffix(self) -> str:
    """What the name of a part of a task ends in: numbers of different kinds of parts do not compare."""
    if self.is_all:
      return ""
    return "_sample" if self.candidates is None else "_candidates"


class SelectedRows(TokenStore):
  """Some rows of a TokenStore as a store of their own, ascending; nothing is copied but their numbers."""

  def __init__(self, store: TokenStore, rows: Int[np.ndarray, "e"]):
    self._store, self._chosen = store, np.asarray(rows, np.int64)
    self.folder = store.folder
    self.num_rows, self.length = len(rows), store.length
    self.lengths = np.asarray(store.lengths[self._chosen])
    identity = np.asarray(store.identity[self._chosen], np.int64)
    self.identity = first_equal(np.stack([identity, identity], axis=1))
    self.ids, self.texts = SelectedTexts(store.ids, self._chosen), SelectedTexts(store.texts, self._chosen)
    self.fingerprint = short_hash({"rows": self._chosen.tolist(), "of": store.fingerprint})

  def gather(self, rows: Sequence[int] | Int[np.ndarray, "e"]) -> Int[np.ndarray, "e l"]:
    """Returns the int32 tokens [e, length] of the given rows; row -1 (padding) gives zeros."""
    wanted = np.asarray(rows, np.int64)
    return self._store.gather(np.where(wanted < 0, -1, self._chosen[np.maximum(wanted, 0)]))

  def row_of(self, id: str) -> int:
    """Returns the row with this id. Raises: UserError if no row has it."""
    row = int(self._renumber(np.array([self._store.row_of(id)]))[0])
    if row < 0:
      raise UserError(f"the id {id!r} is not among the {self.num_rows} rows that are sampled.")
    return row

  def rows_of_hashes(self, hashes: np.ndarray) -> Int[np.ndarray, "e"]:
    """Returns int64 [e]: the row whose id has each hash (text_table.hash_text), -1 where there is none."""
    return self._renumber(self._store.rows_of_hashes(hashes))

  @property
  def empty(self) -> Bool[np.ndarray, "e"]:
    """Whether each row is a text without a character."""
    return self._store.empty[self._chosen]

  def _renumber(self, rows: Int[np.ndarray, "e"]) -> Int[np.ndarray, "e"]:
    return renumbered(rows, self._chosen)


class SelectedTexts(Texts):
  """Some rows of a sequence of strings."""

  def __init__(self, texts: Texts, rows: Int[np.ndarray, "e"]):
    self._texts, self._rows = texts, rows

  def __len__(self) -> int:
    return len(self._rows)

  def text(self, index: int) -> str:
    return self._texts[int(self._rows[index])]


def renumbered(rows: Int[np.ndarray, "e"], kept: Int[np.ndarray, "k"]) -> Int[np.ndarray, "e"]:
  """Returns the place of each row among `kept` (ascending), -1 where it is not there.

  Example: `renumbered(np.array([7, 4]), np.array([2, 7]))` is `[1, -1]`.
  """
  places = np.minimum(np.searchsorted(kept, rows), len(kept) - 1)
  return np.where(kept[places] == rows, places, -1)


def sampled(data: RetrievalData, sample: Sample) -> RetrievalData:
  """Returns the part of a task; the same part for the same task and sample.

  Raises: UserError for a number below 1, and for both passages and candidates.
  """
  wanted = {"queries": sample.queries, "passages": sample.passages, "candidates": sample.candidates}
  for name, value in wanted.items():
    if value is not None and (type(value) is not int or value < 1):
      raise UserError(
        f"a sample of {value!r} {name}: expected a whole number of at least 1, or None for all."
      )
  if sample.passages is not None and sample.candidates is not None:
    raise UserError(
      f"a sample of {sample.passages} passages and {sample.candidates} candidates: give one of them, for passages are searched "
      "for all queries together, and candidates for each by itself."
    )
  generator = np.random.default_rng(sample.seed)
  queries = data.judged
  if sample.queries is not None and sample.queries < len(queries):
    queries = np.sort(generator.choice(queries, sample.queries, replace=False))
  relevance = _of_queries(data.relevance, queries)
  shared = _shared(data, sample)
  if shared is None:
    passages = _passages(data, relevance, sample.passages, generator)
  else:
    passages = np.union1d(shared, relevance.passage_rows).astype(np.int64)
  relevance = relevance._replace(passage_rows=renumbered(relevance.passage_rows, passages).astype(np.int32))
  chosen = SelectedRows(data.passages, passages) if len(passages) < data.passages.num_rows else data.passages
  return data._replace(
    name=f"{data.name}{sample.suffix}",
    queries=SelectedRows(data.queries, queries),
    passages=chosen,
    relevance=relevance,
    dangling=None if data.dangling is None else _of_queries(data.dangling, queries),
    examples=np.flatnonzero(relevance.counts > 0).astype(np.int32),
    fingerprint=short_hash({"data": data.fingerprint, "sample": list(sample)}),
    teacher_scores=None,
    filtered=_filtered(data.filtered, queries, passages),
    label_counts=_counts(data.label_counts, passages),
    negatives=None,
    shared=None if shared is None else np.isin(passages, shared, assume_unique=True),
  )


def _shared(data: RetrievalData, sample: Sample) -> Int[np.ndarray, "m"] | None:
  """Returns the passage rows that are candidates of every query, whichever queries are drawn; None: all are."""
  total = data.passages.num_rows
  if sample.candidates is None or sample.candidates >= total:
    return None
  return np.random.default_rng([sample.seed, 1]).choice(total, sample.candidates, replace=False)


def _filtered(
  filtered: Relevance | None, queries: Int[np.ndarray, "q"], passages: Int[np.ndarray, "c"]
) -> Relevance | None:
  """Returns the filtered pairs whose query and passage are both in the sample."""
  if filtered is None:
    return None
  part = _of_queries(filtered, queries)
  owners = np.repeat(np.arange(len(queries)), np.diff(part.offsets))
  rows = renumbered(part.passage_rows, passages)
  kept = rows >= 0
  return Relevance.from_pairs(owners[kept], rows[kept], part.grades[kept], num_queries=len(queries))


def _counts(counts: LabelCounts | None, passages: Int[np.ndarray, "c"]) -> LabelCounts | None:
  return None if counts is None else counts._replace(counts=counts.counts[passages])


def _of_queries(relevance: Relevance, queries: Int[np.ndarray, "q"]) -> Relevance:
  """Returns the judgements of some queries, which become rows 0, 1, ..."""
  counts = np.diff(relevance.offsets)[queries]
  offsets = np.concatenate([[0], np.cumsum(counts)])
  places = np.arange(offsets[-1]) + np.repeat(relevance.offsets[queries] - offsets[:-1], counts)
  positives = relevance.counts[queries]
  return Relevance(
    offsets,
    relevance.passage_rows[places],
    relevance.grades[places],
    positives,
    int(positives.max(initial=0)),
  )


def _passages(
  data: RetrievalData, relevance: Relevance, count: int | None, generator: np.random.Generator
) -> Int[np.ndarray, "c"]:
  """Returns the passage rows of the sample, ascending."""
  everything = np.arange(data.passages.num_rows)
  judged = np.unique(relevance.passage_rows)
  if count is None or count >= len(everything):
    return everything
  others = np.setdiff1d(everything, judged, assume_unique=True)
  drawn = generator.choice(others, min(max(count - len(judged), 0), len(others)), replace=False)
  return np.sort(np.concatenate([judged, drawn]))
