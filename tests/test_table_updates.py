"""Sparse training of tables: the step of the dense optimizer, in the touched rows alone."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from retrieval_jax import optimizers
from retrieval_jax.errors import UserError
from retrieval_jax.losses.base import DataSizes, stateless
from retrieval_jax.models.bert import BertEncoder
from retrieval_jax.models.dual_encoder import dual_encoder
from retrieval_jax.models.tower import Tower
from retrieval_jax.records import LossOutput
from retrieval_jax.sparse_optimizers import sparse_adam, sparse_sgd
from retrieval_jax.step_options import StepOptions
from retrieval_jax.table_updates import TableUpdates, touched_rows
from retrieval_jax.train_state import initial_state
from retrieval_jax.train_step import make_train_step
from tests.bag_training import (
  ADAGRAD,
  DENSE,
  LOSS,
  ROWS,
  START,
  STEPS,
  Q,
  batch,
  close,
  model,
  one_device,
  rate,
  run,
)


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
