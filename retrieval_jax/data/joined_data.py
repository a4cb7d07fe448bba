"""The data of several tasks as one RetrievalData: rows of each task after the other's, renumbered."""

from collections.abc import Sequence

import numpy as np

from retrieval_jax.data.built_folder import short_hash
from retrieval_jax.data.dataset import RetrievalData
from retrieval_jax.data.hard_negatives import HardNegatives
from retrieval_jax.data.joined_store import JoinedStore
from retrieval_jax.data.relevance import Relevance
from retrieval_jax.data.task_part import TaskPart
from retrieval_jax.data.teacher_scores import TeacherScores
from retrieval_jax.errors import UserError


def joined(name: str, split: str, tasks: Sequence[TaskPart], parts: Sequence[RetrievalData]) -> RetrievalData:
  """Returns the data of several tasks as one. Evaluation has no use for it: judgements that dangle are left out."""
  queries = JoinedStore([part.queries for part in parts])
  passages = JoinedStore([part.passages for part in parts])
  if len(set(queries.offsets)) < len(parts):
    raise UserError(
      f"the mixture {name} has the same queries twice: {', '.join(task.name for task in tasks)}."
    )
  offsets = list(zip(parts, queries.offsets, passages.offsets, strict=True))
  examples = np.concatenate([part.examples + np.int32(first) for part, first, _ in offsets])
  fingerprint = short_hash(
    {"parts": [part.fingerprint for part in parts], "tasks": [list(task) for task in tasks]}
  )
  return RetrievalData(
    name,
    split,
    queries,
    passages,
    _joined_relevance([part.relevance for part in parts], passages.offsets),
    examples,
    fingerprint,
    _joined_scores(parts, passages.offsets),
    negatives=_joined_negatives(parts, passages.offsets),
    files={path: mark for part in parts for path, mark in part.files.items()},
    tasks=tasks,
    filtered=_joined_filtered(parts, passages.offsets),
  )


def _joined_relevance(parts: Sequence[Relevance], passage_offsets: Sequence[int]) -> Relevance:
  return Relevance(
    _joined_offsets([part.offsets for part in parts]),
    _shifted([part.passage_rows for part in parts], passage_offsets),
    np.concatenate([part.grades for part in parts]),
    np.concatenate([part.counts for part in parts]),
    max(part.width for part in parts),
  )


def _joined_filtered(parts: Sequence[RetrievalData], passage_offsets: Sequence[int]) -> Relevance | None:
  if all(part.filtered is None for part in parts):
    return None
  nothing = np.zeros(0, np.int64)
  tables = [
    Relevance.from_pairs(nothing, nothing, nothing, num_queries=part.queries.num_rows)
    if part.filtered is None
    else part.filtered
    for part in parts
  ]
  return _joined_relevance(tables, passage_offsets)


def _joined_negatives(parts: Sequence[RetrievalData], passage_offsets: Sequence[int]) -> HardNegatives | None:
  if all(part.negatives is None for part in parts):
    return None
  tables = [_no_negatives(part) if part.negatives is None else part.negatives for part in parts]
  return HardNegatives(
    _joined_offsets([table.offsets for table in tables]),
    _shifted([table.passage_rows for table in tables], passage_offsets),
  )


def _no_negatives(part: RetrievalData) -> HardNegatives:
  return HardNegatives(np.zeros(part.queries.num_rows + 1, np.int64), np.zeros(0, np.int32))


def _joined_scores(parts: Sequence[RetrievalData], passage_offsets: Sequence[int]) -> TeacherScores | None:
  if all(part.teacher_scores is None for part in parts):
    return None
  tables = [_no_scores(part) if part.teacher_scores is None else part.teacher_scores for part in parts]
  return TeacherScores(
    _joined_offsets([table.offsets for table in tables]),
    _shifted([table.passage_rows for table in tables], passage_offsets),
    np.concatenate([table.scores for table in tables]),
    short_hash({"scores": [table.fingerprint for table in tables]}),
  )


def _no_scores(part: RetrievalData) -> TeacherScores:
  offsets = np.zeros(part.queries.num_rows + 1, np.int64)
  return TeacherScores(offsets, np.zeros(0, np.int32), np.zeros(0, np.float32), "")


def _joined_offsets(parts: Sequence[np.ndarray]) -> np.ndarray:
  """Returns the offsets of sparse tables that follow each other."""
  counts = np.concatenate([np.diff(part) for part in parts])
  return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


def _shifted(parts: Sequence[np.ndarray], offsets: Sequence[int]) -> np.ndarray:
  return np.concatenate([part + np.int32(first) for part, first in zip(parts, offsets, strict=True)])
