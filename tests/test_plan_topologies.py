"""Topologies by name: what is valid, what is near, and one real compilation for a TPU where libtpu is there."""

import importlib.util
import math
import os

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from retrieval_jax.chips import CHIPS, GIB
from retrieval_jax.errors import UserError
from retrieval_jax.partitioning import partitioner
from retrieval_jax.planned_program import plan_program
from retrieval_jax.topologies import prepare, topology

HAS_LIBTPU = importlib.util.find_spec("libtpu") is not None or "TPU_LIBRARY_PATH" in os.environ
needs_libtpu = pytest.mark.skipif(not HAS_LIBTPU, reason="libtpu (the extra `plan`) is not installed")


def test_cpu_devices():
  found = topology("cpu:4")
  assert (found.chips, found.chip, found.hbm_bytes) == (4, None, None)
  assert found.describe() == "cpu:4: 4 CPU devices"


@pytest.mark.parametrize(
  "name, message",
  [
    ("v5:4x4", r"no generation 'v5'; did you mean .*'v5e'.* Known: v4, v5e, v5p, v6e, tpu7x, cpu"),
    ("h100:8", r"no generation 'h100'\. Known"),
    ("v5e:4x3", r"--topology=v5e:4x3: no such shape. Nearest valid ones of v5e: (2x4|4x4) or "),
    ("v5p:4x4", r"Nearest valid ones of v5p: .*2x2x4"),
    ("v5e", r"Nearest valid ones of v5e: 1x1 or 2x2"),
    ("v6e:16x32", r"Nearest valid ones of v6e: 16x16"),
    ("cpu:8x2", r"expected cpu:<number of devices>, such as cpu:8"),
    ("cpu:0", r"expected cpu:<number of devices>"),
    ("cpu:1025", r"cpu:1025: expected at most 1,024 devices"),
  ],
)
def test_a_name_that_is_none_is_told_the_nearest(name, message):
  with pytest.raises(UserError, match=message):
    prepare(name)


def test_more_cpu_devices_than_there_are():
  with pytest.raises(UserError, match="XLA_FLAGS=--xla_force_host_platform_device_count=1000"):
    topology("cpu:1000")


def test_without_libtpu_the_extra_is_named(monkeypatch):
  monkeypatch.delenv("TPU_LIBRARY_PATH", raising=False)
  monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
  with pytest.raises(UserError, match=r"pip install 'retrieval-jax\[plan\]' \(no TPU is needed\)"):
    topology("v5e:4x4")


def test_chips_are_ordered_as_their_generations():
  assert CHIPS["v5e"].flops < CHIPS["v4"].flops < CHIPS["v5p"].flops < CHIPS["v6e"].flops
  assert CHIPS["tpu7x"].hbm_bytes == 192 * GIB
  for chip in CHIPS.values():
    assert len(set(chip.shapes)) == len(chip.shapes)
    assert all(math.prod(shape) <= 9216 for shape in chip.shapes)


@needs_libtpu
@pytest.mark.parametrize(
  "name, chips, devices",
  [
    ("v4:2x2x2", 8, 8),
    ("v5e:1x1", 1, 1),
    ("v5p:4x4x4", 64, 64),
    ("v6e:16x16", 256, 256),
    ("tpu7x:2x2x1", 4, 8),
  ],
)
def test_a_slice_has_its_chips_and_their_devices(name, chips, devices):
  prepare(name)
  found = topology(name)
  assert (found.chips, len(found.devices)) == (chips, devices)


@needs_libtpu
def test_a_program_is_compiled_for_a_tpu_that_is_not_there():
  prepare("v5e:2x2")
  found = topology("v5e:2x2")
  mesh = partitioner(devices=found.devices).mesh
  rows, whole = (NamedSharding(mesh, spec) for spec in (PartitionSpec("data"), PartitionSpec()))
  x = jax.ShapeDtypeStruct((512, 256), jnp.float32)
  traced = jax.jit(lambda x: x.T @ x, in_shardings=rows, out_shardings=whole).trace(x)
  plan = plan_program(traced, found, 512 * 256 * 4 / 4)
  assert plan.fits
  assert plan.arguments == 512 * 256 * 4 / 4
  assert plan.products.flops == 2 * 512 * 256 * 256
  assert plan.collectives["all-reduce"].sent == 2 * 256 * 256 * 4 * 3 / 4
  times = plan.times(found)
  assert times is not None
  assert times.compute == plan.products.flops / 4 / 197e12
