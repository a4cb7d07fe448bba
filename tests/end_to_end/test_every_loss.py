"""Every file of configs/losses/ trains: five steps on pydocs, through the program, as a user names it."""

import json
import pathlib

import numpy as np
import pytest

from retrieval_jax.batching.shuffled import Shuffled
from retrieval_jax.data import pydocs
from retrieval_jax.errors import UserError
from retrieval_jax.launch import configs_dir
from tests.end_to_end.conftest import TINY

FILES = sorted(path.stem for path in (configs_dir() / "losses").glob("*.gin"))
STEPS, BATCH = 5, 16
# What a file leaves to the user, or sets for a larger model than this one.
NEEDS = {
  "matryoshka": ("--gin.MATRYOSHKA_DIMS=(64,32)",),
  "pair_two_stage": ("--gin.PAIR_STEPS=2",),
}


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
  """Scores of the pairs that meet in the first batches: words that query and passage share."""
  pairs = list(pydocs.read_pairs("train"))
  batcher = Shuffled(batch_size=BATCH)
  plan = batcher.plan(num_examples=len(pairs), seed=0)
  path = tmp_path_factory.mktemp("teacher") / "scores.tsv"
  lines = {
    f"{query.name}\t{passage.name}\t{len(set(query.query.split()) & set(passage.passage.split()))}"
    for step in range(STEPS)
    for query in (pairs[row] for row in batcher.rows(plan, step))
    for passage in (pairs[row] for row in batcher.rows(plan, step))
  }
  path.write_text("\n".join(sorted(lines)) + "\n", encoding="utf-8")
  return path


@pytest.mark.parametrize("name", FILES)
def test_five_steps_on_pydocs(launch, teacher, tmp_path, name):
  others = [flag for flag in TINY if not flag.startswith(("--gin_file=losses", "--gin_file=data"))]
  launch(
    "train",
    *others,
    "--gin_file=data/pydocs.gin",
    f"--gin_file=losses/{name}.gin",
    f"--gin.TRAIN_STEPS={STEPS}",
    f"--gin.TEACHER_SCORES_PATH={teacher}",
    f"--gin.MODEL_DIR={tmp_path / 'run'}",
    *NEEDS.get(name, ()),
  )
  text = (tmp_path / "run" / "train" / "log.jsonl").read_text(encoding="utf-8")
  log = [json.loads(line) for line in text.splitlines()]
  assert [line["step"] for line in log] == list(range(1, STEPS + 1))
  assert all(np.isfinite(value) for line in log for value in line.values())
  assert all(line["grad_norm"] > 0 for line in log)
  assert (tmp_path / "run" / f"checkpoint_{STEPS}").is_dir()
  if name == "pair_two_stage":
    assert [line["pair/weight"] for line in log] == [1, 1, 0, 0, 0]
    assert [line["softmax/weight"] for line in log] == [0, 0, 1, 1, 1]


def test_a_learned_temperature_moves(launch, tmp_path):
  others = [flag for flag in TINY if not flag.startswith("--gin_file=data")]
  launch(
    "train",
    *others,
    "--gin_file=softmax/learned_temperature.gin",
    "--gin_file=data/pydocs.gin",
    "--gin.INITIAL_TEMPERATURE=0.1",
    f"--gin.TRAIN_STEPS={STEPS}",
    f"--gin.MODEL_DIR={tmp_path / 'run'}",
  )
  text = (tmp_path / "run" / "train" / "log.jsonl").read_text(encoding="utf-8")
  temperatures = [json.loads(line)["temperature"] for line in text.splitlines()]
  assert temperatures[0] == pytest.approx(0.1)
  assert len(set(temperatures)) == STEPS


def test_grades_that_a_loss_cannot_take(launch, tmp_path):
  """Grades of 1 to 3 would send a cross-entropy to minus infinity; divided by 3 they are targets."""
  rows = [f"query {i}\tpassage number {i}\t{i % 3 + 1}" for i in range(32)]
  (tmp_path / "graded.tsv").write_text(
    "\n".join(["query\tpassage\trelevance", *rows]) + "\n", encoding="utf-8"
  )
  others = [flag for flag in TINY if not flag.startswith("--gin_file=losses")]
  flags = (
    *others,
    "--gin_file=losses/binary_cross_entropy.gin",
    f"--gin.DATA_PATH={tmp_path / 'graded.tsv'}",
    "--gin.TRAIN_STEPS=1",
    f"--gin.MODEL_DIR={tmp_path / 'run'}",
  )
  with pytest.raises(
    UserError, match=r"grades of its positives go from 1 to 3; the loss takes .*TARGET_SCALE"
  ):
    launch("train", *flags)
  assert not (tmp_path / "run").exists()
  launch("train", *flags, "--gin.TARGET_SCALE=3")
