"""Compilations: how many programs JAX compiles in a training, and which of them come when all should be compiled."""

import collections
import contextlib
import sys
from collections.abc import Iterator

import jax
from jax import monitoring
from tqdm import tqdm

_EVENT = "/jax/core/compile/backend_compile_duration"
_SHOWN = 3  # names in the warning


class Compilations:
  """Counts what JAX compiles within the `with` block, in whatever thread.

  A program that comes out of the persistent compilation cache counts too: JAX reports it by the same event, with the time
  that reading it took. One that runs again with the same shapes is not reported.

  count: programs so far. seconds: their time.

  After `settle` a compilation is one too many, unless it comes in an `expected` block: a batch of another shape, dtype or
  layout than the first one's. `report` names it.

  Example:
    with Compilations() as compilations:
      step(state, batch); compilations.settle()
      step(state, batch); compilations.report(2)  # nothing to say
  """

  def __init__(self) -> None:
    self.count = 0
    self.seconds = 0.0
    self._settled = False
    self._expected = False
    self._unexpected: collections.Counter[str] = collections.Counter()
    self._said = False

  def __enter__(self) -> "Compilations":
    monitoring.register_event_duration_secs_listener(self._heard)
    return self

  def __exit__(self, *_: object) -> None:
    monitoring.unregister_event_duration_listener(self._heard)

  def settle(self) -> None:
    """From here on all programs that the training needs are compiled."""
    self._settled = True

  @contextlib.contextmanager
  def expected(self, really: bool = True) -> Iterator[None]:
    """What is compiled inside the block is nothing to report: a refresh, an evaluation, a first look at something.

    really: False for a block inside of it where nothing is expected again.
    """
    before, self._expected = self._expected, really
    try:
      yield
    finally:
      self._expected = before

  @property
  def unexpected(self) -> int:
    """Programs that were compiled after `settle` and outside of `expected` blocks."""
    return sum(self._unexpected.values())

  def report(self, step: int) -> None:
    """Prints on stderr, the first time that there is something to say, what was compiled once too often."""
    if not self._unexpected or self._said or jax.process_index() != 0:
      return
    self._said = True
    names = [name for name, _ in self._unexpected.most_common()]
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    tqdm.write(
      f"warning: step {step:,}: {', '.join(names[:_SHOWN])}{more} compiled anew after the first step. A batch of another shape "
      "or dtype than the first costs a compilation each time; what comes from now on is only counted, as `compilations` in "
      "the log. JAX_LOG_COMPILES=1 shows the shapes.",
      file=sys.stderr,
    )

  def _heard(self, event: str, duration_secs: float, **kwargs: str | int) -> None:
    if event != _EVENT:
      return
    self.count += 1
    self.seconds += duration_secs
    if self._settled and not self._expected:
      self._unexpected[str(kwargs.get("fun_name", "a program"))] += 1
