"""The step's program: compiled once, its memory said before it runs, the state's memory taken over by its successor."""

import re
from typing import Any

import jax
import numpy as np
import pytest

from retrieval_jax import optimizers
from retrieval_jax.compilations import Compilations
from retrieval_jax.losses import in_batch
from retrieval_jax.losses.base import DataSizes
from retrieval_jax.models.bert import BertEncoder
from retrieval_jax.models.dual_encoder import dual_encoder
from retrieval_jax.models.tower import Tower
from retrieval_jax.partitioning import Partitioner, partitioner
from retrieval_jax.records import Batch
from retrieval_jax.step_options import StepOptions
from retrieval_jax.step_program import StepProgram, memory_in_use, memory_of
from retrieval_jax.train_state import TrainState, initial_state, state_shardings
from retrieval_jax.train_step import make_train_step

Q, LENGTH = 32, 24


def built(options: StepOptions) -> tuple[Any, TrainState, Batch, Partitioner]:
  """Returns (jitted step, state, batch, partitioner) on one device."""
  encoder = BertEncoder(num_layers=1, num_heads=2, embed_dim=16, mlp_dim=64)
  model, loss = dual_encoder(Tower(encoder=encoder, vocab_size=64)), in_batch.samtone(temperature=0.1)
  transform, part = optimizers.adamw(1e-3).transform, partitioner(devices=jax.devices()[:1])

  def create() -> TrainState:
    return initial_state(jax.random.key(0), model, loss, transform, data=DataSizes(Q, Q))

  shardings = state_shardings(jax.eval_shape(create), model, part)
  tokens = np.random.default_rng(0).integers(1, 64, (2, Q, LENGTH)).astype(np.int32)
  rows = np.arange(Q, dtype=np.int32)
  batch = Batch(tokens[0], tokens[1], rows, rows, rows[:, None], np.ones(Q, np.float32))
  step = make_train_step(model, loss, transform, seed=0, options=options)
  state = jax.jit(create, out_shardings=shardings)()
  return part.jit_step(step, shardings), state, part.put_batch(batch), part


def sizes(line: str) -> list[float]:
  """Returns the numbers of a line, in MiB."""
  return [
    float(number) * {"MiB": 1, "GiB": 1024}[unit] for number, unit in re.findall(r"([\d.]+) ([MG]iB)", line)
  ]


def test_the_first_call_compiles_once_says_what_it_takes_and_gives_the_old_state_s_memory_to_the_new(capsys):
  jitted, state, batch, _ = built(StepOptions())
  step = StepProgram(jitted)
  with Compilations() as found:
    after, _ = step(state, batch)
    assert found.count == 1
    after, _ = step(after, batch)
    assert found.count == 1
  assert int(after.step) == 2
  out = capsys.readouterr().out
  assert out.count("memory a device: ") == 1  # the CPU does not say what is in use
  assert len(sizes(out)) == 3
  assert all(leaf.is_deleted() for leaf in jax.tree.leaves(state))


def test_microbatches_need_measurably_less_memory():
  whole, pieces = (
    sizes(memory_of(jitted.lower(state, batch).compile()) or "")
    for jitted, state, batch, _ in (built(StepOptions()), built(StepOptions(microbatches=8)))
  )
  assert len(whole) == len(pieces) == 3
  assert pieces[0] < 0.6 * whole[0]
  assert pieces[1] == pytest.approx(whole[1], rel=0.05)  # state and batch are what they were
  assert pieces[2] < 0.5 * whole[2]  # of the activations an eighth, of the gradients all


class Device:
  """What memory_in_use asks of a device; this machine's says nothing."""

  def __init__(self, stats: dict[str, int] | None):
    self._stats = stats

  def memory_stats(self) -> dict[str, int] | None:
    return self._stats


def test_the_fullest_device_is_named():
  gib = 2**30
  devices = [
    Device({"bytes_in_use": gib, "peak_bytes_in_use": 3 * gib, "bytes_limit": 16 * gib}),
    Device({"bytes_in_use": 2 * gib, "peak_bytes_in_use": 2 * gib, "bytes_limit": 16 * gib}),
    Device(None),
  ]
  said = "memory a device after the first step: 1.00 GiB in use, 3.00 GiB at most, of 16.00 GiB"
  assert memory_in_use(devices) == said
  assert memory_in_use([Device({"bytes_in_use": 3 * 2**20})]) == (
    "memory a device after the first step: 3.0 MiB in use"
  )
  assert memory_in_use(jax.local_devices()) is None
