"""Every public loss has every property that the Loss interface promises."""

import functools
import importlib
import inspect
import math
import pkgutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import retrieval_jax.losses
from retrieval_jax.losses.base import DataSizes, Loss
from retrieval_jax.losses.bias import learned as learned_bias
from retrieval_jax.losses.decoupled import decoupled_softmax
from retrieval_jax.losses.distillation import distillation_kl, margin_mse
from retrieval_jax.losses.gramian import batch_gravity, sagram, sogram
from retrieval_jax.losses.gramian_prior import popularity
from retrieval_jax.losses.in_batch import in_batch_softmax, joint_softmax, pair, samtone
from retrieval_jax.losses.matryoshka import matryoshka
from retrieval_jax.losses.multi_triplet import multi_triplet
from retrieval_jax.losses.orthogonal import orthogonal
from retrieval_jax.losses.pointwise import binary_cross_entropy, squared_error
from retrieval_jax.losses.schedules import stage
from retrieval_jax.losses.sigmoid import sigmoid
from retrieval_jax.losses.softmax_terms import Options
from retrieval_jax.losses.temperature import learned
from retrieval_jax.losses.triplet import triplet
from retrieval_jax.losses.weighted_sum import weighted_sum
from retrieval_jax.records import EmbeddedBatch, Marginals
from retrieval_jax.scoring import cosine
from tests import hlo

Q, N, R, D = 16, 1, 3, 6
DATA = DataSizes(num_queries=100, num_passages=200)

# One row per variant whose computation differs; the name before the colon is the factory's.
LOSSES = {
  "in_batch_softmax": in_batch_softmax(temperature=0.1),
  "in_batch_softmax: one way": in_batch_softmax(temperature=0.1, bidirectional=False),
  "in_batch_softmax: unmasked": in_batch_softmax(temperature=0.1, mask_false_negatives=False),
  "samtone": samtone(temperature=0.1),
  "samtone: one way": samtone(temperature=0.1, bidirectional=False),
  "samtone: both sides": samtone(temperature=0.1, side="both"),
  "samtone: every option": samtone(
    temperature=learned(initial=0.1), side="both", options=Options(0.1, 0.1, 0.3, hardness=1.5)
  ),
  "samtone: in tiles": samtone(temperature=0.1, side="both", options=Options(rows_per_tile=3)),
  "pair": pair(temperature=0.1),
  "pair: as SamToNe prints it": pair(temperature=0.1, positive_in_denominator=False),
  "joint_softmax": joint_softmax(temperature=0.1),
  "distillation_kl": distillation_kl(temperature=0.5),
  "distillation_kl: learned temperature": distillation_kl(temperature=learned(initial=0.5)),
  "margin_mse": margin_mse(),
  "matryoshka": matryoshka(samtone(temperature=0.1), dims=(D, 3), weights=(1.0, 0.5)),
  "orthogonal": orthogonal(),
  "orthogonal: unmasked": orthogonal(mask_false_negatives=False),
  "triplet": triplet(hardest=3),
  "triplet: as NGAME": triplet(hardest=3, weighting="softmax_zero_logit"),
  "triplet: weighted, both towers": triplet(
    hardest=3, weighting="softmax", same_tower="both", bidirectional=True
  ),
  "triplet: all negatives": triplet(hardest=300),
  "triplet: unmasked": triplet(mask_false_negatives=False),
  "multi_triplet": multi_triplet(),
  "sigmoid": sigmoid(),
  "sigmoid: several positives": sigmoid(known_positives="positive"),
  "sigmoid: unmasked": sigmoid(known_positives="negative", temperature=0.5, bias=-1.0),
  "squared_error": squared_error(),
  "binary_cross_entropy": binary_cross_entropy(),
  "binary_cross_entropy: learned": binary_cross_entropy(
    temperature=learned(initial=0.1), bias=learned_bias(initial=0.0)
  ),
  "decoupled_softmax": decoupled_softmax(temperature=0.2),
  "decoupled_softmax: bidirectional": decoupled_softmax(temperature=learned(initial=0.2), bidirectional=True),
  "batch_gravity: gram": batch_gravity(),
  "batch_gravity: gram, in-batch": batch_gravity(batches="in_batch"),
  "sogram": sogram(),
  "sogram: cosine, two batches": sogram(score=cosine, batches="two", start="debiased"),
  "sogram: with a prior": sogram(prior=popularity(3.0), batches="in_batch"),
  "sagram": sagram(),
  "sagram: two batches, unbiased, cosine, with a prior": sagram(
    beta="unbiased", batches="two", score=cosine, prior=popularity(3.0)
  ),
  "weighted_sum": weighted_sum(
    {
      "samtone": (0.3, samtone(temperature=0.1)),
      "kl": (stage(end=10), distillation_kl(temperature=learned(initial=0.5))),
    }
  ),
}

