"""At which rates the tasks of a mixture come up: given numbers, the numbers of examples, or what a seqio Mixture says."""

import math
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from retrieval_jax.data import features
from retrieval_jax.errors import UserError

if TYPE_CHECKING:
  import seqio

Rates = Mapping[str, float | None]  # of each task; None: by its number of examples


class ByCount(NamedTuple):
  """The rate of a task with c examples is min(c, limit) ** (1 / temperature), which T5 calls temperature mixing.

  temperature: 1 keeps the proportions of the tasks, a higher one brings the rates nearer together.
  limit: no task counts as larger; None: there is no limit.

  Source: T5 (Raffel et al., 2020), section 3.5.2.

  Example: `ByCount(temperature=2.0, limit=10_000).rate(1_000_000)` is 100.
  """

  temperature: float = 1.0
  limit: int | None = None

  def check(self) -> None:
    """Raises UserError for a temperature or limit that is not a number above 0."""
    if not _is_number(self.temperature) or not 0 < self.temperature < math.inf:
      raise UserError(
        f"MIXTURE_TEMPERATURE={self.temperature!r}: expected a number above 0; 1 keeps proportions."
      )
    if self.limit is not None and not (_is_number(self.limit) and self.limit > 0):
      raise UserError(
        f"MIXTURE_LIMIT={self.limit!r}: expected a number of examples above 0, or None for no limit."
      )

  def rate(self, count: int) -> float:
    """Returns the rate of a task with so many examples.

    Raises: UserError as `check`.
    """
    self.check()
    return float(count if self.limit is None else min(count, self.limit)) ** (1 / self.temperature)


def _is_number(value: object) -> bool:
  return isinstance(value, int | float) and not isinstance(value, bool)


class _Counted:
  """What a seqio rate function asks a Task for, with numbers that are known."""

  cache_dir = None

  def __init__(self, name: str, count: int):
    self.name, self._count = name, count

  def num_input_examples(self, split: str) -> int:
    """Returns the number of examples that are trained on."""
    del split
    return self._count

  def get_cached_stats(self, split: str) -> Mapping[str, int]:
    """Returns the number of examples that are trained on."""
    del split
    return {"examples": self._count}


def registered_mixture(name: str) -> "Rates | seqio.Mixture | None":
  """Returns what is registered as a mixture by this name, here or with seqio, if anything is."""
  if name in features.registered_mixtures():
    return features.registered_mixtures()[name]
  if "seqio" not in sys.modules:  # then nobody has registered anything there: do not wait for TensorFlow
    return None
  import seqio

  return seqio.MixtureRegistry.get(name) if name in seqio.MixtureRegistry.names() else None


def mixture_names() -> list[str]:
  """Returns the names of the mixtures that are registered, here or with seqio, sorted."""
  if "seqio" not in sys.modules:
    return sorted(features.registered_mixtures())
  import seqio

  return sorted({*features.registered_mixtures(), *seqio.MixtureRegistry.names()})


def task_names(mixture: "Rates | seqio.Mixture") -> list[str]:
  """Returns the names of the tasks in a mixture and in the mixtures that it holds, sorted."""
  if isinstance(mixture, Mapping):
    return sorted(mixture)
  return sorted(task.name for task in mixture.tasks)


def rates(mixture: "Rates | seqio.Mixture", counts: Mapping[str, int], by_count: ByCount) -> dict[str, float]:
  """Returns the rate of every task. counts: the examples of each, which must be known by now.

  Raises: UserError for a rate that is not a finite number above 0, and for a function of seqio's that cannot tell it.
  """
  if isinstance(mixture, Mapping):
    found = {name: by_count.rate(counts[name]) if rate is None else rate for name, rate in mixture.items()}
  else:
    found = _seqio_rates(mixture, counts)
  for name, rate in found.items():
    if not _is_number(rate) or not 0 < rate < math.inf:
      raise UserError(
        f"mixture: the rate of {name} is {rate!r}; expected a number above 0, or None: by its number of examples."
      )
  return {name: float(found[name]) for name in sorted(found)}


def _seqio_rates(mixture: "seqio.Mixture", counts: Mapping[str, int]) -> dict[str, float]:
  """Returns the rates as seqio takes them: those of a mixture inside a mixture share that mixture's rate."""
  found: dict[str, float] = {}
  for name, rate in mixture.rate_per_task_name.items():
    inner = mixture._task_map[name]  # seqio has no other way to the mixtures inside
    if not isinstance(inner, type(mixture)):
      found[name] = found.get(name, 0.0) + _called(mixture.name, rate, name, counts[name])
      continue
    inside = _seqio_rates(inner, counts)
    total = math.fsum(inside.values())
    for task, share in inside.items():
      found[task] = found.get(task, 0.0) + float(rate) * share / total  # pyright: ignore[reportArgumentType]  (no function any more)
  return found


def _called(mixture: str, rate: float | Callable[[Any], float], name: str, count: int) -> float:
  if not callable(rate):
    return float(rate)
  try:
    return float(rate(_Counted(name, count)))
  except Exception as error:
    raise UserError(
      f"the seqio Mixture {mixture!r}: its rate of {name!r} ({rate!r}) cannot be told before training: "
      f"{type(error).__name__}: {error}. Give a number, or name the tasks with None: by their numbers of examples."
    ) from error
