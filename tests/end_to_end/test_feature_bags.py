"""Feature-bag towers as a user runs them on a link graph: train, eval, encode, search, resume; and what is refused."""

import json
import pathlib
import shutil

import numpy as np
import pytest

from retrieval_jax.dual_encoder import DualEncoder
from retrieval_jax.errors import UserError
from tests.end_to_end.conftest import assert_equal_states, state_of

NODES = 40
MODEL = (
  "--gin_file=models/feature_bag_small.gin",
  "--gin_file=losses/in_batch.gin",
  "--gin.TEMPERATURE=1.0",
  "--gin.BATCH_SIZE=16",
  "--gin.LEARNING_RATE=0.01",
  "--gin.LOG_PERIOD=1",
  "--gin.CHECKPOINT_PERIOD=6",
)


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
  """A ring of 40 nodes, each linking to the next four: three links of each are train, one is test. Node 39 has no title."""
  folder = tmp_path_factory.mktemp("ring")
  nodes = [
    {"id": i, "title": f"Page {'odd' if i % 2 else 'even'} {i}", "categories": [f"tens {i // 10}"]}
    for i in range(NODES - 1)
  ]
  nodes.append({"id": NODES - 1, "categories": ["tens 3"]})
  (folder / "nodes.jsonl").write_text("".join(json.dumps(node) + "\n" for node in nodes), encoding="utf-8")
  edges: dict[str, list[str]] = {"train": [], "test": []}
  for i in range(NODES):
    for step in (1, 2, 3, 4):
      edges["test" if step == 1 + i % 4 else "train"].append(f"{i}\t{(i + step) % NODES}\n")
  for split, lines in edges.items():
    (folder / f"edges.{split}.tsv").write_text("".join(lines), encoding="utf-8")
  return folder


@pytest.fixture(scope="module")
def data(graph: pathlib.Path) -> tuple[str, ...]:
  return ("--gin_file=data/link_graph.gin", f"--gin.DATA_PATH={graph}")