# Of the rows that share negatives, among themselves: the others are in no pair.
OF_PAIRS = ("orthogonal", "batch_gravity", "sogram", "sagram")

every_loss = pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES.keys())


def _batch(seed=0, dtype=np.float32, q=Q):
  """Examples with hard negatives; some rows repeat, so every mask has something to hide."""
  rng = np.random.default_rng(seed)
  query_rows = rng.integers(0, 10, q)
  passage_rows = rng.integers(0, 20, q * (1 + N))
  positives = np.concatenate([passage_rows[:q, None], rng.integers(-1, 20, (q, R - 1))], axis=1)
  return EmbeddedBatch(
    query=jnp.asarray(rng.normal(size=(q, D)), dtype),
    passage=jnp.asarray(rng.normal(size=(q * (1 + N), D)), dtype),
    query_rows=query_rows.astype(np.int32),
    passage_rows=passage_rows.astype(np.int32),
    positives=positives.astype(np.int32),
    weights=rng.uniform(0.5, 1.5, q).astype(np.float32),
    targets=rng.uniform(0, 1, q).astype(np.float32),
    # -inf: the teacher did not score this pair.
    teacher_scores=np.where(
      rng.random((q, q * (1 + N))) < 0.3, -np.inf, rng.normal(size=(q, q * (1 + N)))
    ).astype(np.float32),
    marginals=Marginals(*rng.uniform(0.5, 1.5, (4, q)).astype(np.float32)),
  )


def _value_and_gradient(loss, batch):
  """Returns ((loss, metrics), gradients of (query, passage, params)), jitted."""
  params, _ = loss.init(jax.random.key(0), embed_dim=D, data=DATA)
  return _run(loss)(batch.query, batch.passage, params, batch)


def _run(loss):
  """Returns the jitted (query, passage, params, batch) -> ((loss, metrics), gradients)."""
  rng = jax.random.key(0)
  state = _state(loss)

  @jax.jit
  def run(query, passage, params, batch):
    def value(query, passage, params):
      output, _ = loss.apply(params, state, batch._replace(query=query, passage=passage), rng=rng, train=True)
      return output

    return jax.value_and_grad(lambda *x: tuple(value(*x)), (0, 1, 2), has_aux=True)(query, passage, params)

  return run


def _state(loss):
  """Returns the state in which a loss with hooks is after a step: one that has something to compare a batch with."""
  params, state = loss.init(jax.random.key(0), embed_dim=D, data=DATA)
  if loss.before is not None:
    state = loss.before(state, _batch(seed=2) if "estimation" in loss.requires else None)
  if loss.after is not None:
    _, state = loss.apply(params, state, _batch(seed=3), rng=jax.random.key(0), train=True)
    state = loss.after(state)
  return state


def _select(batch, examples):
  """Returns the batch of the given examples, their hard negatives with them."""
  passages = np.concatenate([examples, *(Q + np.asarray(examples) * N + n for n in range(N))])
  by_query = {
    name: getattr(batch, name)[examples]
    for name in ("query", "query_rows", "positives", "weights", "targets")
  }
  return batch._replace(
    **by_query,
    passage=batch.passage[passages],
    passage_rows=batch.passage_rows[passages],
    marginals=Marginals(*(x[examples] for x in batch.marginals)),
    teacher_scores=batch.teacher_scores[np.ix_(examples, passages)],
  )


