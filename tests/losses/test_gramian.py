"""The gravity losses: the reference's numbers, the paper's statements, and the traps of a naive implementation."""

import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retrieval_jax import scoring
from retrieval_jax.errors import UserError
from retrieval_jax.losses import gramian_matrices, gramian_prior
from retrieval_jax.losses.gramian import batch_gravity, sogram
from retrieval_jax.losses.gramian_matrices import Gramians
from retrieval_jax.losses.gramian_state import estimates, replaced
from retrieval_jax.losses.schedules import decay
from tests.gramian_batches import estimation_of, gravity_batch, start, step

BITS = pytest.mark.parametrize("bits, tolerance", [(32, 2e-5), (64, 1e-10)])


@pytest.fixture(scope="module")
def reference(oracles):
  return dict(np.load(oracles / "gramian.npz"))


def _cast(reference, bits):
  return {
    name: jnp.asarray(x, f"float{bits}") if x.dtype == np.float64 else x for name, x in reference.items()
  }


def _close(got, want, tolerance):
  np.testing.assert_allclose(np.asarray(got), np.asarray(want), rtol=tolerance, atol=tolerance)


def _exact(r, *, prior=False):
  return Gramians(r["Gu"], r["Gv"], *((r["Hu"], r["Hv"]) if prior else ()))


# --- matrices -----------------------------------------------------------------------------------------------------


@BITS
def test_oracle_of_the_matrices(reference, bits, tolerance):
  """Gramians, gravity in both forms (plain, prior, weighted), and its gradients through both sides."""
  with jax.enable_x64(bits == 64):
    r = _cast(reference, bits)
    m = gramian_matrices
    _close(m.gram(r["U"]), r["Gu"], tolerance)
    _close(m.gram(r["V"]), r["Gv"], tolerance)
    _close(m.cross_gram(r["U"], r["Q"]), r["Hu"], tolerance)
    _close(m.cross_gram(r["V"], r["R"]), r["Hv"], tolerance)
    ones = jnp.ones(12, r["U"].dtype)
    constant = gramian_prior.mean_square((r["Q"], r["R"]), ones / 12, ones / 12)
    _close(constant, r["prior_const"], tolerance)

    def plain(u, v):
      return m.gravity(Gramians(m.gram(u), m.gram(v)))

    def prior(u, v):
      return m.gravity(
        Gramians(m.gram(u), m.gram(v), m.cross_gram(u, r["Q"]), m.cross_gram(v, r["R"])), constant
      )

    for function, value, gradient in ((plain, "g", "grad_g"), (prior, "g_prior", "grad_gP")):
      got, (of_u, of_v) = jax.value_and_grad(function, (0, 1))(r["U"], r["V"])
      _close(got, r[value], tolerance)
      _close(of_u, r[f"{gradient}_U"], tolerance)
      _close(of_v, r[f"{gradient}_V"], tolerance)
    weighted = Gramians(m.gram(r["U"], r["mu"]), m.gram(r["V"], r["nu"]))
    _close(m.gravity(weighted), r["g_weighted"], tolerance)
    _close(m.double_sum(r["U"], r["V"], ones, ones), r["g"], tolerance)
    _close(m.double_sum(r["U"], r["V"], ones, ones, r["Q"] @ r["R"].T), r["g_prior"], tolerance)
    _close(m.double_sum(r["U"], r["V"], r["mu"], r["nu"]), r["g_weighted"], tolerance)
    projected = m.in_cone(r["psd_in"])
    _close(projected, r["psd_out"], tolerance)
    _close(m.in_cone(projected), projected, tolerance)  # what is in the cone stays


def test_the_two_forms_agree_on_sides_of_different_sizes():
  rng = np.random.default_rng(0)
  u, v = rng.normal(size=(7, 3)).astype(np.float32), rng.normal(size=(5, 3)).astype(np.float32)
  w, z = rng.uniform(size=7).astype(np.float32), rng.uniform(size=5).astype(np.float32)
  by_gramians = gramian_matrices.gravity(Gramians(gramian_matrices.gram(u, w), gramian_matrices.gram(v, z)))
  _close(by_gramians, gramian_matrices.double_sum(u, v, w, z), 1e-6)


