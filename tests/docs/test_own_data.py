"""docs/own_data.md, done as it says on 80 pairs: its files, and all of its commands in their order, with the smallest model."""

import json
import re
import shlex
import subprocess

import gin
import pytest

from retrieval_jax import convert, launch
from tests.docs.examples import shell_lines, write_files
from tests.docs.pages import ROOT

PAGE = ROOT / "docs" / "own_data.md"
PYTHON = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
STEPS = 3
LENGTHS = ("--gin.QUERY_LENGTH=8", "--gin.PASSAGE_LENGTH=16")
# Put behind the page's own words: what makes a command quick.
CUT = {
  "train": (
    "--gin_file=models/bert_tiny.gin",
    f"--gin.TRAIN_STEPS={STEPS}",
    "--gin.WARMUP_STEPS=0",
    "--gin.BATCH_SIZE=16",
    "--gin.TRAIN_PASSAGE_LENGTH=16",
    *LENGTHS,
  )
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  """The folder after all commands of the page."""
  folder = tmp_path_factory.mktemp("own_data")
  assert write_files(PAGE, folder) == {"my_data.gin", "my_training.gin", "pairs.tsv"}
  with pytest.MonkeyPatch.context() as patch:
    patch.chdir(folder)
    for line in shell_lines(PAGE):
      run(line.replace("step_100", f"step_{STEPS}"))
  return folder


def run(line: str) -> None:
  """Runs a command of the page: our programs in this process, all else in a shell."""
  words = shlex.split(line)
  if words[:2] == ["source", ".venv/bin/activate"]:
    return
  if words[:2] != ["python", "-m"]:
    subprocess.run(["bash", "-c", f"set -euo pipefail; {line}"], check=True, timeout=60)
    return
  program = words[2].removeprefix("retrieval_jax.")
  if program == "convert":
    convert.main(words[3:])
    return
  model = LENGTHS if "--gin_file=models/minilm.gin" in words else ()
  gin.clear_config()
  try:
    launch.run(program, [*words[3:], *CUT.get(program, model)])
  finally:
    gin.clear_config()


def test_a_tenth_of_the_queries_is_kept_and_all_passages_are_searched(folder):
  train, test, corpus = (
    (folder / f"{name}.tsv").read_text(encoding="utf-8").splitlines() for name in ("train", "test", "corpus")
  )
  assert (len(train), len(test), len(corpus)) == (72, 8, 80)
  assert not {line.split("\t")[0] for line in train} & {line.split("\t")[0] for line in test}


@pytest.mark.parametrize(
  "run",
  ["runs/bm25/eval/test/bm25_step_0", "runs/zero_shot/eval/test/step_0", f"runs/mine/eval/test/step_{STEPS}"],
)
def test_every_evaluation_is_of_the_same_queries_and_corpus(folder, run):
  record = json.loads((folder / run / "metrics.json").read_text(encoding="utf-8"))
  assert (record["queries"], record["corpus_size"]) == (8, 80)
  assert 0 <= record["mrr@10"] <= 1


def test_what_is_exported_loads_as_the_page_says(folder, monkeypatch):
  monkeypatch.chdir(folder)
  ours, theirs = (dict[str, object]() for _ in range(2))
  first, second = PYTHON.findall(PAGE.read_text(encoding="utf-8"))
  exec(first, ours)
  assert ours["scores"].shape == (1, 2)
  exec(second, theirs)
  assert tuple(theirs["scores"].shape) == (1, 1)


def test_the_split_of_a_file_with_a_header_keeps_it_on_both_sides(tmp_path, folder):
  """What the page says of a header, done to its own two lines."""
  pairs = (folder / "pairs.tsv").read_text(encoding="utf-8")
  (tmp_path / "pairs.tsv").write_text("query\tpassage\n" + pairs, encoding="utf-8")
  train, test = (line for line in shell_lines(PAGE) if line.startswith("awk"))
  condition = "NR == 1 || n[$1] % 10 == 0"
  assert condition in PAGE.read_text(encoding="utf-8")
  for line in (train, test.replace("n[$1] % 10 == 0", condition)):
    subprocess.run(["bash", "-c", line], cwd=tmp_path, check=True, timeout=60)
  for name, count in (("train", 73), ("test", 9)):
    lines = (tmp_path / f"{name}.tsv").read_text(encoding="utf-8").splitlines()
    assert lines[0] == "query\tpassage"
    assert len(lines) == count
