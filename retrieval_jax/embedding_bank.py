"""EmbeddingBank: the freshest query embedding of each example, as the training steps made them anyway."""

import fcntl
import os
import pathlib
import shutil
import tempfile
from typing import IO

import jax
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from retrieval_jax.errors import UserError

DTYPES = ("float16", "float32")
WORKING = "bank.npy"


class EmbeddingBank:
  """One row an example in a memory-mapped file, of process 0; what clusters are made of (NGAME, Algorithm 1).

  A row holds what the last training step that saw the example computed: with dropout where the model has any, and of
  the parameters before that step. A row of zeros is one that no step has seen.

  `hold` keeps the device busy: it writes the step before, which is done, not the one just started. `flush` writes that
  one too. Bytes: examples x d x 2 (float16) on disk; of it the memory that the system gives to the file.

  The file is a scratch file: what a resumed run starts from is the copy that `save` makes beside a checkpoint.

  Example: `bank = EmbeddingBank(folder, 1000, 384); bank.hold(rows, queries); bank.flush(); bank.embeddings`.
  """

  def __init__(self, folder: pathlib.Path, num_examples: int, embed_dim: int, *, dtype: str = "float16"):
    check_dtype(dtype)
    self._file = folder / WORKING
    try:
      folder.mkdir(parents=True, exist_ok=True)
      self._lock = _locked(folder)
      _check_room(self._file, num_examples * embed_dim * np.dtype(dtype).itemsize)
      self._rows = np.lib.format.open_memmap(self._file, "w+", dtype=dtype, shape=(num_examples, embed_dim))
      with open(self._file, "r+b") as file:
        # Room that is taken now: a memory map on a disk that fills later dies of SIGBUS, without a word.
        os.posix_fallocate(file.fileno(), 0, self._file.stat().st_size)
    except OSError as error:
      raise UserError(
        f"the embedding bank {self._file} cannot be made: {error.strerror}. Name another folder with BANK_PATH, or set "
        "CLUSTER_EMBEDDINGS='encode', which needs no bank."
      ) from error
    self._held: tuple[Int[np.ndarray, q], Array] | None = None

  @property
  def embeddings(self) -> Float[np.ndarray, "e d"]:
    """Every example's row, in place: what `hold` took last is not in it before `flush`."""
    return self._rows

  @property
  def missing(self) -> Bool[np.ndarray, "e"]:
    """Which examples no step has seen."""
    found = np.empty(len(self._rows), bool)
    for start in range(0, len(found), 65_536):
      found[start : start + 65_536] = ~np.any(self._rows[start : start + 65_536] != 0, axis=1)
    return found

  def hold(self, rows: Int[np.ndarray, "q"], queries: Float[Array, "q d"]) -> None:
    """Takes the embeddings of a step that may still be running, and writes those of the step before.

    rows: the examples, -1 where the batch is padded.
    """
    self.flush()
    self._held = rows, queries

  def flush(self) -> None:
    """Writes what is held; waits for its step. What is not finite is left as it was: the step's guard names such a step.

    Raises: UserError for an embedding that float16 cannot hold.
    """
    if self._held is None:
      return
    rows, queries = self._held
    self._held = None
    embeddings = np.asarray(jax.device_get(queries))
    kept = (rows >= 0) & np.all(np.isfinite(embeddings), axis=1)
    self.write(rows[kept], embeddings[kept])

  def write(self, rows: Int[np.ndarray, "q"], embeddings: Float[np.ndarray, "q d"]) -> None:
    """Writes the embeddings of some examples.

    Raises: as `flush`.
    """
    with np.errstate(over="ignore"):
      values = np.asarray(embeddings).astype(self._rows.dtype)
    bad = ~np.all(np.isfinite(values), axis=1)
    if bad.any():
      cause = (
        "is not finite" if not np.isfinite(embeddings[bad]).all() else "has values that float16 cannot hold"
      )
      raise UserError(
        f"the query embedding of example {int(rows[bad][0])} {cause}, so the examples cannot be clustered by it. "
        + ("Lower LEARNING_RATE." if "finite" in cause else "Set BANK_DTYPE='float32'.")
      )
    self._rows[rows] = values

  def close(self) -> None:
    """Gives the folder free for another training's bank."""
    self._lock.close()

  def save(self, path: pathlib.Path) -> None:
    """Writes a copy of the bank that appears whole or not at all; what is held is written first.

    Raises: UserError if it cannot be written.
    """
    self.flush()
    self._rows.flush()
    try:
      _copy(self._file, path)
    except OSError as error:
      raise UserError(
        f"{path}: the embedding bank cannot be saved with its checkpoint: {error.strerror}. Make room, or resume with "
        "CLUSTER_EMBEDDINGS='encode', which needs no bank."
      ) from error

  def load(self, path: pathlib.Path) -> None:
    """Takes the rows of a copy that `save` wrote.

    Raises: UserError if it is of other examples, another size or dtype, or not there.
    """
    try:
      saved = np.load(path, mmap_mode="r")
    except (OSError, ValueError, EOFError) as error:
      raise UserError(
        f"{path}: the embedding bank of this checkpoint cannot be read ({error}). Copy MODEL_DIR with its folder batches, or "
        "set CLUSTER_EMBEDDINGS='encode' to cluster by embeddings made anew."
      ) from error
    if saved.shape != self._rows.shape or saved.dtype != self._rows.dtype:
      raise UserError(
        f"{path}: a bank of {saved.shape} {saved.dtype}, and the training wants {self._rows.shape} {self._rows.dtype}. Resume "
        "with the data, the model and BANK_DTYPE that it was written with, or start in another MODEL_DIR."
      )
    self._rows[:] = saved


def check_dtype(dtype: str) -> None:
  """Raises UserError unless a bank can be of this dtype."""
  if dtype not in DTYPES:
    raise UserError(f"BANK_DTYPE={dtype!r}: expected {' or '.join(map(repr, DTYPES))}.")


def _locked(folder: pathlib.Path) -> IO:
  """Returns a file whose lock says that a training's bank is in the folder; the lock goes with the file or the process."""
  lock = open(folder / ".bank.lock", "w")  # noqa: SIM115  (held as long as the bank)
  try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except BlockingIOError:
    lock.close()
    raise UserError(
      f"{folder}: another training keeps its embedding bank there. Name another folder with BANK_PATH."
    ) from None
  return lock


def _check_room(file: pathlib.Path, needed: int) -> None:
  there = file.stat().st_size if file.exists() else 0
  free = shutil.disk_usage(file.parent).free + there
  if needed > free:
    raise UserError(
      f"{file.parent}: the embedding bank needs {needed / 1e9:.1f} GB and {free / 1e9:.1f} GB are free. Name another folder "
      "with BANK_PATH, or set CLUSTER_EMBEDDINGS='encode', which needs no bank."
    )


def _copy(source: pathlib.Path, target: pathlib.Path) -> None:
  target.parent.mkdir(parents=True, exist_ok=True)
  with tempfile.NamedTemporaryFile(dir=target.parent, prefix=f".{target.name}.", delete=False) as file:
    temporary = pathlib.Path(file.name)
  try:
    shutil.copyfile(source, temporary)
    with open(temporary, "r+b") as copy:
      os.fsync(
        copy.fileno()
      )  # as the checkpoint itself: it shall not be there without its bank after a loss of power
    temporary.replace(target)
  except BaseException:
    temporary.unlink(missing_ok=True)
    raise
