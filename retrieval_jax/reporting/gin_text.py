"""The settings in the text of a gin file, read without gin: as it is written by hand, and as gin writes it (config.gin)."""

import ast
import re
from collections.abc import Iterator

from retrieval_jax.errors import UserError
from retrieval_jax.paths import resolve

SHIPPED = "package:retrieval_jax.configs/"
_ASSIGNMENT = re.compile(r"^([\w./]+)\s*=(?!=)\s*(.*)$", re.DOTALL)
_INCLUDE = re.compile(r"""^include\s+(['"])(.+)\1$""")
_REFERENCE = re.compile(r"@((?:\w+/)*)(?:\w+\.)*(\w+)")


def assignments(text: str) -> dict[str, str]:
  """Returns the value of each setting as it is written, on one line and without comments; the last one wins.

  Example: `assignments("A = (1,  # one\\n  2)\\nx.y = %A")` is `{"A": "(1, 2)", "x.y": "%A"}`.
  """
  found = {}
  for statement in _statements(text):
    match = _ASSIGNMENT.match(statement)
    if match:
      found[match[1]] = " ".join(match[2].split())
  return found


def shipped_text(name: str) -> str | None:
  """Returns the text of a gin file that this package brings; None for any other file, wherever its name points."""
  try:
    root = resolve(SHIPPED).resolve()
    path = (root / name).resolve()
    return path.read_text(encoding="utf-8") if path.is_relative_to(root) else None
  except (UserError, OSError):
    return None


def with_includes(name: str) -> list[tuple[str, dict[str, str]]]:
  """Returns (name, assignments) of a shipped file and of those that it includes, in the order in which gin reads them."""
  text = shipped_text(name)
  if text is None:
    return []
  matches = [_INCLUDE.match(statement) for statement in _statements(text)]
  included = [found for match in matches if match for found in with_includes(match[2])]
  return [*included, (name, assignments(text))]


def normal(value: str) -> str:
  """Returns a value in one spelling: equal ones are equal strings, as far as that can be told without gin.

  Example: `normal("@in_batch.samtone()")` is `"@samtone()"`, `normal("2e-4")` is `"0.0002"`.
  """
  try:
    return repr(ast.literal_eval(value))
  except (ValueError, SyntaxError):
    return _REFERENCE.sub(r"@\1\2", " ".join(value.split()))


def _statements(text: str) -> Iterator[str]:
  """Yields each statement: lines are joined while a bracket is open, a line ends in a backslash or a value is missing."""
  parts: list[str] = []
  for line in text.split("\n"):
    bare = _without_comment(line).strip()
    parts.append(bare.removesuffix("\\").strip())
    joined = "\n".join(part for part in parts if part)
    if bare.endswith("\\") or _open_brackets(joined) > 0:
      continue
    if joined:
      yield joined
    parts = []
  if joined := "\n".join(part for part in parts if part):
    yield joined


def _without_comment(line: str) -> str:
  """Returns the line up to the first # outside of quotation marks."""
  for place, quoted in _characters(line):
    if line[place] == "#" and not quoted:
      return line[:place]
  return line


def _open_brackets(text: str) -> int:
  plain = [text[place] for place, quoted in _characters(text) if not quoted]
  return sum(c in "([{" for c in plain) - sum(c in ")]}" for c in plain)


def _characters(text: str) -> Iterator[tuple[int, bool]]:
  """Yields the place of each character, and whether it stands in a string."""
  quote, escaped = "", False
  for place, character in enumerate(text):
    yield place, bool(quote)
    if escaped:
      escaped = False
    elif quote:
      escaped = character == "\\"
      quote = "" if character == quote else quote
    elif character in "'\"":
      quote = character