def test_matrices_by_hand():
  rows = jnp.array([[1.0, 2.0], [3.0, 0.0], [np.nan, np.inf]])
  weights, mass = jnp.array([1.0, 3.0, 0.0]), jnp.array([2.0, 0.5, np.nan])
  # (1 [[1, 2], [2, 4]] + 3 [[9, 0], [0, 0]]) / 4; the masses 2 and .5 leave the denominator 4.
  _close(gramian_matrices.gram(rows, weights), [[28 / 4, 2 / 4], [2 / 4, 4 / 4]], 1e-6)
  _close(gramian_matrices.gram(rows, weights, mass), [[(2 + 13.5) / 4, 4 / 4], [4 / 4, 8 / 4]], 1e-6)
  assert not np.any(gramian_matrices.gram(rows, jnp.zeros(3)))
  diagonal = jnp.diag(jnp.array([1.0, 1.0, 0.0]))
  assert float(gramian_matrices.effective_rank(diagonal)) == pytest.approx(2)
  assert float(gramian_matrices.effective_rank(0 * diagonal)) == 0
  assert float(gramian_matrices.relative_distance(3 * diagonal, diagonal)) == pytest.approx(2)
  _close(gramian_matrices.in_cone(jnp.diag(jnp.array([2.0, -1.0]))), [[2, 0], [0, 0]], 1e-6)
  assert not np.any(jax.grad(lambda x: jnp.sum(gramian_matrices.in_cone(x)))(diagonal))  # equal eigenvalues


def test_a_bfloat16_embedding_gives_a_float32_gramian():
  rows = np.random.default_rng(1).normal(size=(200, 3))
  got = gramian_matrices.gram(jnp.asarray(rows, jnp.bfloat16))
  exact = np.asarray(jnp.asarray(rows, jnp.bfloat16), np.float64)
  assert got.dtype == jnp.float32
  _close(got, exact.T @ exact / 200, 1e-6)


# --- the loss against an estimate ---------------------------------------------------------------------------------


def _value_and_gradient(loss, state, batch, *, train=True):
  def value(query, passage):
    return loss.apply({}, state, batch._replace(query=query, passage=passage), rng=None, train=train)[0].loss

  value, gradients = jax.value_and_grad(value, (0, 1))(batch.query, batch.passage)
  return float(value), gradients


@BITS
def test_oracle_of_the_loss_at_exact_gramians(reference, bits, tolerance):
  """The paper's gradient without its 1/2, the value g and not 2 g; with the prior; and beside the squared loss."""
  with jax.enable_x64(bits == 64):
    r = _cast(reference, bits)
    prior = gramian_prior.low_rank(np.asarray(r["Q"]), np.asarray(r["R"]))
    batch = gravity_batch(r["U"], r["V"])
    for given_prior, value, gradient in ((None, "g", "grad_g"), (prior, "g_prior", "grad_gP")):
      loss = sogram(prior=given_prior)
      state = replaced(start(loss, 4), {"": _exact(r, prior=given_prior is not None)})
      got, (of_u, of_v) = _value_and_gradient(loss, state, batch)
      assert got == pytest.approx(float(r[value]), rel=tolerance)
      _close(of_u, r[f"{gradient}_U"], tolerance)
      _close(of_v, r[f"{gradient}_V"], tolerance)
    state = replaced(start(sogram(), 4), {"": _exact(r)})

    def objective(u, v):
      squared = 0.5 * jnp.mean((jnp.sum(u * v, axis=1) - 1) ** 2)
      gravity = sogram().apply({}, state, gravity_batch(u, v), rng=None, train=True)[0].loss
      return squared + r["lam"] * gravity

    got, (of_u, of_v) = jax.value_and_grad(objective, (0, 1))(r["U"], r["V"])
    _close(got, r["loss"], tolerance)
    _close(of_u, r["grad_loss_U"], tolerance)
    _close(of_v, r["grad_loss_V"], tolerance)
    masses = {"query_mass": r["mu"] / jnp.mean(r["mu"]), "passage_mass": r["nu"] / jnp.mean(r["nu"])}
    weighted = gravity_batch(r["U"], r["V"], **masses)
    loss = batch_gravity(batches="in_batch")
    got, _ = _value_and_gradient(loss, start(loss, 4), weighted)
    assert got == pytest.approx(float(r["g_weighted"]), rel=tolerance)


