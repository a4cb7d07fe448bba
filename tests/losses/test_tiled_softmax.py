"""The tiled form of the softmax family against the plain one: equal values, metrics and gradients; memory and collectives."""

import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from retrieval_jax import scoring
from retrieval_jax.errors import UserError
from retrieval_jax.losses.base import DataSizes
from retrieval_jax.losses.in_batch import in_batch_softmax, joint_softmax, pair, samtone
from retrieval_jax.losses.softmax_terms import Options
from retrieval_jax.losses.temperature import learned
from retrieval_jax.partitioning import partitioner
from retrieval_jax.records import EmbeddedBatch

# name: (factory, options). Every block, every option, and options together.
VARIANTS = {
  "one way": lambda **k: in_batch_softmax(temperature=0.1, bidirectional=False, **k),
  "bidirectional": lambda **k: in_batch_softmax(temperature=0.1, **k),
  "unmasked": lambda **k: samtone(temperature=0.1, side="both", mask_false_negatives=False, **k),
  "dot": lambda **k: in_batch_softmax(temperature=2.0, score=scoring.dot, **k),
  "samtone query": lambda **k: samtone(temperature=0.1, **k),
  "samtone passage": lambda **k: samtone(temperature=0.1, side="passage", **k),
  "samtone both, learned": lambda **k: samtone(temperature=learned(initial=0.1), side="both", **k),
  "pair": lambda **k: pair(temperature=0.1, **k),
  "pair as SamToNe prints it": lambda **k: pair(temperature=0.1, positive_in_denominator=False, **k),
  "joint": lambda **k: joint_softmax(temperature=learned(initial=0.2), **k),
}
OPTIONS = {
  "no options": Options(),
  "margins": Options(logit_margin=0.2, score_margin=0.1),
  "smoothing": Options(label_smoothing=0.2),
  "hardness of all": Options(hardness=2.0),
  "hardness of hard": Options(hardness=2.0, hardness_of="hard"),
  "everything": Options(0.1, 0.1, 0.3, hardness=1.5, hardness_of="in_batch"),
}
CASES = [(variant, "no options") for variant in VARIANTS]
CASES += [(v, o) for v in ("samtone both, learned", "joint") for o in OPTIONS if o != "no options"]
cases = pytest.mark.parametrize(("variant", "options"), CASES, ids=map(" + ".join, CASES))


def _batch(q=24, n=1, d=5, dtype: type = np.float32, seed=0):
  """Examples with repeated rows, several positives, an empty hard-negative slot, padding with NaN, and uneven weights."""
  rng = np.random.default_rng(seed)
  p = q * (1 + n)
  query_rows, passage_rows = rng.integers(0, q // 2, q), rng.integers(0, q, p)
  if n:
    passage_rows[-2] = -1
  weights = rng.uniform(0.5, 1.5, q)
  query, passage = rng.normal(size=(q, d)), rng.normal(size=(p, d))
  weights[3], query_rows[3], passage_rows[[3]], query[3] = 0, -1, -1, np.nan
  return EmbeddedBatch(
    query=jnp.asarray(query, dtype),
    passage=jnp.asarray(passage, dtype),
    query_rows=jnp.asarray(query_rows, jnp.int32),
    passage_rows=jnp.asarray(passage_rows, jnp.int32),
    positives=jnp.asarray(rng.integers(-1, q, (q, 3)), jnp.int32),
    weights=jnp.asarray(weights, jnp.float32),
  )


def _run(loss, batch, partitioner=None):
  """Returns ((value, metrics), gradients of (query, passage, params)), jitted; on the partitioner's mesh if given."""
  params, state = loss.init(jax.random.key(0), embed_dim=5, data=DataSizes(9, 9))

  def value(query, passage, params, batch):
    moved = batch._replace(query=query, passage=passage)
    return tuple(loss.apply(params, state, moved, rng=None, train=True)[0])

  function = jax.value_and_grad(value, (0, 1, 2), has_aux=True)
  if partitioner is not None:
    function, batch = partitioner.traced(function), jax.device_put(batch, partitioner.rows)
  return jax.jit(function)(batch.query, batch.passage, params, batch)


def _assert_close(got, want, value=1e-6, gradient=1e-5):
  (got_value, got_metrics), got_gradients = got
  (want_value, want_metrics), want_gradients = want
  np.testing.assert_allclose(got_value, want_value, rtol=value, atol=value)
  assert got_metrics.keys() == want_metrics.keys()
  for name in want_metrics:
    np.testing.assert_allclose(got_metrics[name], want_metrics[name], rtol=1e-6, atol=1e-6, err_msg=name)
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=gradient, atol=gradient), got_gradients, want_gradients
  )


