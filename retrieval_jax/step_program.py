"""StepProgram: the jitted training step, and what memory it takes before and after its first run."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
from tqdm import tqdm

from retrieval_jax import processes
from retrieval_jax.records import Batch
from retrieval_jax.train_state import TrainState
from retrieval_jax.watchdog import LONG

_MIB, _GIB = 2**20, 2**30


class StepProgram:
  """Runs a jitted step; at the first call it says what memory a device needs, when compiled and when run.

  Compiling ahead of the first run costs nothing: the run takes the same program.

  Example: `step = StepProgram(partitioner.jit_step(train_step, shardings))`, then `state, metrics = step(state, batch)`.
  """

  def __init__(self, jitted: Callable):
    self._jitted = jitted
    self._ran = False

  def __call__(self, state: TrainState, batch: Batch) -> tuple[TrainState, Any]:
    if self._ran:
      return self._jitted(state, batch)
    _say(memory_of(self._jitted.lower(state, batch).compile()))  # pyright: ignore[reportFunctionMemberAccess]  (of jax.jit)
    processes.meet("the step is compiled", timeout=LONG)
    done = jax.block_until_ready(self._jitted(state, batch))
    _say(memory_in_use(jax.local_devices()))
    self._ran = True
    return done


def memory_of(program: jax.stages.Compiled) -> str | None:
  """Returns a line on the memory that one device needs to run a compiled training step; None where JAX does not know.

  The whole is arguments (state and batch), results that do not take an argument's place, and temporaries.

  Example: `print(memory_of(jax.jit(step).lower(state, batch).compile()))`.
  """
  try:
    sizes = program.memory_analysis()
  except jax.errors.JaxRuntimeError:  # a backend that does not have it
    return None
  if sizes is None:
    return None
  arguments, temporary = sizes.argument_size_in_bytes, sizes.temp_size_in_bytes
  results = sizes.output_size_in_bytes - sizes.alias_size_in_bytes
  whole = arguments + results + temporary
  return (
    f"memory a device: {_size(whole)} to run the step, {_size(arguments)} of it for state and batch, "
    f"{_size(results + temporary)} for activations, gradients and the like"
  )


def memory_in_use(devices: Sequence[Any]) -> str | None:
  """Returns a line on the fullest of these devices; None where none says what it holds, as the CPU.

  Example: `memory_in_use(jax.local_devices())` is "memory a device after the first step: 2.10 GiB in use, 9.80 GiB at most,
    of 15.70 GiB" on a GPU.
  """
  found = [stats for device in devices if (stats := device.memory_stats())]
  if not found:
    return None
  fullest = max(found, key=lambda stats: stats.get("peak_bytes_in_use", stats["bytes_in_use"]))
  parts = [
    f"{_size(fullest[name])} {word}"
    for name, word in (("bytes_in_use", "in use"), ("peak_bytes_in_use", "at most"))
    if name in fullest
  ]
  limit = f", of {_size(fullest['bytes_limit'])}" if "bytes_limit" in fullest else ""
  return f"memory a device after the first step: {', '.join(parts)}{limit}"


def _size(count: int) -> str:
  return f"{count / _GIB:.2f} GiB" if count >= _GIB else f"{count / _MIB:.1f} MiB"


def _say(line: str | None) -> None:
  if line is not None and jax.process_index() == 0:
    tqdm.write(line)