def test_swapped_gramians_are_another_gravity(reference):
  """The towers are not symmetric: <u, G_query u> in place of <u, G_passage u> would give another value and gradient."""
  r = _cast(reference, 32)
  batch, loss = gravity_batch(r["U"], r["V"]), sogram()
  right = replaced(start(loss, 4), {"": Gramians(r["Gu"], r["Gv"])})
  wrong = replaced(start(loss, 4), {"": Gramians(r["Gv"], r["Gu"])})
  value, (of_u, _) = _value_and_gradient(loss, right, batch)
  other, (other_u, _) = _value_and_gradient(loss, wrong, batch)
  assert abs(other / value - 1) > 0.02
  assert np.linalg.norm(other_u - of_u) > 0.02 * np.linalg.norm(of_u)


def test_the_gradient_is_the_mean_of_the_examples(reference):
  """Proposition 1: with the estimate fixed, learning from one example drawn at random is right in the mean."""
  r, loss = _cast(reference, 32), sogram()
  state = replaced(start(loss, 4), {"": _exact(r)})
  single = [
    _value_and_gradient(loss, state, gravity_batch(r["U"][i : i + 1], r["V"][i : i + 1])) for i in range(12)
  ]
  _close([of_u[0] for _, (of_u, _) in single], 12 * r["grad_g_U"], 2e-5)
  assert np.mean([value for value, _ in single]) == pytest.approx(float(r["g"]), rel=2e-5)


def test_in_batch_sampling_has_the_stated_bias():
  """The exact mean over all 4^3 batches of 3 of 4 pairs; the two-batch form has none."""
  rng = np.random.default_rng(3)
  u, v = rng.normal(size=(2, 4, 2)).astype(np.float32)
  draws = np.stack(np.meshgrid(*[np.arange(4)] * 3), -1).reshape(-1, 3)
  g = float(np.mean((u @ v.T) ** 2))
  loss = batch_gravity(batches="in_batch")
  of_draw = jax.vmap(
    lambda rows: loss.apply({}, start(loss, 2), gravity_batch(u[rows], v[rows]), rng=None, train=True)[0].loss
  )
  u, v = jnp.asarray(u), jnp.asarray(v)
  own = float(jnp.mean(jnp.sum(u * v, axis=1) ** 2))
  assert float(jnp.mean(of_draw(draws))) == pytest.approx((1 - 1 / 3) * g + 1 / 3 * own, rel=1e-5)
  two = batch_gravity()

  def against(estimation):
    state = two.before(start(two, 2), estimation_of(u[estimation], v[estimation]))
    return jax.vmap(
      lambda rows: two.apply({}, state, gravity_batch(u[rows], v[rows]), rng=None, train=True)[0].loss
    )(draws)

  assert float(jnp.mean(jax.vmap(against)(draws))) == pytest.approx(g, rel=1e-5)


def test_gravity_in_batch_is_the_gradient_through_both_gramians():
  rng = np.random.default_rng(4)
  u, v = jnp.asarray(rng.normal(size=(2, 6, 3)), jnp.float32)
  loss = batch_gravity(batches="in_batch")
  got, gradients = _value_and_gradient(loss, start(loss, 3), gravity_batch(u, v))
  want, through = jax.value_and_grad(
    lambda u, v: gramian_matrices.gravity(Gramians(gramian_matrices.gram(u), gramian_matrices.gram(v))),
    (0, 1),
  )(u, v)
  assert got == pytest.approx(float(want), rel=1e-6)
  _close(gradients[0], through[0], 1e-6)
  _close(gradients[1], through[1], 1e-6)


def test_the_mean_of_local_gravities_is_not_the_gravity():
  """What averaging the losses of 4 shards in place of their Gramians would give."""
  rng = np.random.default_rng(5)
  u = jnp.asarray(rng.normal(size=(40, 8)), jnp.float32)
  v = u + 0.3 * jnp.asarray(rng.normal(size=(40, 8)), jnp.float32)
  loss = batch_gravity(batches="in_batch")

  def of(rows):
    return _value_and_gradient(loss, start(loss, 8), gravity_batch(u[rows], v[rows]))[0]

  whole = of(np.arange(40))
  local = np.mean([of(rows) for rows in np.arange(40).reshape(4, 10)])
  assert local > 1.05 * whole
  assert whole == pytest.approx(float(np.mean((np.asarray(u) @ np.asarray(v).T) ** 2)), rel=1e-5)


