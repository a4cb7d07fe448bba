"""A small feature-bag model with tables, its batches, and a training of it with sparse or whole tables: what their tests share."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from numpy.testing import assert_allclose

from retrieval_jax.freezing import freeze
from retrieval_jax.losses.base import DataSizes
from retrieval_jax.losses.in_batch import in_batch_softmax
from retrieval_jax.models.dual_encoder import dual_encoder
from retrieval_jax.models.feature_bag import FeatureBagTower
from retrieval_jax.partitioning import Partitioner, partitioner
from retrieval_jax.records import Batch
from retrieval_jax.sparse_optimizers import SparseOptimizer, sparse_adagrad, sparse_sgd
from retrieval_jax.step_options import StepOptions
from retrieval_jax.table_updates import TableUpdates
from retrieval_jax.train_state import TrainState, initial_state, state_shardings
from retrieval_jax.train_step import make_train_step

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
