"""A MODEL_DIR read for its report: what is there, what is missing, what is broken."""

import pytest

from retrieval_jax.errors import UserError
from retrieval_jax.reporting.run_folder import read_run
from tests.reporting.run_files import COMMAND, write_evaluation, write_log, write_run


def test_everything_of_a_run_is_read(tmp_path):
  run = read_run(str(write_run(tmp_path / "run")))
  assert run.name == "run"
  assert list(run.command) == COMMAND
  assert list(run.totals) == ["parameters: 1,234 numbers, 5 bytes a device", "mesh {} of 1 devices"]
  assert [record["step"] for record in run.log] == list(range(1, 11))
  assert [(e.task, e.kind, e.step) for e in run.evaluations] == [
    ("toy", "dense", 5),
    ("toy", "dense", 10),
    ("toy", "bm25", 0),
  ]
  assert [(e.kind, e.step) for e in run.newest()] == [("dense", 10), ("bm25", 0)]
  assert run.newest()[0].metrics == {"mrr": 0.75}
  assert run.newest()[1].title == "toy, bm25"
  assert [(e.kind, e.step) for e in run.newest_with("metrics.json")] == [("dense", 10)]
  assert [(e.kind, e.step) for e in run.newest_with("worst.jsonl")] == [("dense", 10)]
  assert run.newest_with("other") == []


def test_the_means_of_a_group_are_its_metrics(tmp_path):
  folder = tmp_path / "eval" / "forums" / "step_3"
  folder.mkdir(parents=True)
  (folder / "metrics.json").write_text(
    '{"ndcg@10": 0.5, "tasks": ["a", "b"], "searcher": "dense", "step": 3}'
  )
  (evaluation,) = read_run(str(tmp_path)).evaluations
  assert evaluation.metrics == {"ndcg@10": 0.5}


def test_a_run_of_evaluations_alone_is_one(tmp_path):
  write_evaluation(tmp_path, 0, [1.0, 0.0])
  run = read_run(str(tmp_path), name="other")
  assert (run.name, run.config, run.log, run.totals, run.command) == ("other", None, [], [], [])


def test_folders_that_are_none_and_hold_nothing(tmp_path):
  with pytest.raises(UserError, match=r"gone: no such folder; expected the MODEL_DIR"):
    read_run(str(tmp_path / "gone"))
  with pytest.raises(UserError, match=r"there is no config.gin, no train/log.jsonl and no eval/"):
    read_run(str(tmp_path))


@pytest.mark.parametrize(
  "line, said",
  [
    ("{", "Expecting property name"),
    ("[1]", "no object with a step"),
    ('{"loss": 1}', "no object"),
    ('{"step": true}', "no object"),
  ],
)
def test_a_broken_line_of_the_log_is_named(tmp_path, line, said):
  write_log(tmp_path, [{"step": 1, "loss": 1.0}], end=line + "\n")
  with pytest.raises(UserError, match=rf"log.jsonl:2: not a record of a training log: .*{said}"):
    read_run(str(tmp_path))


def test_a_last_line_that_is_cut_off_is_left_out_and_said(tmp_path):
  write_log(tmp_path, [{"step": 1, "loss": 1.0}], end='{"step": 2, "lo')
  run = read_run(str(tmp_path))
  assert len(run.log) == 1
  assert list(run.notes) == [
    "log.jsonl: its last line is cut off and left out; a training may be writing it."
  ]


@pytest.mark.parametrize(
  "text, said", [('{"mrr": 1,\n', "metrics.json:2: is broken"), ("[]", "metrics.json:1: expected an object")]
)
def test_broken_metrics_are_named(tmp_path, text, said):
  own = write_evaluation(tmp_path, 1, [1.0])
  (own / "metrics.json").write_text(text)
  with pytest.raises(UserError, match=said):
    read_run(str(tmp_path))


def test_text_that_is_no_utf_8_is_named(tmp_path):
  (tmp_path / "config.gin").write_bytes(b"A = '\xff'")
  with pytest.raises(UserError, match=r"config.gin: is not UTF-8"):
    read_run(str(tmp_path))