def test_masses_make_the_gravity_that_of_another_distribution():
  """Rows drawn by frequency with masses rho / w: in the mean the uniform gravity over the 3 different passages."""
  frequency = np.array([0.5, 0.25, 0.25])
  rng = np.random.default_rng(6)
  u, v = rng.normal(size=(2, 3, 2)).astype(np.float32)
  rows = np.array([0, 0, 1, 2])  # as often as they are drawn
  mass = ((1 / 3) / frequency)[rows]
  loss = sogram(alpha=1.0, start="zero")
  _, state = step(loss, start(loss, 2), gravity_batch(u[rows], v[rows], passage_mass=mass))
  _close(state.estimate.passage, np.mean([np.outer(x, x) for x in v], axis=0), 1e-6)
  _close(state.estimate.query, np.mean([np.outer(x, x) for x in u[rows]], axis=0), 1e-6)
  value, _ = _value_and_gradient(loss, state, gravity_batch(u[rows], v[rows], passage_mass=mass))
  assert value == pytest.approx(float(np.mean((u[rows] @ v.T) ** 2)), rel=1e-5)


def test_priors_by_hand(tmp_path):
  """Factors whose product is .5; 10 w_j, with w = share / mass; and rows of given tables, as arrays and files."""
  batch = gravity_batch(
    np.ones((2, 1)), np.ones((2, 1)), rows=[2, 0], passage_share=[0.2, 0.3], passage_mass=[2.0, 0.0]
  )
  a, b = gramian_prior.constant(0.5).factors(batch)
  _close(a @ b.T, np.full((2, 2), 0.5), 1e-6)
  a, b = gramian_prior.popularity(10.0).factors(batch)
  _close(a @ b.T, [[1, 0], [1, 0]], 1e-6)
  query, passage = np.arange(6.0).reshape(3, 2), np.arange(8.0).reshape(4, 2)
  np.save(tmp_path / "query.npy", query)
  for form in (query, tmp_path / "query.npy", str(tmp_path / "query.npy")):
    a, b = gramian_prior.low_rank(form, passage).factors(batch)
    _close(a @ b.T, query[[2, 0]] @ passage[[2, 0]].T, 1e-6)
  beyond = batch._replace(query_rows=np.array([3, 0]))
  assert np.isnan(gramian_prior.low_rank(query, passage).factors(beyond)[0][0]).all()


def test_cosine_gravity_is_of_unit_vectors():
  rng = np.random.default_rng(7)
  u, v = rng.normal(size=(2, 5, 3)).astype(np.float32)
  loss = batch_gravity(batches="in_batch", score=scoring.cosine)
  value, (of_u, _) = _value_and_gradient(loss, start(loss, 3), gravity_batch(u, 10 * v))
  unit = [x / np.linalg.norm(x, axis=1, keepdims=True) for x in (u, v)]
  assert value == pytest.approx(float(np.mean((unit[0] @ unit[1].T) ** 2)), rel=1e-5)
  _close(np.sum(of_u * u, axis=1), np.zeros(5), 1e-6)  # lengths get no gradient


# --- SOGram -------------------------------------------------------------------------------------------------------


@BITS
def test_oracle_of_sogram(reference, bits, tolerance):
  with jax.enable_x64(bits == 64):
    r = _cast(reference, bits)
    alpha = float(r["so_alpha"])
    for batches in ("lagged", "two"):
      loss = sogram(alpha=alpha, start="zero", batches=batches)
      state = start(loss, 4)
      for t, rows in enumerate(r["so_ids"]):
        batch = gravity_batch((1 + 0.1 * t) * r["U"][rows], r["V"][rows])
        _, state = step(loss, state, batch, estimation=batch)
        _close(state.estimate.query, r["so_trace"][t], tolerance)
        assert int(state.step) == t + 1
      assert float(state.mass) == pytest.approx(float(r["so_mass"]), rel=tolerance)


