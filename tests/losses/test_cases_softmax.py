"""What users of contrastive losses ran into, as cases of the softmax family (numbers: tests/cases.md)."""

import functools

import gin
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from retrieval_jax import configuration, launch, scoring
from retrieval_jax.errors import UserError
from retrieval_jax.losses.base import DataSizes
from retrieval_jax.losses.decoupled import decoupled_softmax
from retrieval_jax.losses.distillation import distillation_kl
from retrieval_jax.losses.in_batch import in_batch_softmax, joint_softmax, pair, samtone
from retrieval_jax.losses.orthogonal import orthogonal
from retrieval_jax.losses.pointwise import binary_cross_entropy
from retrieval_jax.losses.sigmoid import sigmoid
from retrieval_jax.losses.softmax_terms import Options
from retrieval_jax.losses.temperature import learned
from retrieval_jax.losses.weighted_sum import weighted_sum
from retrieval_jax.records import EmbeddedBatch

Q = np.array([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8], [0.8, 0.6]])
P = np.array([[0.8, 0.6], [0.6, 0.8], [0.0, 1.0], [1.0, 0.0]])
FAMILY = {
  "bidirectional": in_batch_softmax,
  "samtone both": lambda **k: samtone(side="both", **k),
  "pair": pair,
  "joint": joint_softmax,
}
family = pytest.mark.parametrize("make", FAMILY.values(), ids=FAMILY.keys())
# All of them in the plain form; those with every block in tiles too.
FORMS = [(name, 0) for name in FAMILY] + [("samtone both", 2), ("joint", 2)]
forms = pytest.mark.parametrize(
  ("make", "tile"), [(FAMILY[name], tile) for name, tile in FORMS], ids=[f"{n} {t}" for n, t in FORMS]
)
tiles = pytest.mark.parametrize("tile", [0, 2], ids=["plain", "tiled"])


def _batch(query=Q, passage=P, **fields):
  """Returns a batch whose rows are all distinct unless given; passages behind the queries' are hard negatives."""
  q, p = len(query), len(passage)
  passage_rows = np.asarray(fields.pop("passage_rows", np.arange(100, 100 + p)))
  given = {"query_rows": np.arange(q), "positives": passage_rows[:q, None], "weights": np.ones(q)}
  given.update({name: np.asarray(value) for name, value in fields.items()})
  given["weights"] = given["weights"].astype(np.float32)
  return EmbeddedBatch(jnp.asarray(query), jnp.asarray(passage), passage_rows=passage_rows, **given)


@functools.lru_cache
def _runner(loss):
  """Returns the jitted (query, passage, batch) -> ((value, metrics), gradients of query and passage)."""
  sizes = DataSizes(num_queries=9, num_passages=9)
  params, state = loss.init(jax.random.key(0), embed_dim=2, data=sizes)

  def value(query, passage, batch):
    moved = batch._replace(query=query, passage=passage)
    return tuple(loss.apply(params, state, moved, rng=jax.random.key(1), train=True)[0])

  return jax.jit(jax.value_and_grad(value, (0, 1), has_aux=True))


def _run(loss, batch):
  return _runner(loss)(batch.query, batch.passage, batch)


def _value(loss, batch):
  return float(_run(loss, batch)[0][0])


def _metric(loss, batch, name):
  return float(_run(loss, batch)[0][1][name])


# --- 1, 2: false negatives ----------------------------------------------------------------------------------------


@forms
def test_a_batch_that_knows_only_one_passage_has_nothing_to_learn(make, tile):
  """All four passages are one text: no term of any loss of the family pushes it away from a query."""
  batch = _batch(passage=P[[0, 0, 0, 0]], passage_rows=[5] * 4)
  options = Options(rows_per_tile=tile)
  (value, metrics), gradients = _run(make(temperature=0.05, options=options), batch)
  # The joint softmax's denominator holds the positive twice.
  assert float(value) == pytest.approx(np.log(2) if make is joint_softmax else 0, abs=1e-6)
  assert float(metrics["negatives"]) == 0
  for gradient in gradients:
    np.testing.assert_allclose(gradient, 0, atol=1e-6)


def test_a_duplicate_positive_leaves_the_other_examples_their_negatives():
  """Examples 0 and 1 share their passage; 2 and 3 still have three negatives each, 0 and 1 two."""
  batch = _batch(passage=P[[0, 0, 2, 3]], passage_rows=[5, 5, 6, 7])
  loss = in_batch_softmax(temperature=1.0, bidirectional=False)
  s = np.exp(Q @ P[[0, 0, 2, 3]].T)
  kept = np.array([[1, 0, 1, 1], [0, 1, 1, 1], [1, 1, 1, 1], [1, 1, 1, 1]])
  assert _value(loss, batch) == pytest.approx(np.mean(np.log((s * kept).sum(1) / np.diag(s))), rel=1e-6)
  assert _metric(loss, batch, "negatives") == pytest.approx((2 + 2 + 3 + 3) / 4)


