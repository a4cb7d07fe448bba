"""The reader of compiled programs: bytes sent and moved, and loops counted as often as they run."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from retrieval_jax.compiled_program import collectives, hbm_bytes
from retrieval_jax.program_text import array_bytes, read

# As TPUs' compiler writes it: no note of the loop's length, groups by mesh axes, S(1) for on-chip memory.
LOOP = """HloModule jit_step, is_scheduled=true, num_partitions=8

%sum (x: f32[], y: f32[]) -> f32[] {
  %x = f32[]{:T(128)} parameter(0)
  %y = f32[]{:T(128)} parameter(1)
  ROOT %add = f32[]{:T(128)} add(%x, %y)
}

%cut (stack: f32[5,8,128], at: s32[]) -> f32[8,128] {
  %stack = f32[5,8,128]{2,1,0:T(8,128)} parameter(0)
  %at = s32[]{:T(128)} parameter(1)
  %zero = s32[] constant(0)
  %slice = f32[1,8,128]{2,1,0:T(8,128)} dynamic-slice(%stack, %at, %zero, %zero), dynamic_slice_sizes={1,8,128}
  ROOT %flat = f32[8,128]{1,0:T(8,128)} bitcast(%slice)
}

%body (carry: (s32[], f32[5,8,128], f32[8,128])) -> (s32[], f32[5,8,128], f32[8,128]) {
  %carry = (s32[]{:T(128)}, f32[5,8,128]{2,1,0:T(8,128)}, /*index=2*/f32[8,128]{1,0:T(8,128)}) parameter(0)
  %i = s32[]{:T(128)} get-tuple-element(%carry), index=0
  %all = f32[5,8,128]{2,1,0:T(8,128)} get-tuple-element(%carry), index=1
  %so_far = f32[8,128]{1,0:T(8,128)} get-tuple-element(%carry), index=2
  %one = f32[8,128]{1,0:T(8,128)S(1)} fusion(%all, %i), kind=kLoop, calls=%cut
  %reduced = f32[8,128]{1,0:T(8,128)S(1)} all-reduce(%one), channel_id=1, replica_groups=mesh['a'=4,'b'=2] {'a'}, to_apply=%sum
  %next = f32[8,128]{1,0:T(8,128)} add(%so_far, %reduced)
  ROOT %out = (s32[]{:T(128)}, f32[5,8,128]{2,1,0:T(8,128)}, f32[8,128]{1,0:T(8,128)}) tuple(%i, %all, %next)
}

%condition (carry.1: (s32[], f32[5,8,128], f32[8,128])) -> pred[] {
  %carry.1 = (s32[]{:T(128)}, f32[5,8,128]{2,1,0:T(8,128)}, f32[8,128]{1,0:T(8,128)}) parameter(0)
  %i.1 = s32[]{:T(128)} get-tuple-element(%carry.1), index=0
  %rounds = s32[]{:T(128)} constant(5)
  ROOT %less = pred[]{:T(512)} compare(%i.1, %rounds), direction=LT
}

ENTRY %main (p: (s32[], f32[5,8,128], f32[8,128])) -> f32[64,128] {
  %p = (s32[]{:T(128)}, f32[5,8,128]{2,1,0:T(8,128)}, f32[8,128]{1,0:T(8,128)}) parameter(0)
  %loop = (s32[]{:T(128)}, f32[5,8,128]{2,1,0:T(8,128)}, f32[8,128]{1,0:T(8,128)}) while(%p), condition=%condition, body=%body
  %last = f32[8,128]{1,0:T(8,128)} get-tuple-element(%loop), index=2
  ROOT %gathered = f32[64,128]{1,0:T(8,128)} all-gather(%last), channel_id=2, replica_groups=[1,8]<=[8], dimensions={0}
}
"""
ROW = 8 * 128 * 4


def test_a_collective_in_a_loop_is_sent_as_often_as_the_loop_goes_round():
  reduced, gathered = collectives(LOOP)
  assert (reduced.kind, reduced.runs, reduced.devices, reduced.in_loop) == ("all-reduce", 5, 4, True)
  assert reduced.sent == 2 * ROW * 3 / 4
  assert (gathered.kind, gathered.runs, gathered.devices, gathered.in_loop) == ("all-gather", 1, 8, False)
  assert gathered.sent == 7 * ROW


def test_memory_traffic_leaves_out_on_chip_memory_and_takes_slices_for_what_they_are():
  # Of each round: the slice is read (what is made of it stays on the chip), the sum so far read and the next one written. At the
  # end the sum is read and all of them are written.
  moved = 5 * (ROW + 2 * ROW) + ROW + 8 * ROW
  scalars = 5 * 2 * 4 + 5 * 4 * 3  # the condition's and the index
  assert moved <= hbm_bytes(read(LOOP)) <= moved + scalars


# A collective that TPUs' compiler lets go on beside other work: begun once, written into a fusion of a loop, ended once.
CHAIN = """HloModule jit_step, num_partitions=4

%step (one: f32[2,128], all: f32[8,128], x: f32[16,128]) -> (f32[16,128], f32[8,128]) {
  %one = f32[2,128]{1,0} parameter(0)
  %all = f32[8,128]{1,0} parameter(1)
  %x = f32[16,128]{1,0} parameter(2)
  %gather = f32[8,128]{1,0} all-gather(%one), channel_id=7, replica_groups=[1,4]<=[4], frontend_attributes={chain_id="0"}
  %on = f32[8,128]{1,0} custom-call(%all, %gather), custom_call_target="step"
  %double = f32[16,128]{1,0} add(%x, %x)
  ROOT %both = (f32[16,128]{1,0}, f32[8,128]{1,0}) tuple(%double, %on)
}

