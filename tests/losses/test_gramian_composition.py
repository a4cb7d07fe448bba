"""The gravity losses within others, on a mesh, and along a training."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from retrieval_jax import partitioning, scoring, sharding
from retrieval_jax.losses import gramian_prior
from retrieval_jax.losses.base import DataSizes
from retrieval_jax.losses.gramian import batch_gravity, sagram, sogram
from retrieval_jax.losses.gramian_matrices import Gramians, relative_distance
from retrieval_jax.losses.gramian_state import estimates, replaced, states
from retrieval_jax.losses.in_batch import samtone
from retrieval_jax.losses.matryoshka import matryoshka
from retrieval_jax.losses.weighted_sum import weighted_sum
from tests.gramian_batches import gravity_batch, start, step


def _close(got, want, tolerance=1e-5):
  np.testing.assert_allclose(np.asarray(got), np.asarray(want), rtol=tolerance, atol=tolerance)


def _sides(seed, q=6, d=4):
  return np.random.default_rng(seed).normal(size=(2, q, d)).astype(np.float32)


# --- wrappers -----------------------------------------------------------------------------------------------------


def test_a_sum_runs_what_its_terms_do_around_a_step():
  """Each gravity is as it is alone; only the one that asks for the estimation batch gets it."""
  terms = {
    "samtone": (1.0, samtone(temperature=0.1)),
    "late": (0.5, sogram(alpha=0.3, score=scoring.cosine)),
    "two": (2.0, sogram(alpha=0.3, batches="two")),
    "cached": (0.1, sagram()),
  }
  loss = weighted_sum(terms)
  assert loss.requires == {"marginals", "estimation"}
  params = {name: {} for name in terms}
  state = start(loss, 4)
  alone = {name: start(term, 4) for name, (_, term) in terms.items()}
  for seed in (0, 2):
    batch, estimation = gravity_batch(*_sides(seed)), gravity_batch(*_sides(seed + 1))
    state = loss.before(state, estimation)

    def value(query, passage, state=state, batch=batch):
      batch = batch._replace(query=query, passage=passage)
      output, after = loss.apply(params, state, batch, rng=None, train=True)
      return output.loss, (output.metrics, after)

    (_, (metrics, state)), gradient = jax.value_and_grad(value, has_aux=True)(batch.query, batch.passage)
    state = loss.after(state)
    want_gradient = 0
    for name, (weight, term) in terms.items():
      if term.before is not None:
        alone[name] = term.before(alone[name], estimation)

      def one(query, name=name, term=term, batch=batch):
        return term.apply({}, alone[name], batch._replace(query=query), rng=None, train=True)[0].loss

      found, by_query = jax.value_and_grad(one)(batch.query)
      want_gradient += weight * by_query
      _close(metrics[f"{name}/loss"], found)
      _, alone[name] = term.apply({}, alone[name], batch, rng=None, train=True)
      alone[name] = alone[name] if term.after is None else term.after(alone[name])
    _close(gradient, want_gradient)
    jax.tree.map(_close, state["terms"], alone)
  assert {name.partition("/")[0] for name in metrics} == set(terms)
  assert set(estimates(state)) == {"late", "two", "cached"}
  assert weighted_sum({"samtone": terms["samtone"]})[4:] == (None, None, None)


def test_a_sum_says_how_its_terms_lie():
  loss = weighted_sum({"samtone": (1.0, samtone()), "gravity": (1.0, sagram())})
  axes = loss.state_axes(start(loss, 4))
  assert axes["step"] == ()
  gravity = axes["terms"]["gravity"]
  assert gravity.query.rows == gravity.passage.rows == (sharding.CACHE_ROWS, None)
  assert gravity.query.share == (sharding.CACHE_ROWS,)
  assert gravity.estimate.query == (None, None)
  assert weighted_sum({"gravity": (1.0, sogram())}).state_axes is None


def test_estimates_are_found_and_replaced_by_name():
  inner = weighted_sum({"gravity": (1.0, sogram()), "samtone": (1.0, samtone())})
  loss = weighted_sum({"outer": (1.0, inner), "sampling": (1.0, batch_gravity())})
  state = start(loss, 2)
  assert set(estimates(state)) == {"outer/gravity", "sampling"}
  assert estimates(start(samtone(), 2)) == {}
  measured = Gramians(jnp.eye(2), 2 * jnp.eye(2))
  state = replaced(state, {"outer/gravity": measured})
  _close(estimates(state)["outer/gravity"].passage, 2 * np.eye(2))
  assert not np.any(estimates(state)["sampling"].query)
  assert float(states(state)["outer/gravity"].mass) == 1


@pytest.mark.parametrize("batches", ["lagged", "two"])
def test_every_prefix_has_gramians_of_its_own(batches):
  loss = matryoshka(sogram(batches=batches), dims=(4, 2))
  u, v = _sides(4)
  state = start(loss, 4)
  if loss.before is not None:
    state = loss.before(state, gravity_batch(u, v))
  params = {"dim_4": {}, "dim_2": {}}
  output, state = loss.apply(params, state, gravity_batch(u, v), rng=None, train=True)
  state = state if loss.after is None else loss.after(state)
  for d in (4, 2):
    _close(estimates(state)[f"dim_{d}"].query, u[:, :d].T @ u[:, :d] / 6)
    assert float(output.metrics[f"dim_{d}/loss"]) == pytest.approx(
      np.mean((u[:, :d] @ v[:, :d].T) ** 2), rel=1e-5
    )


# --- a mesh -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batches", ["lagged", "two"])
def test_8_devices_are_as_1(batches):
  """Value, gradient and the state after two steps, some of whose examples are padding on some devices."""
  loss = sogram(alpha=0.3, batches=batches, prior=gramian_prior.constant(0.2))

  def train(state, batch, estimation):
    state = state if loss.before is None else loss.before(state, estimation)

    def value(query, passage):
      output, after = loss.apply(
        {}, state, batch._replace(query=query, passage=passage), rng=None, train=True
      )
      return output.loss, after

    found, gradient = jax.value_and_grad(value, (0, 1), has_aux=True)(batch.query, batch.passage)
    return found[1] if loss.after is None else loss.after(found[1]), (found[0], gradient)

  def run(devices):
    partitioner = partitioning.partitioner(devices=jax.devices()[:devices])
    compiled = jax.jit(
      partitioner.traced(train),
      in_shardings=(partitioner.replicated, partitioner.rows, partitioner.rows),
      out_shardings=(partitioner.replicated, None),
    )
    state, outputs = start(loss, 4), []
    for seed in (0, 1):
      weights = np.random.default_rng(seed).uniform(0.5, 2, 16) * (np.arange(16) < 9)
      batch = gravity_batch(*_sides(seed, q=16), weights=weights)
      state, output = compiled(state, batch, gravity_batch(*_sides(seed + 5, q=16), weights=weights))
      outputs.append(output)
    return state, outputs

  jax.tree.map(_close, run(8), run(1))


# --- a training ---------------------------------------------------------------------------------------------------


def test_the_estimates_order_on_one_trajectory():
  """Rows that come to rest: at the end SAGram is nearer to the exact Gramians than SOGram, and SOGram than one batch."""
  rng = np.random.default_rng(6)
  table, moving = rng.normal(size=(2, 100, 4)).astype(np.float32)
  drawn = rng.integers(0, 100, (300, 16))
  shares = jnp.full(16, 1 / 100)

  def late_error(loss):
    def one(state, now):
      t, rows = now
      current = table + jnp.exp(-t / 50) * moving
      batch = gravity_batch(current[rows], current[rows], query_share=shares, passage_share=shares)
      _, state = step(loss, state, batch._replace(query_rows=rows, passage_rows=rows))
      exact = current.T @ current / 100
      return state, relative_distance(state.estimate.passage, exact)

    _, errors = jax.lax.scan(one, start(loss, 4, DataSizes(100, 100)), (jnp.arange(300.0), drawn))
    return float(jnp.mean(errors[200:]))

  errors = [late_error(loss) for loss in (sagram(), sogram(alpha=0.05), batch_gravity(batches="in_batch"))]
  assert errors[0] < 0.5 * errors[1]
  assert errors[1] < 0.5 * errors[2]


def test_training_reaches_the_objective_of_exact_gramians():
  """Both players at rest (proposition 4): free embeddings, batches of 4 of 12 pairs, lambda 1, against descent on the sum of
  all pairs."""
  rng = np.random.default_rng(7)
  tables = jnp.asarray(0.5 * rng.normal(size=(2, 12, 12)), jnp.float32)

  def objective(tables):
    scores = tables[0] @ tables[1].T
    return 0.5 * jnp.mean((jnp.diagonal(scores) - 1) ** 2) + jnp.mean(scores**2)

  def exact(tables, _):
    return tables - 1.0 * jax.grad(objective)(tables), None

  loss = sogram(alpha=0.1)

  def by_gravity(carry, rows):
    tables, state = carry

    def value(tables):
      u, v = tables[0][rows], tables[1][rows]
      output, after = loss.apply({}, state, gravity_batch(u, v), rng=None, train=True)
      return 0.5 * jnp.mean((jnp.sum(u * v, axis=1) - 1) ** 2) + output.loss, after

    gradient, after = jax.grad(value, has_aux=True)(tables)
    return (tables - 1.0 * gradient, loss.after(after)), None

  best, _ = jax.lax.scan(exact, tables, None, length=1000)
  drawn = np.stack([rng.permutation(12)[:4] for _ in range(1500)])
  (found, _), _ = jax.lax.scan(by_gravity, (tables, start(loss, 12)), drawn)
  assert float(objective(found)) < 1.05 * float(objective(best))
  assert float(objective(best)) < 0.5 * float(objective(tables))