@forms
def test_a_query_repeated_in_every_row_has_no_negatives(make, tile):
  """One query exploded into four rows, one for each of its four passages."""
  batch = _batch(query=Q[[0, 0, 0, 0]], query_rows=[7] * 4)
  loss = make(temperature=0.05, options=Options(rows_per_tile=tile))
  assert _value(loss, batch) == pytest.approx(np.log(2) if make is joint_softmax else 0, abs=1e-6)


def test_a_repeated_query_whose_rows_do_not_name_all_positives():
  """Rows [7, 7]: neither lists the other's passage among its positives, and still neither is a negative."""
  batch = _batch(Q[[0, 0]], P[:2], query_rows=[7, 7])
  assert _value(samtone(temperature=0.05, bidirectional=False), batch) == 0
  plain = samtone(temperature=0.05, bidirectional=False, mask_false_negatives=False)
  assert _value(plain, batch) > 4  # the logit of a query with itself is 20


# --- 4, 5: devices ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("devices", [2, 4, 8])
def test_a_sum_with_auxiliary_terms_does_not_depend_on_the_number_of_devices(devices):
  """A regulariser, a passage-centric loss and same-tower negatives: value, every term's share and gradient."""
  rng = np.random.default_rng(0)
  query, passage = (rng.normal(size=(8, 4)).astype(np.float32) for _ in range(2))
  loss = weighted_sum(
    {
      "samtone": (1.0, samtone(temperature=0.1, side="both")),
      "pair": (0.5, pair(temperature=0.1)),
      "orthogonal": (0.1, orthogonal()),
    }
  )
  batch = _batch(query, passage, query_rows=[0, 1, 2, 3, 4, 5, 6, 6], weights=[1, 1, 1, 1, 1, 2, 0.5, 1])
  mesh = jax.make_mesh((devices,), ("data",), axis_types=(AxisType.Auto,), devices=jax.devices()[:devices])
  sharded = jax.device_put(batch, NamedSharding(mesh, PartitionSpec("data")))
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5),
    _run(loss, sharded),
    _run(loss, batch),
  )


# --- 6: the scale of a loss ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [2, 4])
def test_a_second_direction_and_more_copies_of_a_batch_do_not_change_the_scale(count):
  """q = p: both directions are alike. And the loss is a mean: as large for 2 examples as for 4 of the same kind."""
  query = np.eye(count)
  one_way, both = (in_batch_softmax(temperature=1.0, bidirectional=b) for b in (False, True))
  expected = np.log(1 + (count - 1) * np.exp(-1))
  assert _value(one_way, _batch(query, query)) == pytest.approx(expected, rel=1e-6)
  assert _value(both, _batch(query, query)) == pytest.approx(expected, rel=1e-6)
  sides = [samtone(temperature=1.0, side=side) for side in ("query", "passage")]
  assert _value(sides[0], _batch(query, query)) == pytest.approx(_value(sides[1], _batch(query, query)))


def test_twice_the_weights_are_the_same_loss():
  loss = samtone(temperature=0.2)
  assert _value(loss, _batch(weights=[2] * 4)) == pytest.approx(_value(loss, _batch()), rel=1e-6)


# --- 12, 13, 14, 24: hard negatives -------------------------------------------------------------------------------


def _with_hard(counts, slots):
  """Returns the batch with counts[i] hard negatives of query i in `slots` slots; the rest are empty."""
  passages, rows = [*P], [*range(100, 104)]
  for query, count in enumerate(counts):
    for slot in range(slots):
      passages.append(Q[query] if slot < count else np.zeros(2))
      rows.append(200 + query * slots + slot if slot < count else -1)
  return _batch(passage=np.stack(passages), passage_rows=rows)


@tiles
def test_the_loss_and_its_count_grow_with_the_number_of_hard_negatives(tile):
  """Each hard negative is a column for all four queries, and the log says how many there are."""
  loss = in_batch_softmax(temperature=0.5, bidirectional=False, options=Options(rows_per_tile=tile))
  values = []
  for hard in range(4):
    batch = _with_hard([hard] * 4, slots=hard)
    values.append(_value(loss, batch))
    assert _metric(loss, batch, "negatives") == pytest.approx(3 + 4 * hard)
  assert np.all(np.diff(values) > 0.1)