@settings(max_examples=20, deadline=None)
@given(
  st.lists(st.floats(0.01, 1.0), min_size=1, max_size=6),
  st.sampled_from(["harmonic", "debiased", "zero"]),
)
def test_closed_form_of_the_average(alphas, how):
  """The weight of batch s after t steps is alpha_s prod_(r > s) (1 - alpha_r), over the weights' sum if debiased."""
  table = jnp.asarray(alphas, jnp.float32)
  loss = inspect.unwrap(sogram)(alpha=lambda step: table[step], start=how)
  rng = np.random.default_rng(len(alphas))
  rows = rng.normal(size=(len(alphas), 2, 2)).astype(np.float32)
  state = start(loss, 2)
  for one in rows:
    _, state = step(loss, state, gravity_batch(one, one))
  used = [max(a, 1 / (t + 1)) for t, a in enumerate(alphas)] if how == "harmonic" else alphas
  weights = np.array([a * np.prod([1 - b for b in used[s + 1 :]]) for s, a in enumerate(used)])
  if how == "debiased":
    weights /= weights.sum()
  want = sum(w * x.T @ x / 2 for w, x in zip(weights, rows, strict=True))
  _close(state.estimate.query, want, 1e-4)
  assert float(state.mass) == pytest.approx(1 - np.prod([1 - a for a in used]), rel=1e-4)


def test_the_harmonic_start_is_the_mean_of_the_first_batches():
  loss = sogram(alpha=0.2)
  state, rows = start(loss, 2), np.random.default_rng(8).normal(size=(4, 3, 2)).astype(np.float32)
  for t, one in enumerate(rows):
    _, state = step(loss, state, gravity_batch(one, one))
    assert float(state.alpha) == pytest.approx(1 / (t + 1))
  _close(state.estimate.query, np.mean([x.T @ x / 3 for x in rows], axis=0), 1e-6)


def test_the_error_of_the_average_is_as_proposition_5_says():
  """On a trajectory that stands still: sigma^2 alpha / (2 - alpha) / |B|, here over 2,000 steps of batches of 8."""
  rng = np.random.default_rng(9)
  table = rng.normal(size=(50, 4)).astype(np.float32)
  exact = table.T @ table / 50
  variance = np.mean([np.sum((np.outer(x, x) - exact) ** 2) for x in table])
  loss = sogram(alpha=0.1)

  def one(state, rows):
    batch = gravity_batch(jnp.asarray(table)[rows], jnp.asarray(table)[rows])
    _, state = loss.apply({}, state, batch, rng=None, train=True)
    state = loss.after(state)
    return state, jnp.sum((state.estimate.query - exact) ** 2)

  _, errors = jax.lax.scan(one, start(loss, 4), rng.integers(0, 50, (2000, 8)))
  assert float(jnp.mean(errors[100:])) == pytest.approx(variance * 0.1 / 1.9 / 8, rel=0.15)


def test_lagged_learns_from_the_past_and_in_batch_from_itself():
  rng = np.random.default_rng(10)
  first, second = rng.normal(size=(2, 5, 3)).astype(np.float32)
  batches = gravity_batch(first, first), gravity_batch(second, second)
  values = {}
  for how in ("lagged", "in_batch", "two"):
    loss = sogram(alpha=0.25, start="zero", batches=how)
    _, state = step(loss, start(loss, 3), batches[0], estimation=batches[0])
    output, after = step(loss, state, batches[1], estimation=batches[0])
    values[how] = float(output.loss)
    assert int(after.step) == 2
  grams = [x.T @ x / 5 for x in (first, second)]
  want = {
    "lagged": 0.25 * np.sum(grams[1] * grams[0]),
    "in_batch": np.sum(grams[1] * (0.75 * 0.25 * grams[0] + 0.25 * grams[1])),
    "two": np.sum(grams[1] * (0.75 * 0.25 + 0.25) * grams[0]),
  }
  assert values == pytest.approx({name: float(x) for name, x in want.items()}, rel=1e-5)


