"""SAGram: the reference's numbers, the statements of the paper, its caches and how they lie on the devices."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from retrieval_jax import partitioning, scoring
from retrieval_jax.checkpoints import CheckpointPolicy, Checkpoints
from retrieval_jax.errors import UserError
from retrieval_jax.losses import gramian_prior, sagram_caches
from retrieval_jax.losses.base import DataSizes
from retrieval_jax.losses.gramian import sagram
from retrieval_jax.losses.gramian_state import estimates, mapped, replaced
from retrieval_jax.losses.pointwise import squared_error
from retrieval_jax.losses.weighted_sum import weighted_sum
from retrieval_jax.train_state import TrainState
from tests import hlo
from tests.gramian_batches import gravity_batch, start, step


def _close(got, want, tolerance=1e-5):
  np.testing.assert_allclose(np.asarray(got), np.asarray(want), rtol=tolerance, atol=tolerance)


def _gram(rows, weights=None):
  rows = np.asarray(rows, np.float64)
  weights = np.full(len(rows), 1 / len(rows)) if weights is None else weights
  return np.einsum("q,qd,qe->de", weights, rows, rows)


def _batch(table, rows, share, **options):
  """Returns the batch of the rows of a table on both sides."""
  share = np.asarray(share)[np.asarray(rows)]
  return gravity_batch(
    table[np.asarray(rows)],
    table[np.asarray(rows)],
    rows=rows,
    query_share=share,
    passage_share=share,
    **options,
  )


@pytest.mark.parametrize("bits, tolerance", [(32, 2e-5), (64, 1e-10)])
@pytest.mark.parametrize("variant", ["raw", "projected", "in_cone"])
def test_oracle(oracles, variant, bits, tolerance):
  """Four steps with repeated rows: the estimate, then the refresh, the sum and the cache."""
  with jax.enable_x64(bits == 64):
    r = {
      name: jnp.asarray(x, f"float{bits}") if x.dtype == np.float64 else x
      for name, x in np.load(oracles / "gramian.npz").items()
    }
    options = (
      {"beta": "in_cone"} if variant == "in_cone" else {"beta": "unbiased", "project": variant != "raw"}
    )
    loss = sagram(batches="two", **options)
    state = sagram_caches.filled(start(loss, 4), r["U"], r["U"], r["sa_w"], r["sa_w"])
    for t in range(4):
      current = (1.2 + 0.3 * t) * r["U"] + 0.5 * r["V"]
      state = loss.before(state, _batch(current, r["sa_ids_est"][t], r["sa_w"]))
      want = r["sa_beta1n"][t] if variant == "in_cone" else r["sa_beta1"][t, int(variant == "projected")]
      _close(state.estimate.query, want, tolerance)
      _close(state.estimate.passage, want, tolerance)
      _, state = loss.apply({}, state, _batch(current, r["sa_ids_upd"][t], r["sa_w"]), rng=None, train=True)
      state = loss.after(state)
      _close(state.sums.query, r["sa_S"][t], tolerance)
    _close(state.query.rows[:12], r["sa_cache"], tolerance)
    assert not np.any(state.query.rows[12:])


def test_unbiased_is_right_in_the_mean():
  """Over all draws of one row by its share, from caches that are far off and of which one row is not seen yet."""
  rng = np.random.default_rng(0)
  table, old = rng.normal(size=(2, 4, 3)).astype(np.float32)
  share = np.array([0.1, 0.2, 0.3, 0.4])
  exact = _gram(table, share)
  errors = {}
  for beta in ("unbiased", "in_cone"):
    loss = sagram(beta=beta, project=False, batches="two")
    state = sagram_caches.filled(start(loss, 3), old[:3], old[:3], share[:3], share[:3])
    drawn = [loss.before(state, _batch(table, [i], share)).estimate.query for i in range(4)]
    mean = sum(s * np.asarray(x, np.float64) for s, x in zip(share, drawn, strict=True))
    errors[beta] = np.linalg.norm(mean - exact) / np.linalg.norm(exact)
  assert errors["unbiased"] < 1e-6
  assert errors["in_cone"] > 0.1


def test_estimates_stay_in_the_cone():
  """Caches far off, small batches: "unbiased" leaves the cone, its projection and "in_cone" do not."""
  rng = np.random.default_rng(1)
  table, old = rng.normal(size=(20, 4)).astype(np.float32), 3 * rng.normal(size=(20, 4)).astype(np.float32)
  share = np.full(20, 1 / 20)
  batch, smallest, distance = _batch(table, [3, 5], share), {}, {}
  for name, options in {
    "raw": {"beta": "unbiased", "project": False},
    "projected": {"beta": "unbiased"},
    "in_cone": {"beta": "in_cone"},
  }.items():
    loss = sagram(batches="two", **options)
    state = loss.before(sagram_caches.filled(start(loss, 4), old, old, share, share), batch)
    smallest[name] = np.linalg.eigvalsh(state.estimate.query)[0]
    distance[name] = np.linalg.norm(state.estimate.query - _gram(table))
  assert smallest["raw"] < -0.5
  assert smallest["projected"] > -1e-5
  assert smallest["in_cone"] > 0
  assert distance["projected"] <= distance["raw"] + 1e-6


@pytest.mark.parametrize("batches", ["lagged", "two"])
@pytest.mark.parametrize("beta", ["in_cone", "unbiased"])
def test_a_trajectory_that_stands_still_is_known_exactly(beta, batches):
  """Once every row has been seen, repeats or not; the estimate before that is never too small to repel."""
  table = np.random.default_rng(2).normal(size=(5, 3)).astype(np.float32)
  share = np.array([0.3, 0.1, 0.2, 0.2, 0.2])
  loss = sagram(beta=beta, batches=batches)
  state = start(loss, 3)
  for rows in ([0, 1, 1], [2, 3, 0], [4, 0, 4], [1, 2, 3]):
    batch = _batch(table, rows, share)
    output, state = step(loss, state, batch, estimation=batch)
    assert float(output.loss) > 0
  _close(state.estimate.query, _gram(table, share))
  assert float(state.sums.query_share) == pytest.approx(1)
  output, _ = step(loss, state, batch, estimation=batch)
  assert float(output.metrics["cached_share_query"]) == pytest.approx(1)


def test_a_cold_cache_does_not_fold():
  """After one batch of the rows 0 and 1 of five: their Gramian at full size, by their shares; and the first step repels."""
  table = np.random.default_rng(3).normal(size=(5, 3)).astype(np.float32)
  share = np.array([0.3, 0.1, 0.2, 0.2, 0.2])
  loss = sagram()
  output, state = step(loss, start(loss, 3), _batch(table, [0, 1], share))
  _close(state.estimate.query, _gram(table[:2], [0.75, 0.25]))
  assert float(output.loss) == pytest.approx(np.mean((table[:2] @ table[:2].T) ** 2), rel=1e-5)
  assert float(output.metrics["cached_share_query"]) == 0


@pytest.mark.parametrize("cache_dtype", ["float32", "bfloat16"])
def test_the_sum_is_that_of_what_is_stored(cache_dtype):
  """With dropout one row comes with two embeddings in one batch: 200 steps of them, and S still is the caches' sum."""
  rng = np.random.default_rng(4)
  share = np.full(12, 1 / 12, np.float32)
  loss = sagram(cache_dtype=cache_dtype)

  def one(state, drawn):
    rows, values = drawn
    shares = jnp.full(6, 1 / 12)
    batch = gravity_batch(values, values, query_share=shares, passage_share=shares)
    batch = batch._replace(query_rows=rows, passage_rows=rows)
    _, state = loss.apply({}, state, batch, rng=None, train=True)
    return loss.after(state), None

  drawn = rng.integers(0, 12, (200, 6)), rng.normal(size=(200, 6, 3)).astype(np.float32)
  state, _ = jax.jit(lambda state: jax.lax.scan(one, state, drawn))(start(loss, 3))
  assert state.query.rows.dtype == cache_dtype
  _close(state.sums.query, _gram(np.asarray(state.query.rows[:12], np.float64), share), 1e-5)
  assert float(sagram_caches.drift(state)[""]) < 1e-5
  again = sagram_caches.rebuilt(state._replace(sums=jax.tree.map(lambda x: 2 * x, state.sums)))
  _close(again.sums.query, state.sums.query)
  assert float(sagram_caches.drift(again)[""]) < 1e-6


