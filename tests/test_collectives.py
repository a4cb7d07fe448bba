"""What the devices of a data-parallel training step send each other, read from the compiled program."""

import functools
import math

import jax
import numpy as np
import optax
import pytest

from retrieval_jax.losses.base import DataSizes, Loss
from retrieval_jax.losses.in_batch import in_batch_softmax, samtone
from retrieval_jax.losses.softmax_terms import Options
from retrieval_jax.models.dual_encoder import dual_encoder
from retrieval_jax.models.feature_bag import FeatureBagTower
from retrieval_jax.partitioning import partitioner
from retrieval_jax.records import Batch
from retrieval_jax.step_options import StepOptions
from retrieval_jax.train_state import initial_state, state_shardings
from retrieval_jax.train_step import make_train_step
from tests import hlo

Q, D, FEATURES, ROWS = 64, 16, 12, 40
# Shapes that nothing else in the program has.
PARAMETERS = ((ROWS, FEATURES), (FEATURES, D))
TILED = Options(rows_per_tile=4)
LOSSES: dict[str, Loss] = {
  "in_batch": in_batch_softmax(temperature=0.1),
  "in_batch tiled": in_batch_softmax(temperature=0.1, options=TILED),
  "samtone": samtone(temperature=0.1),
  "samtone, both sides": samtone(temperature=0.1, side="both"),
  "samtone tiled": samtone(temperature=0.1, options=TILED),
}


@functools.cache
def program(loss: str, options: StepOptions) -> str:
  """Returns the text of a step's program on 8 devices, of an SDE tower of feature bags."""
  model = dual_encoder(FeatureBagTower((("id", ROWS),), embed_dim=FEATURES, hidden_dims=(D,)))
  transform, part = optax.sgd(0.1), partitioner()
  create = functools.partial(
    initial_state, jax.random.key(0), model, LOSSES[loss], transform, data=DataSizes(Q, Q)
  )
  state = jax.eval_shape(create)
  ids = {"id": np.arange(Q, dtype=np.int32)[:, None] % ROWS}
  rows = np.arange(Q, dtype=np.int32)
  batch = Batch(ids, ids, rows, rows, rows[:, None], np.ones(Q, np.float32))
  train_step = make_train_step(model, LOSSES[loss], transform, seed=0, options=options)
  step = part.jit_step(train_step, state_shardings(state, model, part))
  return step.lower(state, batch).compile().as_text() or ""


def count(text: str, kind: str, shape: tuple[int, ...]) -> int:
  """Returns how many arrays of this shape go through collectives of this kind."""
  return sum(one.shapes.count(shape) for one in hlo.collectives(text) if one.kind == kind and one.floats)


@pytest.mark.parametrize("chunks", [1, 4])
@pytest.mark.parametrize("loss", LOSSES)
def test_embeddings_are_gathered_at_most_once_a_side_and_no_device_holds_a_matrix_of_scores(loss, chunks):
  text = program(loss, StepOptions(chunks=chunks))
  # Rows stay where they are: only the columns are gathered, which without query-query terms are the passages alone.
  assert count(text, "all-gather", (Q, D)) == (2 if "samtone" in loss else 1)
  assert max(math.prod(shape) for shape in hlo.arrays(text)) < Q * Q


@pytest.mark.parametrize("loss", LOSSES)
def test_chunks_add_no_collectives(loss):
  def kinds(chunks: int) -> list[str]:
    return sorted(
      one.kind for one in hlo.collectives(program(loss, StepOptions(chunks=chunks))) if one.floats
    )

  whole = kinds(1)
  for chunks in (2, 4):
    assert len(kinds(chunks)) <= len(whole)


@pytest.mark.parametrize("options", [StepOptions(chunks=2), StepOptions(chunks=4), StepOptions(2, 2)])
def test_each_gradient_is_summed_over_the_devices_once_and_in_no_loop(options):
  text = program("in_batch", options)
  for shape in PARAMETERS:
    assert count(text, "all-reduce", shape) == 1
  in_loops = {shape for one in hlo.collectives(text) if one.in_loop for shape in one.shapes}
  assert not in_loops & set(PARAMETERS)


@pytest.mark.parametrize("loss", LOSSES)
def test_no_collective_stands_in_the_loop_over_chunks(loss):
  reductions = [one for one in hlo.collectives(program(loss, StepOptions(chunks=4))) if one.in_loop]
  assert reductions == []


def test_collectives_in_a_loop_are_seen_as_such():
  """The reader itself: a sum over devices inside a scan's body."""
  part = partitioner()

  def total(x: jax.Array) -> jax.Array:
    return jax.lax.scan(lambda carry, row: (carry + jax.lax.psum(row, "data"), None), x[0] * 0, x)[0]

  spec = jax.sharding.PartitionSpec
  mapped = jax.shard_map(
    lambda x: total(jax.lax.pcast(x, "data", to="varying"))[None],
    mesh=part.mesh,
    in_specs=spec(),
    out_specs=spec("data"),
    axis_names={"data"},
  )
  text = jax.jit(mapped).lower(np.ones((3, 5), np.float32)).compile().as_text() or ""
  assert [(one.kind, one.shapes, one.in_loop) for one in hlo.collectives(text)] == [
    ("all-reduce", ((5,),), True)
  ]
