"""docs/troubleshooting.md: every message that it quotes is one that the code prints."""

import ast
import pathlib
import re

import pytest

from tests.docs.pages import ROOT

PAGE = ROOT / "docs" / "troubleshooting.md"
HOLE = "\0"  # where a template has a value


def quoted() -> list[str]:
  """Returns the messages of the first columns of the page's tables."""
  return re.findall(r"^\| `([^`]+)` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)


def templates(folder: pathlib.Path) -> list[str]:
  """Returns all texts of the code but docstrings, f-strings with HOLE for each value."""
  found = []
  for path in sorted(folder.rglob("*.py")):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
      if id(node) in docstrings:
        continue
      if isinstance(node, ast.JoinedStr):
        parts = [part.value if isinstance(part, ast.Constant) else HOLE for part in node.values]
        found.append("".join(map(str, parts)))
      elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        found.append(node.value)
  return found


TEMPLATES = templates(ROOT / "retrieval_jax")
MESSAGES = quoted()


def is_printed(message: str, texts: list[str]) -> bool:
  """Returns whether a text has the message's words in their order, something else standing only where it has dots."""
  pattern = re.compile(".*".join(map(re.escape, message.split("..."))), re.DOTALL)
  return any(pattern.search(text) for text in texts)


def test_the_page_quotes_messages():
  assert len(MESSAGES) > 60
  assert len(MESSAGES) == len(set(MESSAGES))


@pytest.mark.parametrize("message", MESSAGES)
def test_a_quoted_message_is_printed_by_the_code(message):
  assert is_printed(message, TEMPLATES), f"{PAGE.name} quotes what no text of retrieval_jax says: {message}"


def test_the_check_can_fail():
  texts = ["K=\0: expected at least 1.", f"{HOLE}: no such file"]
  assert is_printed("K=...: expected at least", texts)
  assert is_printed("...: no such file", texts)
  assert not is_printed("K=3: expected at least", texts)
  assert not is_printed("no such folder", texts)