def test_no_gradient_flows_through_the_estimate():
  """Of u_i it is (2 / q) G_passage u_i with the average held fixed, although the batch has just joined it."""
  rng = np.random.default_rng(17)
  u, v = rng.normal(size=(2, 5, 3)).astype(np.float32)
  loss = sogram(alpha=0.25, start="zero", batches="in_batch")
  state = replaced(start(loss, 3), {"": Gramians(jnp.eye(3), jnp.eye(3))})
  _, (of_u, of_v) = _value_and_gradient(loss, state, gravity_batch(u, v))
  _close(of_u, 2 / 5 * u @ (0.75 * np.eye(3) + 0.25 * v.T @ v / 5), 1e-5)
  _close(of_v, 2 / 5 * v @ (0.75 * np.eye(3) + 0.25 * u.T @ u / 5), 1e-5)


def test_the_first_step_repels():
  """Without an estimate the batch's own Gramians stand in; the paper's start has no repulsion."""
  u = np.random.default_rng(11).normal(size=(5, 3)).astype(np.float32)
  for how in ("harmonic", "debiased"):
    loss = sogram(alpha=0.01, start=how)
    got, _ = _value_and_gradient(loss, start(loss, 3), gravity_batch(u, u))
    assert got == pytest.approx(float(np.mean((u @ u.T) ** 2)), rel=1e-5)
  loss = sogram(alpha=0.01, start="zero")
  assert _value_and_gradient(loss, start(loss, 3), gravity_batch(u, u))[0] == 0


def test_a_small_alpha_keeps_its_digits():
  """2,000 steps of alpha .001 from 0 towards 1: 1 - (1 - alpha)^2000 = .865; in bfloat16 it would stop at .5."""
  loss = sogram(alpha=0.001, start="zero")
  batch = gravity_batch(jnp.ones((2, 1), jnp.bfloat16), jnp.ones((2, 1), jnp.bfloat16))

  def one(state, _):
    return loss.after(loss.apply({}, state, batch, rng=None, train=True)[1]), None

  state, _ = jax.lax.scan(one, start(loss, 1), None, length=2000)
  assert state.estimate.query.dtype == jnp.float32
  assert float(state.estimate.query[0, 0]) == pytest.approx(1 - 0.999**2000, rel=1e-4)


def test_duplicates_count_as_often_as_they_are_drawn():
  u = np.random.default_rng(12).normal(size=(2, 3)).astype(np.float32)
  loss = sogram()
  rows = [0, 0, 0, 1]
  _, state = step(loss, start(loss, 3), gravity_batch(u[rows], u[rows], rows=rows))
  _close(state.estimate.query, 0.75 * np.outer(u[0], u[0]) + 0.25 * np.outer(u[1], u[1]), 1e-6)


def test_a_measured_start_is_kept():
  """Its next batch counts alpha, not all as the first of a running mean would."""
  for how in ("harmonic", "debiased", "zero"):
    loss = sogram(alpha=0.1, start=how)
    measured = Gramians(jnp.eye(2), 2 * jnp.eye(2))
    state = jax.jit(lambda state, measured=measured: replaced(state, {"": measured}))(start(loss, 2))
    assert jax.tree.structure(state) == jax.tree.structure(start(loss, 2))
    u = np.ones((1, 2), np.float32)
    output, state = step(loss, state, gravity_batch(u, u))
    assert float(output.loss) == pytest.approx((2 * 2 + 2) / 2)  # (<u, 2 I u> + <v, I v>) / 2
    _close(state.estimate.query, 0.9 * np.eye(2) + 0.1 * np.ones((2, 2)), 1e-6)


def test_alpha_follows_its_schedule():
  loss = sogram(alpha=decay(initial=0.5, steps=1, power=1.0, minimum=0.2), start="zero")
  state, alphas = start(loss, 1), []
  for _ in range(4):
    _, state = step(loss, state, gravity_batch(np.ones((1, 1)), np.ones((1, 1))))
    alphas.append(float(state.alpha))
  assert alphas == pytest.approx([0.5, 0.5 / 2, 0.2, 0.2])


# --- steps, microbatches, padding ---------------------------------------------------------------------------------


LOSSES = {
  "lagged": sogram(alpha=0.3),
  "in_batch": sogram(alpha=0.3, batches="in_batch"),
  "two": sogram(alpha=0.3, batches="two"),
  "prior": sogram(alpha=0.3, prior=gramian_prior.popularity(2.0)),
  "batch_gravity": batch_gravity(),
}
each = pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES.keys())


