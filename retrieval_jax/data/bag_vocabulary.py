"""The vocabulary of feature bags: a node's text, a JSON object, to one row of ids whose columns belong to features."""

import functools
import json
import pathlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from retrieval_jax.data.bag_features import BagFeature, bag_features, fields_of, parsed
from retrieval_jax.data.vocabularies import FileVocabulary, file_fingerprint, read_file
from retrieval_jax.errors import UserError

FORMAT: Final = 1
MOST_COLUMNS: Final = 2**24  # of a feature: more is a mistake, and would fill the memory


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
    parts = [_part(part) for part in _listed(data)]
    names = [feature.name for feature, _, _ in parts]
    if twice := _first_twice(names):
      raise ValueError(f"two features are called {twice[0]!r}; expected a name of its own for each")
  except (ValueError, RecursionError) as error:
    raise UserError(
      f"{path}: this is no vocabulary of feature bags: {str(error).removesuffix('.')}. Training writes one into "
      "MODEL_DIR/vocabulary; leave BAG_VOCABULARY_PATH out to have one fitted."
    ) from error
  return BagTokenizer(*zip(*parts, strict=True))


def _listed(data: bytes) -> list[Any]:
  """Returns the features of a file's content as they are there. Raises: ValueError that says what is wrong."""
  content = _object(json.loads(data, object_pairs_hook=_each_once), ("format",), "it")
  if type(content["format"]) is not int or content["format"] != FORMAT:
    raise ValueError(f"it is of format {content['format']!r:.80}; this version reads {FORMAT}")
  listed = content.get("features")
  if not isinstance(listed, list) or not listed:
    raise ValueError(f"features is {listed!r:.80}; expected a list of at least one")
  return listed


def _part(part: Any) -> tuple[BagFeature, int, list[str]]:
  """Returns a feature, its columns and values. Raises: ValueError that says what is wrong, a UserError too."""
  begin = f"the feature {part.get('name')!r:.80}" if isinstance(part, dict) else "a feature"
  found = _object(part, ("name", "kind", "fields", "columns", "values"), begin)
  name, kind, width = found["name"], found["kind"], found["columns"]
  for key in ("name", "kind"):
    if not isinstance(found[key], str):
      raise ValueError(f"{begin}: {key} is {found[key]!r:.80}; expected text")
  if type(width) is not int or not 1 <= width <= MOST_COLUMNS:
    raise ValueError(f"{begin}: columns is {width!r:.80}; expected a whole number from 1 to {MOST_COLUMNS}")
  fields, values = _texts(found["fields"], f"{begin}: fields"), _texts(found["values"], f"{begin}: values")
  if twice := _first_twice(values):
    raise ValueError(f"{begin}: values has {twice[0]!r:.80} twice; expected each once")
  (feature,) = bag_features({name: (kind, *fields)})
  return feature, width, values


def _object(value: Any, keys: Sequence[str], begin: str) -> Mapping[str, Any]:
  if not isinstance(value, dict):
    raise ValueError(f"{begin} is {value!r:.80}; expected an object with {', '.join(keys)}")
  for key in keys:
    if key not in value:
      raise ValueError(f"{begin} has no {key!r}; expected an object with {', '.join(keys)}")
  return value


def _texts(value: Any, begin: str) -> list[str]:
  if not isinstance(value, list):
    raise ValueError(f"{begin} is {value!r:.80}; expected a list of texts")
  for place, text in enumerate(value, start=1):
    if not isinstance(text, str):
      raise ValueError(f"{begin} has {text!r:.80} at place {place}; expected a list of texts")
  return value


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
  if twice := _first_twice([key for key, _ in pairs]):
    raise ValueError(f"{twice[0]!r:.80} stands twice in one object")
  return dict(pairs)


def _first_twice(texts: Sequence[str]) -> list[str]:
  """Returns the first text that comes again, in a list, or an empty one."""
  if len(set(texts)) == len(texts):
    return []
  return [next(text for text, count in Counter(texts).items() if count > 1)]
