"""Lines of text files and of JSON files of extreme classification, and how their texts are made."""

import codecs
import contextlib
import html
import logging
import pathlib
from collections.abc import Iterator
from typing import Any, NamedTuple

from retrieval_jax.data.lines import json_lines, read_lines
from retrieval_jax.data.text_rows import titled
from retrieval_jax.errors import UserError

LOG = logging.getLogger(__name__)


class TextRule(NamedTuple):
  """How texts are read, the same for points and labels.

  titles_only: whether the text is the title, or title, a space and content. Text files have one text, which is taken.
  encoding: of the files. unescape: whether HTML entities ("&amp;") become the characters that they stand for.
  """

  titles_only: bool = False
  encoding: str = "utf-8"
  unescape: bool = True

  def text(self, title: str, content: str = "") -> str:
    """Returns the text of a point or label.

    Example: `TextRule().text("Cats &amp; dogs", "They play.")` is "Cats & dogs They play.".
    """
    joined = title.strip() if self.titles_only else titled(title.strip(), content.strip())
    return html.unescape(joined).strip() if self.unescape else joined


class Row(NamedTuple):
  """The text of a line, its JSON object (empty in a text file), and where it stands: `path:number`."""

  text: str
  record: dict[str, Any]
  where: str


def is_json_file(file: pathlib.Path) -> bool:
  return ".json" in file.suffixes


def read_rows(file: pathlib.Path, rule: TextRule) -> Iterator[Row]:
  """Yields each line of a file, JSON if its name says so, else of texts; an empty line is an empty text.

  Raises: UserError with file and line number for a line that cannot be read, and for an empty line of a JSON file.
  """
  with _naming_encoding():
    if not is_json_file(file):
      for line in read_lines(file, empty=True, encoding=rule.encoding):
        yield Row(rule.text(line.text), {}, line.where)
      return
    left_out = 0
    records = json_lines(file, ("title",), encoding=rule.encoding)
    for number, (record, where) in enumerate(records, 1):
      if where != f"{file}:{number}":
        raise UserError(
          f"{file}:{number}: an empty line. Rows are counted, so every line is one: take it out."
        )
      content = record.get("content")
      if not isinstance(content, str | None):
        raise UserError(f"{where}: content is {content!r:.80}; expected text, null or none.")
      left_out += bool(content) and rule.titles_only
      yield Row(rule.text(record["title"], content or ""), record, where)
  if left_out:
    LOG.warning(
      "%s: texts are titles alone, because the folder's name says so or titles_only is True; the contents of %d rows are left "
      "out.",
      *(file, left_out),
    )


@contextlib.contextmanager
def _naming_encoding() -> Iterator[None]:
  try:
    yield
  except UserError as error:
    if isinstance(error.__cause__, UnicodeDecodeError):
      raise UserError(f"{error} Older releases are latin-1: encoding='latin-1'.") from error.__cause__
    raise


def check_encoding(encoding: str) -> None:
  """Raises UserError for an encoding that is unknown, or whose line ends are not those of ASCII."""
  try:
    known = codecs.lookup(encoding)
    if known.encode("a\n")[0] == b"a\n":
      return
  except (LookupError, TypeError):
    pass
  raise UserError(f"encoding={encoding!r}: expected 'utf-8', 'latin-1' or another one that extends ASCII.")
