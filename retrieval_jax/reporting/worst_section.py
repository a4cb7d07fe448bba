"""The section of the worst queries: what was retrieved for each, and what would have been right."""

from collections.abc import Sequence
from typing import Final

from retrieval_jax.reporting.markup import Html, data_text, element, folded, missing, note, section
from retrieval_jax.reporting.metrics_section import eval_command
from retrieval_jax.reporting.run_folder import Run
from retrieval_jax.result_files import WORST_FILE
from retrieval_jax.worst_file import ShownPassage, WorstQuery, read_worst

ANCHOR, TITLE = "worst", "Worst queries"
SHOWN: Final = 8  # tasks


def worst_section(run: Run) -> Html:
  """Returns the worst queries of the newest evaluation of each task by the model's own search, or by what else there is."""
  found = run.newest_with(WORST_FILE)
  if not found:
    return section(
      ANCHOR, TITLE, missing(f"No evaluation has a {WORST_FILE}. Evaluate with", eval_command(run))
    )
  parts: list[Html] = [
    note(
      "By the task's first metric; of equal values the query whose first right passage stands deeper is worse. Queries without "
      "a right passage are left out. Long texts are cut off."
    )
  ]
  for number, evaluation in enumerate(found[:SHOWN]):
    queries = read_worst(evaluation.folder / WORST_FILE)
    title = f"{evaluation.title}, step {evaluation.step:,}"
    shown = [_query(query) for query in queries]
    if number == 0:
      parts += [element("h3", title), *shown]
    else:
      parts.append(folded(f"{title}: {len(queries)} queries", *shown))
  if found[SHOWN:]:
    parts.append(note(f"Not shown: {', '.join(e.title for e in found[SHOWN:])}."))
  return section(ANCHOR, TITLE, *parts)


def _query(query: WorstQuery) -> Html:
  more = query.relevant - len(query.right)
  right = f"What was right ({query.relevant:,})" if more else "What was right"
  return element(
    "article",
    element("h4", data_text(query.text or "(an empty text)")),
    element(
      "div",
      f"{query.metric} {100 * query.value:.1f}, query ",
      data_text(query.query_id, class_="id"),
      class_="note",
    ),
    element(
      "div",
      element("div", element("h5", "What was retrieved"), _passages(query.retrieved, "nothing")),
      element("div", element("h5", right), _passages(query.right, "nothing")),
      class_="columns",
    ),
    class_="worst",
  )


def _passages(passages: Sequence[ShownPassage], none: str) -> Html:
  if not passages:
    return element("p", none, class_="note")
  return element("ul", *map(_passage, passages))


def _passage(passage: ShownPassage) -> Html:
  rank = "not found" if passage.rank is None else f"{passage.rank:,}."
  facts: list[object] = [element("span", rank, class_="rank"), " "]
  if passage.score is not None:
    facts += [element("span", f"{passage.score:.3f}", class_="rank"), " "]
  if passage.grade is not None:
    said = f"grade {passage.grade}"
    facts += [element("span", said, class_="good") if passage.grade > 0 else said, " "]
  if passage.passage_id is None:
    return element("li", *facts, element("span", "a passage that the corpus lacks", class_="note"))
  facts += [data_text(passage.passage_id, class_="id"), Html("<br>")]
  return element("li", *facts, data_text(passage.text or "(an empty text)"))
