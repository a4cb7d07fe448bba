"""Mining and training in turn, as a user does it: BM25's negatives, a training with them, the checkpoint's negatives."""

import csv
import gzip
import json
import pathlib
import shutil

import numpy as np
import pytest

from retrieval_jax.errors import UserError
from tests.end_to_end.conftest import TINY, assert_equal_states, pairs, state_of

MODEL = "--gin_file=models/bert_tiny.gin"
BM25 = "--gin_file=searchers/bm25.gin"
LENGTHS = ("--gin.QUERY_LENGTH=8", "--gin.PASSAGE_LENGTH=16")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
  """Flags of 32 pairs with ids: 8 nouns of 4 adjectives each, so that every query has passages of half its words."""
  folder = tmp_path_factory.mktemp("pairs")
  lines = [f"q{i}\tp{i}\t{query}\t{passage}" for i, (query, passage) in enumerate(pairs()[:32])]
  text = "\n".join(["query_id\tpassage_id\tquery\tpassage", *lines])
  (folder / "train.tsv").write_text(text + "\n", encoding="utf-8")
  return ("--gin_file=data/tsv.gin", f"--gin.DATA_PATH={folder / 'train.tsv'}")


@pytest.fixture(scope="module")
def mined(data, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
  """What BM25 mined: two negatives of every query."""
  import gin

  from retrieval_jax import launch as launcher

  path = tmp_path_factory.mktemp("mined") / "bm25.tsv.gz"
  gin.clear_config()
  launcher.run(
    "mine", [MODEL, *LENGTHS, BM25, *data, f"--gin.OUTPUT_PATH={path}", "--gin.NEGATIVES_PER_QUERY=3"]
  )
  gin.clear_config()
  return path


def rows(path: pathlib.Path) -> list[dict[str, str]]:
  text = gzip.decompress(path.read_bytes()).decode() if path.suffix == ".gz" else path.read_text("utf-8")
  return list(csv.DictReader(text.splitlines(), delimiter="\t"))


def train_flags(data, folder: pathlib.Path, *more: str) -> tuple[str, ...]:
  return (*(f for f in TINY if "data/" not in f), *data, f"--gin.MODEL_DIR={folder}", *more)


def test_bm25_s_negatives_share_words_and_answer_nothing(mined: pathlib.Path):
  found = rows(mined)
  assert len(found) == 32 * 3
  assert list(found[0]) == ["query_id", "passage_id", "rank", "score"]
  words = dict(enumerate(pairs()[:32]))
  for row in found:
    query, passage = int(row["query_id"][1:]), int(row["passage_id"][1:])
    assert query != passage
    assert set(words[query][0].split()[2:]) & set(words[passage][1].split())
  record = json.loads((mined.parent / "bm25.tsv.gz.json").read_text("utf-8"))
  assert record["searcher"] == "bm25"
  assert record["checkpoint"] == "bm25(k1=1.2, b=0.75)"
  assert record["options"]["last_rank"] == 100
  assert (record["queries"], record["negatives"], record["queries_with_none"]) == (32, 96, 0)
  assert record["left_out"]["positive"] == 32
  assert record["bytes"] == mined.stat().st_size
  assert (record["task"], record["split"], len(record["task_fingerprint"])) == ("train", "train", 16)


def negatives(path: pathlib.Path) -> tuple[str, ...]:
  """Flags of the training with two of them a query."""
  plan = (
    "--gin.TRAIN_STEPS=4",
    "--gin.CHECKPOINT_PERIOD=1",
    "--gin.KEEP_CHECKPOINTS=4",
  )  # two steps an epoch
  return (f"--gin.HARD_NEGATIVES_PATH={path}", "--gin.HARD_NEGATIVES=2", *plan)


@pytest.fixture(scope="module")
def trained(data, mined, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
  """MODEL_DIR of a training with two of BM25's negatives of each query."""
  import gin

  from retrieval_jax import launch as launcher

  folder = tmp_path_factory.mktemp("trained") / "run"
  gin.clear_config()
  launcher.run("train", train_flags(data, folder, *negatives(mined)))
  gin.clear_config()
  return folder


def test_the_log_has_the_number_of_negatives(trained):
  log = [json.loads(line) for line in (trained / "train" / "log.jsonl").read_text("utf-8").splitlines()]
  assert [record["step"] for record in log] == [1, 2, 3, 4]
  # 15 other queries and their passages, and 32 hard negatives less those that are the query's own passage or come twice.
  assert all(15 + 15 < record["negatives"] <= 15 + 15 + 32 for record in log)


def test_a_resumed_training_with_negatives_ends_in_the_same_bits(
  launch, data, mined, trained, tmp_path, capsys
):
  folder = tmp_path / "run"
  shutil.copytree(trained, folder)
  for step in (2, 3, 4):
    shutil.rmtree(folder / f"checkpoint_{step}")
  launch("train", *train_flags(data, folder, *negatives(mined)))
  said = capsys.readouterr()
  assert "steps: 1 -> 4" in said.out
  assert "hard negatives: 2 drawn of up to 3 a query in every epoch (3.0 on average)" in said.out
  assert "a batch has 16 x (1 + 2) = 48 passages" in said.out
  assert "warning: resuming" not in said.err
  assert_equal_states(state_of(folder, 4), state_of(trained, 4))


def test_a_checkpoint_mines_and_other_negatives_than_before_are_said(launch, data, trained, tmp_path, capsys):
  path = tmp_path / "dense.tsv"
  flags = ("--gin.NEGATIVES_PER_QUERY=2", "--gin.LAST_RANK=10", "--gin.SAMPLE_NEGATIVES=True")
  launch("mine", *data, *flags, f"--gin.MODEL_DIR={trained}", f"--gin.OUTPUT_PATH={path}")
  found = rows(path)
  assert len(found) == 64
  assert all(row["query_id"][1:] != row["passage_id"][1:] for row in found)
  assert all(1 <= int(row["rank"]) <= 10 for row in found)
  record = json.loads((tmp_path / "dense.tsv.json").read_text("utf-8"))
  assert record["checkpoint"] == str(trained / "checkpoint_4")
  assert record["options"]["sample"] is True

  folder = tmp_path / "run"
  shutil.copytree(trained, folder)
  unused = ("--gin.TRAIN_STEPS=5", f"--gin.HARD_NEGATIVES_PATH={path}")
  launch("train", *train_flags(data, folder, *unused))
  said = capsys.readouterr()
  assert "warning: resuming with task_fingerprint" in said.err
  assert "warning: resuming with hard_negatives 0, was 2" in said.err
  assert "warning: the data have up to 2 hard negatives a query (2.0 on average) and none is used" in said.out


def test_faiss_mines_what_exact_search_mines(launch, data, trained, tmp_path):
  pytest.importorskip("faiss")
  found = []
  for name in ("exact", "faiss_flat"):
    path = tmp_path / f"{name}.tsv"
    flags = (f"--gin_file=indexes/{name}.gin", "--gin.LAST_RANK=12", "--gin.RELATIVE_MARGIN=0.001")
    launch("mine", *data, *flags, f"--gin.MODEL_DIR={trained}", f"--gin.OUTPUT_PATH={path}")
    found.append([(row["query_id"], row["passage_id"], row["rank"]) for row in rows(path)])
  assert found[0] == found[1]
  assert found[0]


def test_chunks_microbatches_devices_and_a_teacher_go_with_negatives(launch, data, mined, tmp_path):
  teacher = tmp_path / "scores.tsv"
  scores = [f"q{i}\tp{j}\t{(i * j) % 7}" for i in range(32) for j in range(32)]
  teacher.write_text("\n".join(scores) + "\n", encoding="utf-8")
  flags = [f for f in train_flags(data, tmp_path / "run") if "losses/" not in f]
  launch(
    "train",
    *flags,
    "--gin_file=losses/samtone_distillation.gin",
    f"--gin.TEACHER_SCORES_PATH={teacher}",
    f"--gin.HARD_NEGATIVES_PATH={mined}",
    "--gin.HARD_NEGATIVES=3",
    "--gin.TRAIN_CHUNKS=2",
    "--gin.TRAIN_MICROBATCHES=2",
    "--gin.TRAIN_STEPS=2",
  )
  text = (tmp_path / "run" / "train" / "log.jsonl").read_text("utf-8")
  log = [json.loads(line) for line in text.splitlines()]
  assert len(log) == 2
  assert (
    log[0]["distillation/scored"] > 8 + 3
  )  # a microbatch of 8 queries: their passages, and 24 hard negatives
  assert np.isfinite(log[-1]["grad_norm"])


def test_negatives_that_are_not_there_are_named(launch, data, tmp_path):
  flags = train_flags(data, tmp_path / "run", "--gin.TRAIN_STEPS=2", "--gin.HARD_NEGATIVES=2")
  with pytest.raises(
    UserError, match=r"HARD_NEGATIVES=2, but train/train has none.*HARD_NEGATIVES_PATH.*mine"
  ):
    launch("train", *flags)
  path = tmp_path / "few.tsv"
  lines = ["query_id\tpassage_id", *(f"q{i}\tp{(i + 1) % 32}" for i in range(32)), "q0\tp5"]
  path.write_text("\n".join(lines) + "\n", encoding="utf-8")
  strict = (f"--gin.HARD_NEGATIVES_PATH={path}", "--gin.ALLOW_FEWER_NEGATIVES=False")
  with pytest.raises(
    UserError,
    match=r"31 of 32 queries have fewer that can be used: the first is 'q1' with 1 \(.*few\.tsv:3\)",
  ):
    launch("train", *flags, *strict)
  assert not (tmp_path / "run").exists()


def test_queries_with_fewer_are_counted_and_train(launch, data, tmp_path, capsys):
  path = tmp_path / "few.tsv"
  path.write_text("query_id\tpassage_id\nq0\tp5\nq0\tp6\nq1\tp9\n", encoding="utf-8")
  launch("train", *train_flags(data, tmp_path / "run", *negatives(path)))
  said = capsys.readouterr().out
  assert "31 of 32 queries have fewer than 2, 30 of them none: their places stay empty" in said
  assert "0.09 a query on average" in said
  log = (tmp_path / "run" / "train" / "log.jsonl").read_text("utf-8").splitlines()
  assert all(np.isfinite(json.loads(line)["loss"]) for line in log)


def test_a_file_is_not_overwritten_unless_asked(launch, data, mined, tmp_path, capsys):
  path = tmp_path / "negatives.tsv"
  path.write_text("mine\n", encoding="utf-8")
  flags = (MODEL, *LENGTHS, BM25, *data, f"--gin.OUTPUT_PATH={path}", "--gin.NEGATIVES_PER_QUERY=3")
  with pytest.raises(UserError, match=r"there is such a file already.*--gin\.OVERWRITE=True to replace it"):
    launch("mine", *flags)
  assert path.read_text("utf-8") == "mine\n"
  launch("mine", *flags, "--gin.OVERWRITE=True")
  assert rows(path) == rows(mined)
  said = capsys.readouterr()
  assert "warning: LAST_RANK=100 and the positives of a query make up to 101 results" in said.err
  assert "train/train: 96 hard negatives of 32 queries, 3.00 a query" in said.out
  assert "left out: 32 known positives and copies of them" in said.out
  assert f"--gin.HARD_NEGATIVES_PATH={path} --gin.HARD_NEGATIVES=3" in said.out


@pytest.mark.parametrize(
  "flag, message",
  [
    (
      "--gin.OUTPUT_PATH=negatives.txt",
      r"OUTPUT_PATH='negatives\.txt': expected the name of a file, ending with",
    ),
    ("--gin.NEGATIVES_PER_QUERY=0", "NEGATIVES_PER_QUERY=0: expected a whole number"),
    (
      "--gin.MIN_SCORE=1e9",
      "bm25 found no hard negative for any of 32 queries; left out were .* below MIN_SCORE",
    ),
  ],
)
def test_what_cannot_be_mined_writes_nothing(launch, data, tmp_path, monkeypatch, flag, message):
  monkeypatch.chdir(tmp_path)
  with pytest.raises(UserError, match=message):
    launch("mine", MODEL, *LENGTHS, BM25, *data, f"--gin.OUTPUT_PATH={tmp_path / 'x.tsv'}", flag)
  assert list(tmp_path.iterdir()) == []


def test_an_id_with_a_tab_is_named_before_anything_is_searched(launch, tmp_path):
  corpus = [{"id": "p\t1", "text": "red car"}, {"id": "p2", "text": "blue car"}]
  folder = tmp_path / "beir"
  (folder / "qrels").mkdir(parents=True)
  lines = [json.dumps({"_id": row["id"], "text": row["text"]}) for row in corpus]
  (folder / "corpus.jsonl").write_text("\n".join(lines), encoding="utf-8")
  (folder / "queries.jsonl").write_text('{"_id": "q", "text": "car"}\n', encoding="utf-8")
  (folder / "qrels" / "train.tsv").write_text("query-id\tcorpus-id\tscore\nq\tp2\t1\n", encoding="utf-8")
  flags = (MODEL, *LENGTHS, BM25, "--gin_file=data/beir_folder.gin", f"--gin.DATA_PATH={folder}")
  with pytest.raises(UserError, match=r"the passage id 'p\\t1' has a tab or a line end in it"):
    launch("mine", *flags, f"--gin.OUTPUT_PATH={tmp_path / 'x.tsv'}")


def test_a_mixture_is_mined_task_by_task(launch, tmp_path):
  (tmp_path / "tasks.gin").write_text(
    "from __gin__ import dynamic_registration\nTASKS = {'pydocs': 1.0}\n", encoding="utf-8"
  )
  mixture = ("--gin_file=data/mixture.gin", f"--gin_file={tmp_path / 'tasks.gin'}")
  with pytest.raises(
    UserError, match=r"MixtureSource: expected one task.*to evaluate, encode, search or mine, name"
  ):
    launch("mine", MODEL, *LENGTHS, BM25, *mixture, f"--gin.OUTPUT_PATH={tmp_path / 'x.tsv'}")
