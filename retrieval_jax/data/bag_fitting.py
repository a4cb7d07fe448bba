"""Fits the vocabulary of feature bags on a graph's nodes: which values have a row, and how many columns a feature has."""

import logging
import pathlib
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
from tqdm import tqdm

from retrieval_jax import paths
from retrieval_jax.data.bag_features import WHOLE, BagFeature, bag_features, fields_of, parsed
from retrieval_jax.data.bag_vocabulary import FORMAT, written
from retrieval_jax.data.built_folder import built_folder, short_hash
from retrieval_jax.data.pair_table import pair_table
from retrieval_jax.data.task_source import Source
from retrieval_jax.data.text_rows import TextRows
from retrieval_jax.errors import UserError, nearest

FILE: Final = "bags.json"
MAX_VALUES: Final = 32  # a feature's columns, where nothing else is said
LOG = logging.getLogger(__name__)


class Limits(NamedTuple):
  """How large a vocabulary may get, by the features' names; those not named have no other limit than the default.

  min_counts: nodes that a value must be in to have a row. Default: 1 of whole values, 2 of words, n-grams and letters, since
    one of a single node says what the node's id says.
  max_rows: rows, of the values in most nodes. max_values: columns, 32 by default, or as many as a node has if fewer.
  """

  min_counts: Mapping[str, int] = {}
  max_rows: Mapping[str, int] = {}
  max_values: Mapping[str, int] = {}

  def check(self, names: Sequence[str]) -> None:
    """Raises UserError for what is no mapping, a name that is no feature's and a number below 1."""
    for option, given in self._asdict().items():
      if not isinstance(given, Mapping):
        raise UserError(
          f"{option.upper()}={given!r}: expected the numbers of features by their names, such as "
          f"{option.upper()} = {{{names[0]!r}: 5}}; the features are {', '.join(names)}."
        )
      for name, value in given.items():
        if name not in names:
          raise UserError(
            f"{option.upper()}: {name!r} is no feature; expected one of {', '.join(names)}{nearest(name, names) or '.'}"
          )
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
          raise UserError(f"{option.upper()}: {name!r} is {value!r}; expected a whole number of at least 1.")


def vocabulary_file(
  source: Source | None,
  features: Mapping[str, Sequence[str]],
  *,
  path: str | None = None,
  limits: Limits = Limits(),  # noqa: B008  (an immutable record)
  cache: pathlib.Path | None = None,
) -> str:
  """Returns the path of a vocabulary: `path` if there is one, else of the file fitted once on the texts of a source.

  Passages and queries of the source's split are fitted on, each text once. The same texts and settings give the same file,
  byte for byte. Time: about 20 s for a million nodes with titles. Memory: the values, and 4 bytes a value of each node.

  Args:
    source: a LinkGraph, or any other task whose texts are JSON objects.
    features: kind and fields of each, as in bag_features.bag_features.
    path: a file written before, whose features it brings itself.
    limits: min_counts, max_rows and max_values.
    cache: the folder of derived data; `paths.cache_dir()` if None.

  Raises: UserError if a text is no JSON object, or no node has a value of some feature.

  Example: `vocabulary_file(LinkGraph("graph", features=("id",)), {"id": ("values", "id")})`.
  """
  if path is not None:
    return path
  if not isinstance(source, Source):
    raise UserError(
      f"a vocabulary of feature bags is fitted on one task, got {type(source).__name__} as TRAIN_DATA: set "
      "BAG_VOCABULARY_PATH to a file fitted before (it lies in MODEL_DIR/vocabulary)."
    )
  specs = bag_features(features)
  limits.check([feature.name for feature in specs])
  cache = cache or paths.cache_dir()
  table = pair_table(source, cache)
  definition = {
    "format": FORMAT,
    "queries": table.fingerprint,
    "passages": table.passages_fingerprint,
    "features": [feature._asdict() for feature in specs],
    "limits": {name: dict(sorted(value.items())) for name, value in limits._asdict().items()},
  }

  def build(folder: pathlib.Path) -> None:
    texts = _texts(table.passages, table.queries)
    columns, values = fit(texts, specs, limits, where=f"{source.name}, split {source.split}")
    written(folder / FILE, specs, columns, values)

  return str(built_folder(cache / "bags" / short_hash(definition), definition=definition, build=build) / FILE)


def _texts(*folders: pathlib.Path) -> Iterator[str]:
  """Yields every text of the rows once."""
  seen: set[int] = set()
  for folder in folders:
    for text in TextRows(folder).bodies:
      key = hash(text)
      if key not in seen:
        seen.add(key)
        yield text


def fit(
  texts: Iterable[str], features: Sequence[BagFeature], limits: Limits, *, where: str
) -> tuple[list[int], list[list[str]]]:
  """Returns (columns, values) of each feature; the values in most nodes come first, equal ones as they first came.

  A warning, which begins with `where`, counts the nodes whose last values are cut.

  Raises: UserError if no value of some feature is left.

  Example: `fit(['{"id": "7"}'], bag_features({"id": ("values", "id")}), Limits(), where="toy")` is `([1], [["7"]])`.
  """
  seen = [_Seen() for _ in features]
  known = fields_of(features)
  for text in tqdm(texts, desc=f"fit bags of {where}", unit=" nodes", mininterval=1.0):
    node = parsed(text, known)
    for feature, own in zip(features, seen, strict=True):
      own.add(feature.values(node))
  columns, values = [], []
  for feature, own in zip(features, seen, strict=True):
    width, kept = _fitted(feature, own, limits, where)
    columns.append(width)
    values.append(kept)
  return columns, values


class _Seen:
  """The values of a feature, numbered as they first come, and those of each node."""

  def __init__(self) -> None:
    self.numbers: dict[str, int] = {}
    self.flat, self.sizes = array("i"), array("i")

  def add(self, values: Iterable[str]) -> None:
    before = len(self.flat)
    for value in values:
      self.flat.append(self.numbers.setdefault(value, len(self.numbers)))
    self.sizes.append(len(self.flat) - before)


def _fitted(feature: BagFeature, seen: _Seen, limits: Limits, where: str) -> tuple[int, list[str]]:
  name = feature.name
  least = limits.min_counts.get(name, 1 if feature.kind == WHOLE else 2)
  flat = np.frombuffer(seen.flat, np.int32) if seen.flat else np.zeros(0, np.int32)
  counts = np.bincount(flat, minlength=len(seen.numbers))
  order = np.argsort(-counts, kind="stable")
  order = order[counts[order] >= least][: limits.max_rows.get(name)]
  if not len(order):
    raise UserError(
      f"{where}: no value of the feature {name!r} is in {least} nodes (fields: {', '.join(feature.fields)}; "
      f"{len(seen.numbers)} values in all). Correct BAG_FEATURES or MIN_COUNTS."
    )
  kept = np.zeros(len(counts), bool)
  kept[order] = True
  nodes = np.repeat(np.arange(len(seen.sizes)), np.frombuffer(seen.sizes, np.int32))
  sizes = Counter(np.bincount(nodes[kept[flat]]).tolist())
  width = min(max(sizes), limits.max_values.get(name, MAX_VALUES))
  if cut := sum(nodes for size, nodes in sizes.items() if size > width):
    LOG.warning(
      "%s: %d of %d nodes have more than %d values of %r (up to %d); the last ones are left out. MAX_VALUES = {%r: ...} sets "
      "another number.",
      *(where, cut, len(seen.sizes), width, name, max(sizes), name),
    )
  names = list(seen.numbers)
  return width, [names[number] for number in order]
