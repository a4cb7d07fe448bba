"""Distillation as a user runs it: pairs with ids, a file of teacher scores, a few steps, and what goes wrong."""

import gzip
import json
import pathlib

import numpy as np
import pytest

from retrieval_jax.errors import UserError
from tests.end_to_end.conftest import TINY, pairs

LOSS = "--gin_file=losses/samtone.gin"


@pytest.fixture(scope="module")
def flags(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
  """Flags of a tiny training on 32 pairs that have ids; the loss and the teacher are the test's."""
  folder = tmp_path_factory.mktemp("pairs")
  lines = [f"q{i}\tp{i}\t{query}\t{passage}" for i, (query, passage) in enumerate(pairs()[:32])]
  text = "\n".join(["query_id\tpassage_id\tquery\tpassage", *lines])
  (folder / "train.tsv").write_text(text + "\n", encoding="utf-8")
  plain = tuple(flag for flag in TINY if flag != LOSS)
  return (*plain, f"--gin.DATA_PATH={folder / 'train.tsv'}", "--gin.TRAIN_STEPS=5")


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
  """Scores of every query with every passage of the 32: words in common."""
  path = tmp_path_factory.mktemp("teacher") / "scores.tsv.gz"
  rows = [
    f"q{i}\tp{j}\t{len(set(query.split()) & set(passage.split()))}"
    for i, (query, _) in enumerate(pairs()[:32])
    for j, (_, passage) in enumerate(pairs()[:32])
  ]
  path.write_bytes(gzip.compress("\n".join(rows).encode()))
  return path


@pytest.mark.parametrize("loss", ["distillation_kl", "margin_mse", "samtone_distillation"])
def test_training_distils(launch, flags, teacher, tmp_path, capsys, loss):
  launch(
    "train",
    *flags,
    f"--gin_file=losses/{loss}.gin",
    f"--gin.TEACHER_SCORES_PATH={teacher}",
    f"--gin.MODEL_DIR={tmp_path / 'run'}",
  )
  text = (tmp_path / "run" / "train" / "log.jsonl").read_text(encoding="utf-8")
  log = [json.loads(line) for line in text.splitlines()]
  assert len(log) == 5
  assert log[-1]["loss"] < log[0]["loss"]
  prefix = "distillation/" if loss == "samtone_distillation" else ""
  assert log[0][f"{prefix}scored"] == (15 if loss == "margin_mse" else 16)
  assert log[0][f"{prefix}distilled"] == 1
  assert np.isfinite(log[-1]["grad_norm"])
  assert "nothing to distil" not in capsys.readouterr().err


def test_a_loss_that_distils_asks_for_the_file(launch, flags, tmp_path):
  with pytest.raises(
    UserError,
    match=r"reads teacher_scores, .*Set --gin\.TEACHER_SCORES_PATH to a TSV file of query_id, passage_id",
  ):
    launch("train", *flags, "--gin_file=losses/margin_mse.gin", f"--gin.MODEL_DIR={tmp_path / 'run'}")
  assert not (tmp_path / "run").exists()


def test_a_teacher_that_scored_only_the_pairs_is_said_so(launch, flags, tmp_path, capsys):
  path = tmp_path / "scores.tsv"
  path.write_text("".join(f"q{i}\tp{i}\t1.5\n" for i in range(32)), encoding="utf-8")
  launch(
    "train",
    *flags,
    "--gin_file=losses/distillation_kl.gin",
    f"--gin.TEACHER_SCORES_PATH={path}",
    f"--gin.MODEL_DIR={tmp_path / 'run'}",
    "--gin.DRY_RUN=True",
  )
  assert "the teacher scored 16 of the 256 pairs" in capsys.readouterr().err


def test_a_loss_that_needs_a_teacher_has_no_held_out_value(launch, flags, teacher, tmp_path):
  with pytest.raises(
    UserError, match="EVAL_LOSS: the loss reads teacher_scores, which held-out batches do not have"
  ):
    launch(
      "train",
      *flags,
      "--gin_file=losses/distillation_kl.gin",
      "--gin_file=evaluation/eval_loss.gin",
      "--gin.EVAL_SPLIT=train",
      f"--gin.TEACHER_SCORES_PATH={teacher}",
      f"--gin.MODEL_DIR={tmp_path / 'run'}",
    )
