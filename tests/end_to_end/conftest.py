"""Tiny data and a way to run the programs for real: in this process or in one of their own."""

import os
import pathlib
import subprocess
import sys
from collections.abc import Callable

import gin
import numpy as np
import pytest

from scripts.soak.model_dir import state_of  # noqa: F401  (tests take it from here)

ADJECTIVES = ["red", "blue", "green", "old", "new", "fast", "slow", "tiny", "huge", "bright"]
NOUNS = ["car", "house", "river", "bird", "table", "window", "garden", "engine"]
TINY = (
  "--gin_file=models/bert_tiny.gin",
  "--gin_file=losses/samtone.gin",
  "--gin_file=data/tsv.gin",
  "--gin.BATCH_SIZE=16",
  "--gin.QUERY_LENGTH=8",
  "--gin.PASSAGE_LENGTH=16",
  "--gin.LEARNING_RATE=1e-3",
  "--gin.LOG_PERIOD=1",
)


def pairs() -> list[tuple[str, str]]:
  return [
    (f"find the {a} {n}", f"this passage tells about a {n} that is {a} and nothing else")
    for a in ADJECTIVES
    for n in NOUNS
  ]


@pytest.fixture(scope="session")
def tsv(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
  """A folder with train.tsv (64 pairs) and test.tsv (16 pairs)."""
  folder = tmp_path_factory.mktemp("tsv")
  rows = [pairs()[i] for i in np.random.default_rng(0).permutation(80)]
  for name, part in (("train", rows[:64]), ("test", rows[64:])):
    (folder / f"{name}.tsv").write_text("".join(f"{q}\t{p}\n" for q, p in part), encoding="utf-8")
  return folder


@pytest.fixture(scope="session")
def tiny(tsv: pathlib.Path) -> tuple[str, ...]:
  """Flags of a tiny training on the TSV pairs; MODEL_DIR and TRAIN_STEPS are the test's."""
  return (*TINY, f"--gin.DATA_PATH={tsv / 'train.tsv'}", f"--gin.TEST_PATH={tsv / 'test.tsv'}")


@pytest.fixture
def launch() -> Callable[..., object]:
  """launch(program, *flags): runs a program in this process; UserErrors come through."""
  from retrieval_jax import launch as launcher

  def run(program: str, *flags: str) -> object:
    gin.clear_config()
    try:
      return launcher.run(program, flags)
    finally:
      gin.clear_config()

  return run


def command(program: str, *flags: str) -> list[str]:
  return [sys.executable, "-m", f"retrieval_jax.{program}", *flags]


def environment(devices: int = 1) -> dict[str, str]:
  """The environment of a program's own process with this many fake CPU devices."""
  return {
    **os.environ,
    "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
    "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
  }


@pytest.fixture(scope="session")
def process() -> Callable[..., subprocess.CompletedProcess]:
  """process(program, *flags, devices=1): runs a program in its own process and returns what it printed."""

  def run(program: str, *flags: str, devices: int = 1, timeout: int = 300) -> subprocess.CompletedProcess:
    return subprocess.run(
      command(program, *flags),
      env=environment(devices),
      capture_output=True,
      text=True,
      timeout=timeout,
      check=False,
    )

  return run


def assert_equal_states(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> None:
  """Bit for bit."""
  assert a.keys() == b.keys()
  different = [name for name in a if a[name].tobytes() != b[name].tobytes()]
  assert not different, different
