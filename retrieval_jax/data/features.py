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

Splits of pairs are train, dev and test, as far as they exist. A split "corpus" holds passages alone (passage_id,
targets, title): the rows that evaluation searches, and the passage rows of every other split. Without it, a split's
passages are those of its own pairs. Ids are opaque strings, unique within a Task.
"""

import contextlib
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
CORPUS: Final = "corpus"

Example = Mapping[str, str | int]

_TASKS: "dict[str, TextTask]" = {}
_ERRORS: dict[str, UserError] = {}
_HELD: set[str] = set()


class TextTask(NamedTuple):
  """A text task made by a plain Python reader: known here without TensorFlow, and a seqio Task when seqio is there.

  Example: `register(TextTask("toy", splits=("train",), read=read_toy, fingerprint=lambda: "1"))`.
  """

  name: str
  splits: Sequence[str]
  read: Callable[[str], Iterator[Example]]  # split -> examples
  fingerprint: Callable[[], str]  # changes when the examples do; must be cheap


def pair(
  query_id: str, query: str, passage_id: str, passage: str, relevance: int = 1, *, title: str = ""
) -> dict[str, str | int]:
  """Returns one example of a split of pairs; a passage without a title has no such feature."""
  titled = {TITLE: title} if title else {}
  return {
    QUERY_ID: query_id,
    QUERY: query,
    PASSAGE_ID: passage_id,
    PASSAGE: passage,
    **titled,
    RELEVANCE: relevance,
  }


def passage(passage_id: str, text: str, *, title: str = "") -> dict[str, str | int]:
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

  def feature(dtype: Any, required: bool) -> Any:
    vocabulary = seqio.PassThroughVocabulary(size=0)
    return seqio.Feature(vocabulary, add_eos=False, required=required, dtype=dtype, rank=0)

  return {
    QUERY_ID: feature(tf.string, False),
    QUERY: feature(tf.string, False),
    PASSAGE_ID: feature(tf.string, True),
    PASSAGE: feature(tf.string, True),
    TITLE: feature(tf.string, False),
    RELEVANCE: feature(tf.int32, False),
  }


@contextlib.contextmanager
def reader_errors(name: str) -> Iterator[None]:
  """Raises the UserError with which the task's reader ended inside the block, without tf.data's page of traceback.

  Inside, such an error ends the reader's examples in silence and is kept for the end of the block; a reader used
  elsewhere raises it through tf.data, so that nobody takes half the data for all of it.
  """
  _ERRORS.pop(name, None)
  _HELD.add(name)
  try:
    yield
  finally:
    _HELD.discard(name)
  error = _ERRORS.pop(name, None)
  if error is not None:
    raise error


def _dataset_function(task: TextTask) -> Callable[..., Any]:
  """Returns the (split, shuffle_files) -> tf.data.Dataset that seqio asks for."""

  def dataset(split: str, shuffle_files: bool) -> Any:
    del shuffle_files  # the order is the reader's: Batchers shuffle
    import tensorflow as tf

    names = [PASSAGE_ID, PASSAGE, TITLE]
    if split != CORPUS:
      names += [QUERY_ID, QUERY, RELEVANCE]
    dtypes = {name: tf.int32 if name == RELEVANCE else tf.string for name in names}
    signature = {name: tf.TensorSpec((), dtype) for name, dtype in dtypes.items()}
    return tf.data.Dataset.from_generator(lambda: _tensor_values(task, split), output_signature=signature)

  return dataset


def _tensor_values(task: TextTask, split: str) -> Iterator[dict[str, bytes | int]]:
  _ERRORS.pop(task.name, None)
  try:
    for example in task.read(split):
      yield {
        # Unpaired surrogates (JSON can spell them) have no UTF-8: they become question marks.
        name: value.encode("utf-8", errors="replace") if isinstance(value, str) else value
        for name, value in ({TITLE: ""} | dict(example)).items()
      }
  except UserError as error:
    _ERRORS[task.name] = error
    if task.name not in _HELD:
      raise
