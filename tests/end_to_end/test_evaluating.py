"""Evaluation by the programs: between checkpoints, on samples, the held-out loss, and tasks by their names."""

import json
import math
import pathlib

import pytest

from retrieval_jax.errors import UserError


def log_of(folder: pathlib.Path) -> list[dict]:
  lines = (folder / "train" / "log.jsonl").read_text(encoding="utf-8").splitlines()
  return [json.loads(line) for line in lines]


@pytest.fixture(scope="module")
def trained(tiny, tmp_path_factory):
  """MODEL_DIR after six steps, evaluated every two on a sample."""
  import gin

  from retrieval_jax import launch as launcher

  folder = tmp_path_factory.mktemp("evaluating") / "run"
  gin.clear_config()
  launcher.run(
    "train",
    [
      *tiny,
      "--gin_file=evaluators/retrieval.gin",
      "--gin_file=evaluation/eval_loss.gin",
      "--gin.EVAL_LOSS_BATCHES=3",
      "--gin.EVAL_PERIOD=2",
      "--gin.SAMPLE_QUERIES=5",
      "--gin.METRICS=('mrr@10', 'success@3')",
      "--gin.BEST_METRIC=test_sample/mrr@10",
      "--gin.TRAIN_STEPS=6",
      "--gin.KEEP_CHECKPOINTS=1",
      f"--gin.MODEL_DIR={folder}",
    ],
  )
  gin.clear_config()
  return folder


def test_evaluation_runs_between_checkpoints_on_the_sample(trained):
  evaluated = {record["step"]: record for record in log_of(trained) if "eval_loss" in record}
  assert list(evaluated) == [2, 4, 6]
  for step, record in evaluated.items():
    assert {"test_sample/mrr@10", "test_sample/success@3", "eval_seconds"} <= record.keys()
    metrics = json.loads((trained / "eval" / "test_sample" / f"step_{step}" / "metrics.json").read_text())
    assert metrics["queries"] == 5
    assert metrics["corpus_size"] == 16
    assert metrics["mrr@10"] == record["test_sample/mrr@10"]


def test_the_best_step_is_kept_also_where_no_checkpoint_is_due(trained):
  scores = {
    record["step"]: record["test_sample/mrr@10"] for record in log_of(trained) if "eval_loss" in record
  }
  kept = {int(path.name.removeprefix("checkpoint_")) for path in trained.glob("checkpoint_*")}
  assert 6 in kept
  assert max(scores[step] for step in kept) == max(scores.values())


def test_the_held_out_loss_is_that_of_chance_before_anything_is_learned(trained):
  """16 test pairs are one batch: random embeddings give about the log of the number of candidates, twice for SamToNe."""
  first = next(record["eval_loss"] for record in log_of(trained) if "eval_loss" in record)
  assert math.log(2) < first < 2 * math.log(32)


def test_tasks_by_name_share_the_encoder_and_the_table(trained, launch, capsys, monkeypatch):
  from retrieval_jax.data import features

  for name, answers in (("shelf_a", [0, 1]), ("shelf_b", [1])):

    def read(split, answers=answers):
      if split == features.CORPUS:
        return iter(
          [features.passage(f"p{i}", f"this passage tells about a {n}") for i, n in enumerate("ab")]
        )
      return iter([features.pair(f"q{i}", "find it", f"p{a}", "") for i, a in enumerate(answers)])

    features.register(features.TextTask(name, ("test", "corpus"), read, lambda name=name: name))
  results = launch(
    "eval",
    "--gin_file=evaluators/tasks.gin",
    "--gin.EVAL_TASKS=('shelf_a', 'shelf_b')",
    "--gin.METRICS=('mrr',)",
    f"--gin.MODEL_DIR={trained}",
  )
  assert (
    results["shelf_a"]["mrr"] == 0.75
  )  # one of two equal queries finds its passage first, the other second
  table = capsys.readouterr().out
  assert "shelf_a" in table
  assert "shelf_b" in table


def test_a_batch_that_the_data_cannot_fill_is_said(launch, tiny, tmp_path, capsys):
  launch(
    "train",
    *tiny,
    "--gin.BATCH_SIZE=128",
    "--gin.DRY_RUN=True",
    "--gin.TRAIN_STEPS=1",
    f"--gin.MODEL_DIR={tmp_path}",
  )
  assert "the first batch has 64 examples, the rest of its 128 places is padding" in capsys.readouterr().out


@pytest.mark.parametrize(
  "flag, message",
  [
    ("--gin.RUN_DEPTH=-3", "RUN_DEPTH=-3: expected a whole number of at least 1"),
    ("--gin.METRICS=(1,)", r"METRICS=\(1,\): expected a list of names"),
    ("--gin.EVAL_PERIOD=0", "EVAL_PERIOD=0: expected a whole number of at least 1"),
    ("--gin.METRICS=('mmr',)", "Unknown metric 'mmr'; did you mean 'mrr'"),
    ("--gin.METRICS=('recall@2000',)", "recall@2000 look deeper than SEARCH_DEPTH=1000"),
    ("--gin.SAMPLE_PASSAGES=-1", "a sample of -1 passages: expected a whole number"),
    ("--gin.EVAL_LOSS_BATCHES=0", "EVAL_LOSS_BATCHES=0: expected a whole number of at least 1"),
  ],
)
def test_what_cannot_be_evaluated_is_said_before_training(launch, tiny, tmp_path, flag, message):
  flags = (
    "--gin_file=evaluators/retrieval.gin",
    "--gin_file=evaluation/eval_loss.gin",
    "--gin.TRAIN_STEPS=1",
  )
  with pytest.raises(UserError, match=message):
    launch("train", *tiny, *flags, flag, f"--gin.MODEL_DIR={tmp_path / 'run'}")
  assert not (tmp_path / "run" / "train").exists()


def test_a_prefix_that_the_model_was_not_trained_with_is_refused(trained, launch, tiny):
  data = [flag for flag in tiny if "_PATH" in flag or flag.endswith("tsv.gin")]
  with pytest.raises(
    UserError, match=r"QUERY_PREFIX='query: ' \(--gin.QUERY_PREFIX\), but the model .* with ''"
  ):
    launch("eval", *data, f"--gin.MODEL_DIR={trained}", "--gin.QUERY_PREFIX=query: ")
  launch("eval", *data, f"--gin.MODEL_DIR={trained}", "--gin.QUERY_PREFIX=")


def test_an_approximate_search_does_not_overwrite_the_exact_one(trained, launch, tiny):
  data = [flag for flag in tiny if "_PATH" in flag or flag.endswith("tsv.gin")]
  flags = ("--gin_file=indexes/faiss_flat.gin", "--gin.METRICS=('mrr',)", f"--gin.MODEL_DIR={trained}")
  exact = launch("eval", *data, *flags[1:])
  approximate = launch("eval", *data, *flags)
  assert {path.name for path in (trained / "eval" / "test").iterdir()} == {"step_6", "faiss_flat_step_6"}
  assert approximate["test"]["mrr"] == pytest.approx(exact["test"]["mrr"])
