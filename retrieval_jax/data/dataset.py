"""RetrievalData: queries, passages and who answers whom, tokenised and ready for batches."""

import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from retrieval_jax import paths
from retrieval_jax.data.built_folder import short_hash
from retrieval_jax.data.features import TaskInfo
from retrieval_jax.data.hard_negatives import HardNegatives
from retrieval_jax.data.known_positives import KnownPositives
from retrieval_jax.data.label_counts import LabelCounts, label_counts
from retrieval_jax.data.marginal_tables import MarginalTables
from retrieval_jax.data.negatives_file import load_negatives_file
from retrieval_jax.data.pair_table import pair_table
from retrieval_jax.data.relevance import Relevance
from retrieval_jax.data.row_hash import mixed
from retrieval_jax.data.task_part import TaskPart, in_batch_rows
from retrieval_jax.data.task_source import Source, TaskSource
from retrieval_jax.data.teacher_scores import TeacherScores, load_teacher_scores
from retrieval_jax.data.text_inputs import TextInputs
from retrieval_jax.data.token_store import TokenStore, token_store
from retrieval_jax.errors import UserError
from retrieval_jax.records import Batch

__all__ = ["RetrievalData", "Source", "TaskSource", "load", "make_batch"]


class RetrievalData(NamedTuple):
  """One split, ready to train on or to evaluate with.

  examples: the query rows with at least one positive, ascending: example i is query row examples[i].
  dangling: judgements of passages that the corpus lacks, numbered from 0 among themselves; None: there are none.
  negatives: the hard negatives of each query row, if the data have any.
  info: what the task declares of its evaluation. files: path -> size and md5 of what was read.
  tasks: of a mixture (mixture.py), whose examples they follow; empty for a single task.
  filtered: query row -> passage rows that are no results (TextTask.filter_pairs), each of grade 1; None: there are none.
  label_counts: how many training points each passage row has, of a task that declares propensities.
  chosen: of examples that are pairs (pair_examples.py), the place of each one's passage among its query's positives; None:
    one of the query's positives is drawn in each epoch.
  marginals: how a gravity weighs the rows (marginals.py), if the training's loss asks.
  shared: which passage rows are candidates of every query (sampling.py): another one is a candidate of the queries that it is
    judged for alone; None: all are.
  """

  name: str
  split: str
  queries: TokenStore
  passages: TokenStore
  relevance: Relevance
  examples: Int[np.ndarray, "e"]
  fingerprint: str
  teacher_scores: TeacherScores | None = None
  dangling: Relevance | None = None
  negatives: HardNegatives | None = None
  info: TaskInfo = TaskInfo()
  files: Mapping[str, Mapping[str, Any]] = {}
  tasks: Sequence[TaskPart] = ()
  filtered: Relevance | None = None
  label_counts: LabelCounts | None = None
  chosen: Int[np.ndarray, "e"] | None = None
  marginals: MarginalTables | None = None
  shared: Bool[np.ndarray, "c"] | None = None

  @property
  def num_examples(self) -> int:
    """The number of queries, or of pairs, that can be trained on."""
    return len(self.examples)

  @property
  def judged(self) -> Int[np.ndarray, "e"]:
    """The query rows that evaluation searches for: those with any judgement, also if none of them is positive."""
    counts = np.diff(self.relevance.offsets)
    if self.dangling is not None:
      counts = counts + np.diff(self.dangling.offsets)
    return np.flatnonzero(counts > 0).astype(np.int32)

  def judgements(self, query_row: int) -> tuple[Int[np.ndarray, "r"], Int[np.ndarray, "r"]]:
    """Returns the passage rows judged for one query, and their grades. A passage that the corpus lacks has a row from
    passages.num_rows on: no search finds it, and the best possible ranking has it."""
    rows, grades = self.relevance.row(query_row)
    if self.dangling is None:
      return rows, grades
    lost, lost_grades = self.dangling.row(query_row)
    return np.concatenate([rows, self.passages.num_rows + lost]), np.concatenate([grades, lost_grades])


