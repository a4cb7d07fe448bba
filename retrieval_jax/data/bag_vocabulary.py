"""The vocabulary of feature bags: a node's text, a JSON object, to one row of ids whose columns belong to features."""

import functools
import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

from retrieval_jax.data.bag_features import BagFeature, bag_features, fields_of, parsed
from retrieval_jax.data.vocabularies import FileVocabulary, file_fingerprint, read_file
from retrieval_jax.errors import UserError

FORMAT: Final = 1


class BagTokenizer:
  """The tables of values and how a row is made of them (a seqio_vocabulary.Tokenizer).

  features: in the order of their columns. columns: how many each has. values: of each, the value of row 1, 2, ...
  """

  end_id = unknown_id = None

  def __init__(self, features: Sequence[BagFeature], columns: Sequence[int], values: Sequence[Sequence[str]]):
    self.features, self.columns, self.values = tuple(features), tuple(columns), tuple(values)
    self.known = fields_of(features)
    self.rows = tuple(1 + len(own) for own in values)
    self.vocab_size = max(self.rows)
    self._ids = [{value: row for row, value in enumerate(own, start=1)} for own in values]

  def encode(self, texts: Sequence[str]) -> list[list[int]]:
    """Returns the row of each text, without the zeros behind its last id, but at least one column."""
    return [self.pieces(text) for text in texts]

  def pieces(self, text: str) -> list[int]:
    """Returns the row of a text."""
    node, row, last = parsed(text, self.known), [], 1
    for feature, columns, ids in zip(self.features, self.columns, self._ids, strict=True):
      found = [ids[value] for value in feature.values(node) if value in ids][:columns]
      if found:
        last = len(row) + len(found)
      row += found
      row += [0] * (columns - len(found))
    return row[:last]

  def decode(self, ids: Sequence[int]) -> str:
    """Returns the values of a row as a JSON object: of each feature a list."""
    found, start = {}, 0
    for feature, columns, values in zip(self.features, self.columns, self.values, strict=True):
      found[feature.name] = [values[i - 1] for i in ids[start : start + columns] if i]
      start += columns
    return json.dumps(found, ensure_ascii=False)


class BagVocabulary(FileVocabulary):
  """The vocabulary of a feature-bag tower, from the JSON file that `bag_fitting.py` wrote: one row of ids a node.

  A value that the file lacks (the id of a new node, an n-gram never seen) is left out; of a feature with more values than
  columns the first ones stay. Reading a file of a million values takes about a second, once a process.

  tables: (name, rows) of each feature, row 0 (padding) included. columns: the columns of each, in the same order.

  Raises: UserError if the file is missing or no vocabulary of bags; when encoding, for a text that is no JSON object, for
  one that has none of the fields that are read, and for a length below that of all columns.

  Example: `BagVocabulary("bags.json").encode(['{"id": "7", "title": "red cats"}'], length=16)`.
  """

  def __init__(self, path: str):
    data = read_file(path)
    tokenizer = _tokenizer(data, path)
    super().__init__(
      path,
      tokenizer,
      options={},
      fingerprint=file_fingerprint(self, data, ""),
      least=sum(tokenizer.columns),
    )
    self.tables = tuple((f.name, rows) for f, rows in zip(tokenizer.features, tokenizer.rows, strict=True))
    self.columns = tokenizer.columns
    self.fields = tokenizer.known

  def __repr__(self) -> str:
    sizes = ", ".join(
      f"{name} {rows}x{columns}" for (name, rows), columns in zip(self.tables, self.columns, strict=True)
    )
    return f"BagVocabulary({self.path!r}: {sizes})"


def tables(vocabulary: BagVocabulary, *, multiple: int = 1) -> tuple[tuple[str, int], ...]:
  """Returns (name, rows) of each feature, rows rounded up to a multiple: FeatureBagTower's `features`.

  Tables that are split over devices need a number of rows that these divide; rows beyond the values are never read.

  Raises: UserError for a multiple below 1.

  Example: `tables(BagVocabulary("bags.json"), multiple=8)` is `(("id", 4600), ("ngrams", 1512), ("categories", 136))`.
  """
  if not isinstance(multiple, int) or isinstance(multiple, bool) or multiple < 1:
    raise UserError(f"ROWS_MULTIPLE={multiple!r}: expected a whole number of at least 1.")
  return tuple((name, -(-rows // multiple) * multiple) for name, rows in vocabulary.tables)


def columns(vocabulary: BagVocabulary) -> tuple[int, ...]:
  """Returns the columns of each feature: FeatureBagTower's `columns`.

  Example: `columns(BagVocabulary("bags.json"))` is `(1, 11, 4)`.
  """
  return vocabulary.columns


def length(vocabulary: BagVocabulary) -> int:
  """Returns the columns of a whole row, at least 2: the query_length and passage_length of TextInputs.

  Example: `length(BagVocabulary("bags.json"))` is 16 of columns (1, 11, 4).
  """
  return max(sum(vocabulary.columns), 2)


def fields(features: Mapping[str, Sequence[str]], *, path: str | None = None) -> tuple[str, ...]:
  """Returns the fields that a model reads of a node: those of the vocabulary `path` if there is one, else of `features`.

  Example: `fields({"id": ("values", "id"), "ngrams": ("ngrams", "title")})` is `("id", "title")`.
  """
  return fields_of(bag_features(features)) if path is None else BagVocabulary(path).fields


def written(path: pathlib.Path, features: Sequence[BagFeature], columns: Sequence[int], values: Any) -> None:
  """Writes a vocabulary file: JSON, each value on a line of its own, those of most nodes first."""
  content = {
    "format": FORMAT,
    "features": [
      {"name": f.name, "kind": f.kind, "fields": list(f.fields), "columns": width, "values": list(own)}
      for f, width, own in zip(features, columns, values, strict=True)
    ],
  }
  with open(path, "w", encoding="utf-8", newline="\n") as file:
    json.dump(content, file, ensure_ascii=False, indent=1)
    file.write("\n")


@functools.lru_cache(maxsize=2)  # a model, its inputs and its evaluators ask for the same
def _tokenizer(data: bytes, path: str) -> BagTokenizer:
  """Returns the tables of a file's content."""
  try:
    content = json.loads(data)
    if content["format"] != FORMAT:
      raise UserError(f"{path}: a vocabulary of format {content['format']!r}; this version reads {FORMAT}.")
    parts: Sequence[Mapping[str, Any]] = content["features"]
    features = bag_features({part["name"]: (part["kind"], *part["fields"]) for part in parts})
    widths = [int(part["columns"]) for part in parts]
    values = [[str(value) for value in part["values"]] for part in parts]
  except (ValueError, KeyError, TypeError) as error:
    raise UserError(
      f"{path}: this is no vocabulary of feature bags ({type(error).__name__}: {error}). Training writes one into "
      "MODEL_DIR/vocabulary; leave BAG_VOCABULARY_PATH out to have one fitted."
    ) from error
  for part, width, own in zip(parts, widths, values, strict=True):
    if width < 1 or len(set(own)) != len(own):
      raise UserError(
        f"{path}: the feature {part['name']!r} has {width} columns and {len(own) - len(set(own))} values twice; expected "
        "at least one column, and each value once."
      )
  return BagTokenizer(features, widths, values)