def _assert_close(got, want, tolerance=1e-5):
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance), got, want)


def test_every_public_factory_has_a_row():
  """A public factory is a function that says it returns a Loss; base and softmax hold the makers of such, not losses."""
  found = set()
  for module_info in pkgutil.iter_modules(retrieval_jax.losses.__path__, "retrieval_jax.losses."):
    module = importlib.import_module(module_info.name)
    if module_info.name.endswith((".base", ".softmax")):
      continue
    for name, function in inspect.getmembers(module, inspect.isfunction):
      public = function.__module__ == module_info.name and not name.startswith("_")
      if public and inspect.signature(function).return_annotation in (Loss, "Loss"):
        found.add(name)
  assert found == {name.partition(":")[0] for name in LOSSES}


@every_loss
def test_sharded_over_8_devices_equals_1_device(loss):
  mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
  batch = _batch()
  sharded = jax.device_put(batch, NamedSharding(mesh, PartitionSpec("data")))
  assert len(sharded.query.sharding.device_set) == 8
  _assert_close(_value_and_gradient(loss, sharded), _value_and_gradient(loss, batch))


@every_loss
def test_no_device_holds_a_whole_matrix(loss):
  """On 8 devices the largest array of loss and gradient is an eighth of [q, p]; a gather would make it whole."""
  mesh, q = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,)), 128
  batch = jax.device_put(_batch(q=q), NamedSharding(mesh, PartitionSpec("data")))
  text = _run(loss).lower(
    batch.query, batch.passage, loss.init(jax.random.key(0), embed_dim=D, data=DATA)[0], batch
  )
  sizes = [math.prod(shape) for shape in hlo.arrays(text.compile().as_text())]
  assert max(sizes) <= q * q * (1 + N) // 8


@every_loss
def test_a_padded_row_is_as_if_absent(loss):
  kept, padded = np.r_[0:6, 7:Q], 6
  batch = _batch()
  passages = np.array([padded, Q + padded * N])
  poisoned = batch._replace(
    query=batch.query.at[padded].set(np.nan),
    passage=batch.passage.at[passages].set(np.inf),
    query_rows=np.where(np.arange(Q) == padded, -1, batch.query_rows),
    passage_rows=np.where(np.isin(np.arange(2 * Q), passages), -1, batch.passage_rows),
    positives=np.where((np.arange(Q) == padded)[:, None], -1, batch.positives),
    weights=np.where(np.arange(Q) == padded, 0, batch.weights).astype(np.float32),
    targets=np.where(np.arange(Q) == padded, np.nan, batch.targets).astype(np.float32),
    teacher_scores=np.where(
      (np.arange(Q) == padded)[:, None] | np.isin(np.arange(2 * Q), passages), np.nan, batch.teacher_scores
    ).astype(np.float32),
    marginals=Marginals(*(np.where(np.arange(Q) == padded, np.nan, x) for x in batch.marginals)),
  )
  got, (query, passage, params) = _value_and_gradient(loss, poisoned)
  want, (want_query, want_passage, want_params) = _value_and_gradient(loss, _select(batch, kept))
  _assert_close((got, params), (want, want_params))
  _assert_close((query[kept], passage[np.r_[kept, Q + kept]]), (want_query, want_passage))
  assert not np.any(query[padded])
  assert not np.any(passage[passages])


@every_loss
def test_weight_0_alone_makes_a_row_padding(loss):
  """The rows of a padding example are -1 by contract; that they are not must not matter."""
  kept = np.r_[0:6, 7:Q]
  batch = _batch()
  got = _value_and_gradient(
    loss, batch._replace(weights=np.where(np.arange(Q) == 6, 0, batch.weights).astype(np.float32))
  )
  _assert_close(got[0], _value_and_gradient(loss, _select(batch, kept))[0])


