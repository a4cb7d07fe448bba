"""Three heads as a user gets them: an encoder, its classifiers, a fusion on points held out of both, one evaluation."""

import json
import pathlib
import re
import shutil

import pytest

from retrieval_jax.errors import UserError
from tests.end_to_end.conftest import NOUNS, TINY, pairs

STEPS = 4


def _matrix(path: pathlib.Path, rows: list[list[int]], columns: int) -> None:
  lines = [" ".join(f"{label}:1.0" for label in sorted(row)) for row in rows]
  path.write_text("\n".join([f"{len(rows)} {columns}", *lines]) + "\n", encoding="utf-8")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
  """Flags of 64 training points, of which some are held out, and 16 test points; 80 labels, two for each point: its own
  passage and the one of the same noun and the next adjective. The first test point's own label is filtered."""
  folder = tmp_path_factory.mktemp("lf") / "toy_titles"
  folder.mkdir()
  texts = pairs()
  labels = [[i, (i + len(NOUNS)) % 80] for i in range(80)]
  labels[64] = [(64 + len(NOUNS)) % 80]
  for name, span in (("trn", slice(0, 64)), ("tst", slice(64, 80))):
    (folder / f"{name}_X.txt").write_text("".join(f"{q}\n" for q, _ in texts[span]), encoding="utf-8")
    _matrix(folder / f"{name}_X_Y.txt", labels[span], 80)
  (folder / "Y.txt").write_text("".join(f"{p}\n" for _, p in texts), encoding="utf-8")
  (folder / "filter_labels_test.txt").write_text("0 64\n", encoding="utf-8")
  return ("--gin_file=data/extreme.gin", f"--gin.DATA_PATH={folder}", "--gin.HELD_OUT=0.3")


