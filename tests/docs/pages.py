"""What the tests of README.md and docs/ read: pages, their headings, links, blocks of code and commands."""

import pathlib
import re
import shlex
from collections.abc import Iterator
from typing import NamedTuple

ROOT = pathlib.Path(__file__).parent.parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
# What a command needs that a test has not, as the page says it behind the command: `pip install x  # needs the network`.
NEEDS = ("the network", "a GPU", "a pod")
FIRST_WORDS = (
  "python",
  "bash",
  "pip",
  "sbatch",
  "kubectl",
  "xpk",
  "docker",
  "source",
  "export",
  "git",
  "awk",
  "cut",
  "head",
)
FIRST_WORDS += (".venv-beam/bin/python", "tensorboard")
_COMMAND = re.compile(rf"(?:[A-Z_]+=\S+ )*(?:{'|'.join(map(re.escape, FIRST_WORDS))}) ")
_INLINE = re.compile(r"`((?:python -m retrieval_jax\.|python scripts/|bash scripts/)[^`]*)`", re.DOTALL)
_NEED = re.compile(r"\s+# needs ([^#]+)$")


class Command(NamedTuple):
  """A command of a page. needs: what it is marked to need, one of NEEDS, or None. shown: in a block, to be copied; others
  are only mentioned in a sentence. line: where it begins."""

  page: str
  line: int
  text: str
  needs: str | None
  shown: bool

  @property
  def words(self) -> list[str]:
    """The words as a shell splits them, without comments."""
    return shlex.split(self.text, comments=True)

  @property
  def where(self) -> str:
    """The page and the line."""
    return f"{self.page}:{self.line}"


class Block(NamedTuple):
  """A block of code: its lines without their indentation. line: where it begins. language: what a fence says."""

  line: int
  lines: list[str]
  language: str = ""


def name_of(page: pathlib.Path) -> str:
  """Returns the name that messages have for a page."""
  return str(page.relative_to(ROOT))


def blocks(text: str) -> Iterator[Block]:
  """Yields the fenced and the indented blocks of code."""
  lines, number = text.split("\n"), 0
  while number < len(lines):
    if fence := re.match(r"^(\s*)```(\w*)$", lines[number]):
      end = next(i for i in range(number + 1, len(lines)) if lines[i].strip() == "```")
      yield Block(number + 2, [line[len(fence[1]) :] for line in lines[number + 1 : end]], fence[2])
      number = end + 1
    elif re.match(r"^ {4,}\S", lines[number]) and not lines[number - 1].strip():
      end = number
      while end < len(lines) and (re.match(r"^ {4}", lines[end]) or not lines[end].strip()):
        end += 1
      indent = len(lines[number]) - len(lines[number].lstrip())
      yield Block(number + 1, [line[indent:] for line in lines[number:end]])
      number = end
    else:
      number += 1


def commands(page: pathlib.Path) -> Iterator[Command]:
  """Yields the commands of a page: of its blocks, continued lines joined, and those that a sentence mentions."""
  text = page.read_text(encoding="utf-8")
  prose = text.split("\n")
  for block in blocks(text):
    prose[block.line - 1 : block.line - 1 + len(block.lines)] = [""] * len(block.lines)
    number = 0
    while number < len(block.lines):
      first = number
      while block.lines[number].endswith("\\") and number + 1 < len(block.lines):
        number += 1
      joined = " ".join(line.rstrip("\\").strip() for line in block.lines[first : number + 1])
      number += 1
      if _COMMAND.match(joined):
        need = _NEED.search(joined)
        yield Command(
          name_of(page), block.line + first, _NEED.sub("", joined), need[1].strip() if need else None, True
        )
  kept = "\n".join(prose)
  for match in _INLINE.finditer(kept):
    line = kept.count("\n", 0, match.start()) + 1
    yield Command(name_of(page), line, " ".join(match[1].split()), None, False)


def without_code(text: str) -> str:
  """Returns a page's text with its blocks and spans of code taken out, line for line."""
  lines = text.split("\n")
  for block in blocks(text):
    lines[block.line - 1 : block.line - 1 + len(block.lines)] = [""] * len(block.lines)
  return re.sub(r"`[^`]*`", lambda match: "\n" * match[0].count("\n"), "\n".join(lines))


def anchors(text: str) -> set[str]:
  """Returns the anchors that GitHub gives the headings of a page."""
  lines = text.split("\n")
  for block in blocks(text):
    lines[block.line - 1 : block.line - 1 + len(block.lines)] = [""] * len(block.lines)
  found: set[str] = set()
  for line in lines:
    if match := re.match(r"^#{1,6} (.+)$", line):
      title = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", match[1])
      slug = re.sub(r"[^\w\- ]", "", title.strip().lower()).replace(" ", "-")
      number = next(n for n in range(1000) if (f"{slug}-{n}" if n else slug) not in found)
      found.add(f"{slug}-{number}" if number else slug)
  return found
