"""Every link of README and docs/ leads somewhere, and every file that they name is there."""

import itertools
import pathlib
import re

import pytest

from tests.docs.pages import PAGES, ROOT, anchors, name_of, without_code

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
# A path of this repository, in words or code: it begins with one of its folders, and braces and stars stand for several.
PATH = re.compile(r"(?<![\w/.$~<-])(?:docs|scripts|tests|configs|retrieval_jax)/[\w./*{},-]*\w(?:/|\})?")
GIN = re.compile(r"(?<![\w/.$~<-])([a-z_]+/[\w*{},]+\.gin)\b")
# Of the installed package, of the cache folder, and a name that stands for any.
ELSEWHERE = re.compile(r"retrieval_jax/(?:tasks|configs|xla)(?:/|$)|\w+/NAME\.gin")
OWN_KINDS = sorted(
  path.name for path in (ROOT / "configs").iterdir() if path.is_dir() and path.name != "__pycache__"
)


def spelt_out(path: str) -> list[str]:
  """Returns the paths that one with braces stands for."""
  parts = [part.split(",") if number % 2 else [part] for number, part in enumerate(re.split(r"[{}]", path))]
  return ["".join(choice) for choice in itertools.product(*parts)]


def exists(folder: pathlib.Path, path: str) -> bool:
  return any(folder.glob(path.rstrip("/"))) if "*" in path else (folder / path).exists()


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_link_leads_to_a_file_and_a_heading(page):
  text = page.read_text(encoding="utf-8")
  dead = []
  for target in LINK.findall(without_code(text)):
    if re.match(r"[a-z]+:", target):
      continue
    path, _, anchor = target.partition("#")
    file = (page.parent / path).resolve() if path else page
    if not file.exists():
      dead.append(f"{target}: no such file")
    elif anchor and anchor not in anchors(file.read_text(encoding="utf-8")):
      dead.append(f"{target}: no such heading")
  assert dead == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_file_that_is_named_is_there(page):
  text = page.read_text(encoding="utf-8").replace("\\*", "*")
  named = {(ROOT, path) for match in PATH.findall(text) for path in spelt_out(match)}
  named |= {
    (ROOT / "configs", path)
    for match in GIN.findall(text)
    for path in spelt_out(match)
    if path.split("/")[0] in OWN_KINDS
  }
  missing = [path for folder, path in sorted(named) if not exists(folder, path) and not ELSEWHERE.match(path)]
  assert missing == []


@pytest.mark.parametrize("page", PAGES[1:], ids=name_of)
def test_every_page_is_in_the_index(page):
  index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
  assert page.name == "README.md" or f"({page.name}" in index


def test_the_checks_can_fail():
  assert "a-b_c-1" in anchors("# A b_c\n\n## `a` b_c!\n")
  assert anchors("```\n# a comment\n```\n") == set()
  assert spelt_out("configs/{a,b}/c.gin") == ["configs/a/c.gin", "configs/b/c.gin"]
  assert not exists(ROOT, "docs/nothing.md")
  assert exists(ROOT, "configs/losses/samtone*.gin")
  assert without_code("a `[b](c)` d\n\n    [e](f)\n").split() == ["a", "d"]