def test_the_first_of_a_row_is_kept():
  rows = jnp.array([4, 2, 4, -1, 2, 0, -1])
  assert sagram_caches.first_of_each(rows).tolist() == [True, True, False, False, False, True, False]


def test_prior_and_cosine():
  """The cross-Gramians of the cache are those of the unit vectors with the prior's factors."""
  rng = np.random.default_rng(5)
  u, v = rng.normal(size=(2, 6, 3)).astype(np.float32)
  a, b = rng.normal(size=(2, 6, 2)).astype(np.float32)
  loss = sagram(score=scoring.cosine, prior=gramian_prior.low_rank(a, b))
  state = start(loss, 3, DataSizes(6, 6))
  for _ in range(2):
    output, state = step(loss, state, gravity_batch(u, v))
  unit = [x / np.linalg.norm(x, axis=1, keepdims=True) for x in (u, v)]
  _close(state.estimate.cross_query, unit[0].T @ a / 6)
  _close(state.estimate.cross_passage, unit[1].T @ b / 6)
  assert float(output.loss) == pytest.approx(float(np.mean((unit[0] @ unit[1].T - a @ b.T) ** 2)), rel=1e-4)
  again = sagram_caches.filled(
    start(loss, 3, DataSizes(6, 6)),
    np.hstack([unit[0], a]),
    np.hstack([unit[1], b]),
    np.full(6, 1 / 6),
    np.full(6, 1 / 6),
  )
  jax.tree.map(_close, again.estimate, state.estimate)


