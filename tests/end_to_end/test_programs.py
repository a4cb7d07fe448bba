"""The programs as a user runs them, on one small training: train, eval, encode, search."""

import json
import pathlib

import jax
import numpy as np
import pytest

from retrieval_jax.errors import UserError
from tests.end_to_end.conftest import assert_equal_states, state_of


@pytest.fixture(scope="module")
def trained(tiny, tmp_path_factory) -> tuple[pathlib.Path, list[str]]:
  """(MODEL_DIR of a run of 12 steps on 8 devices, the data flags that evaluate it)."""
  import gin

  from retrieval_jax import launch as launcher

  folder = tmp_path_factory.mktemp("trained") / "run"
  gin.clear_config()
  launcher.run(
    "train", [*tiny, "--gin.TRAIN_STEPS=12", "--gin.CHECKPOINT_PERIOD=6", f"--gin.MODEL_DIR={folder}"]
  )
  gin.clear_config()
  return folder, [f for f in tiny if "_PATH" in f or f.endswith("tsv.gin")]


def test_training_lowers_the_loss_and_leaves_its_files(trained):
  folder, _ = trained
  log = [
    json.loads(line) for line in (folder / "train" / "log.jsonl").read_text(encoding="utf-8").splitlines()
  ]
  assert [record["step"] for record in log] == list(range(1, 13))
  assert np.mean([r["loss"] for r in log[-4:]]) < np.mean([r["loss"] for r in log[:4]])
  assert {"examples_per_second", "learning_rate", "grad_norm", "accuracy", "negatives"} <= log[0].keys()
  names = {p.name for p in folder.iterdir()}
  assert {
    "config.gin",
    "model.gin",
    "model-info.txt",
    "versions.json",
    "checkpoint_6",
    "checkpoint_12",
  } <= names
  assert list((folder / "train").glob("events.out.tfevents.*"))
  assert "retrieval_jax import train" not in (folder / "model.gin").read_text(encoding="utf-8")
  info = (folder / "model-info.txt").read_text(encoding="utf-8")
  assert "token_embedder/embedding" in info
  assert "('vocab', 'embed')" in info


def test_eval_reads_the_model_from_the_folder_and_writes_metrics_and_run(trained, launch, capsys):
  folder, data = trained
  results = launch("eval", *data, f"--gin.MODEL_DIR={folder}")
  (name,) = results
  record = json.loads((folder / "eval" / name / "step_12" / "metrics.json").read_text(encoding="utf-8"))
  assert record["queries"] == 16
  assert record["corpus_size"] == 16
  assert record["step"] == 12
  assert record["checkpoint"] == str(folder / "checkpoint_12")
  assert len(record["task_fingerprint"]) >= 16
  for metric in ("p@1", "mrr", "mrr@10", "ndcg@10", "recall@1", "recall@10", "recall@100"):
    assert 0 <= record[metric] <= 1
    assert record[metric] == results[name][metric]
  assert record["recall@100"] == 1.0
  run = (folder / "eval" / name / "step_12" / "run.trec").read_text(encoding="utf-8").splitlines()
  assert len(run) == 16 * 16
  assert run[0].split()[1] == "Q0"
  assert run[0].split()[3] == "1"
  assert "mrr@10" in capsys.readouterr().out


def test_eval_of_an_older_step(trained, launch):
  folder, data = trained
  (name,) = launch("eval", *data, f"--gin.MODEL_DIR={folder}", "--gin.STEP=6")
  assert (folder / "eval" / name / "step_6" / "metrics.json").is_file()


def test_bm25_takes_the_place_of_the_model(trained, launch, tmp_path):
  _, data = trained
  flags = ("--gin_file=models/bert_tiny.gin", "--gin_file=searchers/bm25.gin", f"--gin.MODEL_DIR={tmp_path}")
  ((name, result),) = launch("eval", *data, *flags).items()
  assert (tmp_path / "eval" / name / "bm25_step_0" / "metrics.json").is_file()
  assert result["p@1"] > 0.5  # noun and adjective stand in both texts