%body (c: (s32[], f32[2,128], f32[8,128], f32[16,128])) -> (s32[], f32[2,128], f32[8,128], f32[16,128]) {
  %c = (s32[], f32[2,128]{1,0}, f32[8,128]{1,0}, f32[16,128]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%c), index=0
  %a = f32[2,128]{1,0} get-tuple-element(%c), index=1
  %b = f32[8,128]{1,0} get-tuple-element(%c), index=2
  %d = f32[16,128]{1,0} get-tuple-element(%c), index=3
  %worked = (f32[16,128]{1,0}, f32[8,128]{1,0}) fusion(%a, %b, %d), kind=kLoop, calls=%step
  %e = f32[16,128]{1,0} get-tuple-element(%worked), index=0
  %f = f32[8,128]{1,0} get-tuple-element(%worked), index=1
  ROOT %out = (s32[], f32[2,128]{1,0}, f32[8,128]{1,0}, f32[16,128]{1,0}) tuple(%i, %a, %f, %e)
}

%condition (c.1: (s32[], f32[2,128], f32[8,128], f32[16,128])) -> pred[] {
  %c.1 = (s32[], f32[2,128]{1,0}, f32[8,128]{1,0}, f32[16,128]{1,0}) parameter(0)
  %i.1 = s32[] get-tuple-element(%c.1), index=0
  %rounds = s32[] constant(6)
  ROOT %less = pred[]{:S(1)} compare(%i.1, %rounds), direction=LT
}

%start (one.1: f32[2,128]) -> f32[8,128] {
  %one.1 = f32[2,128]{1,0} parameter(0)
  %gather.1 = f32[8,128]{1,0} all-gather(%one.1), channel_id=7, replica_groups=[1,4]<=[4], frontend_attributes={chain_id="0"}
  ROOT %begun = f32[8,128]{1,0} custom-call(%gather.1), custom_call_target="start"
}

ENTRY %main (p: (s32[], f32[2,128], f32[8,128], f32[16,128])) -> (s32[], f32[2,128], f32[8,128], f32[16,128]) {
  %p = (s32[], f32[2,128]{1,0}, f32[8,128]{1,0}, f32[16,128]{1,0}) parameter(0)
  %first = f32[2,128]{1,0} get-tuple-element(%p), index=1
  %begin = f32[8,128]{1,0} fusion(%first), kind=kCustom, calls=%start
  ROOT %loop = (s32[], f32[2,128]{1,0}, f32[8,128]{1,0}, f32[16,128]{1,0}) while(%p), condition=%condition, body=%body
}
"""


def test_a_collective_beside_other_work_is_one():
  (gather,) = collectives(CHAIN)
  assert (gather.kind, gather.runs, gather.sent) == ("all-gather", 1, 3 * 2 * 128 * 4)
  # Of the fusions only what they compute themselves moves: x is read and twice x written, six times.
  scalars = 6 * 4 * 2
  assert hbm_bytes(read(CHAIN)) == pytest.approx(6 * 2 * 16 * 128 * 4, abs=scalars)


def test_bytes_of_types():
  assert array_bytes("(bf16[2,3]{1,0}, pred[4], u32[], f8e4m3fn[10])") == 12 + 4 + 4 + 10
  assert array_bytes("(f32[8]{0:T(128)S(1)}, f32[2])", on_chip=False) == 8


def test_an_update_in_place_moves_the_update():
  def write(big, small, at):
    return jax.lax.dynamic_update_slice(big, small * 2, (at, 0))

  shapes = [
    jax.ShapeDtypeStruct(s, d)
    for s, d in (((4096, 64), jnp.float32), ((1, 64), jnp.float32), ((), jnp.int32))
  ]
  text = jax.jit(write, donate_argnums=0).lower(*shapes).compile().as_text()
  assert hbm_bytes(read(text)) < 10 * 64 * 4


def test_traffic_without_loops_is_what_xla_says():
  def layers(x, w):
    return jnp.tanh(jnp.tanh(x @ w) @ w) @ w

  shapes = [jax.ShapeDtypeStruct(s, jnp.float32) for s in ((256, 512), (512, 512))]
  compiled = jax.jit(layers).lower(*shapes).compile()
  assert hbm_bytes(read(compiled.as_text())) == pytest.approx(
    compiled.cost_analysis()["bytes accessed"], rel=0.05
  )


def test_a_scan_moves_as_much_as_its_layers_one_by_one():
  """What XLA's own analysis gets wrong."""

  def scanned(x, w):
    return jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, w)[0]

  def unrolled(x, w):
    for i in range(6):
      x = jnp.tanh(x @ w[i])
    return x

  shapes = [jax.ShapeDtypeStruct(s, jnp.float32) for s in ((256, 256), (6, 256, 256))]
  one, other = (hbm_bytes(read(jax.jit(f).lower(*shapes).compile().as_text())) for f in (scanned, unrolled))
  assert one == pytest.approx(other, rel=0.35)


def test_what_the_devices_send_is_read_from_a_real_program():
  mesh = Mesh(np.array(jax.devices()[:4]), ("data",))
  rows, whole = NamedSharding(mesh, PartitionSpec("data")), NamedSharding(mesh, PartitionSpec())
  x = jax.ShapeDtypeStruct((64, 32), jnp.float32)
  text = jax.jit(lambda x: x.T @ x, in_shardings=rows, out_shardings=whole).lower(x).compile().as_text()
  (found,) = collectives(text)
  assert (found.kind, found.devices, found.sent) == ("all-reduce", 4, 2 * 32 * 32 * 4 * 3 / 4)