@pytest.mark.parametrize("beta", ["in_cone", "unbiased"])
def test_microbatches_are_one_update(beta):
  rng = np.random.default_rng(6)
  table, old = rng.normal(size=(2, 8, 3)).astype(np.float32)
  share = np.full(8, 1 / 8)
  loss = sagram(beta=beta)
  _, state = step(loss, start(loss, 3), _batch(old, np.arange(8), share))
  want, after_whole = step(loss, state, _batch(table, [0, 1, 2, 3], share, weights=[1, 2, 3, 4]))
  inner, values = state, []
  for rows, weights in (([0, 1], [1, 2]), ([2, 3], [3, 4])):
    output, inner = loss.apply({}, inner, _batch(table, rows, share, weights=weights), rng=None, train=True)
    values.append(output.loss)
  _close(np.average(values, weights=[3, 7]), want.loss)
  jax.tree.map(_close, loss.after(inner), after_whole)


def test_padding_and_evaluation_leave_the_state():
  rng = np.random.default_rng(7)
  table = rng.normal(size=(8, 3)).astype(np.float32)
  batch = _batch(table, [0, 1, 2], np.full(8, 1 / 8))
  nothing = batch._replace(
    query=jnp.full((3, 3), np.nan), passage=jnp.full((3, 3), np.nan), weights=np.zeros(3, np.float32)
  )
  for loss in (sagram(), sagram(beta="unbiased", batches="two")):
    _, state = step(loss, start(loss, 3), batch, estimation=batch)
    output, after = step(loss, state, nothing, estimation=nothing)
    assert float(output.loss) == 0
    assert all(np.isfinite(x) for x in output.metrics.values())
    jax.tree.map(np.testing.assert_array_equal, after, state)
    _, after = loss.apply({}, state, batch, rng=None, train=False)
    jax.tree.map(np.testing.assert_array_equal, after, state)


