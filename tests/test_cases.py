"""The table of cases is whole, and every test it names exists."""

import ast
import functools
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parent.parent
LINES = (ROOT / "tests" / "cases.md").read_text(encoding="utf-8").split("\n")
ROWS = [
  tuple(cell.strip() for cell in line.strip("| ").split(" | ")) for line in LINES if line.startswith("| ")
]
CASES = [row for row in ROWS if row[0] != "case"]
MISSING = {7, 15, 18, 20, 33, 35, 41, 49, 57, 61, 66, 70, 73}  # from the list itself
TAKEN = (range(1, 32), range(32, 78))  # the others come with other parts of the plan
NODE = re.compile(r"`([^`]+)::([^`]+)`")


@functools.cache
def functions_in(file: str) -> set[str]:
  tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
  return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_every_case_has_one_line_of_three_cells():
  numbers = [[str(n) for n in part if n not in MISSING] for part in TAKEN]
  assert [row[0] for row in CASES] == [*numbers[0], "31a", *numbers[1]]
  assert all(len(row) == 3 and all(row) for row in CASES)


@pytest.mark.parametrize("row", CASES, ids=lambda row: row[0])
def test_a_case_names_tests_that_exist_or_says_why_there_are_none(row):
  case, _, tests = row
  found = NODE.findall(tests)
  assert found or tests.startswith("not yet: "), case
  for file, name in found:
    assert name.startswith("test_")
    assert name in functions_in(file), f"case {case}: {file} has no {name}"
  assert tests.count("::") == len(found), f"case {case}: write each test as `file::name`"
