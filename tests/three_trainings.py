"""Three small trainings of different kinds, that must learn the same on any mesh and any number of processes."""

import json
import pathlib

import gin
import numpy as np

from retrieval_jax import configuration, launch
from retrieval_jax.partitioning import Partitioner
from tests.end_to_end.conftest import TINY, pairs

NODES = 40
STEPS = 10  # 4 an epoch of the texts: NGAME clusters twice
COMMON = (f"--gin.TRAIN_STEPS={STEPS}", f"--gin.CHECKPOINT_PERIOD={STEPS}", "--gin.LOG_PERIOD=1")
NAMES = ("sde_samtone", "ade_spl_ngame", "bags_sogram")


def write_data(folder: pathlib.Path) -> pathlib.Path:
  """Writes train.tsv with 64 pairs, and the folder `ring`: 40 nodes that each link to the next four."""
  rows = [pairs()[i] for i in np.random.default_rng(0).permutation(80)[:64]]
  (folder / "train.tsv").write_text("".join(f"{q}\t{p}\n" for q, p in rows), encoding="utf-8")
  ring = folder / "ring"
  ring.mkdir()
  nodes = [
    {"id": i, "title": f"Page {'odd' if i % 2 else 'even'} {i}", "categories": [f"tens {i // 10}"]}
    for i in range(NODES)
  ]
  (ring / "nodes.jsonl").write_text("".join(json.dumps(node) + "\n" for node in nodes), encoding="utf-8")
  links = [f"{i}\t{(i + step) % NODES}\n" for i in range(NODES) for step in (1, 2, 3, 4)]
  (ring / "edges.train.tsv").write_text("".join(links[: 3 * NODES]), encoding="utf-8")
  (ring / "edges.test.tsv").write_text("".join(links[3 * NODES :]), encoding="utf-8")
  return folder


def flags(name: str, data: pathlib.Path) -> tuple[str, ...]:
  """Returns the flags of a training; MODEL_DIR and the mesh are the test's."""
  if name == "bags_sogram":
    return (
      *("--gin_file=models/feature_bag_small.gin", "--gin_file=losses/sogram.gin"),
      "--gin.feature_bag.FeatureBagTower.embed_dim=64",  # 50 is no multiple of 8
      *("--gin_file=data/link_graph.gin", f"--gin.DATA_PATH={data / 'ring'}", "--gin.TRAIN_EXAMPLES=pairs"),
      *("--gin_file=optimizers/sgd.gin", "--gin.BATCH_SIZE=16", "--gin.LEARNING_RATE=0.01", *COMMON),
    )
  texts = (*TINY, f"--gin.DATA_PATH={data / 'train.tsv'}", *COMMON)
  if name == "sde_samtone":
    return texts
  ngame = ("--gin_file=batching/ngame.gin", "--gin.CLUSTER_SIZES=((0, 1), (1, 4))", "--gin.REFRESH_EPOCHS=1")
  return (
    *(*texts, "--gin_file=losses/triplet_ngame.gin", "--gin_file=sharing/ade_spl.gin"),
    *("--gin.PROJECTION_DIM=32", *ngame),
  )


def train_on(part: Partitioner, model_dir: pathlib.Path, given: tuple[str, ...]) -> list[float]:
  """Trains in this process on a mesh of the test's own; returns the loss of each step."""
  gin.clear_config()
  try:
    parsed, bindings = launch.parse_flags("train", given)
    paths = [str(launch.configs_dir())]
    files = configuration.collect(["runs/train.gin", *parsed.gin_file], paths)
    configuration.parse(files, [*bindings, f"MODEL_DIR = {str(model_dir)!r}"], paths)
    gin.get_configurable("train.train")(partitioner=part)
  finally:
    gin.clear_config()
  return losses(model_dir)


def losses(model_dir: pathlib.Path) -> list[float]:
  """Returns the logged loss of each step."""
  lines = (model_dir / "train" / "log.jsonl").read_text(encoding="utf-8").splitlines()
  return [record["loss"] for record in map(json.loads, lines) if "loss" in record]
