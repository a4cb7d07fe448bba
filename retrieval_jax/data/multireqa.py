"""MultiReQA: sentences of MRQA contexts as passages, and which of them answer which question.

MultiReQA's files hold nothing but the places of the sentences; questions and texts come from the MRQA files.
"""

import logging
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from retrieval_jax.data import features
from retrieval_jax.data.lines import Path, json_lines
from retrieval_jax.data.mrqa import Context, read_mrqa
from retrieval_jax.errors import UserError

LOG = logging.getLogger(__name__)


class Sentence(NamedTuple):
  """A candidate: `context[start:end]`."""

  candidate_id: str
  start: int
  end: int


class ContextSentences(NamedTuple):
  """A context and its sentences, in the order of the candidates' file."""

  context: Context
  sentences: tuple[Sentence, ...]


class Contexts:
  """The contexts of MRQA files, found by their questions' ids. Memory: their texts.

  Raises: UserError with file and line number for what `read_mrqa` refuses.
  """

  def __init__(self, paths: Sequence[Path]):
    self._contexts = [context for path in paths for context in read_mrqa(path)]
    self._places: dict[str, list[int]] = {}  # a qid's contexts: one as a rule
    for place, context in enumerate(self._contexts):
      for question in context.questions:
        self._places.setdefault(question.qid, []).append(place)

  def __len__(self) -> int:
    return len(self._contexts)

  def of_candidate(self, candidate_id: str, where: str) -> int:
    """Returns the place of the context that a candidate belongs to.

    Before a candidate_id's last "/" stand the qids of all questions of its context, joined by "/"; the first has the
    data set's name and "_" before it.

    Raises: UserError, beginning with `where`, if no context, or more than one, has these questions.
    """
    first, *others = candidate_id.rpartition("/")[0].split("/")
    qids = [self._without_name(first), *others]
    places = set.intersection(*(set(self._places.get(qid, ())) for qid in qids))
    if len(places) != 1:
      unknown = [qid for qid in qids if qid not in self._places]
      problem = (
        f"the qid {unknown[0]!r} is in no context" if unknown else f"{len(places)} contexts have its qids"
      )
      raise UserError(
        f"{where}: candidate_id {candidate_id!r:.200}: {problem} of the MRQA files. Expected DATASET_qid/qid/.../_N, and "
        "MRQA's file of the same data set and split."
      )
    return places.pop()

  def _without_name(self, first: str) -> str:
    """Returns the first qid without the data set's name before it, which may hold "_" as qids may."""
    rest = first
    while rest not in self._places and "_" in rest:
      rest = rest.partition("_")[2]
    return rest if rest in self._places else first.partition("_")[2]

  def __getitem__(self, place: int) -> Context:
    return self._contexts[place]


def read_sentences(candidates: Path, contexts: Contexts) -> Iterator[ContextSentences]:
  """Yields each context with its sentences, in the order in which the candidates' file names them.

  Raises: UserError with file and line number for a line of another form, a candidate of no context, a sentence beyond
  its context, a candidate_id that comes twice, and if the sentences of a context do not stand together.
  """
  current: int | None = None
  sentences: dict[str, Sentence] = {}
  done: set[int] = set()
  for record, where in json_lines(candidates, ("candidate_id",)):
    candidate_id = record["candidate_id"]
    place = contexts.of_candidate(candidate_id, where)
    if place != current:
      if current is not None:
        yield ContextSentences(contexts[current], tuple(sentences.values()))
        done.add(current)
      if place in done:
        raise UserError(
          f"{where}: the sentences of {contexts[place].where} do not stand together. Sort the file."
        )
      current, sentences = place, {}
    start, end = record.get("response_start"), record.get("response_end")
    length = len(contexts[place].text)
    if type(start) is not int or type(end) is not int or not 0 <= start < end <= length:
      raise UserError(
        f"{where}: the sentence {start!r}..{end!r}; expected response_start < response_end within the {length} characters "
        f"of the context at {contexts[place].where}."
      )
    if candidate_id in sentences:
      raise UserError(f"{where}: the candidate_id {candidate_id!r} comes twice. Ids must be unique.")
    sentences[candidate_id] = Sentence(candidate_id, start, end)
  if current is not None:
    yield ContextSentences(contexts[current], tuple(sentences.values()))


def read_multireqa_corpus(
  candidates: Path, mrqa: Sequence[Path], *, context: bool = False
) -> Iterator[features.Example]:
  """Yields every candidate sentence as a passage; with `context` the whole context follows it after a space.

  Raises: UserError as `read_sentences` does.
  """
  for found, sentences in read_sentences(candidates, Contexts(mrqa)):
    for candidate_id, start, end in sentences:
      yield features.passage(candidate_id, sentence_text(found.text, start, end, context=context))


def sentence_text(text: str, start: int, end: int, *, context: bool) -> str:
  """Returns a sentence of a text or, with `context`, the sentence, a space and the whole text."""
  sentence = text[start:end]
  return f"{sentence} {text}" if context else sentence


def read_multireqa_pairs(candidates: Path, mrqa: Sequence[Path]) -> Iterator[features.Example]:
  """Yields a pair for each question and each sentence of its context that holds a whole detected answer.

  The passage's text is "": it is the corpus's. A question that no sentence answers (its answers cross the bounds of
  sentences, or it has none) is left out, and so are those of contexts without candidates; a warning counts them.

  Raises: UserError as `read_sentences` does, and if no question is answered.
  """
  contexts = Contexts(mrqa)
  questions = pairs = unanswered = 0
  total = sum(len(contexts[place].questions) for place in range(len(contexts)))
  for context, sentences in read_sentences(candidates, contexts):
    for question in context.questions:
      questions += 1
      answering = [
        candidate_id
        for candidate_id, start, end in sentences
        if any(start <= first and last <= end for first, last in question.spans)
      ]
      unanswered += not answering
      for candidate_id in answering:
        pairs += 1
        yield features.pair(question.qid, question.text, candidate_id, "")
  message = (
    f"{candidates}: {total} questions, {pairs} pairs; {unanswered} questions have no sentence with a whole answer, and "
    f"{total - questions} are of contexts without candidates"
  )
  if not pairs:
    raise UserError(f"{message}. Are the MRQA files of the same data set and split?")
  lost = unanswered or total > questions
  LOG.log(logging.WARNING if lost else logging.INFO, "%s: these are left out." if lost else "%s.", message)
