"""How a run ends and who may run: SIGTERM and Ctrl-C as a request to finish the step and save; one training a folder."""

import contextlib
import fcntl
import pathlib
import signal
import types
from collections.abc import Iterator

from retrieval_jax.errors import UserError


class StopRequest:
  """Within the `with` block, the first SIGTERM or SIGINT sets `requested`; a second one acts as usual.

  Example:
    with StopRequest() as stop:
      while not stop.requested: ...
  """

  def __init__(self) -> None:
    self.requested = False
    self._previous: dict[int, object] = {}

  def __enter__(self) -> "StopRequest":
    for number in (signal.SIGTERM, signal.SIGINT):
      self._previous[number] = signal.signal(number, self._handle)
    return self

  def __exit__(self, *_: object) -> None:
    for number, handler in self._previous.items():
      signal.signal(number, handler)  # pyright: ignore[reportArgumentType]  (what signal.signal returned)

  def _handle(self, number: int, frame: types.FrameType | None) -> None:
    del frame
    self.requested = True
    signal.signal(number, signal.SIG_DFL if number == signal.SIGTERM else signal.default_int_handler)


@contextlib.contextmanager
def exclusive(folder: pathlib.Path) -> Iterator[None]:
  """Holds a lock on a folder, made if missing, so that two trainings do not write into one another's checkpoints.

  The lock goes with the process, however it ends. Raises: UserError when another process holds it.
  """
  folder.mkdir(parents=True, exist_ok=True)
  with open(folder / ".lock", "w") as file:
    try:
      fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
      raise UserError(
        f"MODEL_DIR={folder}: another training is writing to this folder. Choose another MODEL_DIR."
      ) from None
    yield
