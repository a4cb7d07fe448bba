"""The training log: one JSON line a record in MODEL_DIR/train/log.jsonl and the same numbers for TensorBoard."""

import contextlib
import json
import math
import pathlib
import time
from collections.abc import Iterator, Mapping

import jax

from retrieval_jax.errors import UserError


class TrainingLog:
  """Appends scalars; process 0 writes, the others do nothing.

  A resumed run appends: lines of steps after the restored one are superseded by later lines of the same step.

  Example: `log.write(10, {"loss": 2.3, "examples_per_second": 80.0})`.
  """

  def __init__(self, model_dir: pathlib.Path):
    self._file = None
    self._events = None
    if jax.process_index() != 0:
      return
    from tensorboardX import SummaryWriter

    folder = pathlib.Path(model_dir) / "train"
    try:
      folder.mkdir(parents=True, exist_ok=True)
      self._file = open(folder / "log.jsonl", "a", encoding="utf-8")  # noqa: SIM115  (closed by close)
    except OSError as error:
      raise UserError(
        f"MODEL_DIR: cannot write {folder}: {error.strerror}. Choose a folder you may write to."
      ) from error
    self._events = SummaryWriter(str(folder))

  def write(self, step: int, scalars: Mapping[str, float]) -> None:
    """Writes {"step", "time", **scalars}; time is seconds since the epoch. What is not finite is null: JSON has no NaN."""
    if self._file is None or self._events is None:
      return
    finite = {name: value for name, value in scalars.items() if math.isfinite(value)}
    record = {"step": step, "time": round(time.time(), 3), **dict.fromkeys(scalars), **finite}
    self._file.write(json.dumps(record) + "\n")
    self._file.flush()
    for name, value in finite.items():
      self._events.add_scalar(name, value, step)

  def close(self) -> None:
    if self._file is not None and self._events is not None:
      self._file.close()
      self._events.close()


class Stopwatch:
  """Examples per second of training since the last reading; saving and evaluating do not count.

  Example: `watch.tick()` after each step, `watch.rate()` at each log line.
  """

  def __init__(self, batch_size: int):
    self._batch_size = batch_size
    self._steps = 0
    self._on_device = 0.0
    self._start = time.perf_counter()

  def tick(self) -> None:
    self._steps += 1

  def rate(self) -> float:
    """Returns examples per second since the last call, and starts anew."""
    now = time.perf_counter()
    rate = self._steps * self._batch_size / max(now - self._start, 1e-9)
    self._steps, self._on_device, self._start = 0, 0.0, now
    return rate

  def rates(self) -> dict[str, float]:
    """Returns `rate` as examples_per_second, and host_share: the part of the time since the last call that was spent outside
    of `on_device` blocks, of which the device may have been at work too. Starts anew."""
    elapsed = max(time.perf_counter() - self._start, 1e-9)
    share = max(0.0, 1 - self._on_device / elapsed)
    return {"examples_per_second": self.rate(), "host_share": share}

  @contextlib.contextmanager
  def on_device(self) -> Iterator[None]:
    """Starting a step and waiting for one is what the block does."""
    before = time.perf_counter()
    yield
    self._on_device += time.perf_counter() - before

  @contextlib.contextmanager
  def paused(self) -> Iterator[None]:
    """Time inside the block is not counted."""
    before = time.perf_counter()
    yield
    self._start += time.perf_counter() - before