@pytest.fixture(scope="module")
def trained(data: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
  """MODEL_DIR of a run of 12 steps on 8 devices, moved after the training."""
  import gin

  from retrieval_jax import launch as launcher

  folder = tmp_path_factory.mktemp("bags")
  gin.clear_config()
  launcher.run("train", [*MODEL, *data, "--gin.TRAIN_STEPS=12", f"--gin.MODEL_DIR={folder / 'run'}"])
  gin.clear_config()
  return (folder / "run").rename(folder / "moved")


def test_training_learns_and_the_folder_stands_alone(trained: pathlib.Path):
  lines = (trained / "train" / "log.jsonl").read_text(encoding="utf-8").splitlines()
  losses = [json.loads(line)["loss"] for line in lines]
  assert np.mean(losses[-3:]) < np.mean(losses[:3])
  section = (trained / "model.gin").read_text(encoding="utf-8")
  assert "'here:vocabulary/bags.json'" in section
  # Padding and: 40 ids; page, even, odd, "page even" and "page odd"; four categories; in multiples of 8.
  assert "(('id', 48), ('ngrams', 8), ('categories', 8))" in section
  assert "vocabulary_file" not in section


def test_eval_encode_and_search_take_the_model_from_the_folder(
  trained: pathlib.Path, data: tuple[str, ...], launch, capsys: pytest.CaptureFixture[str]
):
  results = launch("eval", *data, f"--gin.MODEL_DIR={trained}")
  (name,) = results
  record = json.loads((trained / "eval" / name / "step_12" / "metrics.json").read_text(encoding="utf-8"))
  assert record["queries"] == record["corpus_size"] == NODES
  # The three links of each query that are train's, and the query itself, are no results: 36 candidates are left.
  assert record["dropped_filtered"] == 3 * NODES
  assert 1 / NODES < results[name]["map@10"] <= 1
  run = (trained / "eval" / name / "step_12" / "run.trec").read_text(encoding="utf-8").splitlines()
  assert len(run) == NODES * (NODES - 1 - 3)

  launch("encode", *data, f"--gin.MODEL_DIR={trained}")
  (rows,) = (trained / "encode" / name / "step_12").glob("passages/*.npy")
  assert np.load(rows).shape == (NODES, 64)

  capsys.readouterr()
  launch("search", *data, f"--gin.MODEL_DIR={trained}", '{"title": "Page even", "categories": ["tens 1"]}')
  assert '"title": "Page ' in capsys.readouterr().out
  with pytest.raises(UserError, match="got the text 'Page even'; a model of feature bags reads JSON objects"):
    launch("search", *data, f"--gin.MODEL_DIR={trained}", "Page even")


def test_from_python(trained: pathlib.Path):
  model = DualEncoder.load(str(trained))
  node = {"id": "7", "title": "Page odd 7", "categories": ["tens 0"]}
  one, other, short = model.encode_queries(
    [json.dumps(node), json.dumps(node | {"id": "new"}), '{"id": "7"}']
  )
  assert one.shape == (64,)
  assert not np.allclose(one, other)
  assert not np.allclose(one, short)


def test_resume_equals_an_uninterrupted_run(
  trained: pathlib.Path, data: tuple[str, ...], tmp_path: pathlib.Path, launch
):
  folder = tmp_path / "run"
  shutil.copytree(trained, folder)
  shutil.rmtree(folder / "checkpoint_12")
  launch("train", *MODEL, *data, "--gin.TRAIN_STEPS=12", f"--gin.MODEL_DIR={folder}")
  assert_equal_states(state_of(folder, 12), state_of(trained, 12))


def test_the_vocabulary_of_another_training(
  trained: pathlib.Path, data: tuple[str, ...], tmp_path: pathlib.Path, launch
):
  file = trained / "vocabulary" / "bags.json"
  more = (
    "--gin.TRAIN_STEPS=6",
    f"--gin.BAG_VOCABULARY_PATH={file}",
    "--gin.BAG_FEATURES={'x': ('values', 'x')}",
  )
  launch("train", *MODEL, *data, *more, f"--gin.MODEL_DIR={tmp_path / 'run'}")
  assert (tmp_path / "run" / "vocabulary" / "bags.json").read_bytes() == file.read_bytes()


def test_a_vocabulary_that_changed_is_refused(
  trained: pathlib.Path, data: tuple[str, ...], tmp_path: pathlib.Path, launch
):
  folder = tmp_path / "run"
  shutil.copytree(trained, folder)
  file = folder / "vocabulary" / "bags.json"
  content = json.loads(file.read_text(encoding="utf-8"))
  values = content["features"][0]["values"]
  values[0], values[1] = values[1], values[0]
  file.write_text(json.dumps(content), encoding="utf-8")
  with pytest.raises(UserError, match="was trained with another vocabulary than the configured one"):
    launch("eval", *data, f"--gin.MODEL_DIR={folder}")
  values += [f"new {i}" for i in range(8)]
  file.write_text(json.dumps(content), encoding="utf-8")
  with pytest.raises(UserError, match="the vocabulary has 49 rows of 'id', the query tower's table 48"):
    launch("eval", *data, f"--gin.MODEL_DIR={folder}")
  with pytest.raises(UserError, match=r"ngrams/embedding: checkpoint \(8, 50\) float32, model \(88, 50\)"):
    launch(
      "train",
      *MODEL,
      *data,
      "--gin.TRAIN_STEPS=18",
      "--gin.MIN_COUNTS={'ngrams': 1}",
      f"--gin.MODEL_DIR={folder}",
    )


def test_settings_that_do_not_fit_the_graph(
  trained: pathlib.Path, data: tuple[str, ...], tmp_path: pathlib.Path, launch
):
  steps = ("--gin.TRAIN_STEPS=6", f"--gin.MODEL_DIR={tmp_path / 'run'}")
  with pytest.raises(UserError, match="MAX_ROWS: 'ids' is no feature"):
    launch("train", *MODEL, *data, *steps, "--gin.MAX_ROWS={'ids': 9}")
  with pytest.raises(
    UserError, match=r"no node of .* has a value of 'tags'; nodes have id, title, categories"
  ):
    launch("train", *MODEL, *data, *steps, "--gin.BAG_FEATURES={'tags': ('values', 'tags')}")
