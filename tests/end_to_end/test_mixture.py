"""A mixture of two tasks through the training program: from gin alone, resumed exactly, and what it refuses."""

import json
import pathlib
import shutil

import pytest

from retrieval_jax.errors import UserError
from tests.end_to_end.conftest import TINY, assert_equal_states, pairs, state_of

FLAGS = (
  *(flag for flag in TINY if "data/tsv" not in flag),
  "--gin_file=data/mixture.gin",
  "--gin_file=batching/mixture.gin",
  "--gin.CHECKPOINT_PERIOD=2",
  "--gin.KEEP_CHECKPOINTS=3",
)
GIN = """# A test's mixture of two files.
from __gin__ import dynamic_registration

from retrieval_jax.data import file_sources

TASKS = {{'cars': 1.0, 'houses': None}}
TASK_SOURCES = {{'cars': @cars/file_sources.TsvPairs(), 'houses': @houses/file_sources.TsvPairs()}}
cars/file_sources.TsvPairs.path = '{folder}/cars.tsv'
houses/file_sources.TsvPairs.path = '{folder}/houses.tsv'
MIXTURE_LIMIT = 3
"""


@pytest.fixture
def flags(tmp_path: pathlib.Path) -> tuple[str, ...]:
  """Two files of 20 and 30 pairs, mixed 1 to 3."""
  for name, part in (("cars", pairs()[:20]), ("houses", pairs()[50:])):
    (tmp_path / f"{name}.tsv").write_text("".join(f"{q}\t{p}\n" for q, p in part), encoding="utf-8")
  (tmp_path / "two.gin").write_text(GIN.format(folder=tmp_path))
  return (*FLAGS, f"--gin_file={tmp_path / 'two.gin'}")


@pytest.mark.parametrize("one_task_per_batch", [False, True])
def test_a_mixture_is_trained_and_resumed_exactly(launch, flags, tmp_path, capsys, one_task_per_batch):
  flags = (*flags, f"--gin.ONE_TASK_PER_BATCH={one_task_per_batch}", "--gin.TRAIN_STEPS=6")
  straight, stopped = tmp_path / "straight", tmp_path / "stopped"
  launch("train", *flags, f"--gin.MODEL_DIR={str(straight)!r}")
  out = capsys.readouterr().out
  assert "cars+houses/train: 50 examples, 50 passages" in out
  assert "  cars: 20 examples, 25.0% of the batches\n  houses: 30 examples, 75.0% of the batches\n" in out
  assert f"{4 if one_task_per_batch else 3} steps an epoch" in out
  shutil.copytree(straight, stopped)
  for later in (4, 6):
    shutil.rmtree(stopped / f"checkpoint_{later}")
  launch("train", *flags, f"--gin.MODEL_DIR={str(stopped)!r}")
  assert "steps: 2 -> 6" in capsys.readouterr().out
  assert_equal_states(state_of(stopped, 6), state_of(straight, 6))
  logged = [json.loads(line) for line in (straight / "train" / "log.jsonl").read_text().splitlines()]
  assert logged[-1]["epoch"] == 1


def test_a_resume_with_another_way_of_mixing_is_said(launch, flags, tmp_path, capsys):
  flags = (*flags, f"--gin.MODEL_DIR={str(tmp_path / 'run')!r}")
  launch("train", *flags, "--gin.TRAIN_STEPS=1")
  launch("train", *flags, "--gin.TRAIN_STEPS=2", "--gin.ONE_TASK_PER_BATCH=True", "--gin.MIXTURE_LIMIT=1")
  said = capsys.readouterr().err
  assert (
    "warning: resuming with batcher 'Mixture(one_task_per_batch=True)', was 'Mixture(one_task_per_batch=False)'"
    in said
  )
  assert "warning: resuming with task_fingerprint" in said


def test_a_batcher_without_rates_is_refused_before_training(launch, flags, tmp_path):
  flags = (*(f for f in flags if "batching" not in f), f"--gin.MODEL_DIR={str(tmp_path / 'run')!r}")
  with pytest.raises(UserError, match=r"a mixture of cars, houses, whose rates.*batching/mixture\.gin"):
    launch("train", *flags, "--gin.TRAIN_STEPS=1")
  assert not (tmp_path / "run").exists() or not any((tmp_path / "run").iterdir())


def test_a_task_without_any_negatives_is_refused_before_training(launch, flags, tmp_path):
  with pytest.raises(UserError, match=r"TASK_IN_BATCH_NEGATIVES of cars is False.*the task has none"):
    launch(
      "train",
      *flags,
      "--gin.TASK_IN_BATCH_NEGATIVES={'cars': False}",
      f"--gin.MODEL_DIR={str(tmp_path / 'run')!r}",
      "--gin.TRAIN_STEPS=1",
    )


def test_a_task_with_its_own_hard_negatives_alone(launch, flags, tmp_path, capsys):
  negatives = tmp_path / "negatives.tsv"
  header, lines = "query_id\tpassage_id\n", [f"{i}\t{(i + 7) % 20}\n" for i in range(20)]
  _with_ids(tmp_path / "cars.tsv")
  negatives.write_text(header + "".join(lines))
  flags = (
    *flags,
    "--gin.TASK_IN_BATCH_NEGATIVES={'cars': False}",
    f"--gin.TASK_HARD_NEGATIVES={{'cars': {str(negatives)!r}}}",
    f"--gin.MODEL_DIR={str(tmp_path / 'run')!r}",
    "--gin.TRAIN_STEPS=2",
  )
  with pytest.raises(UserError, match=r"TASK_IN_BATCH_NEGATIVES of cars is False.*HARD_NEGATIVES is 0"):
    launch("train", *flags)
  launch("train", *flags, "--gin.HARD_NEGATIVES=1")
  assert "  cars: 20 examples, 25.0% of the batches, without in-batch negatives\n" in capsys.readouterr().out


def test_unique_batches_through_the_program(launch, tmp_path, tiny, capsys):
  launch(
    "train",
    *tiny,
    "--gin_file=batching/unique.gin",
    f"--gin.MODEL_DIR={str(tmp_path / 'run')!r}",
    "--gin.TRAIN_STEPS=2",
  )
  assert "4 steps an epoch" in capsys.readouterr().out


def _with_ids(path: pathlib.Path) -> None:
  rows = [line.split("\t") for line in path.read_text().splitlines()]
  lines = [f"{i}\t{q}\t{i}\t{p}\n" for i, (q, p) in enumerate(rows)]
  path.write_text("query_id\tquery\tpassage_id\tpassage\n" + "".join(lines))
