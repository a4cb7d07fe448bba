"""Sparse training of tables: the step of the dense optimizer, in the touched rows alone, in place, on any mesh."""

import functools
import re
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from retrieval_jax import optimizers
from retrieval_jax.checkpoints import Checkpoints
from retrieval_jax.errors import UserError
from retrieval_jax.freezing import freeze
from retrieval_jax.losses.base import DataSizes, Loss, stateless
from retrieval_jax.losses.in_batch import in_batch_softmax
from retrieval_jax.models.bert import BertEncoder
from retrieval_jax.models.dual_encoder import dual_encoder
from retrieval_jax.models.feature_bag import FeatureBagTower
from retrieval_jax.models.tower import Tower
from retrieval_jax.partitioning import Partitioner, partitioner
from retrieval_jax.records import Batch, LossOutput
from retrieval_jax.sparse_optimizers import SparseOptimizer, sparse_adagrad, sparse_adam, sparse_sgd
from retrieval_jax.step_options import StepOptions
from retrieval_jax.table_updates import TableUpdates, touched_rows
from retrieval_jax.train_state import TrainState, abstract_with, initial_state, state_shardings
from retrieval_jax.train_step import make_train_step
from tests.hlo import collectives

ROWS = {
  "id": 400,
  "ngrams": 48,
  "categories": 16,
}  # of id fewer are touched than there are, of categories more
COLUMNS = (1, 4, 2)
Q, RATE, START = 16, 0.1, 0.25
STEPS = 3
PLAIN = StepOptions()


def rate(step):
  return jnp.full((), RATE)


def model(sharing="ade_ste"):
  tower = FeatureBagTower(
    tuple(ROWS.items()), embed_dim=4, hidden_dims=(6, 4), columns=COLUMNS, dtype="float32"
  )
  return dual_encoder(tower, sharing=sharing)


def items(rng, count):
  """Rows of tokens: an id, up to four n-grams, of which several occur twice, up to two categories; 0 pads."""
  columns = [rng.integers(1, 30, (count, 1)), rng.integers(0, 20, (count, 4)), rng.integers(0, 9, (count, 2))]
  return np.concatenate(columns, axis=1).astype(np.int32)


def batch(step=0, *, hard_negatives=1):
  rng = np.random.default_rng(step)
  rows = np.arange(Q, dtype=np.int32)
  passage_rows = np.arange(Q * (1 + hard_negatives), dtype=np.int32)
  tokens = items(rng, Q), items(rng, len(passage_rows))
  return Batch(*tokens, rows, passage_rows, rows[:, None], np.ones(Q, np.float32))


LOSS = in_batch_softmax(temperature=0.5)
ADAGRAD = sparse_adagrad(rate, initial_accumulator=START)


class Parts(NamedTuple):
  part: Partitioner
  create: Callable[[], TrainState]
  shardings: TrainState
  step: Callable

  def start(self) -> TrainState:
    return jax.jit(self.create, out_shardings=self.shardings)()

  def go(self, state, numbers):
    """Returns the state after the steps with these batches, and the metrics of each."""
    found = []
    for number in numbers:
      state, metrics = self.step(state, self.part.put_batch(batch(number)))
      found.append(jax.device_get(metrics))
    return state, found


def parts(
  part,
  *,
  sparse: SparseOptimizer | None = ADAGRAD,
  dense=None,
  towers=None,
  frozen=(),
  options=PLAIN,
  loss=LOSS,
):
  """Returns all that a training needs. sparse None: `dense` trains the tables, whole."""
  towers = towers or model()
  tables = None if sparse is None else TableUpdates(towers, sparse, frozen)
  transform = freeze(reference(dense), frozen, all_may_freeze=tables is not None)
  create = functools.partial(
    initial_state, jax.random.key(0), towers, loss, transform, data=DataSizes(Q, Q), tables=tables
  )
  shardings = state_shardings(jax.eval_shape(create), towers, part)
  step = make_train_step(towers, loss, transform, seed=0, frozen=frozen, options=options, tables=tables)
  return Parts(part, create, shardings, part.jit_step(step, shardings))


def run(part, *, steps=STEPS, **options):
  """Returns the state after some steps, and the metrics of each; options: of `parts`."""
  made = parts(part, **options)
  return made.go(made.start(), range(steps))


def is_table(path):
  return "embedding" in jax.tree_util.keystr(path)


def reference(tables):
  """Returns the transformation of all parameters that trains tables with `tables`, whole, and the rest with SGD; with None,
  SGD alone, for a rest without tables."""
  if tables is None:
    return optax.sgd(0.05)

  def labels(params):
    return jax.tree_util.tree_map_with_path(lambda path, _: "tables" if is_table(path) else "rest", params)

  return optax.partition({"tables": tables, "rest": optax.sgd(0.05)}, labels)


def one_device():
  return partitioner(devices=jax.devices()[:1])


def close(got, want, **tolerance):
  jax.tree.map(functools.partial(assert_allclose, **({"rtol": 2e-5, "atol": 1e-6} | tolerance)), got, want)


