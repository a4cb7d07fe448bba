"""Extreme classification as retrieval: a folder in the LF layout as a source, points as queries and labels as passages."""

import dataclasses
import logging
from collections.abc import Callable, Iterator, Sequence

from retrieval_jax.data import features
from retrieval_jax.data.extreme_files import (
  ExtremeFiles,
  count_rows,
  extreme_files,
  read_filter,
  read_labels,
  read_points,
)
from retrieval_jax.data.extreme_rows import TextRule, check_encoding
from retrieval_jax.data.file_task import FileSource, files_fingerprint, task_name
from retrieval_jax.data.text_table import hash_text
from retrieval_jax.errors import UserError
from retrieval_jax.paths import resolve

METRICS = ("p@1", "p@3", "p@5", "ndcg@5", "psp@1", "psp@3", "psp@5", "psndcg@5", "recall@10")
HELD_OUT = "held_out"
FORMAT_VERSION = 1
# Of propensities: far beyond what is published, and with any number of points the weights are finite.
LARGEST_A, SMALLEST_B, LARGEST_B = 10, 0.001, 1000
LOG = logging.getLogger(__name__)


def usual_propensity(name: str) -> tuple[float, float]:
  """Returns the constants (A, B) that published results of a data set use, by the name of its folder.

  Source: the defaults of the Extreme Classification Repository's tool; LF-WikiSeeAlso has the general ones, as in most
  published code.

  Example: `usual_propensity("LF-AmazonTitles-131K")` is `(0.6, 2.6)`.
  """
  plain = name.lower().replace("-", "").replace("_", "")
  if plain.startswith(("lfamazon", "amazon")):
    return 0.6, 2.6
  if plain.startswith(("lfwikipedia500k", "lfwikititles500k", "wikipedialarge", "wikipedia500k")):
    return 0.5, 0.4
  return 0.55, 1.5


def is_titles(name: str) -> bool:
  """Returns whether a data set has titles alone, by the rule of the official code: its folder's name says "title"."""
  return "title" in name.lower()


@dataclasses.dataclass(frozen=True)
class ExtremeFolder(FileSource):
  """A folder in the LF layout (extreme_files.py): find the labels of a data point.

  A point's id is its row number in the file of its split, a label's its number; `uid` is not read. A point without labels
  is judged, with label 0 as no result: it counts 0 in every mean, and is not trained on. Queries and passages are plain
  text without separate titles, made in one way.

  Attributes:
    path: the folder.
    split: "train", "test" or, with a share for it, "held_out".
    held_out: the share of training points, drawn by a hash of their ids, that are the split "held_out" and not in
      "train": to choose checkpoints and fit what combines scores without the test set.
    titles_only: whether a text is the title, or the title and the content; None: whether the folder's name says "title".
    encoding: of all texts; older releases are latin-1.
    unescape: whether HTML entities become the characters that they stand for.
    propensity: the constants (A, B) of propensities, A above 0 and at most 10, B from 0.001 to 1000; None: those that
      published results of this folder's name use.

  Example: `load(ExtremeFolder("data/LF-AmazonTitles-131K", "test"), inputs)`.
  """

  path: str
  split: str = "train"
  held_out: float = 0.0
  titles_only: bool | None = None
  encoding: str = "utf-8"
  unescape: bool = True
  propensity: tuple[float, float] | None = None

  @property
  def name(self) -> str:
    """The folder's name."""
    return resolve(self.path).resolve().name

  def task(self) -> features.TextTask:
    """Returns the text task of the folder.

    Raises: UserError if files are missing, or a setting cannot be.
    """
    folder = resolve(self.path)
    titles_only = is_titles(self.name) if self.titles_only is None else self.titles_only
    files = extreme_files(folder)
    if self.split == HELD_OUT and self.held_out == 0:
      raise UserError(
        f"{folder}: the split {HELD_OUT!r} is a share of the training points, and none is set. Set --gin.HELD_OUT=0.05, in "
        "the training too."
      )
    splits = [split for split in ("train", HELD_OUT, "test") if _file_split(split) in files.points]
    if not self.held_out and HELD_OUT in splits:
      splits.remove(HELD_OUT)
    return extreme_task(
      task_name("extreme", folder),
      lambda: files,
      TextRule(titles_only, self.encoding, self.unescape),
      splits=splits,
      held_out=self.held_out,
      info=features.TaskInfo(
        metrics=METRICS,
        propensity=usual_propensity(self.name) if self.propensity is None else _checked(self.propensity),
      ),
    )