@pytest.fixture(scope="module")
def model(data, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
  """MODEL_DIR with a checkpoint, classifiers and a linear fusion."""
  folder = tmp_path_factory.mktemp("heads") / "run"
  plan = (f"--gin.TRAIN_STEPS={STEPS}", f"--gin.CHECKPOINT_PERIOD={STEPS}", f"--gin.MODEL_DIR={folder}")
  run("train", *(flag for flag in TINY if "data/" not in flag), *data, *plan)
  run(
    "train_classifiers",
    *data,
    *plan,
    "--gin.BATCH_SIZE=16",
    "--gin.LEARNING_RATE=0.01",
    "--gin.WARMUP_STEPS=1",
  )
  run("fuse", *data, f"--gin.MODEL_DIR={folder}")
  return folder


def run(program: str, *flags: str) -> object:
  import gin

  from retrieval_jax import launch as launcher

  gin.clear_config()
  try:
    return launcher.run(program, flags)
  finally:
    gin.clear_config()


def _record(path: pathlib.Path) -> dict:
  return json.loads(path.read_text("utf-8"))


def _run_file(folder: pathlib.Path) -> dict[str, dict[str, float]]:
  found: dict[str, dict[str, float]] = {}
  for line in (folder / "run.trec").read_text("utf-8").splitlines():
    query, _, passage, _, score, _ = line.split()
    found.setdefault(query, {})[passage] = float(score)
  return found


def test_the_fusion_says_what_it_was_fitted_on(model):
  record = _record(model / "classifiers" / f"step_{STEPS}" / "fusion.json")
  assert (record["task"], record["split"], record["model"]) == ("toy_titles", "held_out", "linear")
  assert 5 < record["points"] < 40
  assert record["labels"] == 2 * record["points"] == record["labels_found"]  # depth 300 is all of 80
  assert record["candidates"] == 80 * record["points"]
  assert record["metrics"].keys() == {"embedding", "classifiers", "fused"}
  assert {"p@1", "p@5", "psp@1", "psp@5"} <= record["metrics"]["fused"].keys()
  assert record["checkpoint"].endswith(f"classifiers/step_{STEPS} on {model / f'checkpoint_{STEPS}'}")


def test_one_evaluation_measures_three_heads(launch, data, model, capsys):
  results = launch("eval", *data, "--gin_file=searchers/heads.gin", f"--gin.MODEL_DIR={model}")
  said = capsys.readouterr().out
  names = ["toy_titles dense", "toy_titles classifiers", "toy_titles fused"]
  assert list(results) == names
  for name in names:
    assert re.search(rf"^{name} .*\d", said, re.MULTILINE)
  folders = [f"step_{STEPS}", f"classifiers_step_{STEPS}", f"fused_step_{STEPS}"]
  runs = []
  for name, folder in zip(names, folders, strict=True):
    here = model / "eval" / "toy_titles" / folder
    record = _record(here / "metrics.json")
    assert {metric: record[metric] for metric in ("p@1", "p@5", "psp@1", "psp@5")} == pytest.approx(
      {metric: results[name][metric] for metric in ("p@1", "p@5", "psp@1", "psp@5")}
    )
    assert record["searcher"] == name.split()[1]
    runs.append(_run_file(here))
  weights = _record(model / "classifiers" / f"step_{STEPS}" / "fusion.json")
  for query, passages in runs[2].items():
    assert len(passages) == 80 - (query == "0")
    for passage, score in passages.items():
      texts, classifiers = (found[query][passage] for found in runs[:2])
      by_hand = weights["classifier"] * classifiers + weights["siamese"] * texts + weights["bias"]
      assert score == pytest.approx(by_hand, abs=1e-3)


def test_a_filtered_label_is_no_result_of_any_head(launch, data, model):
  launch("eval", *data, "--gin_file=searchers/heads.gin", f"--gin.MODEL_DIR={model}", "--gin.METRICS=['p@1']")
  for folder in (f"step_{STEPS}", f"classifiers_step_{STEPS}", f"fused_step_{STEPS}"):
    found = _run_file(model / "eval" / "toy_titles" / folder)
    assert "64" not in found["0"]
    assert "64" in found["1"]


def test_the_fused_head_alone_by_an_approximate_index(launch, data, model):
  pytest.importorskip("faiss")
  flags = (
    "--gin_file=searchers/fused_heads.gin",
    "--gin_file=indexes/faiss_hnsw.gin",
    "--gin.FUSION_DEPTH=80",
  )
  results = launch("eval", *data, *flags, f"--gin.MODEL_DIR={model}")
  assert list(results) == ["toy_titles"]
  found = _run_file(model / "eval" / "toy_titles" / f"fused_faiss_hnsw_step_{STEPS}")
  assert len(found) == 16


def test_a_tree_by_one_more_flag(launch, data, model, tmp_path):
  pytest.importorskip("sklearn")
  folder = tmp_path / "run"
  shutil.copytree(model, folder)
  launch("fuse", *data, "--gin_file=fusion/tree.gin", "--gin.TREE_DEPTH=3", f"--gin.MODEL_DIR={folder}")
  record = _record(folder / "classifiers" / f"step_{STEPS}" / "fusion.json")
  assert record["model"] == "tree"
  assert 1 <= record["leaves"] <= 8


def test_points_that_the_training_saw_are_warned_of(launch, data, model, tmp_path, capsys):
  folder = tmp_path / "run"
  shutil.copytree(model, folder)
  launch("fuse", *data, "--gin.HELD_OUT=0.5", f"--gin.MODEL_DIR={folder}")
  assert "warning: the classifiers were trained on" in capsys.readouterr().err


def test_points_that_only_the_encoder_saw_are_warned_of(launch, data, model, tmp_path, capsys):
  folder = tmp_path / "run"
  shutil.copytree(model, folder)
  shutil.rmtree(folder / "classifiers")
  plan = ("--gin.TRAIN_STEPS=2", "--gin.WARMUP_STEPS=1", "--gin.BATCH_SIZE=16", f"--gin.MODEL_DIR={folder}")
  said = (
    f"warning: the encoder {folder / f'checkpoint_{STEPS}'} was trained on other data than the training split"
  )
  capsys.readouterr()
  launch("train_classifiers", *data, *plan, "--gin.DRY_RUN=True")
  assert "warning: the encoder" not in capsys.readouterr().err
  launch("train_classifiers", *data, "--gin.HELD_OUT=0.5", *plan)
  assert said in capsys.readouterr().err
  launch("fuse", *data, "--gin.HELD_OUT=0.5", f"--gin.MODEL_DIR={folder}")
  found = capsys.readouterr()
  assert said in found.err
  assert "the classifiers were trained on" not in found.err
  assert " points are few: another draw of them may give another fusion" in found.out
  assert f"--gin.MODEL_DIR={folder} and the data flags of this run" in found.out


@pytest.mark.parametrize(
  "flags, said",
  [
    (("--gin.FUSION_SPLIT=test",), "FUSION_SPLIT=test: a fusion that has seen the labels of the test points"),
    (("--gin.FUSION_SPLIT=train",), "fusion.npz was fitted on the split 'held_out'"),
    (("--gin.HELD_OUT=0.0",), "toy_titles has no split 'held_out'; its splits: train, test. Hold training"),
    (("--gin_file=searchers/bm25.gin",), "SEARCHER: bm25 has no classifiers to fuse with its embeddings"),
    (("--gin.FUSION_DEPTH=0",), "FUSION_DEPTH=0: expected a whole number of at least 1"),
  ],
)
def test_mistakes(launch, data, model, flags, said):
  with pytest.raises(UserError, match=re.escape(said)):
    launch("fuse", *data, *flags, f"--gin.MODEL_DIR={model}")


def test_other_programs_say_that_heads_are_several_searchers(launch, data, model, tmp_path):
  flags = (
    "--gin_file=searchers/heads.gin",
    f"--gin.MODEL_DIR={model}",
    f"--gin.OUTPUT_PATH={tmp_path / 'x.tsv'}",
  )
  with pytest.raises(
    UserError, match=r"SEARCHER: heads stands for 3 searchers \(dense, classifiers, fused\)"
  ):
    launch("mine", *data, *flags)