def _mesh(data, model):
  return partitioner(num_partitions=model, devices=jax.devices()[: data * model])


@cases
def test_tiled_equals_plain(variant, options):
  """Tiles of 7 rows do not divide 24: the last is filled up. In float64 the two forms differ by rounding alone."""
  make, options = VARIANTS[variant], OPTIONS[options]
  want = _run(make(options=options._replace(rows_per_tile=0)), _batch())
  _assert_close(_run(make(options=options._replace(rows_per_tile=7)), _batch()), want)
  with jax.enable_x64(True):
    batch = _batch(dtype=np.float64)
    want = _run(make(options=options._replace(rows_per_tile=0)), batch)
    _assert_close(_run(make(options=options._replace(rows_per_tile=7)), batch), want, 1e-12, 1e-10)


@cases
def test_tiled_on_8_devices_equals_plain_on_one(variant, options):
  make, options = VARIANTS[variant], OPTIONS[options]
  want = _run(make(options=options._replace(rows_per_tile=0)), _batch())
  _assert_close(_run(make(options=options._replace(rows_per_tile=2)), _batch(), _mesh(8, 1)), want)


def test_tiled_beside_a_model_axis():
  want = _run(samtone(temperature=0.1, options=Options(rows_per_tile=0)), _batch())
  got = _run(samtone(temperature=0.1, options=Options(rows_per_tile=4)), _batch(), _mesh(4, 2))
  _assert_close(got, want)


@pytest.mark.parametrize("tile", [1, 24, 100])
def test_any_tile_size_will_do(tile):
  make = VARIANTS["samtone both, learned"]
  want = _run(make(options=Options(rows_per_tile=0)), _batch(n=0))
  _assert_close(_run(make(options=Options(rows_per_tile=tile)), _batch(n=0)), want)


def test_own_hard_negatives_alone():
  def make(tile):
    options = Options(in_batch_negatives=False, rows_per_tile=tile)
    return in_batch_softmax(temperature=0.1, bidirectional=False, options=options)

  want = _run(make(0), _batch(n=2))
  _assert_close(_run(make(5), _batch(n=2)), want)
  (_, metrics), _ = want
  assert 0 < float(metrics["negatives"]) <= 2


@pytest.mark.parametrize("tile", [0, 3])
def test_tiled_zero_vectors_and_padding_alone(tile):
  batch = _batch()._replace(query=jnp.zeros((24, 5)), passage=jnp.zeros((48, 5)))
  for one in (batch, batch._replace(weights=jnp.zeros(24))):
    for make in VARIANTS.values():
      (value, metrics), gradients = _run(make(options=Options(rows_per_tile=tile)), one)
      assert all(np.isfinite(x).all() for x in jax.tree.leaves((value, metrics, gradients)))
  assert float(value) == 0


def test_the_value_alone_needs_no_gradient():
  """Not differentiated, the tiled form makes the value without the products of the gradient."""
  loss, batch = samtone(temperature=0.1, options=Options(rows_per_tile=8)), _batch()

  def value(query):
    return loss.apply({}, {}, batch._replace(query=query), rng=None, train=False)[0].loss

  assert float(jax.jit(value)(batch.query)) == pytest.approx(float(_run(loss, batch)[0][0]), rel=1e-6)
  # One sweep for the columns' totals and one for both blocks' rows.
  assert len(re.findall(r" dot_general ", str(jax.make_jaxpr(value)(batch.query)))) <= 4


# --- memory and collectives ---------------------------------------------------------------------------------------


