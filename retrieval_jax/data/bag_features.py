"""The features of a node, read from its text: a JSON object in which each field is a text, a number or a list of those."""

import itertools
import json
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from retrieval_jax.errors import UserError, nearest

WORD: Final = re.compile(r"\w+")
LETTERS: Final = 3
WHOLE: Final = "values"  # the kind that takes texts as they are


class BagFeature(NamedTuple):
  """A feature: how its values are read (a name of KINDS), and from which fields of the object."""

  name: str
  kind: str
  fields: tuple[str, ...]

  def values(self, node: Mapping[str, Any]) -> Iterable[str]:
    """Returns the values of a node, each once, in the order of fields and text.

    Raises: UserError for a field that is not a text, a number or a list of those.

    Example: `BagFeature("ngrams", "ngrams", ("title",)).values({"title": "red cats"})` is red, cats, "red cats".
    """
    texts = [text for field in self.fields if field in node for text in _texts(field, node[field])]
    return dict.fromkeys(KINDS[self.kind](texts))


def bag_features(features: Mapping[str, Sequence[str]]) -> tuple[BagFeature, ...]:
  """Returns the features of a setting such as {"id": ("values", "id"), "ngrams": ("ngrams", "title", "text")}: of each its
  kind and its fields.

  Kinds: "values" takes texts as they are, of a list each; "words" are words in lower case; "ngrams" are words and pairs of
  neighbouring words, of a title the paper's "set of n-grams"; "letters" are three neighbouring letters of a word, whose ends
  are "<" and ">".

  Raises: UserError for an unknown kind, a feature without fields, or no feature.

  Example: `bag_features({"id": ("values", "id")})[0].fields` is `("id",)`.
  """
  if not isinstance(features, Mapping) or not features:
    raise UserError(f"features={features!r}: expected at least one, such as {{'id': ('values', 'id')}}.")
  found = []
  for name, spec in features.items():
    parts = () if isinstance(spec, str) or not isinstance(spec, Sequence) else tuple(spec)
    if len(parts) < 2 or not all(isinstance(part, str) for part in (name, *parts)):
      raise UserError(
        f"feature {name!r}: got {spec!r}; expected its kind and its fields: ('ngrams', 'title')."
      )
    if parts[0] not in KINDS:
      raise UserError(
        f"feature {name!r}: the kind {parts[0]!r} is none of {', '.join(KINDS)}{nearest(parts[0], KINDS) or '.'}"
      )
    found.append(BagFeature(name, parts[0], parts[1:]))
  return tuple(found)


def fields_of(features: Sequence[BagFeature]) -> tuple[str, ...]:
  """Returns every field that some feature reads, each once: what the text of a node must hold.

  Example: `fields_of(bag_features({"id": ("values", "id"), "ngrams": ("ngrams", "title")}))` is `("id", "title")`.
  """
  return tuple(dict.fromkeys(field for feature in features for field in feature.fields))


def parsed(text: str, known: Sequence[str]) -> Mapping[str, Any]:
  """Returns the object that a node's text is. known: the fields that are read.

  Raises: UserError if it is no JSON object, or if it has fields and none that is read.

  Example: `parsed('{"id": "7"}', ("id", "title"))`.
  """
  try:
    node = json.loads(text)
  except ValueError:
    node = None
  if not isinstance(node, dict):
    raise UserError(
      f"got the text {text[:80]!r}; a model of feature bags reads JSON objects with {', '.join(known)}, such as "
      f"{json.dumps({next((name for name in known if name != 'id'), known[0]): '...'})}. Link graphs give them if LinkGraph.features names these fields."
    )
  if node and not any(field in node for field in known):
    field = next(iter(node))
    raise UserError(
      f"got the node {text[:80]!r}, which has none of the fields that the model reads: {', '.join(known)}"
      f"{nearest(field, known) or '.'}"
    )
  return node


def _texts(field: str, value: Any) -> Iterator[str]:
  for item in value if isinstance(value, list) else () if value is None else (value,):
    if isinstance(item, str):
      if item:
        yield item
    elif isinstance(item, int | float) and not isinstance(item, bool):
      yield str(item)
    else:
      raise UserError(f"{field} is {value!r:.80}; expected text, a number or a list of those.")


def _as_they_are(texts: list[str]) -> Iterable[str]:
  return texts


def _words(texts: Iterable[str]) -> list[list[str]]:
  return [WORD.findall(unicodedata.normalize("NFKC", text).casefold()) for text in texts]


def _single_words(texts: list[str]) -> Iterable[str]:
  return [word for words in _words(texts) for word in words]


def _ngrams(texts: list[str]) -> Iterable[str]:
  """Returns the words first: where there are too many values, those at the end are cut."""
  found = _words(texts)
  pairs = [f"{a} {b}" for words in found for a, b in itertools.pairwise(words)]
  return [*(word for words in found for word in words), *pairs]


def _letters(texts: list[str]) -> Iterable[str]:
  marked = [f"<{word}>" for words in _words(texts) for word in words]
  return [word[i : i + LETTERS] for word in marked for i in range(max(len(word) - LETTERS, 0) + 1)]


KINDS: Final[Mapping[str, Callable[[list[str]], Iterable[str]]]] = {
  WHOLE: _as_they_are,
  "words": _single_words,
  "ngrams": _ngrams,
  "letters": _letters,
}