def _checked(propensity: tuple[float, float]) -> tuple[float, float]:
  if not (
    isinstance(propensity, tuple | list)
    and len(propensity) == 2
    and all(type(value) in (int, float) for value in propensity)
    and 0 < propensity[0] <= LARGEST_A
    and SMALLEST_B <= propensity[1] <= LARGEST_B
  ):
    raise UserError(
      f"PROPENSITY={propensity!r}: expected the constants (A, B), A above 0 and at most {LARGEST_A}, B from {SMALLEST_B} to "
      f"{LARGEST_B}, such as (0.55, 1.5)."
    )
  return propensity[0], propensity[1]


def extreme_task(
  name: str,
  files: Callable[[], ExtremeFiles],
  rule: TextRule,
  *,
  splits: Sequence[str],
  info: features.TaskInfo,
  held_out: float = 0.0,
) -> features.TextTask:
  """Returns the text task of a folder in the LF layout; `files` is called when the task is read.

  splits: of pairs. held_out: the share of the split "held_out" of the training points.

  Raises: UserError for a share outside 0..1, or an encoding that cannot be.
  """
  check_encoding(rule.encoding)
  if type(held_out) not in (int, float) or not 0 <= held_out < 1:
    raise UserError(f"held_out={held_out!r}: expected a share of the training points, from 0 to below 1.")

  def taken(split: str, point: str) -> bool:
    return split == "test" or is_held_out(point, held_out) == (split == HELD_OUT)

  def read(split: str) -> Iterator[features.Example]:
    found = files()
    if split == features.CORPUS:
      return _labels(found, rule)
    return _pairs(found, _file_split(split), rule, lambda point: taken(split, point))

  def filter_pairs(split: str) -> Iterator[tuple[str, str]]:
    pairs = ((str(point), str(label)) for point, label in read_filter(files(), _file_split(split)))
    return (pair for pair in pairs if taken(split, pair[0]))

  options = (FORMAT_VERSION, *rule)
  return features.TextTask(
    name=name,
    splits=(*splits, features.CORPUS),
    read=read,
    fingerprint=lambda: files_fingerprint(files().all(), *options, held_out),
    pairs_fingerprint=lambda split: files_fingerprint(
      files().all(), *options, 0.0 if split == "test" else held_out
    ),
    info=info,
    files=lambda: files().all(),
    corpus_fingerprint=lambda split: files_fingerprint([files().labels], *options, split),
    filter_pairs=filter_pairs,
  )


def _labels(files: ExtremeFiles, rule: TextRule) -> Iterator[features.Example]:
  _say(files, rule)
  for number, text in enumerate(read_labels(files, rule)):
    yield features.passage(str(number), text)


def _pairs(
  files: ExtremeFiles, split: str, rule: TextRule, taken: Callable[[str], bool]
) -> Iterator[features.Example]:
  """Yields a pair for each label of the points that are taken; a point without labels has label 0 of relevance 0."""
  num_labels = count_rows(files.labels)
  for number, point in enumerate(read_points(files, split, rule, num_labels=num_labels)):
    id = str(number)
    if not taken(id):
      continue
    for label in point.labels:
      yield features.pair(id, point.text, str(label), "")
    if not point.labels:
      yield features.pair(id, point.text, "0", "", 0)


def _say(files: ExtremeFiles, rule: TextRule) -> None:
  what = "titles alone" if rule.titles_only else "titles and contents"
  LOG.info("%s: texts are %s (titles_only=%s).", files.labels.parent, what, rule.titles_only)


def is_held_out(point: str, share: float) -> bool:
  """Returns whether a point is among the share that is held out: the same points for the same share, more for a larger.

  Example: `is_held_out("17", 0.0)` is False.
  """
  return hash_text(point) < share * 2.0**64


def _file_split(split: str) -> str:
  return "train" if split == HELD_OUT else split
