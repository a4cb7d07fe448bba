"""Examples of a Task that seqio alone knows: text, or the tokens that Tasks of T5X Retrieval hold.

Such Tasks have the features inputs, targets and perhaps negative_targets, and no ids: equal texts are then one query or
passage. A feature that was tokenised is read from `<feature>_pretokenized`, which seqio's own preprocessor leaves beside
it, else decoded with the vocabulary of the Task's output feature. Features of other names are left alone.
"""

import functools
import inspect
import logging
import pathlib
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from retrieval_jax.data import features
from retrieval_jax.data.pair_columns import passage_text_id
from retrieval_jax.data.text_table import text_id
from retrieval_jax.errors import UserError

if TYPE_CHECKING:
  import seqio

LOG = logging.getLogger(__name__)
PRETOKENIZED = "_pretokenized"

Values = Mapping[str, Any]


def seqio_examples(task: "seqio.Task", split: str) -> Iterator[features.Example]:
  """Yields a Task's examples of a split as Python strings, ints and lists of strings (loads TensorFlow).

  Raises: UserError if a feature is missing, or holds neither text nor tokens that can be decoded.

  Example: `next(seqio_examples(seqio.TaskRegistry.get("beir_msmarco_retrieval"), "train"))["inputs"]`.
  """
  where = f"the Task {task.name!r}, split {split!r}"
  _warn_of_tfds(task, split)
  try:
    dataset = task.get_dataset(sequence_length=None, split=split, shuffle=False)
  except (ValueError, TypeError, KeyError) as error:
    raise UserError(f"{where}: seqio refuses it (without sequence lengths): {error}") from error
  spec = dataset.element_spec
  needed = [features.PASSAGE] if features.is_corpus(split) else [features.QUERY, features.PASSAGE]
  if not set(needed) <= set(spec):
    raise UserError(
      f"{where}, has the features {', '.join(sorted(spec))}; a retrieval Task needs {' and '.join(needed)}, as text or "
      "as tokens (retrieval_jax/data/features.py)."
    )
  optional = (features.QUERY_ID, features.PASSAGE_ID, features.TITLE, *features.LISTS)
  readers = {
    name: _reader(task, name, spec, where)
    for name in (*needed, *optional)
    if name in spec
    and not (features.is_corpus(split) and name not in (features.PASSAGE_ID, *needed, features.TITLE))
  }
  for example in dataset.as_numpy_iterator():
    found = {name: read(example) for name, read in readers.items()}
    if features.RELEVANCE in spec and not features.is_corpus(split):
      found[features.RELEVANCE] = int(example[features.RELEVANCE])
    yield _with_ids(found)


def _with_ids(found: dict[str, Any]) -> features.Example:
  """Returns the example with ids; those of texts where the Task has none."""
  passage = passage_text_id(found[features.PASSAGE], found.get(features.TITLE, "").strip())
  ids = {features.PASSAGE_ID: passage}
  if features.QUERY in found:
    ids[features.QUERY_ID] = text_id(found[features.QUERY])
  return ids | found


def _reader(task: "seqio.Task", name: str, spec: Values, where: str) -> Callable[[Values], Any]:
  """Returns what takes a feature's text, or list of texts, out of an example."""
  many = name in features.LISTS
  for source in (name, name + PRETOKENIZED):
    if source in spec and spec[source].dtype.name == "string" and spec[source].shape.rank in _ranks(many, 0):
      if not many:
        return functools.partial(_text, source=source, where=where)
      # An empty negative pads the list, unless each has an id.
      return functools.partial(_texts, source=source, where=where, keep_empty=features.NEGATIVE_IDS in spec)
  vocabulary = getattr(task.output_features.get(name), "vocabulary", None)
  tokens, rank = spec[name].dtype.is_integer, spec[name].shape.rank
  if not tokens or rank not in _ranks(many, 1) or vocabulary is None or _passes_through(vocabulary):
    raise UserError(
      f"{where}: the feature {name!r} holds {spec[name].dtype.name} of {rank} axes, and there is neither text in "
      f"{name + PRETOKENIZED!r} nor an output feature with a vocabulary that makes text of it."
    )
  LOG.warning(
    "%s: %r is read back from its tokens: what the vocabulary cannot spell is lost. seqio.preprocessors.tokenize keeps the "
    "text beside them (copy_pretokenized=True).",
    where,
    name,
  )
  return functools.partial(_decoded_rows if many else _decoded, name=name, vocabulary=vocabulary)