@every_loss
def test_a_row_without_in_batch_negatives_is_as_if_alone(loss):
  """The loss is the mean over the rows that share negatives, among themselves, and over the others, each alone."""
  batch, run = _batch(), _run(loss)
  params = loss.init(jax.random.key(0), embed_dim=D, data=DATA)[0]
  apart = np.array([1, 6, 7])

  def of(rows):
    weights = np.where(np.isin(np.arange(Q), rows), batch.weights, 0).astype(np.float32)
    (value, _), gradients = run(batch.query, batch.passage, params, batch._replace(weights=weights))
    return jax.tree.map(lambda x: weights.sum() / batch.weights.sum() * x, (value, gradients))

  groups = [np.setdiff1d(np.arange(Q), apart), *apart[:, None]]
  if any(loss is other for name, other in LOSSES.items() if name.startswith(OF_PAIRS)):
    groups = groups[:1]
  want = jax.tree.map(lambda *x: sum(x), *(of(rows) for rows in groups))
  if len(groups) == 1:
    want = jax.tree.map(lambda x: x * batch.weights.sum() / batch.weights[groups[0]].sum(), want)
  switched = batch._replace(in_batch=~np.isin(np.arange(Q), apart))
  (value, metrics), gradients = run(batch.query, batch.passage, params, switched)
  _assert_close((value, gradients), want)
  mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
  sharded = jax.device_put(switched, NamedSharding(mesh, PartitionSpec("data")))
  _assert_close(_value_and_gradient(loss, sharded), ((value, metrics), gradients))


@every_loss
def test_the_order_of_the_examples_does_not_matter(loss):
  batch, order = _batch(), np.random.default_rng(1).permutation(Q)
  got, (query, passage, params) = _value_and_gradient(loss, _select(batch, order))
  want, (want_query, want_passage, want_params) = _value_and_gradient(loss, batch)
  _assert_close((got, params), (want, want_params))
  _assert_close((query, passage), (want_query[order], want_passage[np.r_[order, Q + order]]))


@every_loss
def test_a_batch_of_padding_is_0_with_finite_gradients(loss):
  batch = _batch()._replace(
    weights=np.zeros(Q, np.float32),
    query=jnp.zeros((Q, D)),
    passage=jnp.zeros((2 * Q, D)),
    query_rows=np.full(Q, -1, np.int32),
    passage_rows=np.full(2 * Q, -1, np.int32),
    positives=np.full((Q, R), -1, np.int32),
  )
  (value, metrics), gradients = _value_and_gradient(loss, batch)
  assert float(value) == 0
  assert all(np.isfinite(x).all() for x in jax.tree.leaves((metrics, gradients)))


@every_loss
def test_bfloat16_embeddings_give_a_float32_loss(loss):
  batch = _batch(dtype=jnp.bfloat16)
  (value, metrics), (query, passage, _) = _value_and_gradient(loss, batch)
  assert value.dtype == jnp.float32
  assert all(x.dtype == jnp.float32 and x.shape == () for x in jax.tree.leaves(metrics))
  assert query.dtype == passage.dtype == jnp.bfloat16
  upcast = batch._replace(query=batch.query.astype(np.float32), passage=batch.passage.astype(np.float32))
  _assert_close((value, metrics), _value_and_gradient(loss, upcast)[0])


@every_loss
def test_state_goes_in_and_comes_out_alike(loss):
  params, state = loss.init(jax.random.key(0), embed_dim=D, data=DATA)
  _, after = jax.jit(lambda b: loss.apply(params, state, b, rng=jax.random.key(1), train=True))(_batch())
  shapes = functools.partial(jax.tree.map, lambda x: (x.shape, x.dtype))
  for new in (after, _state(loss)):
    assert jax.tree.structure(new) == jax.tree.structure(state)
    assert shapes(new) == shapes(state)
  assert loss.requires <= {*EmbeddedBatch._fields, "estimation"}
  if loss.state_axes is not None:
    numbers = jax.tree.map(lambda x, axes: len(axes), state, loss.state_axes(state))
    assert numbers == jax.tree.map(lambda x: x.ndim, state)