def load(
  source: Source,
  inputs: TextInputs,
  *,
  teacher_scores: str | None = None,
  hard_negatives: str | None = None,
  cache: pathlib.Path | None = None,
) -> RetrievalData:
  """Returns a split with the tokens that the model wants, from the cache if it is there.

  The first call reads the source once (through seqio: 4 s and 0.8 GB for TensorFlow) and tokenises it once; later
  calls, also of other processes, map the files and load no TensorFlow for the tasks of this package.

  Args:
    source: a TaskSource, BeirFolder or TsvPairs.
    inputs: the model's vocabularies, lengths, prefixes and title template.
    teacher_scores: a TSV file of query_id, passage_id, score (teacher_scores.py), which batches then carry.
    hard_negatives: a TSV file of query_id, passage_id (negatives_file.py), joined with the negatives of the task's own
      examples.
    cache: the folder of derived data; `paths.cache_dir()` if None.

  Raises: UserError if the task or split is unknown, or the data are empty or contradict themselves.

  Example: `load(TaskSource("pydocs", "test"), TextInputs(WordPiece(path), 32, 128)).num_examples`.
  """
  if not isinstance(source, Source):  # a MixtureSource, which has a `load` of its own
    raise UserError(
      f"{type(source).__name__}: expected one task. A mixture can be trained on; to evaluate, encode, search or mine, name "
      "one of its tasks: --gin_file=data/task.gin --gin.MIXTURE_OR_TASK_NAME=..., or another file of data/."
    )
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
  parts = {"pairs": table.fingerprint, "queries": queries.fingerprint, "passages": passages.fingerprint}
  scores = None
  if teacher_scores is not None:
    scores = load_teacher_scores(teacher_scores, queries, passages, cache=cache)
    parts["teacher_scores"] = scores.fingerprint
  negatives = table.negatives
  if hard_negatives is not None:
    found = load_negatives_file(hard_negatives, table, queries, passages, cache=cache)
    negatives, parts["hard_negatives"] = found.table, found.fingerprint
  elif negatives is not None:
    negatives = negatives.without(KnownPositives.of(table.relevance, queries, passages))
  fingerprint = short_hash(parts)
  counts = None
  if source.info.propensity is not None:
    counts = label_counts(source, table, num_labels=passages.num_rows, cache=cache)
  return RetrievalData(
    source.name,
    source.split,
    queries,
    passages,
    table.relevance,
    examples,
    fingerprint,
    scores,
    dangling=table.dangling,
    negatives=negatives,
    info=source.info,
    files=table.files,
    filtered=table.filtered,
    label_counts=counts,
  )