def _ranks(many: bool, one: int) -> tuple[int, ...]:
  """Returns the numbers of axes that a feature may have, if a single value has `one`."""
  return (one, one + 1) if many else (one,)


def _passes_through(vocabulary: Any) -> bool:
  import seqio

  return isinstance(vocabulary, seqio.PassThroughVocabulary)


def _text(example: Values, *, source: str, where: str) -> str:
  return _utf8(example[source], source, where)


def _texts(example: Values, *, source: str, where: str, keep_empty: bool) -> list[str]:
  value = example[source]
  values = [value] if isinstance(value, bytes) else list(value)
  return [_utf8(one, source, where) for one in values if one or keep_empty]


def _decoded(example: Values, *, name: str, vocabulary: Any) -> str:
  return _decode(example[name], vocabulary)


def _decoded_rows(example: Values, *, name: str, vocabulary: Any) -> list[str]:
  """Returns the text of each row of tokens, or of the only one; a row of padding is none."""
  value = np.asarray(example[name])
  rows = [value] if value.ndim == 1 and value.dtype != object else list(value)  # ragged rows are objects
  return [text for text in (_decode(row, vocabulary) for row in rows) if text]


def _decode(tokens: Any, vocabulary: Any) -> str:
  ids = [int(token) for token in tokens]
  while ids and ids[-1] == vocabulary.pad_id:
    ids.pop()
  return vocabulary.decode(ids)


def _utf8(value: bytes, name: str, where: str) -> str:
  try:
    return value.decode("utf-8")
  except UnicodeDecodeError as error:
    raise UserError(f"{where}: the feature {name!r} holds {value[:40]!r}, which is not UTF-8.") from error


def _warn_of_tfds(task: "seqio.Task", split: str) -> None:
  """Says what TFDS's copy of BEIR lost, where a Task reads pairs from it."""
  name = getattr(getattr(task.source, "tfds_dataset", None), "name", "") or ""
  if str(name).startswith("beir/"):
    LOG.warning(
      "the Task %r, split %r, reads %s from TFDS, which keeps one query of each passage: the other judgements are missing. "
      "It is fit for training, not for evaluation: use the Tasks beir_* or data/beir_folder.gin there.",
      task.name,
      split,
      name,
    )


def describe_seqio_task(task: "seqio.Task") -> dict[str, Any]:
  """Returns plain data that names what a Task reads and does: its fingerprint is a hash of it."""
  source: Any = task.source
  seen: dict[str, Any] = {"source": type(source).__name__, "splits": sorted(task.splits)}
  tfds = getattr(source, "tfds_dataset", None)
  if tfds is not None:
    seen["tfds"] = [tfds.name, str(tfds.version)] if hasattr(tfds, "version") else [tfds.name]
  for split in seen["splits"]:
    if hasattr(source, "list_shards"):
      seen[split] = [_file_mark(shard) for shard in source.list_shards(split)]
  if hasattr(source, "_dataset_fn"):
    seen["function"] = _source_text(source._dataset_fn)
  seen["preprocessors"] = [_source_text(step) for step in task.preprocessors]
  seen["vocabularies"] = {
    name: _vocabulary_mark(feature.vocabulary) for name, feature in sorted(task.output_features.items())
  }
  return seen


def _file_mark(shard: str) -> list[str | int]:
  path = pathlib.Path(str(shard))
  if not path.is_file():
    return [str(shard)]
  return [str(shard), path.stat().st_size, path.stat().st_mtime_ns]


def _source_text(function: Any) -> Any:
  if isinstance(function, functools.partial):
    named = {name: _value_mark(value) for name, value in sorted(function.keywords.items())}
    return [_source_text(function.func), [_value_mark(value) for value in function.args], named]
  try:
    return inspect.getsource(function)
  except (OSError, TypeError):
    return getattr(function, "__qualname__", type(function).__qualname__)


def _value_mark(value: Any) -> Any:
  """Returns what names an argument in every process: never an address."""
  if callable(value):
    return _source_text(value)
  return type(value).__name__ if type(value).__repr__ is object.__repr__ else repr(value)


def _vocabulary_mark(vocabulary: Any) -> str:
  kind = type(vocabulary)
  return kind.__name__ if kind.__str__ is object.__str__ else str(vocabulary)
