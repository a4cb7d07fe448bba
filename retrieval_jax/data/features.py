"""The text task convention: the feature names of a retrieval Task, and how a reader of text becomes a seqio Task.

A text task is a seqio Task whose examples are dicts of text, not of tokens: the model owns the vocabulary, so one
gin file exchanges the model and no Task changes. One example is one (query, positive passage) pair:

    query_id     string  which query; several rows with one id are several positives of one query
    inputs       string  the query's text
    passage_id   string  which passage
    targets      string  the passage's text
    title        string  optional, default "": the passage's title, which `targets` is then without. The model's
                         passage_template joins them; people, and BM25, see "title text"
    relevance    int32   optional, default 1; > 0 is a positive, <= 0 is judged and not one
    negative_targets  strings [n]  optional: the texts of hard negatives of this query
    negative_ids      strings [n]  optional: their ids; without them equal texts are one passage

Splits of pairs are train, dev and test, as far as they exist. A split "corpus" holds passages alone (passage_id,
targets, title): the rows that evaluation searches, and the passage rows of every other split. A split "corpus_dev" is
that of "dev" alone. Without either, a split's passages are those of its own pairs. Ids are opaque strings, unique within
a Task.
"""

import pathlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from retrieval_jax.data.seqio_loading import load_seqio
from retrieval_jax.errors import UserError

if TYPE_CHECKING:
  import seqio

QUERY_ID: Final = "query_id"
QUERY: Final = "inputs"
PASSAGE_ID: Final = "passage_id"
PASSAGE: Final = "targets"
TITLE: Final = "title"
RELEVANCE: Final = "relevance"
NEGATIVES: Final = "negative_targets"
NEGATIVE_IDS: Final = "negative_ids"
CORPUS: Final = "corpus"
LISTS: Final = (NEGATIVES, NEGATIVE_IDS)

Example = Mapping[str, str | int | Sequence[str]]

_TASKS: "dict[str, TextTask]" = {}
_MIXTURES: dict[str, Mapping[str, float | None]] = {}


class TaskInfo(NamedTuple):
  """What a task declares of itself beside its examples: how it is evaluated, and where it comes from.

  metrics: what evaluation reports, by name (metrics/ranking.py).
  relevant_from: the least grade that metrics of relevant-or-not (p, mrr, recall, map, ...) count; nDCG takes all grades.
  drop_identical: a result whose id is the query's own is no result, as where queries are passages of the corpus.
  query_length, passage_length: tokens that published results read; a model that reads less is told so.
  template: how published results join title and text.
  source: where the files come from and under which licence, in words.
  checksums: md5 of files as published, by file name; a file that differs is warned about.
  counts: published numbers by split ("corpus" counts passages, others judged queries); others are warned about.
  propensity: the constants (A, B) of a passage's propensity in extreme classification, where passages are labels
    (metrics/extreme.py). A task that declares them has label counts (label_counts.py); None: it is no such task.

  Example: `TaskInfo(metrics=("mrr@10", "recall@1000"), counts={"dev_small": 6980})`.
  """

  metrics: Sequence[str] = ("p@1", "mrr", "mrr@10", "ndcg@10", "recall@1", "recall@10", "recall@100")
  relevant_from: int = 1
  drop_identical: bool = False
  query_length: int | None = None
  passage_length: int | None = None
  template: str | None = None
  source: str = ""
  checksums: Mapping[str, str] = {}
  counts: Mapping[str, int] = {}
  propensity: tuple[float, float] | None = None