@each
def test_evaluation_leaves_the_state(loss):
  rng = np.random.default_rng(13)
  batch = gravity_batch(*rng.normal(size=(2, 4, 3)).astype(np.float32))
  _, state = step(loss, start(loss, 3), batch, estimation=batch)
  output, after = loss.apply({}, state, batch, rng=None, train=False)
  assert np.isfinite(output.loss)
  jax.tree.map(np.testing.assert_array_equal, after, state)


@each
def test_a_batch_of_padding_leaves_the_state(loss):
  rng = np.random.default_rng(14)
  batch = gravity_batch(*rng.normal(size=(2, 4, 3)).astype(np.float32))
  _, state = step(loss, start(loss, 3), batch, estimation=batch)
  nothing = batch._replace(
    query=jnp.full((4, 3), np.nan), passage=jnp.full((4, 3), np.nan), weights=np.zeros(4, np.float32)
  )
  output, after = step(loss, state, nothing, estimation=nothing)
  assert float(output.loss) == 0
  assert all(np.isfinite(x) for x in output.metrics.values())
  jax.tree.map(np.testing.assert_array_equal, after, state)
  _, gradients = _value_and_gradient(loss, state, nothing)
  assert not np.any(gradients[0])


def test_microbatches_are_one_update():
  """Of 3 and 1 examples of uneven weights: the average takes their common Gramian once, and all learn from the old one."""
  rng = np.random.default_rng(15)
  u, v = rng.normal(size=(2, 4, 3)).astype(np.float32)
  weights = np.array([1.0, 2.0, 0.5, 3.0])
  whole = gravity_batch(u, v, weights=weights)
  parts = gravity_batch(u[:3], v[:3], weights=weights[:3]), gravity_batch(u[3:], v[3:], weights=weights[3:])
  loss = sogram(alpha=0.3, prior=gramian_prior.constant(0.5))
  _, state = step(loss, start(loss, 3), gravity_batch(v, u))
  want, after_whole = step(loss, state, whole)
  inner, values = state, []
  for part in parts:
    output, inner = loss.apply({}, inner, part, rng=None, train=True)
    values.append(output.loss)
  after_parts = loss.after(inner)
  _close(np.average(values, weights=[3.5, 3.0]), want.loss, 1e-5)
  jax.tree.map(functools.partial(_close, tolerance=1e-6), after_parts, after_whole)


def test_nan_is_seen_in_the_loss():
  """In an embedding at once; in the estimation batch by the estimate; so that the state's NaN is not passed over."""
  u = np.ones((2, 2), np.float32)
  bad = u.copy()
  bad[0, 0] = np.nan
  for loss in (sogram(), batch_gravity()):
    output, _ = step(loss, start(loss, 2), gravity_batch(bad, u), estimation=gravity_batch(u, u))
    assert np.isnan(output.loss)
  output, _ = step(
    batch_gravity(), start(batch_gravity(), 2), gravity_batch(u, u), estimation=gravity_batch(bad, u)
  )
  assert np.isnan(output.loss)


def test_hard_negatives_take_no_part():
  rng = np.random.default_rng(16)
  u, v = rng.normal(size=(2, 4, 3)).astype(np.float32)
  loss = sogram()
  batch = gravity_batch(u, v)
  more = batch._replace(
    passage=jnp.concatenate([batch.passage, 100 * batch.passage]),
    passage_rows=np.concatenate([batch.passage_rows, 50 + np.arange(4)]),
  )
  got, state = step(loss, start(loss, 3), more)
  want, want_state = step(loss, start(loss, 3), batch)
  assert float(got.loss) == float(want.loss)
  jax.tree.map(np.testing.assert_array_equal, state, want_state)


