"""docs/configuration.md: it is what configs/ says, and says all of it."""

import re

import pytest

from retrieval_jax import configuration
from scripts.write_configuration_reference import AGAIN, KINDS, PAGE, page, read_file, read_files
from tests.docs.pages import ROOT

FILES = sorted((ROOT / "configs").rglob("*.gin"))


@pytest.fixture(scope="module")
def written():
  return PAGE.read_text(encoding="utf-8")


def test_the_page_is_up_to_date(written):
  assert written == page(read_files(ROOT / "configs")), f"configs/ has changed. Write the page anew: {AGAIN}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT / "configs")))
def test_every_file_and_macro_is_there(written, path):
  name = str(path.relative_to(ROOT / "configs"))
  assert f"\n#### {name}\n" in written
  section = written.split(f"\n#### {name}\n")[1].split("\n#### ")[0].split("\n## ")[0]
  for macro in configuration.macros_set([configuration.GinFile(path, ())], ()):
    assert f"\n- `{macro} = " in section
    assert re.search(rf"^\| `{macro}` \|.*\[{re.escape(name)}\]", written, re.MULTILINE), macro


def test_every_kind_of_file_is_explained():
  assert {path.relative_to(ROOT / "configs").parts[0] for path in FILES} <= KINDS.keys()


def test_comments_beside_and_above_a_macro_are_its_own(tmp_path):
  (tmp_path / "a.gin").write_text(
    "# A file.\n# Its second line.\nA = 1\n\n# Of B\n# and more.\nB = '  x'  # beside\nC = %gin.REQUIRED\n\n"
    "include 'b.gin'\nbert.Bert.layers = 2  # two\nx.y = %A\n",
    encoding="utf-8",
  )
  file = read_file(tmp_path / "a.gin", "a.gin")
  assert file.head == ["A file.", "Its second line."]
  assert [tuple(setting) for setting in file.settings] == [
    ("A", "1", ""),
    ("B", "'  x'", "Of B and more. beside"),
    ("C", "%gin.REQUIRED", ""),
  ]
  assert file.includes == ["b.gin"]
  assert file.sets == ["bert.Bert.layers = 2"]