def _compiled(loss, batch, partitioner=None):
  params, state = loss.init(jax.random.key(0), embed_dim=5, data=DataSizes(9, 9))

  def value(query, passage, batch):
    moved = batch._replace(query=query, passage=passage)
    return loss.apply(params, state, moved, rng=None, train=True)[0].loss

  function = jax.grad(value, (0, 1))
  if partitioner is not None:
    function, batch = partitioner.traced(function), jax.device_put(batch, partitioner.rows)
  return jax.jit(function).lower(batch.query, batch.passage, batch).compile()


def _shapes(text):
  for shape in re.findall(r"\b(?:f32|s32|pred)\[([\d,]+)\]", text):
    yield tuple(map(int, shape.split(",")))


def test_tiled_keeps_no_matrix_and_plain_does():
  """q = p = 512, tiles of 16: the largest array is a tile's [16, 512], or [512, 8]; of the plain form [512, 512]."""
  batch = _batch(q=512, n=0, d=8)
  sizes = {}
  for tile in (0, 16):
    loss = samtone(temperature=0.1, side="both", options=Options(rows_per_tile=tile))
    sizes[tile] = max(math.prod(shape) for shape in _shapes(_compiled(loss, batch).as_text()))
  assert sizes[0] == 512 * 512
  assert sizes[16] <= 16 * 512


def test_memory_grows_with_the_batch_and_not_with_its_square():
  def temporaries(q):
    loss = samtone(temperature=0.1, side="both", options=Options(rows_per_tile=16))
    return _compiled(loss, _batch(q=q, n=0, d=8)).memory_analysis().temp_size_in_bytes  # pyright: ignore[reportOptionalMemberAccess]

  assert temporaries(2048) < 2.5 * temporaries(1024)


def test_collectives_of_the_tiled_form():
  """Embeddings are gathered once a side and their gradients scattered once a side; all else is a vector or smaller."""
  q, n, d = 64, 1, 16
  loss = samtone(temperature=0.1, side="both", options=Options(rows_per_tile=4))
  text = _compiled(loss, _batch(q=q, n=n, d=d), _mesh(8, 1)).as_text() or ""
  found = re.findall(r"= (.*?) (all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute)\(", text)
  matrices = [(kind, shape) for shapes, kind in found for shape in _shapes(shapes) if shape[1:] == (d,)]
  assert sorted(matrices) == [
    ("all-gather", (q, d)),
    ("all-gather", (q * (1 + n), d)),
    ("reduce-scatter", (q // 8, d)),
    ("reduce-scatter", (q * (1 + n) // 8, d)),
  ]
  assert not re.search(r"while_body[^}]*(all-gather|all-reduce|reduce-scatter)", text)


# --- mistakes -----------------------------------------------------------------------------------------------------


def test_a_score_of_ones_own_has_no_tiles():
  def euclidean(query, passage):
    return -jnp.sum((query[:, None] - passage[None, :]) ** 2, axis=-1)

  with pytest.raises(UserError, match=r"rows_per_tile needs scoring.cosine or scoring.dot"):
    in_batch_softmax(score=euclidean, options=Options(rows_per_tile=8))
  (value, _), _ = _run(in_batch_softmax(score=euclidean, temperature=1.0), _batch())
  assert np.isfinite(value)


@pytest.mark.parametrize(
  ("options", "message"),
  [
    (Options(label_smoothing=1.0), r"label_smoothing is 1.0; expected a share in \[0, 1\)"),
    (Options(logit_margin=math.nan), "logit_margin is nan"),
    (Options(score_margin=math.inf), "score_margin is inf"),
    (Options(hardness=1.0, hardness_of="hrad"), r"hardness_of is 'hrad'; did you mean 'hard'\? Known"),
    (Options(rows_per_tile=-1), "rows_per_tile is -1"),
    (Options(rows_per_tile=2.5), r"rows_per_tile is 2\.5; expected a whole number"),  # pyright: ignore[reportArgumentType]  (the mistake)
    (Options(label_smoothing="x"), "label_smoothing is 'x'"),  # pyright: ignore[reportArgumentType]  (the mistake)
    (Options(in_batch_negatives=False), "Use in_batch_softmax with bidirectional=False"),
  ],
)
def test_options_out_of_range(options, message):
  with pytest.raises(UserError, match=message):
    samtone(options=options)
