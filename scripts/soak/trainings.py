"""The trainings that the soak disturbs: tiny ones, each with the state of another part of the library to lose."""

import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import IO, NamedTuple

import numpy as np

ADJECTIVES = ("red", "blue", "green", "old", "new", "fast", "slow", "tiny", "huge", "bright")
NOUNS = ("car", "house", "river", "bird", "table", "window", "garden", "engine")
COMMON = (
  "--gin_file=models/bert_tiny.gin",
  "--gin.bert.BertEncoder.num_layers=1",
  "--gin.bert.BertEncoder.embed_dim=16",
  "--gin.bert.BertEncoder.mlp_dim=32",
  "--gin_file=data/tsv.gin",
  "--gin.BATCH_SIZE=16",
  "--gin.QUERY_LENGTH=8",
  "--gin.PASSAGE_LENGTH=16",
  "--gin.LEARNING_RATE=1e-3",
  "--gin.LOG_PERIOD=1",
)
NGAME = ("--gin_file=batching/ngame.gin", "--gin.CLUSTER_SIZES=((0, 1), (1, 4))", "--gin.REFRESH_EPOCHS=3")


class Training(NamedTuple):
  """A command: what it trains, for how long, how often it saves. 4 steps are an epoch."""

  name: str
  flags: tuple[str, ...]
  steps: int = 120
  period: int = 5
  keep: int = 3


SAMTONE = Training("SDE, SamToNe", ("--gin_file=losses/samtone.gin",))
BANK = Training("SDE, SamToNe, NGAME batches, bank", ("--gin_file=losses/samtone.gin", *NGAME))
SOGRAM = Training("SDE, SamToNe + SOGram", ("--gin_file=losses/samtone_sogram.gin",))
TRAININGS = (SAMTONE, BANK, SOGRAM)


class Workshop:
  """The folder that everything happens in: the data, one cache of derived data and of compiled programs, and the output of
  each process. `started` are the processes that may still run.

  compiled: another folder of compiled programs.

  Example: `process = workshop.start(workshop.command(SAMTONE, folder), "first")`.
  """

  def __init__(self, folder: pathlib.Path, *, compiled: pathlib.Path | None = None):
    self.folder = folder.absolute()
    self._compiled = compiled or self.folder / "compiled"
    self.started: list[subprocess.Popen] = []
    self.folder.mkdir(parents=True, exist_ok=True)
    pairs = [(a, n) for a in ADJECTIVES for n in NOUNS]
    order = np.random.default_rng(0).permutation(len(pairs))
    for name, rows in (("train", order[:64]), ("test", order[64:])):
      lines = (
        f"find the {a} {n}\tthis passage tells about a {n} that is {a}\n" for a, n in (pairs[i] for i in rows)
      )
      (self.folder / f"{name}.tsv").write_text("".join(lines), encoding="utf-8")

  def command(self, training: Training, model_dir: pathlib.Path, *more: str) -> list[str]:
    """Returns the command of a training in a folder."""
    return [
      *(sys.executable, "-m", "retrieval_jax.train", *COMMON, *training.flags),
      f"--gin.DATA_PATH={self.folder / 'train.tsv'}",
      f"--gin.TEST_PATH={self.folder / 'test.tsv'}",
      f"--gin.TRAIN_STEPS={training.steps}",
      f"--gin.CHECKPOINT_PERIOD={training.period}",
      f"--gin.KEEP_CHECKPOINTS={training.keep}",
      f"--gin.MODEL_DIR={model_dir}",
      *more,
    ]

  def environment(self, cache: str = "cache") -> dict[str, str]:
    """Returns a process's environment: one CPU device, cheap compilations, which are kept. cache: of derived data."""
    return {
      **os.environ,
      "JAX_PLATFORMS": "cpu",
      "XLA_FLAGS": "--xla_force_host_platform_device_count=1",
      "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
      "JAX_COMPILATION_CACHE_DIR": str(self._compiled),
      "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
      "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
      "RETRIEVAL_JAX_CACHE": str(self.folder / cache),
    }

  def start(self, command: Sequence[str], name: str, *, cache: str = "cache") -> "Life":
    """Starts a process whose output goes to files of this name."""
    folder = self.folder / "output"
    folder.mkdir(exist_ok=True)
    out, err = (open(folder / f"{name}.{kind}", "w", encoding="utf-8") for kind in ("out", "err"))  # noqa: SIM115  (closed by Life)
    process = subprocess.Popen(command, env=self.environment(cache), stdout=out, stderr=err)
    self.started.append(process)
    return Life(process, out, err)

  def run(self, command: Sequence[str], name: str, *, cache: str = "cache") -> "Life":
    """Starts a process and waits for its end."""
    life = self.start(command, name, cache=cache)
    life.wait()
    return life

  def end(self) -> None:
    """Ends what still runs."""
    for process in self.started:
      if process.poll() is None:
        process.kill()
        process.wait()


class Life:
  """One process, from its start to its end, and what it said."""

  def __init__(self, process: subprocess.Popen, out: IO[str], err: IO[str]):
    self.process = process
    self._files = out, err
    self._begun = time.monotonic()

  @property
  def out(self) -> str:
    return pathlib.Path(self._files[0].name).read_text(encoding="utf-8")

  @property
  def err(self) -> str:
    return pathlib.Path(self._files[1].name).read_text(encoding="utf-8", errors="replace")

  @property
  def age(self) -> float:
    """Seconds since the start."""
    return time.monotonic() - self._begun

  def wait(self, timeout: float = 900) -> int:
    """Returns the exit code, negative for a signal. Raises: subprocess.TimeoutExpired."""
    code = self.process.wait(timeout)
    for file in self._files:
      file.close()
    return code

  def begun_at(self) -> int | None:
    """Returns the step that the process went on from, or None if it ended before it said so."""
    lines = [line for line in self.out.splitlines() if line.startswith("steps: ")]
    return int(lines[-1].removeprefix("steps: ").split(" ")[0].replace(",", "")) if lines else None

  def last_words(self) -> str:
    """Returns the end of what it wrote to stderr, without progress bars."""
    lines = [
      line
      for line in self.err.replace("\r", "\n").splitlines()
      if line.strip() and not line.startswith("train: ")
    ]
    return "\n".join(lines)[-1500:]
