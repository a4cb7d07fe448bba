"""How a model wants its text: vocabularies, lengths, prefixes and the title template of the two towers."""

import hashlib
import string
from collections.abc import Iterable, Mapping, Sequence, Sized
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int

from retrieval_jax.data.vocabularies import Vocabulary
from retrieval_jax.errors import UserError

TEMPLATE = "{title} {text}"

# A text, (title, text), or a mapping such as a line of BEIR's corpus.jsonl: "text", perhaps "title".
Text = str | tuple[str, str] | Mapping[str, Any]


class TextInputs(NamedTuple):
  """Belongs to the model, not to the task: training, evaluation and search must use the same one.

  A text becomes `prefix + text`, a passage with a title `prefix + passage_template` with both filled in; prefixes stand
  as they are ("query: "). Lengths count the special tokens.

  Attributes:
    vocabulary: of both sides, or of queries alone if there is a passage_vocabulary.
    query_length, passage_length: tokens, at least 2.
    query_prefix, passage_prefix: what comes before every text of the side.
    passage_template: how title and text of a passage are joined; holds {text} and, if titles count, {title}. A passage
      without a title, or with a blank one, is its text alone.
    passage_vocabulary: for towers of two kinds; None: the same.

  Raises: UserError at first use for a length, prefix or template that cannot be.

  Example: `TextInputs(WordPiece(path), query_length=32, passage_length=128).query_tokens(["a b"])`.
  """

  vocabulary: Vocabulary
  query_length: int
  passage_length: int
  query_prefix: str = ""
  passage_prefix: str = ""
  passage_template: str = TEMPLATE
  passage_vocabulary: Vocabulary | None = None

  def query_tokens(self, texts: Sequence[Text]) -> Int[np.ndarray, "q l"]:
    """Returns the int32 tokens [q, query_length] of query texts, prefix included."""
    return self.query_side.tokens(texts)

  def passage_tokens(self, texts: Sequence[Text]) -> Int[np.ndarray, "p m"]:
    """Returns the int32 tokens [p, passage_length] of passages, prefix and title included.

    Example: `inputs.passage_tokens([{"title": "Cats", "text": "They purr."}, "Dogs bark."])`.
    """
    return self.passage_side.tokens(texts)

  @property
  def query_side(self) -> "SideInputs":
    """What concerns queries alone: a store of queries depends on nothing else."""
    length = _length(self.query_length, "QUERY_LENGTH")
    return SideInputs(self.vocabulary, length, _prefix(self.query_prefix, "QUERY_PREFIX"))

  @property
  def passage_side(self) -> "SideInputs":
    """What concerns passages alone."""
    return SideInputs(
      self.vocabulary if self.passage_vocabulary is None else self.passage_vocabulary,
      _length(self.passage_length, "PASSAGE_LENGTH"),
      _prefix(self.passage_prefix, "PASSAGE_PREFIX"),
      _template(self.passage_template),
    )

  @property
  def fingerprint(self) -> str:
    """A hash of all that decides the tokens of either side."""
    return hashlib.sha256(
      f"{self.query_side.fingerprint} {self.passage_side.fingerprint}".encode()
    ).hexdigest()

  def describe(self) -> dict[str, Any]:
    """Returns plain values to print and to log: the vocabularies, their sizes and fingerprints, and all settings."""
    return {
      **_described(self.vocabulary, ""),
      **({} if self.passage_vocabulary is None else _described(self.passage_vocabulary, "passage_")),
      "query_length": self.query_length,
      "passage_length": self.passage_length,
      "query_prefix": self.query_prefix,
      "passage_prefix": self.passage_prefix,
      "passage_template": self.passage_template,
    }


