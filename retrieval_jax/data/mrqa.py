"""Reader of the MRQA shared task's files: contexts with their questions and the places of the answers."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from retrieval_jax.data.lines import Path, json_lines
from retrieval_jax.errors import UserError


class Answer(NamedTuple):
  """An answer found in a context: `context[start:end]` for each of its spans, in characters (code points)."""

  text: str
  spans: tuple[tuple[int, int], ...]


class Question(NamedTuple):
  """A question about a context, with the answers that were found in it: none, for a few."""

  qid: str
  text: str
  answers: tuple[Answer, ...]

  @property
  def spans(self) -> list[tuple[int, int]]:
    """The spans of all answers."""
    return [span for answer in self.answers for span in answer.spans]


class Context(NamedTuple):
  """A text, the questions about it, and the line where they stand."""

  text: str
  questions: tuple[Question, ...]
  where: str


def read_mrqa(path: Path) -> Iterator[Context]:
  """Yields the contexts of an MRQA file (.jsonl, .jsonl.gz) in its order; its first line, a header, is left out.

  The file's spans end with their last character; those yielded end behind it, as Python's do.

  Raises: UserError with file and line number for a line of another form and for a span beyond its context.

  Example: `next(read_mrqa("SQuAD.jsonl.gz")).questions[0].text`.
  """
  first = True
  for record, where in json_lines(path, ()):
    is_header = first and "header" in record and "context" not in record
    first = False
    if is_header:
      continue
    text, questions = record.get("context"), record.get("qas")
    if not (isinstance(text, str) and isinstance(questions, list)):
      raise UserError(
        f"{where}: its keys are {', '.join(map(repr, record)):.200}; expected an MRQA context with context and qas."
      )
    yield Context(text, tuple(_question(item, len(text), where) for item in questions), where)


def _question(item: Any, length: int, where: str) -> Question:
  if not isinstance(item, dict) or not isinstance(item.get("question"), str):
    raise UserError(
      f"{where}: in qas: {item!r:.100}; expected objects with qid, question and detected_answers."
    )
  qid, answers = item.get("qid"), item.get("detected_answers")
  if not isinstance(qid, str) or not isinstance(answers, list):
    raise UserError(
      f"{where}: the question {item['question']!r:.80} lacks qid (text) or detected_answers (a list)."
    )
  return Question(
    qid, item["question"], tuple(_answer(answer, length, f"{where}: qid {qid!r}") for answer in answers)
  )


def _answer(item: Any, length: int, where: str) -> Answer:
  try:
    text = item["text"]
    spans = tuple((start, last + 1) for start, last in item["char_spans"])
    sound = isinstance(text, str) and all(type(place) is int for span in spans for place in span)
  except (KeyError, TypeError, ValueError) as error:
    raise UserError(
      f"{where}: the detected answer {item!r:.100}: {type(error).__name__}: {error}. Expected text and char_spans, a list "
      "of [first, last]."
    ) from error
  if not sound or any(not 0 <= start < end <= length for start, end in spans):
    raise UserError(
      f"{where}: the answer {text!r:.80} has the char_spans {item['char_spans']!r:.80}; expected [first, last] within the "
      f"context's {length} characters."
    )
  return Answer(text, spans)