class TextTask(NamedTuple):
  """A text task made by a plain Python reader: known here without TensorFlow, and a seqio Task when seqio is there.

  read: split -> examples, always in the same order.
  fingerprint: changes when the examples do; must be cheap.
  files: those that are read, whose checksums reports name.
  split_info: what a split declares in place of `info`, as where another one has other grades.
  corpus_fingerprint: corpus split -> changes when its passages do; None: as `fingerprint`. Further judgements then leave
    the tokens and embeddings of the corpus as they are.
  pairs_fingerprint: split of pairs -> changes when its examples do; None: as `fingerprint`. A setting of another split then
    leaves its tokens and embeddings as they are.
  filter_pairs: split of pairs -> (query id, passage id) that are no results: they are removed before ranking, and are no
    negatives in training. None: there are none.

  Example: `register(TextTask("toy", splits=("train",), read=read_toy, fingerprint=lambda: "1"))`.
  """

  name: str
  splits: Sequence[str]
  read: Callable[[str], Iterator[Example]]
  fingerprint: Callable[[], str]
  info: TaskInfo = TaskInfo()
  files: Callable[[], Sequence[pathlib.Path]] = lambda: ()
  split_info: Mapping[str, TaskInfo] = {}
  corpus_fingerprint: Callable[[str], str] | None = None
  filter_pairs: Callable[[str], Iterator[tuple[str, str]]] | None = None
  pairs_fingerprint: Callable[[str], str] | None = None

  def info_of(self, split: str) -> TaskInfo:
    """Returns what the task declares of a split."""
    return self.split_info.get(split, self.info)

  def filter_pairs_of(self, split: str) -> Iterator[tuple[str, str]]:
    """Yields the (query id, passage id) of a split that are no results."""
    return iter(()) if self.filter_pairs is None else self.filter_pairs(split)


def is_corpus(split: str) -> bool:
  """Returns whether a split holds passages alone."""
  return split == CORPUS or split.startswith(f"{CORPUS}_")


def corpus_of(split: str, splits: Sequence[str]) -> str | None:
  """Returns which of the splits holds the passages that a split of pairs is about; None: its pairs themselves.

  Example: `corpus_of("dev", ["dev", "test", "corpus", "corpus_dev"])` is `"corpus_dev"`.
  """
  return next((name for name in (f"{CORPUS}_{split}", CORPUS) if name in splits), None)


def pair(
  query_id: str,
  query: str,
  passage_id: str,
  passage: str,
  relevance: int = 1,
  *,
  title: str = "",
  negatives: Sequence[str] = (),
  negative_ids: Sequence[str] = (),
) -> Example:
  """Returns one example of a split of pairs; a feature that says nothing (no title, no negatives) is not in it."""
  lists = {name: values for name, values in zip(LISTS, (negatives, negative_ids), strict=True) if values}
  titled = {TITLE: title} if title else {}
  return {
    QUERY_ID: query_id,
    QUERY: query,
    PASSAGE_ID: passage_id,
    PASSAGE: passage,
    **titled,
    RELEVANCE: relevance,
    **lists,
  }


def passage(passage_id: str, text: str, *, title: str = "") -> Example:
  """Returns one example of the split "corpus"; a passage without a title has no such feature."""
  return {PASSAGE_ID: passage_id, PASSAGE: text, **({TITLE: title} if title else {})}


def register(task: TextTask) -> None:
  """Makes the task known by its name; seqio learns of it at once if it is loaded, else when it is first needed."""
  _TASKS[task.name] = task
  if "seqio" in sys.modules:
    add_to_seqio(task)


def registered() -> Mapping[str, TextTask]:
  """Returns the text tasks registered so far, by name."""
  return dict(_TASKS)


def register_mixture(name: str, rates: Mapping[str, float | None]) -> None:
  """Makes a mixture of tasks known by its name; seqio learns of it at once if it is loaded (add_mixture_to_seqio).

  rates: of each task, in any unit; None: by its number of examples.

  Raises: UserError for no tasks, or a task that is not registered before.

  Example: `register_mixture("toys", {"toy": 1.0, "toy_2": 0.5})`.
  """
  unknown = [task for task in rates if task not in _TASKS and task not in _seqio_tasks()]
  if unknown or not rates:
    raise UserError(
      f"the mixture {name!r} names {', '.join(map(repr, unknown)) or 'no tasks'}; expected at least one task, each "
      "registered before the mixture."
    )
  _MIXTURES[name] = dict(rates)
  if "seqio" in sys.modules:
    add_mixture_to_seqio(name)


def registered_mixtures() -> Mapping[str, Mapping[str, float | None]]:
  """Returns the mixtures registered so far: the rates of their tasks, by name."""
  return dict(_MIXTURES)