def test_what_is_not_finite_is_seen_and_not_cached():
  table = np.random.default_rng(8).normal(size=(8, 3)).astype(np.float32)
  share = np.full(8, 1 / 8)
  loss = sagram()
  _, state = step(loss, start(loss, 3), _batch(table, [0, 1, 2], share))
  bad = table.copy()
  bad[1, 0] = np.nan
  output, after = step(loss, state, _batch(bad, [1, 3], share))
  assert np.isnan(output.loss)
  _close(after.query.rows[1], table[1])
  _close(after.query.rows[3], table[3])
  assert all(np.isfinite(x).all() for x in jax.tree.leaves(after))
  # A row number beyond the data: nowhere to cache it, so the sums say so.
  _, after = step(loss, state, _batch(np.ones((600, 3), np.float32), [3, 599], np.full(600, 1 / 600)))
  assert np.isnan(after.sums.query).any()


# --- on a mesh ----------------------------------------------------------------------------------------------------

DATA = DataSizes(num_queries=4000, num_passages=900)
LOSS = weighted_sum(
  {"squared": (0.5, squared_error(score=scoring.dot)), "gravity": (3.0, sagram(batches="two"))}
)


def _mesh_batch(seed):
  rng = np.random.default_rng(seed)
  rows = rng.integers(0, 900, 32)
  shares = np.full(32, 1 / 900)
  query, passage = rng.normal(size=(2, 32, 8)).astype(np.float32)
  batch = gravity_batch(query, passage, rows=rows, query_share=shares, passage_share=shares)
  return batch._replace(targets=np.ones(32, np.float32))


def _train(state, batch, estimation):
  """Returns (state, (loss, gradient)) of one step."""
  state = LOSS.before(state, estimation)

  def value(query, passage):
    output, after = LOSS.apply(
      {"squared": {}, "gravity": {}},
      state,
      batch._replace(query=query, passage=passage),
      rng=None,
      train=True,
    )
    return output.loss, after

  (loss, state), gradient = jax.value_and_grad(value, (0, 1), has_aux=True)(batch.query, batch.passage)
  return LOSS.after(state), (loss, gradient)


def _placed(devices):
  """Returns (the step as compiled for that many devices, the state's shardings)."""
  partitioner = partitioning.partitioner(devices=jax.devices()[:devices])
  abstract = jax.eval_shape(lambda: start(LOSS, 8, DATA))
  shardings = partitioner.shardings(abstract, LOSS.state_axes(abstract))
  step = jax.jit(
    partitioner.traced(_train),
    in_shardings=(shardings, partitioner.rows, partitioner.rows),
    out_shardings=(shardings, None),
    donate_argnums=0,
  )
  return step, shardings


def _run(devices):
  """Returns (the compiled step's text, state, outputs) of four steps."""
  step, shardings = _placed(devices)
  state = jax.device_put(start(LOSS, 8, DATA), shardings)
  compiled = step.lower(state, _mesh_batch(0), _mesh_batch(9)).compile()
  for seed in range(4):
    state, outputs = step(state, _mesh_batch(seed), _mesh_batch(10 + seed))
  return compiled.as_text(), state, outputs


@pytest.fixture(scope="module")
def on_8_devices():
  return _run(8)


@pytest.fixture(scope="module")
def on_1_device():
  return _run(1)


def test_8_devices_are_as_1(on_8_devices, on_1_device):
  _, state, outputs = on_8_devices
  cache = state["terms"]["gravity"].query.rows
  assert cache.shape == (4096, 8)  # 4,000 rows filled up
  assert {shard.data.shape for shard in cache.addressable_shards} == {(512, 8)}
  _, want_state, want = on_1_device
  jax.tree.map(_close, outputs, want)
  jax.tree.map(_close, state, want_state)


