"""docs/add_a_task.md, done as it says: its files, its commands."""

import json
import pathlib

from tests.docs.examples import run_python, shell_lines, write_files
from tests.docs.pages import ROOT

PAGE = ROOT / "docs" / "add_a_task.md"


def test_its_commands_test_the_task_train_on_it_and_evaluate(tmp_path):
  assert write_files(PAGE, tmp_path) == {"help.json", "help_task.py", "test_help_task.py", "pairs.tsv"}
  printed = [run_python(line, tmp_path) for line in shell_lines(PAGE)]
  assert "help/train: 9 examples, 6 passages" in printed[1]
  metrics = json.loads(
    (tmp_path / "run" / "eval" / "help" / "step_5" / "metrics.json").read_text(encoding="utf-8")
  )
  assert metrics["queries"] == 1
  assert metrics["corpus_size"] == 6
  assert {"mrr@10", "recall@1", "recall@5"} <= metrics.keys()
  assert [pathlib.Path(name).name for name in metrics["task_files"]] == ["help.json"]
  assert printed[2].count("help") >= 1
  assert printed[3].splitlines()[1:3] == printed[2].splitlines()[1:3]
