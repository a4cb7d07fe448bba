"""Users' own files as sources: gin alone can train and evaluate on them."""

import dataclasses
import pathlib
from collections.abc import Callable, Iterator, Sequence

from retrieval_jax.data import beir, features
from retrieval_jax.data.file_task import FileSource, files_fingerprint, task_name
from retrieval_jax.data.lines import stem
from retrieval_jax.data.pair_columns import Columns, check_columns, passage_text_id
from retrieval_jax.data.tables import is_json, read_jsonl_pairs, read_passages, read_tsv_pairs
from retrieval_jax.errors import UserError
from retrieval_jax.paths import resolve

MACROS = {"train": "DATA_PATH", "dev": "DEV_PATH", "test": "TEST_PATH", features.CORPUS: "CORPUS_PATH"}


@dataclasses.dataclass(frozen=True)
class BeirFolder(FileSource):
  """A folder in BEIR's layout: corpus.jsonl, queries.jsonl, qrels/<split>.tsv, each plain, .gz or .zst.

  Every split searches the whole corpus. The data are read again when a file's size or time changes.

  Example: `load(BeirFolder("data/scifact", split="test"), inputs)`.
  """

  path: str
  split: str = "train"

  @property
  def name(self) -> str:
    """The folder's name."""
    return resolve(self.path).resolve().name

  def task(self) -> features.TextTask:
    """Returns the text task of the folder."""
    folder = resolve(self.path)

    def read(split: str) -> Iterator[features.Example]:
      return (
        beir.read_beir_corpus(folder) if split == features.CORPUS else beir.read_beir_folder(folder, split)
      )

    return features.TextTask(
      name=task_name("beir", folder),
      splits=(*beir.beir_splits(folder), features.CORPUS),
      read=read,
      fingerprint=lambda: files_fingerprint(beir.beir_files(folder)),
      files=lambda: beir.beir_files(folder),
    )


@dataclasses.dataclass(frozen=True)
class TsvPairs(FileSource):
  """TSV files of pairs (tables.read_tsv_pairs): one for training and, if you have them, one for dev and for test.

  A split's passages are those of its own file, or with `corpus` all that are in that file (tables.read_passages): the
  pairs then name them by passage_id, or neither file has ids. The data are read again when a file's size or time changes.

  Attributes:
    path: the file of training pairs.
    split: "train", "dev" or "test".
    dev, test: files of pairs.
    columns: our names -> those of the files' headers, or their numbers from 1 if they have no header.
    corpus: the file of all passages.

  Example: `load(TsvPairs("pairs.tsv"), inputs)`, `load(TsvPairs("pairs.tsv", "test", test="test.tsv"), inputs)`.
  """

  path: str
  split: str = "train"
  dev: str | None = None
  test: str | None = None
  columns: Columns | None = None
  corpus: str | None = None

  @property
  def name(self) -> str:
    """The name of the file that holds the split, without its ending: results of two test files lie apart."""
    return _name(self)

  def task(self) -> features.TextTask:
    """Returns the text task of the files."""
    return _table_task(self, "tsv", read_tsv_pairs)


@dataclasses.dataclass(frozen=True)
class JsonlPairs(FileSource):
  """Files of JSON objects, each a pair, one a line (tables.read_jsonl_pairs); else as TsvPairs.

  Example: `load(JsonlPairs("pairs.jsonl", columns={"query": "question", "passage": "answer"}), inputs)`.
  """

  path: str
  split: str = "train"
  dev: str | None = None
  test: str | None = None
  columns: Columns | None = None
  corpus: str | None = None

  @property
  def name(self) -> str:
    """The name of the file that holds the split, without its ending."""
    return _name(self)

  def task(self) -> features.TextTask:
    """Returns the text task of the files."""
    return _table_task(self, "jsonl", read_jsonl_pairs)


def _name(source: TsvPairs | JsonlPairs) -> str:
  return stem(_named(source).get(source.split) or source.path)


def _named(source: TsvPairs | JsonlPairs) -> dict[str, str | None]:
  return {"train": source.path, "dev": source.dev, "test": source.test}


def _table_task(
  source: TsvPairs | JsonlPairs, kind: str, reader: Callable[..., Iterator[features.Example]]
) -> features.TextTask:
  """Returns the task of the files of pairs and, if there is one, of the file of passages.

  Raises: UserError if a file is missing or the source's own split has none.
  """
  if not source.path:
    raise UserError(
      f"DATA_PATH={source.path!r}: expected the path of a file of pairs, for example --gin.DATA_PATH=pairs.{kind}."
    )
  named = _named(source) | {features.CORPUS: source.corpus}
  files = {split: _table_file(path, MACROS[split]) for split, path in named.items() if path}
  for split, file in files.items():
    if split != features.CORPUS and is_json(file) != (kind == "jsonl"):
      other = "jsonl" if kind == "tsv" else "tsv"
      raise UserError(
        f"{MACROS[split]}={file}: by its name no {kind.upper()} file. Use --gin_file=data/{other}.gin for it, or a name "
        f"that ends in .{kind} (and perhaps .gz or .zst)."
      )
  if source.split not in files or source.split == features.CORPUS:
    pairs = [split for split in files if split != features.CORPUS]
    raise UserError(
      f"{source.name} has no split {source.split!r}; its splits of pairs: {', '.join(pairs)}. Set TEST_PATH (or "
      "DEV_PATH) to a file of such pairs, or EVAL_SPLIT=train."
    )
  corpus = files.get(features.CORPUS)

  def read(split: str) -> Iterator[features.Example]:
    if split == features.CORPUS:
      return read_passages(files[split])
    pairs = reader(files[split], source.columns, with_corpus=corpus is not None)
    return pairs if corpus is None else _of_corpus(pairs, files[split], corpus)

  paths: Sequence[pathlib.Path] = list(files.values())
  options = (sorted(check_columns(source.columns, source.path).items()), corpus is not None)
  return features.TextTask(
    name=task_name(kind, files["train"]),
    splits=tuple(files),
    read=read,
    fingerprint=lambda: files_fingerprint(paths, *options),
    files=lambda: paths,
  )


def _of_corpus(
  pairs: Iterator[features.Example], file: pathlib.Path, corpus: pathlib.Path
) -> Iterator[features.Example]:
  """Yields the pairs; refuses those that tell their passage by its text if the corpus tells passages by ids."""
  for number, pair in enumerate(pairs):
    if number == 0 and _has_text_id(pair):
      first = next(read_passages(corpus), None)
      if first is not None and not _has_text_id(first):
        raise UserError(
          f"{file} has no passage_id, while the passages of {corpus} have ids ({first[features.PASSAGE_ID]!r}). Give the "
          "pairs a column passage_id that names them, or let neither have ids: then equal texts are one."
        )
    yield pair


def _has_text_id(example: features.Example) -> bool:
  text, title = str(example[features.PASSAGE]), str(example.get(features.TITLE, ""))
  return example[features.PASSAGE_ID] == passage_text_id(text, title)


def _table_file(path: str, macro: str) -> pathlib.Path:
  found = resolve(path)
  if found.is_dir():
    raise UserError(
      f"{macro}={path!r}: that is a folder; expected a file. A folder in BEIR's layout goes with "
      "--gin_file=data/beir_folder.gin."
    )
  return found