def test_no_device_sees_more_than_its_part_of_a_cache(on_8_devices):
  text, _, _ = on_8_devices
  shapes = hlo.arrays(text)
  assert (512, 8) in shapes
  assert not {(4096, 8), (4096,), (1024, 8), (1024,)} & shapes
  largest = max(int(np.prod(s)) for c in hlo.collectives(text) for s in c.shapes)
  assert largest <= 32 * 8  # the batch


def test_a_cache_is_written_in_place(on_8_devices, on_1_device):
  """No copy of a cache in the step: the write waits for the reads, and the donated buffer takes it."""
  for (text, _, _), shapes in (
    (on_8_devices, ("[512,8]", "[128,8]")),
    (on_1_device, ("[4096,8]", "[1024,8]")),
  ):
    lines = [line for line in text.splitlines() if any(f"f32{shape}" in line for shape in shapes)]
    assert any("scatter" in line for line in lines)
    assert not [line for line in lines if " copy(" in line]
    assert "input_output_alias" in text


def test_a_checkpoint_fits_other_numbers_of_devices(on_8_devices, tmp_path):
  _, state, _ = on_8_devices
  whole = TrainState(jnp.zeros((), jnp.int32), {}, state, {})
  with Checkpoints(tmp_path, CheckpointPolicy()) as checkpoints:
    checkpoints.save(1, whole, manifest={})
  step, shardings = _placed(2)
  abstract = jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), state, shardings)
  target = TrainState(jax.ShapeDtypeStruct((), jnp.int32), {}, abstract, {})
  with Checkpoints(tmp_path, CheckpointPolicy()) as checkpoints:
    restored, _ = checkpoints.restore_newest(target)
  jax.tree.map(np.testing.assert_array_equal, restored.loss_state, state)
  assert {s.data.shape for s in restored.loss_state["terms"]["gravity"].query.rows.addressable_shards} == {
    (2048, 8)
  }
  _close(estimates(restored.loss_state)["gravity"].query, estimates(state)["gravity"].query)
  step(restored.loss_state, _mesh_batch(4), _mesh_batch(14))


# --- mistakes -----------------------------------------------------------------------------------------------------

unchecked = inspect.unwrap(sagram)


@pytest.mark.parametrize(
  "make, message",
  [
    (lambda: unchecked(beta="1/n"), r"sagram: beta is '1/n'; expected one of \('in_cone', 'unbiased'\)"),
    (lambda: unchecked(batches="in_batch"), "sagram: batches is 'in_batch'"),
    (lambda: unchecked(cache_dtype="float16"), r"cache_dtype is 'float16'.*did you mean"),
    (lambda: unchecked(score=max), "score is 'max'; expected scoring.dot or scoring.cosine"),
    (
      lambda: sagram(batches="two").before(start(sagram(batches="two"), 2), None),
      "there was no estimation batch",
    ),
    (
      lambda: replaced(start(LOSS, 2), {"gravity": estimates(start(LOSS, 2))["gravity"]}),
      "'gravity': sagram makes its estimates from its caches",
    ),
    (
      lambda: sagram_caches.filled(
        start(sagram(), 2), np.ones((3, 3)), np.ones((3, 3)), np.ones(3), np.ones(3)
      ),
      r"query has rows of shape \(3, 3\); expected at most 512, of 2 numbers",
    ),
  ],
)
def test_refuses(make, message):
  with pytest.raises(UserError, match=message):
    make()


def test_caches_in_a_sum_are_filled_in_their_place():
  table, share = np.eye(3, dtype=np.float32), np.full(3, 1 / 3)
  state = mapped(start(LOSS, 3), lambda name, state: sagram_caches.filled(state, table, table, share, share))
  _close(estimates(state)["gravity"].query, np.eye(3) / 3)