class SideInputs(NamedTuple):
  """The text inputs of one side (query or passage)."""

  vocabulary: Vocabulary
  length: int
  prefix: str = ""
  template: str = TEMPLATE

  def tokens(self, texts: Sequence[Text]) -> Int[np.ndarray, "e l"]:
    """Returns the int32 tokens [e, length] of `prefix + text`, or of `prefix + template` where there is a title."""
    return self.vocabulary.encode(self.written(texts), length=self.length)

  def ragged(self, texts: Sequence[Text]) -> list[Int[np.ndarray, "_"]]:
    """Returns the same tokens without padding, an int32 array a text: what sorting by length before padding needs.

    Example: `pad_rows(side.ragged(texts), length)` equals `side.tokens(texts)` if length is the side's own.
    """
    return self.vocabulary.encode_ragged(self.written(texts), length=self.length)

  def written(self, texts: Sequence[Text]) -> list[str]:
    """Returns the texts that are tokenised, prefix and titles included.

    Raises: UserError for something that is no text, (title, text) or mapping with a "text".
    """
    if isinstance(texts, str | Mapping):
      raise UserError(f"got one text, {texts!r:.80}; expected a list of them: [text].")
    table = isinstance(texts, np.ndarray) and texts.ndim != 1
    if table or isinstance(texts, bytes | set | frozenset) or not isinstance(texts, Iterable):
      raise UserError(f"got {type(texts).__name__}; expected a list of texts.")
    items = list(texts)
    if isinstance(texts, Sized) and len(texts) != len(
      items
    ):  # a table iterates over the names of its columns
      raise UserError(
        f"got {type(texts).__name__}, which holds {len(texts)} rows and yields {len(items)}: give a list."
      )
    return [self.prefix + self._joined(text) for text in items]

  def _joined(self, item: Text) -> str:
    if isinstance(item, str):
      return item
    title, text = _title_and_text(item)
    return self.template.format(title=title.strip(), text=text).strip() if title.strip() else text

  @property
  def fingerprint(self) -> str:
    """A hash of vocabulary, length, prefix and template; the usual template leaves no mark in it."""
    mark = f"{self.vocabulary.fingerprint} {self.length} {self.prefix}"
    if self.template != TEMPLATE:
      mark += f"\0{self.template}"
    return hashlib.sha256(mark.encode()).hexdigest()


def _title_and_text(item: Any) -> tuple[str, str]:
  if isinstance(item, Mapping) and "text" in item:
    title, text = item.get("title") or "", item["text"]
  elif isinstance(item, tuple) and len(item) == 2:
    title, text = item
  else:
    title, text = None, None
  if not (isinstance(title, str) and isinstance(text, str)):
    raise UserError(
      f'got {item!r:.200}; expected a text, (title, text) or a dict with "text" and perhaps "title", all of them str.'
    )
  return title, text


def _described(vocabulary: Vocabulary, side: str) -> dict[str, Any]:
  return {
    f"{side}vocabulary": repr(vocabulary),
    f"{side}vocab_size": vocabulary.vocab_size,
    f"{side}vocabulary_fingerprint": vocabulary.fingerprint[:16],
  }


def _length(length: int, macro: str) -> int:
  if not isinstance(length, int | np.integer) or isinstance(length, bool) or length < 2:
    raise UserError(
      f"{macro}={length!r}: expected a whole number of at least 2, the special tokens included."
    )
  return int(length)


def _prefix(prefix: str, macro: str) -> str:
  if not isinstance(prefix, str):
    raise UserError(f"{macro}={prefix!r}: expected text, '' for none.")
  return prefix


def _template(template: str) -> str:
  """Returns a template that has {text} and nothing else than {title} and {text} in braces."""
  advice = 'expected text with {text} and perhaps {title} in it, such as "{title} {text}".'
  try:
    fields = [
      (name, spec, how) for _, name, spec, how in string.Formatter().parse(template) if name is not None
    ]
  except (ValueError, TypeError) as error:
    raise UserError(f"PASSAGE_TEMPLATE={template!r}: {error}; {advice}") from error
  unknown = [name for name, spec, how in fields if name not in ("title", "text") or spec or how]
  if unknown:
    raise UserError(f"PASSAGE_TEMPLATE={template!r}: {{{unknown[0]}}} is not known; {advice}")
  if "text" not in [name for name, _, _ in fields]:
    raise UserError(f"PASSAGE_TEMPLATE={template!r}: it has no {{text}}; {advice}")
  return template
