"""What is in a folder of extreme classification, counted: sizes, the tail, self and reciprocal pairs, equal texts."""

from array import array
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int
from tqdm import tqdm

from retrieval_jax.data.extreme_files import ExtremeFiles, read_filter, read_labels, read_points
from retrieval_jax.data.extreme_rows import TextRule
from retrieval_jax.data.extreme_texts import same_text
from retrieval_jax.data.text_table import hash_text
from retrieval_jax.errors import UserError
from retrieval_jax.progress import interval

TAIL = 5  # a label with so many training points or fewer is of the tail
EMPTY = hash_text("")
Report = dict[str, int | float]


class Texts(NamedTuple):
  """Texts as hashes, and their bytes of UTF-8 in all."""

  hashes: np.ndarray
  num_bytes: int


class Split(NamedTuple):
  """Points and pairs of a split: pair i is of the point owners[i] and the label labels[i]; those filtered likewise."""

  texts: Texts
  owners: Int[np.ndarray, "e"]
  labels: Int[np.ndarray, "e"]
  filter_owners: Int[np.ndarray, "f"]
  filter_labels: Int[np.ndarray, "f"]


def extreme_report(files: ExtremeFiles, rule: TextRule) -> dict[str, Report]:
  """Returns what is counted, by section ("labels", "train", "test", "all") and name.

  A point and a label are one thing if they have one text, upper and lower case alike, which is not empty. Every file is read whole. Memory: 8 bytes a
  point, label and pair; 16 more a pair while reciprocal pairs are counted.

  Raises: UserError with file and line number for what cannot be read, as the source of these files does.

  Example: `extreme_report(extreme_files("data/mine"), TextRule())["train"]["points"]`.
  """
  labels = _read_labels(files, rule)
  splits = {split: _read_split(files, split, rule, len(labels.hashes)) for split in files.points}
  identity = _identity(labels.hashes)
  counts = np.zeros(len(identity), np.int64)
  if "train" in splits:
    counts = np.bincount(splits["train"].labels, minlength=len(identity))
  report: dict[str, Report] = {"labels": _of_labels(labels, splits, counts)}
  for name, split in splits.items():
    report[name] = _of_split(split) | _of_own(split, labels, identity)
  report["all"] = _of_pairs(splits, labels, identity) | _of_sizes(splits, labels)
  return report


def _read_labels(files: ExtremeFiles, rule: TextRule) -> Texts:
  hashes, size = array("Q"), 0
  for text in read_labels(files, rule):
    hashes.append(hash_text(same_text(text)))
    size += len(text.encode("utf-8", errors="replace"))
  if not hashes:
    raise UserError(f"{files.labels}: no labels in it.")
  return Texts(np.array(hashes, np.uint64), size)


def _read_split(files: ExtremeFiles, split: str, rule: TextRule, num_labels: int) -> Split:
  hashes, size, counts, labels = array("Q"), 0, array("q"), array("q")
  points = read_points(files, split, rule, num_labels=num_labels)
  for point in tqdm(points, desc=f"read {split}", unit=" points", mininterval=interval()):
    hashes.append(hash_text(same_text(point.text)))
    size += len(point.text.encode("utf-8", errors="replace"))
    counts.append(len(point.labels))
    labels.extend(point.labels)
  owners = np.repeat(np.arange(len(counts)), np.array(counts, np.int64))
  filtered = np.array(list(read_filter(files, split)), np.int64).reshape(-1, 2)
  return Split(
    Texts(np.array(hashes, np.uint64), size),
    owners,
    np.array(labels, np.int64),
    filtered[:, 0],
    filtered[:, 1],
  )


def _of_labels(labels: Texts, splits: Mapping[str, Split], counts: Int[np.ndarray, "c"]) -> Report:
  found: Report = {
    "labels": len(counts),
    "without text": int(np.count_nonzero(labels.hashes == EMPTY)),
    "with the text of an earlier one": _repeats(labels.hashes),
    "training points per label, mean": float(counts.mean()),
    "training points per label, median": float(np.median(counts)),
    "training points per label, most": int(counts.max()),
    "in no training point": int(np.count_nonzero(counts == 0)),
    f"in at most {TAIL} training points": int(np.count_nonzero(counts <= TAIL)),
    f"share in at most {TAIL} training points": float(np.mean(counts <= TAIL)),
  }
  if "test" in splits:
    test = splits["test"].labels
    found["in test and in no training point"] = len(np.unique(test[counts[test] == 0]))
    found[f"share of test pairs whose label is in at most {TAIL}"] = _mean(counts[test] <= TAIL)
  return found


def _of_split(split: Split) -> Report:
  counts = np.bincount(split.owners, minlength=len(split.texts.hashes))
  return {
    "points": len(counts),
    "pairs": len(split.labels),
    "without labels": int(np.count_nonzero(counts == 0)),
    "without text": int(np.count_nonzero(split.texts.hashes == EMPTY)),
    "with the text of an earlier one": _repeats(split.texts.hashes),
    "labels per point, mean": _mean(counts),
    "labels per point, median": float(np.median(counts)) if len(counts) else 0.0,
    "labels per point, most": int(counts.max(initial=0)),
    "labels that occur": len(np.unique(split.labels)),
  }