DENSE = {
  "adagrad": (ADAGRAD, optax.adagrad(RATE, initial_accumulator_value=START, eps=1e-10)),
  "sgd": (sparse_sgd(rate), optax.sgd(RATE)),
}


@pytest.fixture(scope="module")
def dense():
  return {name: run(one_device(), sparse=None, dense=whole) for name, (_, whole) in DENSE.items()}


@pytest.fixture(scope="module")
def sparse():
  return run(one_device())


@pytest.mark.parametrize("name", DENSE)
def test_steps_are_those_of_the_optimizer_on_whole_tables(dense, name):
  (got, got_metrics), (want, want_metrics) = run(one_device(), sparse=DENSE[name][0]), dense[name]
  close(got.params, want.params)
  for one, other in zip(got_metrics, want_metrics, strict=True):
    close(one, other)  # grad_norm too is of all parameters


def test_the_accumulator_is_the_sum_of_squares_of_each_row_s_whole_gradient(sparse, dense):
  slots = sparse[0].opt_state["tables"]["accumulator"]["model"]["token_embedder"]
  whole = [
    x for x in jax.tree.leaves(dense["adagrad"][0].opt_state) if x.shape in {(n, 4) for n in ROWS.values()}
  ]
  by_rows = {len(x): x for x in whole}
  for name, rows in ROWS.items():
    assert_allclose(slots[name]["embedding"], by_rows[rows], rtol=2e-5)


def test_rows_that_no_batch_touches_and_the_padding_keep_their_bits(sparse):
  start = run(one_device(), steps=0)[0].params["model"]["token_embedder"]
  touched: dict[str, set] = {name: set() for name in ROWS}
  for number in range(STEPS):
    for tokens in batch(number)[:2]:
      for name, ids in model().bags("query", tokens).items():
        touched[name] |= set(np.unique(ids).tolist())
  for name, rows in ROWS.items():
    after = np.asarray(sparse[0].params["model"]["token_embedder"][name]["embedding"])
    before = np.asarray(start[name]["embedding"])
    assert 0 in touched[name] or name == "id"
    moved = {row for row in range(rows) if not np.array_equal(after[row], before[row])}
    assert moved == touched[name] - {0}
    slot = np.asarray(
      sparse[0].opt_state["tables"]["accumulator"]["model"]["token_embedder"][name]["embedding"]
    )
    assert {row for row in range(rows) if (slot[row] != START).any()} <= touched[name] - {0}


def test_lazy_adam_leaves_what_the_batch_does_not_touch():
  """In a table smaller than the batch too, of which every row has a place: Adam would move a row without a gradient."""
  towers = model()
  state, _ = run(one_device(), sparse=sparse_adam(rate), steps=2)
  early = {name: set(np.unique(ids).tolist()) for name, ids in _all_bags(towers, 0).items()}
  late = {name: set(np.unique(ids).tolist()) for name, ids in _all_bags(towers, 1).items()}
  once, _ = run(one_device(), sparse=sparse_adam(rate), steps=1)
  for name in ROWS:
    after = np.asarray(state.params["model"]["token_embedder"][name]["embedding"])
    before = np.asarray(once.params["model"]["token_embedder"][name]["embedding"])
    only_early = sorted(early[name] - late[name])
    assert_array_equal(after[only_early], before[only_early])
  assert early["id"] - late["id"]


def _all_bags(towers, number):
  sides = [towers.bags("query", tokens) for tokens in batch(number)[:2]]
  return {name: np.concatenate([bags[name] for bags in sides]) for name in ROWS}


@pytest.mark.parametrize("sharing", ["sde", "ade"])
def test_one_table_or_two(sharing):
  towers = model(sharing)
  got, _ = run(one_device(), towers=towers, steps=2)
  want, _ = run(one_device(), sparse=None, dense=DENSE["adagrad"][1], towers=towers, steps=2)
  close(got.params, want.params)


@pytest.mark.parametrize(
  "options", [StepOptions(microbatches=2), StepOptions(chunks=3)], ids=["microbatches", "chunks"]
)
def test_in_pieces(options):
  got, got_metrics = run(one_device(), options=options, steps=2)
  want, want_metrics = run(one_device(), sparse=None, dense=DENSE["adagrad"][1], options=options, steps=2)
  close(got.params, want.params)
  close(got_metrics[-1], want_metrics[-1])


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


@pytest.mark.parametrize(
  "frozen, still, moving",
  [
    (("token_embedder/id/.*",), ["id"], ["ngrams", "categories"]),
    ((".*encoder/layers_.*",), [], ["id", "ngrams", "categories"]),
  ],
  ids=["a table", "all but the tables"],
)
def test_frozen_parameters(frozen, still, moving):
  got, _ = run(one_device(), frozen=frozen, steps=1)
  start, _ = run(one_device(), frozen=frozen, steps=0)
  tables = got.opt_state["tables"]["accumulator"]["model"]["token_embedder"]
  assert sorted(tables) == sorted(moving)
  for name in ROWS:
    same = jax.tree.map(np.array_equal, *(s.params["model"]["token_embedder"][name] for s in (got, start)))
    assert same["embedding"] == (name in still)
  encoders = (s.params["model"]["query_encoder"] for s in (got, start))
  assert all(jax.tree.leaves(jax.tree.map(np.array_equal, *encoders))) == (not still)


