"""TRAIN_CHUNKS, TRAIN_MICROBATCHES and MAX_NONFINITE_STEPS through the training program."""

import json

import pytest

from retrieval_jax.errors import UserError


def flags_of(tiny: tuple[str, ...], folder: object, *more: str) -> tuple[str, ...]:
  return (*tiny, f"--gin.MODEL_DIR={folder}", *more)


def test_a_training_in_chunks_and_microbatches_says_so_and_logs_its_pool(launch, tiny, tmp_path, capsys):
  more = ("--gin.TRAIN_STEPS=2", "--gin.TRAIN_CHUNKS=3", "--gin.TRAIN_MICROBATCHES=2")
  metrics = launch("train", *flags_of(tiny, tmp_path / "run", *more))
  said = capsys.readouterr().out
  # 16 examples on 8 devices: microbatches of one query a device.
  assert "2 microbatches: the pool of negatives shrinks from 16 to 8 examples; TRAIN_CHUNKS" in said
  assert said.count("TRAIN_CHUNKS=3 is more than the 1 queries of a shard") == 1
  assert metrics["negatives"] == 7 + 7  # SamToNe's, of both towers
  lines = (tmp_path / "run" / "train" / "log.jsonl").read_text(encoding="utf-8").splitlines()
  assert [json.loads(line)["nonfinite_steps"] for line in lines] == [0, 0]


def test_microbatches_that_do_not_divide_a_shard(launch, tiny, tmp_path):
  more = ("--gin.TRAIN_STEPS=1", "--gin.TRAIN_MICROBATCHES=3")
  with pytest.raises(
    UserError, match=r"TRAIN_MICROBATCHES=3 does not divide the 2 examples of a data shard .*: 2"
  ):
    launch("train", *flags_of(tiny, tmp_path / "run", *more))
  assert not (tmp_path / "run").exists()


def test_steps_that_are_not_finite_are_left_out_and_counted_until_there_are_too_many(
  launch, tiny, tmp_path, capsys
):
  more = (
    "--gin.TRAIN_STEPS=5",
    "--gin.LEARNING_RATE=1e38",
    "--gin.MAX_NONFINITE_STEPS=2",
    "--gin.WARMUP_STEPS=0",
  )
  with pytest.raises(UserError, match=r"number 3 since the start; MAX_NONFINITE_STEPS is 2"):
    launch("train", *flags_of(tiny, tmp_path / "run", *more))
  said = capsys.readouterr()
  assert "up to 2 steps that are not finite are left out" in said.out
  assert said.err.count("its update was left out") == 2


def test_resuming_with_other_microbatches_is_said(launch, tiny, tmp_path, capsys):
  launch("train", *flags_of(tiny, tmp_path / "run", "--gin.TRAIN_STEPS=1"))
  launch("train", *flags_of(tiny, tmp_path / "run", "--gin.TRAIN_STEPS=2", "--gin.TRAIN_MICROBATCHES=2"))
  assert "warning: resuming with microbatches 2, was 1" in capsys.readouterr().err