def make_batch(
  data: RetrievalData,
  indices: Int[np.ndarray, "q"],
  *,
  seed: int,
  epoch: int | Int[np.ndarray, "q"],
  hard_negatives: int = 0,
  read: Callable[[Any, np.ndarray], Any] = lambda store, rows: store.gather(rows),
) -> Batch:
  """Returns the Batch (numpy) of the given examples; index -1 is padding: weight 0, rows -1, tokens 0.

  The positive of a query that has several is drawn by a pure function of (seed, epoch, query row): the same in
  every batch of an epoch, whatever the batch size and the number of processes, and another one in the next. epoch: of
  all, or of each example (Batcher.epochs). An example that is a pair (data.chosen) has its own passage in every epoch.
  Rows and positives are identities (TokenStore.identity), so that equal texts carry the same number. data.filtered stands
  among the positives, because it must not act as a negative; what is drawn is a positive, filtered or not.
  targets are the grades of the drawn pairs, 0 for padding; teacher_scores are there if the data have some, in_batch if
  a task of the data is without in-batch negatives, marginals if data has some.
  hard_negatives: so many of data.negatives are drawn for each query in the same way; a query that has fewer leaves
  places empty: row -1, tokens 0, which a loss does not count.
  read: (store, rows) -> their tokens; `RowTokens` for those of several processes, which read them later and in part.

  Raises: IndexError for an index outside [-1, num_examples).
  """
  indices = np.asarray(indices, np.int64)
  if indices.size and not (indices.min() >= -1 and indices.max() < data.num_examples):
    raise IndexError(f"indices {indices.min()}..{indices.max()}; expected -1 or 0..{data.num_examples - 1}.")
  query_rows = np.where(indices >= 0, data.examples[np.maximum(indices, 0)], -1)
  positives = data.relevance.positives(query_rows)
  if data.chosen is None:
    choice = _draw(positives, query_rows, seed=seed, epoch=epoch)
  else:
    choice = np.where(indices >= 0, data.chosen[np.maximum(indices, 0)], 0)
  passage_rows = np.take_along_axis(positives, choice[:, None], axis=1)[:, 0]
  if hard_negatives:
    drawn = _hard_negatives(data, query_rows, hard_negatives, seed=seed, epoch=epoch)
    passage_rows = np.concatenate([passage_rows, drawn.reshape(-1)])
  queries, passages = _identities(data.queries, query_rows), _identities(data.passages, passage_rows)
  scores = data.teacher_scores
  return Batch(
    query_tokens=read(data.queries, query_rows),
    passage_tokens=read(data.passages, passage_rows),
    query_rows=queries,
    passage_rows=passages,
    positives=_identities(data.passages, _no_negatives(data, query_rows, positives)),
    weights=(indices >= 0).astype(np.float32),
    targets=_grades(data.relevance, query_rows, choice),
    teacher_scores=None if scores is None else scores.gather(queries, passages),
    in_batch=in_batch_rows(data.tasks, indices),
    marginals=None if data.marginals is None else data.marginals.gather(queries, passages[: len(queries)]),
  )


def _hard_negatives(
  data: RetrievalData,
  query_rows: Int[np.ndarray, "q"],
  per_query: int,
  *,
  seed: int,
  epoch: int | Int[np.ndarray, "q"],
) -> Int[np.ndarray, "q n"]:
  if data.negatives is None:
    return np.full((len(query_rows), per_query), -1, np.int32)
  return data.negatives.draw(query_rows, per_query=per_query, seed=seed, epoch=epoch)


def _no_negatives(
  data: RetrievalData, query_rows: Int[np.ndarray, "q"], positives: Int[np.ndarray, "q r"]
) -> Int[np.ndarray, "q x"]:
  """Returns the passage rows that must not act as negatives: the positives, and behind them what is filtered."""
  if data.filtered is None:
    return positives
  return np.concatenate([positives, data.filtered.positives(query_rows)], axis=1)


def _draw(
  positives: Int[np.ndarray, "q r"],
  query_rows: Int[np.ndarray, "q"],
  *,
  seed: int,
  epoch: int | Int[np.ndarray, "q"],
) -> Int[np.ndarray, "q"]:
  """Returns the column of one positive of each row; 0 for a padding row."""
  counts = np.maximum(np.count_nonzero(positives >= 0, axis=1), 1)
  return (mixed(query_rows, seed, epoch) % counts.astype(np.uint64)).astype(np.int64)


def _grades(
  relevance: Relevance, query_rows: Int[np.ndarray, "q"], choice: Int[np.ndarray, "q"]
) -> Float[np.ndarray, "q"]:
  """Returns the grade of each row's positive of that column, 0 for a padding row."""
  places = relevance.offsets[np.maximum(query_rows, 0)] + choice
  return np.where(query_rows >= 0, relevance.grades[places], 0).astype(np.float32)


def _identities(store: TokenStore, rows: np.ndarray) -> np.ndarray:
  return np.where(rows >= 0, store.identity[np.maximum(rows, 0)], -1).astype(np.int32)