def test_a_step_that_is_not_finite_changes_nothing():
  """The rows are left alone, not whole tables selected."""

  def of_targets(embedded):
    return LossOutput(jnp.mean(embedded.query * embedded.passage[:Q] * embedded.targets[:, None]), {})

  loss = stateless(of_targets)
  towers, transform, options = model(), optax.sgd(0.05), StepOptions(max_nonfinite_steps=1)
  tables = TableUpdates(towers, ADAGRAD)
  state = initial_state(jax.random.key(0), towers, loss, transform, data=DataSizes(Q, Q), tables=tables)
  step = jax.jit(make_train_step(towers, loss, transform, seed=0, options=options, tables=tables))
  after, metrics = step(state, batch()._replace(targets=np.full(Q, np.nan, np.float32)))
  assert not np.isfinite(float(metrics["loss"]))
  assert int(after.step) == 1
  jax.tree.map(assert_array_equal, after.replace(step=0), state.replace(step=0))
  moved, _ = step(state, batch()._replace(targets=np.ones(Q, np.float32)))
  for tree, same in (
    (moved.params["model"], state.params["model"]),
    (moved.opt_state["tables"], state.opt_state["tables"]),
  ):
    assert not any(jax.tree.leaves(jax.tree.map(np.array_equal, tree, same)))


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


@pytest.mark.parametrize("sharing, parts_of", [("sde", ""), ("ade_ste", ""), ("ade", "query_")])
def test_where_a_model_has_its_tables(sharing, parts_of):
  towers = model(sharing)
  paths = towers.table_paths("query")
  assert paths == {name: (f"{parts_of}token_embedder", name, "embedding") for name in ROWS}
  assert (paths == towers.table_paths("passage")) == (not parts_of)
  resized = towers.with_table_rows({paths["id"]: 7})
  shapes = jax.eval_shape(resized.init, jax.random.key(0))
  assert shapes[f"{parts_of}token_embedder"]["id"]["embedding"].shape == (7, 4)
  assert shapes[f"{parts_of}token_embedder"]["ngrams"]["embedding"].shape == (48, 4)
  if sharing == "ade":
    assert shapes["passage_token_embedder"]["id"]["embedding"].shape == (400, 4)


def test_towers_of_text_have_none():
  towers = dual_encoder(Tower(encoder=BertEncoder(1, 2, 8, 8), vocab_size=16))
  assert towers.table_paths("query") == {}
  assert towers.bags("query", np.zeros((1, 2), np.int32)) == {}
  assert towers.with_table_rows({}) == towers


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


def test_touched_rows_of_many():
  table = jnp.arange(18.0).reshape(9, 2)
  places, rows, values = touched_rows(table, [np.array([[7, 0], [7, 3]])])
  assert places[0].tolist() == [[1, 0], [1, 4]]
  assert rows.tolist() == [9, 7, 11, 12, 3]
  assert_array_equal(values[jnp.asarray([1, 4])], table[jnp.asarray([7, 3])])


def test_touched_rows_of_a_table_smaller_than_the_batch():
  table = jnp.arange(6.0).reshape(3, 2)
  places, rows, values = touched_rows(
    table, [np.array([[2, 0]]), np.zeros((1, 0), np.int32), np.array([[2], [9]])]
  )
  assert [x.tolist() for x in places] == [[[2, 0]], [[]], [[2], [2]]]  # 9: the last row, as a lookup has it
  assert rows.tolist() == [3, 4, 2]
  assert_array_equal(values, table)


def test_a_model_without_tables():
  towers = dual_encoder(Tower(encoder=BertEncoder(1, 2, 8, 8), vocab_size=16))
  tables = TableUpdates(towers, ADAGRAD)
  with pytest.raises(UserError, match=r"a part for tables, and this model has none.*optimizers/adamw\.gin"):
    initial_state(jax.random.key(0), towers, LOSS, optax.sgd(1.0), data=DataSizes(Q, Q), tables=tables)


def test_a_model_of_which_all_tables_are_frozen():
  towers = model("ade_fte")
  tables = TableUpdates(towers, ADAGRAD, towers.frozen_paths)
  with pytest.raises(UserError, match=r"keeps every table as it is\. Freeze fewer"):
    initial_state(jax.random.key(0), towers, LOSS, optax.sgd(1.0), data=DataSizes(Q, Q), tables=tables)


def test_the_log_has_both_rates():
  both = optimizers.with_tables(optimizers.sgd(0.5), sparse_sgd(optimizers.linear(peak=0.25, total_steps=4)))
  assert both.learning_rates(2) == {"learning_rate": 0.5, "table_learning_rate": 0.125}
  assert optimizers.sgd(0.5).learning_rates(2) == {"learning_rate": 0.5}
