"""Evaluation reports how the embeddings lie: in the log of a training and in metrics.json, not in the printed table."""

import json

import pytest

from retrieval_jax.errors import UserError

GEOMETRY = {"alignment", "uniformity_queries", "uniformity_passages", "mean_cosine_passages"}


@pytest.fixture(scope="module")
def trained(tiny, tmp_path_factory):
  """MODEL_DIR after one step with a learning rate that changes nothing, evaluated, and what it printed."""
  import contextlib
  import io

  import gin

  from retrieval_jax import launch as launcher

  folder, errors = tmp_path_factory.mktemp("geometry") / "run", io.StringIO()
  flags = ("--gin_file=evaluators/retrieval.gin", "--gin.TRAIN_STEPS=1", f"--gin.MODEL_DIR={folder}")
  gin.clear_config()
  with contextlib.redirect_stderr(errors):
    launcher.run("train", [*tiny, *flags, "--gin.LEARNING_RATE=1e-9"])
  gin.clear_config()
  return folder, errors.getvalue()


def test_training_logs_the_geometry(trained):
  folder, errors = trained
  lines = (folder / "train" / "log.jsonl").read_text(encoding="utf-8").splitlines()
  (scores,) = [record for record in map(json.loads, lines) if "test/mrr" in record]
  assert {f"test/{name}" for name in GEOMETRY} <= scores.keys()
  record = json.loads((folder / "eval" / "test" / "step_1" / "metrics.json").read_text(encoding="utf-8"))
  assert {name: record[name] for name in GEOMETRY} == {name: scores[f"test/{name}"] for name in GEOMETRY}
  assert 0 <= record["alignment"] <= 4
  # A model of random weights gives all texts nearly one embedding.
  assert record["mean_cosine_passages"] > 0.95
  assert f"warning: test: two passages have the mean cosine {record['mean_cosine_passages']:.3f}" in errors


def test_the_table_has_the_ranking_metrics_alone(trained, launch, tiny, capsys):
  folder, _ = trained
  data = [flag for flag in tiny if "_PATH" in flag or flag.endswith("tsv.gin")]
  results = launch("eval", *data, f"--gin.MODEL_DIR={folder}")
  assert results["test"].keys() >= GEOMETRY
  printed = capsys.readouterr().out
  assert "recall@100" in printed
  assert not any(name in printed for name in GEOMETRY)


def test_no_best_step_by_a_number_that_is_better_when_lower(launch, tiny, tmp_path):
  flags = (
    "--gin_file=evaluators/retrieval.gin",
    "--gin.TRAIN_STEPS=1",
    f"--gin.MODEL_DIR={tmp_path / 'run'}",
  )
  with pytest.raises(UserError, match="BEST_METRIC='test/alignment': expected one of"):
    launch("train", *tiny, *flags, "--gin.BEST_METRIC=test/alignment")
