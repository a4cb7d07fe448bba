"""docs/add_a_batcher.md, done as it says: its files, its commands, and the properties that it promises."""

import inspect
import json
import sys

import pytest

from tests.conformance import test_batchers as conformance
from tests.docs.examples import run_python, shell_lines, write_files
from tests.docs.pages import ROOT

PAGE = ROOT / "docs" / "add_a_batcher.md"
PROPERTIES = [
  name
  for name, function in inspect.getmembers(conformance, inspect.isfunction)
  if name.startswith("test_") and list(inspect.signature(function).parameters) == ["make"]
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  """A folder with the page's files and a file of pairs."""
  folder = tmp_path_factory.mktemp("add_a_batcher")
  names = write_files(PAGE, folder)
  assert names == {"neighbours.py", "neighbours.gin", "test_neighbours.py", "pairs.tsv"}
  return folder


@pytest.fixture
def neighbours(folder, monkeypatch):
  """The page's function."""
  monkeypatch.syspath_prepend(folder)
  monkeypatch.delitem(sys.modules, "neighbours", raising=False)
  from neighbours import neighbours

  return neighbours


def test_its_commands_test_the_batcher_and_train_with_it(folder):
  for line in shell_lines(PAGE):
    run_python(line, folder)
  lines = (folder / "run" / "train" / "log.jsonl").read_text(encoding="utf-8").splitlines()
  log = [json.loads(line) for line in lines]
  assert [record["step"] for record in log] == [1, 2, 3, 4, 5]
  assert all(-1 <= record["in_batch_hardness"] <= 1 for record in log)
  assert "run_length = %RUN_LENGTH" in (folder / "run" / "config.gin").read_text(encoding="utf-8")
  assert "neighbours" not in (folder / "run" / "model.gin").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", PROPERTIES)
@pytest.mark.parametrize("run_length", [1, 2, 4])
def test_the_batcher_has_every_property_of_the_shipped_ones(neighbours, name, run_length):
  getattr(conformance, name)(lambda: neighbours(conformance.BATCH_SIZE, run_length=run_length))


def test_there_are_properties():
  assert len(PROPERTIES) > 8