def test_metrics_by_hand():
  """One query of length 2 on an axis against the estimate I / 2: rank 2, distance |I / 2 - 4 e e^T| / 4, trace ratio 4 / 1."""
  loss = sogram()
  state = replaced(start(loss, 2), {"": Gramians(jnp.eye(2) / 2, jnp.eye(2))})
  batch = gravity_batch(np.array([[2.0, 0.0]] * 4, np.float32), np.eye(2, dtype=np.float32)[[0, 1, 0, 1]])
  output, _ = step(loss, state, batch)
  got = {name: float(x) for name, x in output.metrics.items()}
  assert got == pytest.approx(
    {
      "alpha": 0,
      "gravity": 1,  # <I / 2, I>
      "effective_rank_query": 2,
      "effective_rank_passage": 2,
      "estimate_distance_query": np.sqrt(3.5**2 + 0.5**2) / 4,
      "estimate_distance_passage": 1,  # |I - I / 2| / |I / 2|
      "sampling_level_query": np.sqrt(2 / 4),
      "sampling_level_passage": np.sqrt(2 / 4),
      "trace_ratio_query": 4,
      "trace_ratio_passage": 0.5,
    }
  )
  assert float(output.loss) == pytest.approx((4 * 1 + 0.5) / 2)


# --- mistakes -----------------------------------------------------------------------------------------------------

unchecked, unchecked_batch = inspect.unwrap(sogram), inspect.unwrap(batch_gravity)


@pytest.mark.parametrize(
  "make, message",
  [
    (
      lambda: unchecked(alpha=0.0),
      "sogram: alpha is 0.0; expected a number above 0 and at most 1, or a schedule",
    ),
    (lambda: unchecked(alpha=1.5), "alpha is 1.5"),
    (lambda: unchecked(alpha=float("nan")), "alpha is nan"),
    (lambda: unchecked(alpha="0.1"), "alpha is '0.1'"),
    (lambda: unchecked(alpha=decay), "the alpha <function decay.* is no schedule"),
    (lambda: unchecked(start="harmonics"), r"start is 'harmonics'.*did you mean 'harmonic'\?"),
    (lambda: unchecked(batches="one"), "sogram: batches is 'one'; expected one of"),
    (
      lambda: unchecked_batch(batches="lagged"),
      r"batch_gravity: batches is 'lagged'; expected one of \('two', 'in_batch'\)",
    ),
    (lambda: unchecked(score=lambda q, p: q @ p.T), "expected scoring.dot or scoring.cosine"),
    (lambda: unchecked(prior=gramian_prior.constant), r"@name\(\) the prior it makes"),
    (lambda: gramian_prior.constant(float("inf")), "prior constant: value is inf"),
    (lambda: gramian_prior.popularity(float("nan")), "prior popularity: scale is nan"),
    (lambda: gramian_prior.low_rank(np.ones((3, 2)), np.ones((3, 1))), "of 2 numbers, passage of 1"),
    (lambda: gramian_prior.low_rank(np.ones(3), np.ones((3, 1))), r"query has shape \(3,\)"),
    (lambda: gramian_prior.low_rank(np.ones((3, 1)), "none.npy"), "passage none.npy: cannot be read"),
    (lambda: gramian_prior.low_rank(np.array([[1.0], [np.nan]]), np.ones((3, 1))), "row 1 has numbers"),
    (lambda: decay(initial=0.1, steps=0), "decay: initial is 0.1.*steps and power above 0"),
    (lambda: decay(initial=0.1, steps=9, minimum=0.2), "0 <= minimum <= initial"),
    (
      lambda: replaced(start(sogram(), 2), {"gravity": Gramians(jnp.eye(2), jnp.eye(2))}),
      r"has a gravity at \[''\]",
    ),
    (
      lambda: replaced(start(sogram(), 2), {"": Gramians(jnp.eye(3), jnp.eye(3))}),
      r"expected \(\(2, 2\), \(2, 2\)",
    ),
    (lambda: batch_gravity().before(start(batch_gravity(), 2), None), "there was no estimation batch"),
    (
      lambda: step(
        sogram(), start(sogram(), 2), gravity_batch(np.ones((1, 2)), np.ones((1, 2)))._replace(marginals=None)
      ),
      "sogram: the batch has no marginals",
    ),
  ],
)
def test_refuses(make, message):
  with pytest.raises(UserError, match=message):
    make()


def test_requires():
  assert sogram().requires == {"marginals"}
  assert batch_gravity().requires == sogram(batches="two").requires == {"marginals", "estimation"}
  assert (sogram().before is None, sogram().after is None) == (True, False)
  assert (batch_gravity().before is None, batch_gravity().after is None) == (False, True)
  assert list(estimates(start(sogram(), 2))) == [""]