def _of_own(split: Split, labels: Texts, identity: Int[np.ndarray, "c"]) -> Report:
  """Counts points that are labels themselves, and what is known of these pairs."""
  own = _own_labels(split.texts.hashes, labels.hashes)
  pairs = _keys(split.owners, split.labels, len(identity))
  filtered = _keys(split.filter_owners, split.filter_labels, len(identity))
  is_self = (own[split.owners] >= 0) & (own[split.owners] == identity[split.labels])
  hidden = own[split.filter_owners] == identity[split.filter_labels]
  return {
    "points that are labels": int(np.count_nonzero(own >= 0)),
    "self pairs: points labelled with themselves": len(np.unique(split.owners[is_self])),
    "self pairs in the filter": len(np.unique(split.filter_owners[hidden])),
    "filter pairs": len(np.unique(filtered)),
    "filter pairs that are labels of their point": int(np.count_nonzero(np.isin(np.unique(filtered), pairs))),
  }


def _of_pairs(splits: Mapping[str, Split], labels: Texts, identity: Int[np.ndarray, "c"]) -> Report:
  """Counts pairs (a, b) for which there is (b, a), and texts of test that are in train."""
  width = len(identity)
  edges: dict[str, tuple[np.ndarray, np.ndarray]] = {}
  for name, split in splits.items():
    start = _own_labels(split.texts.hashes, labels.hashes)[split.owners]
    end = identity[split.labels]
    kept = (start >= 0) & (start != end)
    edges[name] = start[kept], end[kept]
  found: Report = {}
  if "train" not in splits:
    return found
  train = _keys(*edges["train"], width)
  for name, (start, end) in edges.items():
    found[f"reciprocal pairs: {name} pairs that stand the other way round in train"] = int(
      np.count_nonzero(np.isin(_keys(end, start, width), train))
    )
  if "test" in splits:
    texts = splits["test"].texts.hashes
    leaked = np.isin(texts, splits["train"].texts.hashes) & (texts != EMPTY)
    found["test points whose text is a training point's"] = int(np.count_nonzero(leaked))
  return found


def _of_sizes(splits: Mapping[str, Split], labels: Texts) -> Report:
  texts = labels.num_bytes + sum(split.texts.num_bytes for split in splits.values())
  pairs = sum(len(split.labels) for split in splits.values())
  rows = len(labels.hashes) + sum(len(split.texts.hashes) for split in splits.values())
  return {"rows of text": rows, "bytes of text": texts, "pairs": pairs}


def memory_needed(report: Mapping[str, Report], *, dim: int, length: int) -> dict[str, int]:
  """Returns bytes that a model of `dim` dimensions and `length` tokens a text needs for these data, by purpose.

  Embeddings and classifiers are float32; a token takes 2 bytes, with more than 65,536 in the vocabulary 4.

  Example: `memory_needed(report, dim=768, length=32)["label embeddings"]` is 4 * 768 bytes a label.
  """
  labels = int(report["labels"]["labels"])
  points = int(report["train"]["points"]) if "train" in report else 0
  return {
    "the cache on disk: texts, tokens, pairs": int(
      report["all"]["bytes of text"]
      + (40 + 2 * length) * report["all"]["rows of text"]
      + 8 * report["all"]["pairs"]
    ),
    "memory while it is written": int(100 * max(part.get("pairs", 0) for part in report.values())),
    "label embeddings": 4 * dim * labels,
    "embeddings of training points, to cluster them": 4 * dim * points,
    "classifiers": 4 * dim * labels,
    "classifiers with the two moments of Adam": 12 * dim * labels,
  }


def _identity(hashes: np.ndarray) -> Int[np.ndarray, "c"]:
  """Returns for each label the first one with its text; an empty text is like no other."""
  _, first, inverse = np.unique(hashes, return_index=True, return_inverse=True)
  return np.where(hashes == EMPTY, np.arange(len(hashes)), first[inverse])


def _own_labels(points: np.ndarray, labels: np.ndarray) -> Int[np.ndarray, "p"]:
  """Returns for each point the first label with its text, -1 where there is none."""
  order = np.argsort(labels, kind="stable")
  places = order[np.minimum(np.searchsorted(labels[order], points), len(labels) - 1)]
  return np.where((labels[places] == points) & (points != EMPTY), places, -1)


def _keys(owners: Int[np.ndarray, "e"], labels: Int[np.ndarray, "e"], width: int) -> Int[np.ndarray, "e"]:
  return owners.astype(np.int64) * width + labels


def _repeats(hashes: np.ndarray) -> int:
  """Returns how many texts stand for the second time or more; empty ones do not count."""
  filled = hashes[hashes != EMPTY]
  return len(filled) - len(np.unique(filled))


def _mean(values: Bool[np.ndarray, "e"] | Int[np.ndarray, "e"]) -> float:
  return float(values.mean()) if values.size else 0.0
