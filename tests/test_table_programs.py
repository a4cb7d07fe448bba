"""Sparse training of tables as a program: in place, on any mesh, resumed, beside an estimation batch."""

import re

import jax
import jax.numpy as jnp
import pytest
from numpy.testing import assert_array_equal

from retrieval_jax.checkpoints import Checkpoints
from retrieval_jax.errors import UserError
from retrieval_jax.losses.base import Loss
from retrieval_jax.models.dual_encoder import dual_encoder
from retrieval_jax.models.feature_bag import FeatureBagTower
from retrieval_jax.partitioning import partitioner
from retrieval_jax.step_options import StepOptions
from retrieval_jax.train_state import abstract_with
from tests.bag_training import DENSE, LOSS, PLAIN, ROWS, Q, batch, close, one_device, parts, run
from tests.hlo import collectives


@pytest.fixture(scope="module")
def sparse():
  return run(one_device())


@pytest.mark.parametrize(
  "num_partitions, options",
  [(1, StepOptions()), (2, StepOptions()), (2, StepOptions(chunks=2))],
  ids=["data", "data and model", "chunks"],
)
def test_eight_devices_are_one(sparse, num_partitions, options):
  part = partitioner(num_partitions=num_partitions)
  got, metrics = run(part, options=options)
  table = got.params["model"]["token_embedder"]["id"]["embedding"]
  assert table.sharding.shard_shape(table.shape) == (ROWS["id"] // num_partitions, 4)
  slot = got.opt_state["tables"]["accumulator"]["model"]["token_embedder"]["id"]["embedding"]
  assert slot.sharding == table.sharding
  close(jax.device_get(got.params), jax.device_get(sparse[0].params), rtol=1e-4)
  close(metrics[-1], sparse[1][-1], rtol=1e-4)


@pytest.mark.parametrize("name", DENSE)
def test_a_resumed_training_is_the_same_and_goes_on_on_another_mesh(tmp_path, name):
  """With slots and without."""
  made = parts(one_device(), sparse=DENSE[name][0])
  state, _ = made.go(made.start(), range(2))
  with Checkpoints(tmp_path) as checkpoints:
    checkpoints.save(2, state, manifest={})
    checkpoints.wait()
    want, _ = made.go(state, [2])
    wider = parts(partitioner(num_partitions=2), sparse=DENSE[name][0])
    for again in (made, wider):
      target = abstract_with(jax.eval_shape(again.create), again.shardings)
      restored = checkpoints.restore_newest(target)
      assert restored is not None
      got, _ = again.go(restored[0], [2])
      if again is made:
        jax.tree.map(assert_array_equal, got, want)
      close(jax.device_get(got.params), jax.device_get(want.params), rtol=1e-4)


def test_a_checkpoint_of_whole_tables_is_of_another_optimizer(tmp_path):
  whole = parts(one_device(), sparse=None, dense=DENSE["adagrad"][1])
  made = parts(one_device())
  with Checkpoints(tmp_path) as checkpoints:
    checkpoints.save(1, whole.start(), manifest={})
    checkpoints.wait()
    target = abstract_with(jax.eval_shape(made.create), made.shardings)
    with pytest.raises(UserError, match="of another optimizer than the configured one"):
      checkpoints.restore_newest(target)


def of_estimates() -> Loss:
  """A loss that adds the score of the mean query of the batch and that of the estimation batch."""

  def before(state, estimation):
    del state
    return {"mean": jnp.mean(estimation.query, axis=0)}

  def init(rng, *, embed_dim, data):
    params, _ = LOSS.init(rng, embed_dim=embed_dim, data=data)
    return params, {"mean": jnp.zeros(embed_dim)}

  def apply(params, state, batch, *, rng, train):
    output, _ = LOSS.apply(params, {}, batch, rng=rng, train=train)
    return output._replace(loss=output.loss + jnp.mean(batch.query, axis=0) @ state["mean"]), state

  return Loss(init, apply, frozenset({"estimation"}), before=before)


def test_an_estimation_batch_sees_the_tables_before_the_step():
  """All rows of them, those that the step does not touch too."""
  ours = parts(one_device(), loss=of_estimates())
  whole = parts(one_device(), sparse=None, dense=DENSE["adagrad"][1], loss=of_estimates())
  placed = ours.part.put_batch(batch()._replace(estimation=batch(7)))
  got, want = (made.step(made.start(), placed)[0] for made in (ours, whole))
  close(got.params, want.params)
  close(got.loss_state, want.loss_state)


def compiled(rows, options, loss):
  """Returns the program of a step of a model with `rows` ids."""
  tower = FeatureBagTower((("id", rows), ("ngrams", 48)), embed_dim=4, hidden_dims=(4,), columns=(1, 4))
  made = parts(one_device(), towers=dual_encoder(tower, sharing="ade_ste"), options=options, loss=loss)
  one = batch()
  one = one._replace(estimation=batch(7) if "estimation" in loss.requires else None)
  return made.step.lower(jax.eval_shape(made.create), one).compile()


@pytest.mark.parametrize(
  "options, loss",
  [(PLAIN, LOSS), (StepOptions(max_nonfinite_steps=1), LOSS), (PLAIN, of_estimates())],
  ids=["plain", "guarded", "estimation"],
)
def test_no_table_is_copied(options, loss):
  """Of 100,000 rows more a step holds one number each more, the places, and copies none."""
  small, large = compiled(1000, options, loss), compiled(101_000, options, loss)
  made = set(re.findall(r"= f32\[101000,4\]\S* ([\w\-]+)\(", large.as_text()))
  assert "parameter" in made
  assert "copy" not in made
  assert not any(
    "= f32[101000,4]" in line and "fusion(" in line and "scatter" not in line
    for line in large.as_text().split("\n")
  )
  memory = [program.memory_analysis() for program in (small, large)]
  cost = [program.cost_analysis() for program in (small, large)]
  assert memory[0] is not None
  assert memory[1] is not None
  assert cost[0] is not None
  assert cost[1] is not None
  assert memory[1].temp_size_in_bytes - memory[0].temp_size_in_bytes <= 4 * 100_000 + 64
  assert memory[1].alias_size_in_bytes >= 2 * 101_000 * 4 * 4  # weights and accumulator
  assert cost[1]["flops"] <= cost[0]["flops"] + 100_000


@pytest.mark.parametrize("num_partitions", [1, 2])
def test_collectives_are_as_large_as_the_batch_s_rows(num_partitions):
  """Ids are gathered, rows reduced; nothing of a table's size moves."""
  made = parts(partitioner(num_partitions=num_partitions))
  program = made.step.lower(jax.eval_shape(made.create), batch()).compile()
  found = collectives(program.as_text())
  assert any(c.floats for c in found)
  touched = 1 + 3 * Q  # of ids: the padding, queries, passages and hard negatives
  whole = ROWS["id"] // num_partitions
  assert [c for c in found if c.kind == "all-reduce" and (touched, 4) in c.shapes]
  sizes = {size for c in found for shape in c.shapes for size in shape}
  assert whole not in sizes
  assert max(sizes) == touched
