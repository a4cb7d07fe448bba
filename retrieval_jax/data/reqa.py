"""Folders in ReQA's layout: contexts, their sentences (candidates), and questions that a sentence answers."""

import dataclasses
import pathlib
from collections.abc import Iterator
from typing import Any

from retrieval_jax.data import features
from retrieval_jax.data.file_task import FileSource, files_fingerprint, task_name
from retrieval_jax.data.lines import ENDINGS, Path, found_file, json_lines
from retrieval_jax.data.multireqa import sentence_text
from retrieval_jax.data.row_ids import consistent_passages
from retrieval_jax.errors import UserError
from retrieval_jax.paths import resolve

QUESTIONS = ".questions.jsonl"


def reqa_splits(path: Path) -> list[str]:
  """Returns the splits that have a file <split>.questions.jsonl, sorted.

  Raises: UserError if there is none.
  """
  folder = resolve(path)
  names = [file.name for file in folder.glob(f"*{QUESTIONS}*")]
  splits = {
    name.removesuffix(QUESTIONS + end) for name in names for end in ENDINGS if name.endswith(QUESTIONS + end)
  }
  if not splits:
    raise UserError(
      f"{folder}: no <split>{QUESTIONS} in it. A folder in ReQA's layout holds contexts.jsonl, candidates.jsonl and "
      f"train{QUESTIONS}, dev{QUESTIONS} or test{QUESTIONS}, each perhaps with .gz or .zst."
    )
  return sorted(splits)


def reqa_files(path: Path) -> list[pathlib.Path]:
  """Returns the files of a folder in ReQA's layout.

  Raises: UserError if one is missing.
  """
  names = ("contexts.jsonl", "candidates.jsonl", *(split + QUESTIONS for split in reqa_splits(path)))
  return [found_file(path, name) for name in names]


def read_reqa_corpus(path: Path, *, context: bool = False) -> Iterator[features.Example]:
  """Yields all candidates, of all splits: their sentence or, with `context`, the sentence, a space and the paragraph.

  Memory: the contexts' texts.

  Raises: UserError with file and line number for a line of another form, a candidate of an unknown context or beyond
  it, and an id with two texts.
  """
  texts = {}
  for record, where in json_lines(found_file(path, "contexts.jsonl"), ("context_id", "text")):
    if texts.setdefault(record["context_id"], record["text"]) != record["text"]:
      raise UserError(
        f"{where}: the context_id {record['context_id']!r} comes with two texts. Ids must be unique."
      )
  file = found_file(path, "candidates.jsonl")

  def rows() -> Iterator[tuple[features.Example, str]]:
    for record, where in json_lines(file, ("candidate_id", "context_id")):
      start, end = _span(record, texts, where)
      text = sentence_text(texts[record["context_id"]], start, end, context=context)
      yield features.passage(record["candidate_id"], text), where

  return consistent_passages(rows)


def _span(record: dict[str, Any], texts: dict[str, str], where: str) -> tuple[int, int]:
  context_id = record["context_id"]
  if context_id not in texts:
    raise UserError(
      f"{where}: the context_id {context_id!r} is not in contexts.jsonl. Get the files of one release."
    )
  start, end = record.get("response_start"), record.get("response_end")
  length = len(texts[context_id])
  if type(start) is not int or type(end) is not int or not 0 <= start < end <= length:
    raise UserError(
      f"{where}: the sentence {start!r}..{end!r}; expected response_start < response_end within the {length} characters of "
      f"the context {context_id!r}."
    )
  return start, end


def read_reqa_pairs(path: Path, split: str) -> Iterator[features.Example]:
  """Yields a pair for each question of a split and each of its candidate_ids; the text "" is the corpus's.

  Raises: UserError with file and line number for a line of another form and for a question without candidates.
  """
  for record, where in json_lines(found_file(path, split + QUESTIONS), ("question_id", "question")):
    gold = record.get("candidate_ids")
    if not (isinstance(gold, list) and gold and all(isinstance(candidate, str) for candidate in gold)):
      raise UserError(f"{where}: candidate_ids is {gold!r:.80}; expected a list of at least one id.")
    for candidate_id in gold:
      yield features.pair(record["question_id"], record["question"], candidate_id, "")


@dataclasses.dataclass(frozen=True)
class ReqaFolder(FileSource):
  """A folder in ReQA's layout: find the sentence that answers a question, among those of all splits.

  Attributes:
    path: the folder: contexts.jsonl, candidates.jsonl, <split>.questions.jsonl, each plain, .gz or .zst.
    split: the questions.
    context: whether a passage is the sentence and the paragraph it is from, or the sentence alone.

  Example: `load(ReqaFolder("data/squad_reqa", "test", context=True), inputs)`.
  """

  path: str
  split: str = "train"
  context: bool = False

  @property
  def name(self) -> str:
    """The folder's name."""
    return resolve(self.path).resolve().name

  def task(self) -> features.TextTask:
    """Returns the text task of the folder."""
    folder = resolve(self.path)

    def read(split: str) -> Iterator[features.Example]:
      if split == features.CORPUS:
        return read_reqa_corpus(folder, context=self.context)
      return read_reqa_pairs(folder, split)

    return features.TextTask(
      name=task_name("reqa_with_context" if self.context else "reqa", folder),
      splits=(*reqa_splits(folder), features.CORPUS),
      read=read,
      fingerprint=lambda: files_fingerprint(reqa_files(folder), self.context),
      files=lambda: reqa_files(folder),
    )
