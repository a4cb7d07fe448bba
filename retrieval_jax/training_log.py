"""The training log: one JSON line a record in MODEL_DIR/train/log.jsonl and the same numbers for TensorBoard."""

import contextlib
import json
import math
import pathlib
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

import jax

from retrieval_jax.errors import UserError
from retrieval_jax.refused_writes import free_space, refusal

FLUSH_SECONDS: Final = 60.0  # TensorBoard's file is behind the log by so much
LONGEST_LINE: Final = 2**20  # bytes


class TrainingLog:
  """Appends scalars; process 0 writes, the others do nothing.

  A resumed run appends: lines of steps after the restored one are superseded by later lines of the same step. Half a line
  that a killed run left is cut off.

  Raises: UserError when the system refuses to write, here and in `write`.

  Example: `log.write(10, {"loss": 2.3, "examples_per_second": 80.0})`.
  """

  def __init__(self, model_dir: pathlib.Path):
    self._file = None
    self._events = None
    if jax.process_index() != 0:
      return
    # Not its SummaryWriter: that one's thread dies of a full disk, and whoever hands it a number then waits for ever.
    from tensorboardX.event_file_writer import EventsWriter

    folder = pathlib.Path(model_dir) / "train"
    try:
      folder.mkdir(parents=True, exist_ok=True)
      _cut_half_a_line(folder / "log.jsonl")
      self._file = open(folder / "log.jsonl", "a", encoding="utf-8")  # noqa: SIM115  (closed by close)
      self._events = EventsWriter(str(folder / "events"))
    except OSError as error:
      raise UserError(
        f"MODEL_DIR: cannot write {folder}: {error.strerror}. Choose a folder you may write to."
      ) from error
    self._flush_at = 0.0

  def write(self, step: int, scalars: Mapping[str, float]) -> None:
    """Writes {"step", "time", **scalars}; time is seconds since the epoch. What is not finite is null: JSON has no NaN."""
    if self._file is None or self._events is None:
      return
    now = time.time()
    finite = {name: value for name, value in scalars.items() if math.isfinite(value)}
    record = {"step": step, "time": round(now, 3), **dict.fromkeys(scalars), **finite}
    try:
      self._file.write(json.dumps(record) + "\n")
      self._file.flush()
      self._events.write_event(_event(now, step, finite))
      if now >= self._flush_at:
        self._events.flush()
        self._flush_at = now + FLUSH_SECONDS
    except OSError as error:
      said = refusal(error)
      if said is None:
        raise
      folder = pathlib.Path(self._file.name).parent
      raise UserError(
        f"{folder}: the training log cannot be written: {said} ({free_space(folder)}). Make room there or correct the rights, "
        "and start the same command again: it goes on from the last checkpoint."
      ) from error

  def close(self) -> None:
    if self._file is not None and self._events is not None:
      self._file.close()
      self._events.close()


def _event(now: float, step: int, scalars: Mapping[str, float]) -> Any:
  """Returns the numbers of a step as TensorBoard's files have them."""
  from tensorboardX import summary
  from tensorboardX.proto import event_pb2

  event = event_pb2.Event(wall_time=now, step=step)  # pyright: ignore[reportAttributeAccessIssue]  (protobuf makes it)
  for name, value in scalars.items():
    event.summary.MergeFrom(summary.scalar(name, float(value)))
  return event


def _cut_half_a_line(path: pathlib.Path) -> None:
  """Cuts off what stands behind the last line end: a run was killed, or the disk full, in the middle of a line."""
  if not path.exists():
    return
  with open(path, "r+b") as file:
    start = max(0, file.seek(0, 2) - LONGEST_LINE)
    file.seek(start)
    tail = file.read()
    if tail and not tail.endswith(b"\n"):
      file.truncate(start + tail.rfind(b"\n") + 1)


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
    before, on_device = time.perf_counter(), self._on_device
    yield
    self._start += time.perf_counter() - before
    self._on_device = on_device
