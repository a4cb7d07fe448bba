"""SIGTERM and Ctrl-C as a request to finish the step and save, not as a stack trace in the middle of one."""

import signal
import types


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