def test_encode_writes_what_search_finds_with(trained, launch, capsys):
  folder, data = trained
  output = launch("encode", *data, f"--gin.MODEL_DIR={folder}")
  passages = np.load(output / "passages" / "00000.npy")
  ids = [
    json.loads(line)
    for line in (output / "passages" / "00000.ids.jsonl").read_text(encoding="utf-8").splitlines()
  ]
  assert passages.shape == (16, 64)
  assert passages.dtype == np.float32
  assert len(set(ids)) == 16
  np.testing.assert_allclose(np.linalg.norm(passages, axis=1), 1.0, atol=1e-5)
  stamp = (output / "passages" / "00000.npy").stat().st_mtime_ns
  capsys.readouterr()
  ranking = launch(
    "search", *data, f"--gin.MODEL_DIR={folder}", "--gin.K=3", "find the red car", "find the old table"
  )
  assert ranking.rows.shape == (2, 3)
  assert (output / "passages" / "00000.npy").stat().st_mtime_ns == stamp, "search encoded the corpus again"
  printed = capsys.readouterr().out
  assert "query: find the red car" in printed
  assert ids[ranking.rows[0, 0]] in printed


def test_sharded_training_on_8_devices_equals_1_device(process, tiny, tmp_path):
  for devices in (1, 8):
    flags = ("--gin.TRAIN_STEPS=3", "--gin.DROPOUT_RATE=0.0", f"--gin.MODEL_DIR={tmp_path / str(devices)}")
    done = process("train", *tiny, *flags, devices=devices)
    assert done.returncode == 0, done.stderr
  one, eight = state_of(tmp_path / "1", 3), state_of(tmp_path / "8", 3)
  assert one.keys() == eight.keys()
  for name in one:
    np.testing.assert_allclose(one[name], eight[name], atol=2e-4, err_msg=name)


def test_sharded_checkpoint_of_8_devices_resumes_on_2_with_model_parallelism(process, tiny, tmp_path):
  common = (*tiny, "--gin.DROPOUT_RATE=0.0", f"--gin.MODEL_DIR={tmp_path / 'run'}")
  assert process("train", *common, "--gin.TRAIN_STEPS=2", devices=8).returncode == 0
  before = state_of(tmp_path / "run", 2)
  done = process("train", *common, "--gin.TRAIN_STEPS=4", "--gin.NUM_PARTITIONS=2", devices=2)
  assert done.returncode == 0, done.stderr
  assert "steps: 2 -> 4" in done.stdout
  assert "('model', None)" in (tmp_path / "run" / "model-info.txt").read_text(encoding="utf-8")
  assert_equal_states(state_of(tmp_path / "run", 2), before)


def test_damaged_newest_checkpoint_falls_back_to_the_one_before(trained, process, tiny, tmp_path):
  import shutil

  folder = tmp_path / "run"
  shutil.copytree(trained[0], folder)
  for path in sorted((folder / "checkpoint_12" / "state").rglob("*")):
    if path.is_file():
      path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
  done = process(
    "train", *tiny, "--gin.TRAIN_STEPS=12", "--gin.CHECKPOINT_PERIOD=6", f"--gin.MODEL_DIR={folder}"
  )
  assert done.returncode == 0, done.stderr
  assert "checkpoint 12" in done.stderr
  assert "cannot be read, trying an older one" in done.stderr
  assert "steps: 6 -> 12" in done.stdout


def test_another_pooling_than_the_training_s_is_refused(trained, launch):
  folder, data = trained
  with pytest.raises(UserError, match="query/pooling: was 'mean', is 'max'"):
    launch("encode", *data, f"--gin.MODEL_DIR={folder}", "--gin.Tower.pooling=max")