@forms
def test_fewer_hard_negatives_than_slots(make, tile):
  """With all three slots of each query empty, as without any; with 3, 1, 0 and 2 of them filled, those alone count."""
  loss = make(temperature=0.5, options=Options(rows_per_tile=tile))
  none = _run(loss, _with_hard([0, 0, 0, 0], slots=3))
  plain = _run(loss, _batch())
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), none[0], plain[0])
  np.testing.assert_allclose(none[1][1][:4], plain[1][1], rtol=1e-5, atol=1e-6)
  assert not np.any(none[1][1][4:])
  batch = _with_hard([3, 1, 0, 2], slots=3)
  (value, _), (_, by_passage) = _run(loss, batch)
  assert plain[0][0] < value < np.inf
  empty = batch.passage_rows < 0
  assert not np.any(by_passage[empty])
  assert np.all(np.any(by_passage[~empty], axis=1))


@tiles
def test_own_hard_negatives_alone_make_an_example_independent_of_its_batch(tile):
  """Labels that repeat: with in_batch_negatives=False the others are no negatives, known to be wrong or not."""
  options = Options(in_batch_negatives=False, rows_per_tile=tile)
  loss = in_batch_softmax(temperature=0.5, bidirectional=False, options=options)
  hard = Q[:, ::-1]
  together = _value(loss, _batch(passage=np.concatenate([P, hard])))
  each = [_value(loss, _batch(Q[i : i + 1], np.stack([P[i], hard[i]]))) for i in range(4)]
  assert together == pytest.approx(np.mean(each), rel=1e-6)
  by_hand = [np.log(1 + np.exp((Q[i] @ hard[i] - Q[i] @ P[i]) / 0.5)) for i in range(4)]
  assert together == pytest.approx(np.mean(by_hand), rel=1e-6)


@tiles
def test_own_hard_negatives_alone_and_none_of_them(tile):
  options = Options(in_batch_negatives=False, rows_per_tile=tile)
  loss = in_batch_softmax(temperature=0.5, bidirectional=False, options=options)
  for batch in (_batch(), _with_hard([0] * 4, slots=2)):
    (value, metrics), gradients = _run(loss, batch)
    assert float(value) == float(metrics["negatives"]) == 0
    assert not any(np.any(gradient) for gradient in gradients)


@gin.configurable
def softmax_case_probe(value):
  return value


def test_in_batch_negatives_are_turned_off_by_a_macro():
  def built(name):
    files = configuration.collect((name,), [str(launch.configs_dir())])
    gin.clear_config()
    try:
      configuration.parse(files, ("IN_BATCH_NEGATIVES = False",), [str(launch.configs_dir())])
      gin.parse_config("softmax_case_probe.value = %LOSS")
      return gin.get_configurable("softmax_case_probe")()
    finally:
      gin.clear_config()

  batch = _with_hard([1, 1, 1, 0], slots=1)
  assert _metric(built("losses/in_batch_one_way.gin"), batch, "negatives") == pytest.approx(3 / 4)
  with pytest.raises(UserError, match="Use in_batch_softmax with bidirectional=False"):
    built("losses/in_batch.gin")


def test_hard_negatives_have_no_part_in_passage_to_query():
  """Both directions minus half of the one way is the way back: no hard negative moves it."""
  one_way, both = (in_batch_softmax(temperature=0.5, bidirectional=b) for b in (False, True))
  batch, plain = _with_hard([2] * 4, slots=2), _batch()

  def back(batch):
    return 2 * _value(both, batch) - _value(one_way, batch)

  assert back(batch) == pytest.approx(back(plain), rel=1e-5)
  assert _value(one_way, batch) > _value(one_way, plain) + 0.1
  by_hard = 2 * _run(both, batch)[1][1][4:] - _run(one_way, batch)[1][1][4:]
  np.testing.assert_allclose(by_hard, 0, atol=1e-6)


def test_hard_negatives_against_passages_where_that_is_asked_for():
  """The one-denominator loss sets a positive against the hard negatives of the others, not against its own."""
  loss = joint_softmax(blocks=("query_passage", "passage_passage"), temperature=0.5)
  hard = Q[:, ::-1]
  batch = _batch(passage=np.concatenate([P, hard]))
  scores, between = (
    np.exp(Q @ np.concatenate([P, hard]).T / 0.5),
    np.exp(P @ np.concatenate([P, hard]).T / 0.5),
  )
  own = np.tile(np.eye(4, dtype=bool), (1, 2))
  expected = np.log((scores.sum(1) + (between * ~own).sum(1)) / np.diag(scores))
  assert _value(loss, batch) == pytest.approx(np.mean(expected), rel=1e-6)