def add_mixture_to_seqio(name: str) -> "seqio.Mixture":
  """Returns the mixture as a seqio Mixture, registered under its name with all its tasks (loads TensorFlow).

  A task whose rate is None counts its examples when seqio asks for the rate.
  """
  load_seqio()
  import seqio

  for task in _MIXTURES[name]:
    if task in _TASKS and task not in seqio.TaskRegistry.names():
      add_to_seqio(_TASKS[task])
  if name in seqio.MixtureRegistry.names():
    seqio.MixtureRegistry.remove(name)
  parts: Any = [(task, _count if rate is None else rate) for task, rate in _MIXTURES[name].items()]
  return seqio.MixtureRegistry.add(name, parts)


def _count(task: "seqio.Task") -> float:
  """Returns the number of a Task's examples by reading them."""
  dataset = task.get_dataset(sequence_length=None, split="train", shuffle=False)
  return float(sum(1 for _ in dataset.as_numpy_iterator()))


def _seqio_tasks() -> Sequence[str]:
  if "seqio" not in sys.modules:
    return ()
  import seqio

  return list(seqio.TaskRegistry.names())


def add_to_seqio(task: TextTask) -> "seqio.Task":
  """Returns the task as a seqio Task, registered under its name (loads TensorFlow)."""
  load_seqio()
  import seqio

  if task.name in seqio.TaskRegistry.names():
    seqio.TaskRegistry.remove(task.name)  # a file source registers anew when its files changed
  source: Any = seqio.FunctionDataSource(_dataset_function(task), splits=tuple(task.splits))
  return seqio.TaskRegistry.add(task.name, source=source, preprocessors=(), output_features=seqio_features())


def seqio_features() -> Mapping[str, Any]:
  """Returns the output features of a text task; those that "corpus" lacks are not required."""
  import seqio
  import tensorflow as tf

  def feature(dtype: Any, required: bool, rank: int = 0) -> Any:
    vocabulary = seqio.PassThroughVocabulary(size=0)
    return seqio.Feature(vocabulary, add_eos=False, required=required, dtype=dtype, rank=rank)

  return {
    QUERY_ID: feature(tf.string, False),
    QUERY: feature(tf.string, False),
    PASSAGE_ID: feature(tf.string, True),
    PASSAGE: feature(tf.string, True),
    TITLE: feature(tf.string, False),
    RELEVANCE: feature(tf.int32, False),
    NEGATIVES: feature(tf.string, False, rank=1),
    NEGATIVE_IDS: feature(tf.string, False, rank=1),
  }


def _dataset_function(task: TextTask) -> Callable[..., Any]:
  """Returns the (split, shuffle_files, seed) -> tf.data.Dataset that seqio asks for."""

  def dataset(split: str, shuffle_files: bool, seed: int | None = None) -> Any:
    del shuffle_files, seed  # the order is the reader's: Batchers shuffle
    import tensorflow as tf

    names = [PASSAGE_ID, PASSAGE, TITLE]
    if not is_corpus(split):
      names += [QUERY_ID, QUERY, RELEVANCE, *LISTS]
    dtypes = {name: tf.int32 if name == RELEVANCE else tf.string for name in names}
    signature = {
      name: tf.TensorSpec((None,) if name in LISTS else (), dtype) for name, dtype in dtypes.items()
    }
    return tf.data.Dataset.from_generator(lambda: _tensor_values(task, split), output_signature=signature)

  return dataset


def _tensor_values(task: TextTask, split: str) -> Iterator[dict[str, Any]]:
  absent = {TITLE: ""} if is_corpus(split) else {TITLE: "", RELEVANCE: 1, NEGATIVES: [], NEGATIVE_IDS: []}
  for example in task.read(split):
    yield {name: _bytes(value) for name, value in (absent | dict(example)).items()}


def _bytes(value: Any) -> Any:
  """Returns text as UTF-8. Unpaired surrogates (JSON can spell them) have none: they become question marks."""
  if isinstance(value, str):
    return value.encode("utf-8", errors="replace")
  return value if isinstance(value, int) else [_bytes(part) for part in value]