def test_eval_with_another_vocabulary_is_refused(trained, launch, tsv, tmp_path):
  from retrieval_jax.data.file_sources import TsvPairs
  from retrieval_jax.data.train_vocabulary import train_vocabulary

  folder, data = trained
  path = tmp_path / "vocabulary.model"
  train_vocabulary(TsvPairs(str(tsv / "train.tsv")), str(path), vocab_size=50)
  (tmp_path / "other.gin").write_text(
    "from __gin__ import dynamic_registration\n"
    "from retrieval_jax.data import text_inputs\n"
    "from retrieval_jax.data import vocabularies\n"
    "text_inputs.TextInputs.vocabulary = @vocabularies.SentencePiece()\n"
    f"vocabularies.SentencePiece.path = '{path}'\n",
    encoding="utf-8",
  )
  with pytest.raises(UserError, match="checkpoint 12 was trained with another vocabulary"):
    launch("eval", *data, f"--gin_file={tmp_path / 'other.gin'}", f"--gin.MODEL_DIR={folder}")


def test_damaged_embeddings_are_made_again(trained, launch):
  folder, data = trained
  output = launch("encode", *data, f"--gin.MODEL_DIR={folder}")
  before = np.array(np.load(output / "passages" / "00000.npy"))
  (output / "passages" / "manifest.json").write_text("{", encoding="utf-8")
  launch("encode", *data, f"--gin.MODEL_DIR={folder}")
  np.testing.assert_array_equal(np.load(output / "passages" / "00000.npy"), before)


def test_a_dry_run_checks_everything_and_leaves_no_folder(launch, tiny, tmp_path, capsys):
  launch("train", *tiny, "--gin.TRAIN_STEPS=5", "--gin.DRY_RUN=True", f"--gin.MODEL_DIR={tmp_path / 'run'}")
  assert "64 examples" in capsys.readouterr().out
  assert not (tmp_path / "run").exists()


def test_evaluation_in_training_keeps_the_best_step(launch, tiny, tmp_path):
  flags = (*tiny, "--gin_file=evaluators/retrieval.gin", "--gin.TRAIN_STEPS=5", "--gin.CHECKPOINT_PERIOD=1")
  launch(
    "train", *flags, "--gin.KEEP_CHECKPOINTS=1", "--gin.BEST_METRIC=test/mrr", f"--gin.MODEL_DIR={tmp_path}"
  )
  log = [
    json.loads(line) for line in (tmp_path / "train" / "log.jsonl").read_text(encoding="utf-8").splitlines()
  ]
  scores = {record["step"]: record["test/mrr"] for record in log if "test/mrr" in record}
  assert sorted(scores) == [1, 2, 3, 4, 5]
  kept = {int(p.name.split("_")[1]) for p in tmp_path.glob("checkpoint_*")}
  assert 5 in kept
  assert len(kept) <= 2
  assert max(scores[step] for step in kept) == max(scores.values())


def test_a_t5_on_a_vocabulary_of_its_own_text_trains_with_adafactor_and_two_towers(
  launch, tiny, tsv, tmp_path
):
  from retrieval_jax.data.file_sources import TsvPairs
  from retrieval_jax.data.train_vocabulary import train_vocabulary

  path = tmp_path / "vocabulary.model"
  train_vocabulary(TsvPairs(str(tsv / "train.tsv")), str(path), vocab_size=50)
  flags = [f for f in tiny if "bert_tiny" not in f]
  launch(
    "train",
    *("--gin_file=models/t5_1_1_tiny.gin", *flags, "--gin_file=sharing/ade_spl.gin"),
    *("--gin.QUERY_LENGTH=32", "--gin.PASSAGE_LENGTH=64"),  # pieces are hardly more than letters here
    *("--gin_file=optimizers/adafactor.gin", f"--gin.VOCABULARY_PATH={path}", "--gin.NUM_EMBEDDINGS=64"),
    *("--gin.TRAIN_STEPS=2", "--gin.NUM_PARTITIONS=2", f"--gin.MODEL_DIR={tmp_path / 'run'}"),
  )
  info = (tmp_path / "run" / "model-info.txt").read_text(encoding="utf-8")
  assert "query_encoder/layers_0/attention/query/kernel" in info
  assert "passage_token_embedder/embedding" in info
  assert info.partition("optimizer:")[0].count("projection_layer/kernel") == 1


def test_the_test_session_has_eight_devices():
  assert jax.device_count() == 8