# --- 22: what a temperature is called -----------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0.05, learned(initial=0.05)], ids=["fixed", "learned"])
@pytest.mark.parametrize(
  "make",
  [*FAMILY.values(), decoupled_softmax, distillation_kl, sigmoid, binary_cross_entropy],
  ids=[*FAMILY, "decoupled_softmax", "distillation_kl", "sigmoid", "binary_cross_entropy"],
)
def test_the_log_has_the_temperature_and_the_scale(make, temperature):
  batch = _batch(targets=np.ones(4, np.float32), teacher_scores=np.zeros((4, 4), np.float32))
  (_, metrics), _ = _run(make(temperature=temperature), batch)
  assert float(metrics["temperature"]) == pytest.approx(0.05, rel=1e-5)
  assert float(metrics["logit_scale"]) == pytest.approx(20, rel=1e-5)


# --- 25: padding --------------------------------------------------------------------------------------------------


@forms
def test_three_examples_padded_to_eight_are_three_examples(make, tile):
  pad = 5
  three = _batch(Q[:3], P[:3])
  padded = _batch(
    np.pad(Q[:3], ((0, pad), (0, 0)), constant_values=7.0),
    np.pad(P[:3], ((0, pad), (0, 0)), constant_values=-7.0),
    query_rows=[0, 1, 2] + [-1] * pad,
    passage_rows=[100, 101, 102] + [-1] * pad,
    weights=[1] * 3 + [0] * pad,
  )
  loss = make(temperature=0.2, options=Options(rows_per_tile=tile))
  (value, metrics), gradients = _run(loss, padded)
  (want, want_metrics), want_gradients = _run(loss, three)
  np.testing.assert_allclose(value, want, rtol=1e-6)
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), metrics, want_metrics)
  for gradient, expected in zip(gradients, want_gradients, strict=True):
    np.testing.assert_allclose(gradient[:3], expected, rtol=1e-5, atol=1e-6)
    assert not np.any(gradient[3:])


# --- 27, 28, 29: numbers ------------------------------------------------------------------------------------------


@forms
def test_float16_rows_without_negatives_are_finite_and_0(make, tile):
  """In float16 a mask of -1e9 is -inf and the softmax of a fully masked row NaN; logits of scale 100 are added to it."""
  batch = _batch(Q.astype(np.float16), P.astype(np.float16), query_rows=[4] * 4)
  (value, _), gradients = _run(make(temperature=0.01, options=Options(rows_per_tile=tile)), batch)
  assert value.dtype == jnp.float32
  assert float(value) == pytest.approx(np.log(2) if make is joint_softmax else 0, abs=1e-6)
  assert all(np.isfinite(gradient).all() for gradient in gradients)


@tiles
def test_one_row_without_negatives_among_others_weighs_nothing(tile):
  """Query 0 knows every passage: its term is 0 and the mean is still over all four."""
  batch = _batch(positives=[[100, 101, 102, 103], *([r, -1, -1, -1] for r in (101, 102, 103))])
  loss = in_batch_softmax(temperature=0.5, bidirectional=False, options=Options(rows_per_tile=tile))
  s = np.exp(Q @ P.T / 0.5)
  each = np.log(s.sum(1) / np.diag(s))
  assert _value(loss, batch) == pytest.approx(each[1:].sum() / 4, rel=1e-6)


@forms
def test_one_zero_embedding_on_each_side(make, tile):
  """What an empty text may become: the loss and the gradients of all rows stay finite."""
  query = np.concatenate([np.zeros((1, 2)), Q[1:]]).astype(np.float32)
  passage = np.concatenate([P[:3], np.zeros((1, 2))]).astype(np.float32)
  found = _run(make(temperature=0.01, options=Options(rows_per_tile=tile)), _batch(query, passage))
  assert all(np.isfinite(x).all() for x in jax.tree.leaves(found))


@family
def test_zero_embeddings_and_inner_products(make):
  found = _run(make(temperature=0.01, score=scoring.dot), _batch(np.zeros((4, 2)), np.zeros((4, 2))))
  assert all(np.isfinite(x).all() for x in jax.tree.leaves(found))


@forms
def test_nan_in_an_embedding_reaches_the_loss(make, tile):
  """On either side and in a hard negative: it is never taken for a masked candidate."""
  hard = Q[:, ::-1]
  loss = make(temperature=0.5, options=Options(rows_per_tile=tile))
  for side, row in (("query", 1), ("passage", 1), ("passage", 5)):
    batch = _batch(passage=np.concatenate([P, hard]))
    spoiled = getattr(batch, side).at[row, 0].set(np.nan)
    assert np.isnan(_value(loss, batch._replace(**{side: spoiled}))), (side, row)
