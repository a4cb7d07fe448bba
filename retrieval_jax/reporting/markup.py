"""HTML by hand: everything that comes from outside is escaped, what is HTML already has a type of its own."""

import html
import re
from collections.abc import Iterable, Sequence

_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class Html(str):
  """Text that is HTML already. Only this module and drawing.py make some, of escaped parts."""


def escaped(value: object) -> Html:
  """Returns a value as HTML: itself if it is Html, else its text escaped; characters that no page can hold become U+FFFD.

  Example: `escaped("<b>")` is `"&lt;b&gt;"`.
  """
  if isinstance(value, Html):
    return value
  return Html(html.escape(printable(str(value))))


def printable(text: str) -> str:
  """Returns a text without what no page can hold: control characters become U+FFFD, half a surrogate pair a question mark."""
  return _CONTROL.sub("\ufffd", text.encode("utf-8", "replace").decode("utf-8"))


def joined(parts: Iterable[object]) -> Html:
  return Html("".join(escaped(part) for part in parts))


def element(tag: str, *children: object, **attributes: str) -> Html:
  """Returns an element. An attribute's name has a dash for each underscore, and none at its end.

  Example: `element("a", "x < y", href="#top")` is `'<a href="#top">x &lt; y</a>'`.
  """
  given = "".join(
    f' {name.rstrip("_").replace("_", "-")}="{escaped(value)}"' for name, value in attributes.items()
  )
  return Html(f"<{tag}{given}>{joined(children)}</{tag}>")


def paragraph(*children: object) -> Html:
  return element("p", *children)


def note(*children: object) -> Html:
  """Returns a line that says what is missing or how to read something."""
  return element("p", *children, class_="note")


def missing(what: str, command: str) -> Html:
  """Returns the line for what is not there, with the command that makes it."""
  return note(what, " ", element("code", command))


def folded(summary: str, *children: object) -> Html:
  return element("details", element("summary", summary), *children)


def data_text(text: str, **attributes: str) -> Html:
  """Returns a text of a data set, whatever its direction."""
  return element("span", text, dir="auto", **attributes)


def table(
  headers: Sequence[object], rows: Iterable[Sequence[object]], *, numbers_from: int | None = 1
) -> Html:
  """Returns a table that scrolls by itself where the screen is narrow.

  numbers_from: the columns from this one on are numbers, set to the right; None: there are none.
  """

  def cells(tag: str, values: Sequence[object]) -> Html:
    return joined(
      element(tag, value, class_="number")
      if numbers_from is not None and place >= numbers_from
      else element(tag, value)
      for place, value in enumerate(values)
    )

  head = element("thead", element("tr", cells("th", headers)))
  body = element("tbody", *(element("tr", cells("td", row)) for row in rows))
  return element("div", element("table", head, body), class_="scroll", tabindex="0")


def figures(parts: Sequence[Html]) -> Html:
  """Returns figures side by side, as many as there is room for."""
  return element("div", *parts, class_="figures") if parts else Html("")


def section(anchor: str, title: str, *children: object) -> Html:
  return element("section", element("h2", title), *children, id=anchor)
