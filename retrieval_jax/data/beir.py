"""Readers of folders in BEIR's layout: corpus.jsonl, queries.jsonl and qrels/<split>.tsv, each plain, .gz or .zst."""

import pathlib
from collections.abc import Iterator
from typing import Any

from retrieval_jax.data import features
from retrieval_jax.data.judged_pairs import judged_pairs
from retrieval_jax.data.lines import ENDINGS, Path, found_file, json_lines
from retrieval_jax.data.row_ids import consistent_passages
from retrieval_jax.errors import UserError
from retrieval_jax.paths import resolve


def beir_splits(path: Path) -> list[str]:
  """Returns the splits that a BEIR folder has judgements for: the names in qrels/, sorted.

  Raises: UserError if there is none.
  """
  folder = resolve(path)
  names = [file.name for file in (folder / "qrels").glob("*.tsv*")]
  splits = sorted(
    {name.removesuffix(f".tsv{end}") for name in names for end in ENDINGS if name.endswith(f".tsv{end}")}
  )
  if not splits:
    raise UserError(
      f"{folder}: no qrels/<split>.tsv in it. A BEIR folder holds corpus.jsonl, queries.jsonl and qrels/train.tsv, "
      "qrels/dev.tsv or qrels/test.tsv, each perhaps with .gz or .zst."
    )
  return splits


def beir_files(path: Path) -> list[pathlib.Path]:
  """Returns the files of a BEIR folder: the corpus, the queries and the judgements of each split.

  Raises: UserError if one is missing.
  """
  names = ("corpus.jsonl", "queries.jsonl", *(f"qrels/{split}.tsv" for split in beir_splits(path)))
  return [found_file(path, name) for name in names]


def read_beir_corpus(path: Path) -> Iterator[features.Example]:
  """Yields the passages of corpus.jsonl, title and text stripped; a missing, null or blank title is none.

  An empty passage is one too. Memory: 16 bytes a passage.

  Raises: UserError with file and line number for a line that is no JSON object with _id and text, and for an id with
  two texts.
  """
  file = found_file(path, "corpus.jsonl")
  return consistent_passages(
    lambda: ((_passage(record, where), where) for record, where in json_lines(file, ("_id", "text")))
  )


def _passage(record: dict[str, Any], where: str) -> features.Example:
  title = record.get("title")
  if not isinstance(title, str | None):
    raise UserError(f"{where}: title is {title!r:.80}; expected text, null or none.")
  return features.passage(record["_id"], record["text"].strip(), title=(title or "").strip())


def read_beir_queries(path: Path) -> dict[str, str]:
  """Returns the texts of queries.jsonl by their ids, judged or not.

  Raises: UserError with file and line number for a line that cannot be read or an id with two texts.
  """
  queries: dict[str, str] = {}
  for record, where in json_lines(found_file(path, "queries.jsonl"), ("_id", "text")):
    id, text = record["_id"], record["text"]
    if queries.setdefault(id, text) != text:
      raise UserError(
        f"{where}: the id {id!r} comes with two texts: {queries[id][:80]!r} and {text[:80]!r}. Ids must be unique: "
        "correct the text, or give one of them another id."
      )
  return queries


def read_beir_folder(path: Path, split: str) -> Iterator[features.Example]:
  """Yields the judged pairs of one split, in the order of qrels/<split>.tsv (trec.read_qrels).

  The passage's text is "": it is the corpus's, see `read_beir_corpus`. A judgement whose query is not in
  queries.jsonl is left out, with a warning that counts them. The queries' texts are held in memory.

  Raises: UserError with file and line number for a line that cannot be read or a query id with two texts, and if
  more than 1% of the judgements name unknown queries.
  """
  yield from judged_pairs(
    read_beir_queries(path), found_file(path, f"qrels/{split}.tsv"), where=f"{path}, split {split}"
  )
