import inspect

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from retrieval_jax import scoring
from retrieval_jax.errors import UserError
from retrieval_jax.losses import temperature
from retrieval_jax.losses.base import DataSizes, Loss, stateless
from retrieval_jax.losses.in_batch import in_batch_softmax, samtone
from retrieval_jax.losses.schedules import ramp, stage
from retrieval_jax.losses.weighted_sum import weighted_sum
from retrieval_jax.records import EmbeddedBatch, LossOutput

DATA = DataSizes(num_queries=10, num_passages=10)
Q, D = 5, 4


def _batch(dtype=np.float32):
  rng = np.random.default_rng(0)
  return EmbeddedBatch(
    query=jnp.asarray(rng.normal(size=(Q, D)), dtype),
    passage=jnp.asarray(rng.normal(size=(2 * Q, D)), dtype),
    query_rows=np.arange(Q),
    passage_rows=np.arange(2 * Q),
    positives=np.arange(Q)[:, None],
    weights=np.ones(Q, np.float32),
  )


def _of_embeddings(function, **metrics):
  """Returns the loss function(query, passage), with the metrics."""
  return stateless(lambda batch: LossOutput(function(batch.query, batch.passage), metrics))


def _scaled_dot():
  """A loss with a learned temperature and a state: mean_i scale s(q_i, p_i), counting its training batches."""
  learned = temperature.learned(initial=0.5, minimum=0.1)

  def init(rng, *, embed_dim, data):
    del rng, embed_dim, data
    return temperature.initial_params(learned), {"seen": jnp.zeros((), jnp.int32)}

  def apply(params, state, batch, *, rng, train):
    del rng
    scores = jnp.sum(batch.query * batch.passage[:Q], axis=1)
    value = temperature.scale(learned, params) * jnp.mean(scores)
    return LossOutput(value, {"mean_score": jnp.mean(scores)}), {"seen": state["seen"] + train}

  return Loss(init, apply)


def _noisy():
  """A loss that draws: sum of q times a random number."""

  def apply(params, state, batch, *, rng, train):
    del params, train
    return LossOutput(jax.random.uniform(rng) * jnp.sum(batch.query), {}), state

  return Loss(lambda rng, *, embed_dim, data: ({}, {}), apply)


def _start(loss):
  return loss.init(jax.random.key(0), embed_dim=D, data=DATA)


def _run(loss, batch, params, state, *, train=True, rng=None):
  """Returns (value, metrics, new state, gradients of (params, query, passage)), jitted."""

  @jax.jit
  def run(params, query, passage, state):
    def value(params, query, passage):
      embedded = batch._replace(query=query, passage=passage)
      output, after = loss.apply(params, state, embedded, rng=rng, train=train)
      return output.loss, (output.metrics, after)

    (value, (metrics, after)), gradients = jax.value_and_grad(value, (0, 1, 2), has_aux=True)(
      params, query, passage
    )
    return value, metrics, after, gradients

  return run(params, batch.query, batch.passage, state)


def _assert_close(got, want, tolerance=1e-6):
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance), got, want)


# --- values and gradients -----------------------------------------------------------------------------------------


def test_value_share_and_gradient_by_hand():
  """q sums to 1 and p to 2 with 3 and 4 elements each, so the gradients are 1 everywhere: norms sqrt(3), 2 sqrt(4)."""
  query, passage = jnp.array([[0.5, 0.25, 0.25]]), jnp.array([[2.0, 0.0, 0.0]])
  batch = EmbeddedBatch(query, passage, *(np.zeros(1, int),) * 2, np.zeros((1, 1), int), np.ones(1))
  loss = weighted_sum(
    {
      "q": (2.0, _of_embeddings(lambda q, p: jnp.sum(q), own=jnp.float32(7))),
      "both": (-0.5, _of_embeddings(lambda q, p: jnp.sum(q) + 3 * jnp.sum(p))),
      "flat": (100.0, _of_embeddings(lambda q, p: jnp.float32(1))),
    }
  )
  value, metrics, _, (_, of_query, of_passage) = _run(loss, batch, *_start(loss))
  assert float(value) == pytest.approx(2 * 1 - 0.5 * (1 + 3 * 2) + 100)
  np.testing.assert_allclose(of_query, np.full((1, 3), 2 - 0.5))
  np.testing.assert_allclose(of_passage, np.full((1, 3), -0.5 * 3))
  q, both = 2 * np.sqrt(3), 0.5 * np.sqrt(3 * 1 + 3 * 9)
  assert {name: float(x) for name, x in metrics.items()} == pytest.approx(
    {
      "q/own": 7,
      **{"q/loss": 1, "q/weight": 2, "q/gradient_share": q / (q + both)},
      **{"both/loss": 7, "both/weight": -0.5, "both/gradient_share": both / (q + both)},
      **{"flat/loss": 1, "flat/weight": 100, "flat/gradient_share": 0},
    }
  )


@pytest.mark.parametrize("train", [True, False])
def test_gradient_is_the_sum_of_the_terms_gradients(train):
  """Against autodiff of each term applied on its own; parameters, states and metrics are those of the terms."""
  terms = {
    "softmax": (0.3, in_batch_softmax(temperature=0.1)),
    "samtone": (2.0, samtone(temperature=0.05, side="both")),
    "dot": (0.7, _scaled_dot()),
  }
  batch = _batch()
  loss = weighted_sum(terms)
  params, state = _start(loss)
  value, metrics, after, gradients = _run(loss, batch, params, state, train=train)
  alone = {name: _run(loss, batch, *_start(loss), train=train) for name, (_, loss) in terms.items()}
  _assert_close(value, sum(w * alone[name][0] for name, (w, _) in terms.items()))
  for side in (1, 2):
    _assert_close(gradients[side], sum(w * alone[name][3][side] for name, (w, _) in terms.items()))
  _assert_close(gradients[0]["dot"]["log_scale"], 0.7 * alone["dot"][3][0]["log_scale"])
  assert float(gradients[0]["dot"]["log_scale"]) != 0
  for name, (_, own, own_after, _) in alone.items():
    _assert_close({key: metrics[f"{name}/{key}"] for key in own}, own)
    _assert_close(after["terms"][name], own_after)
  assert float(sum(metrics[f"{name}/gradient_share"] for name in terms)) == pytest.approx(1)
  assert int(after["step"]) == int(after["terms"]["dot"]["seen"]) == int(train)
  norms = {
    name: w * np.sqrt(np.sum(alone[name][3][1] ** 2) + np.sum(alone[name][3][2] ** 2))
    for name, (w, _) in terms.items()
  }
  for name, norm in norms.items():
    assert float(metrics[f"{name}/gradient_share"]) == pytest.approx(norm / sum(norms.values()))


def test_nested_sums_multiply_their_weights():
  batch = _batch()
  inner = weighted_sum({"a": (0.5, in_batch_softmax(temperature=0.1)), "dot": (3.0, _scaled_dot())})
  nested = weighted_sum({"inner": (2.0, inner), "b": (1.0, samtone(temperature=0.1))})
  flat = weighted_sum(
    {
      "a": (1.0, in_batch_softmax(temperature=0.1)),
      "dot": (6.0, _scaled_dot()),
      "b": (1.0, samtone(temperature=0.1)),
    }
  )
  got, metrics, after, (params, *embeddings) = _run(nested, batch, *_start(nested))
  want, flat_metrics, _, (flat_params, *flat_embeddings) = _run(flat, batch, *_start(flat))
  _assert_close((got, embeddings), (want, flat_embeddings))
  _assert_close(params["inner"]["dot"], flat_params["dot"])
  _assert_close(metrics["inner/dot/mean_score"], flat_metrics["dot/mean_score"])
  assert int(after["step"]) == int(after["terms"]["inner"]["step"]) == 1


def test_second_derivatives_are_those_of_autodiff():
  loss = weighted_sum({"a": (2.0, in_batch_softmax(temperature=0.5))})
  batch, (params, state) = _batch(), _start(loss)

  def along(loss, params, state, query):
    def value(query):
      return loss.apply(params, state, batch._replace(query=query), rng=None, train=True)[0].loss

    return jnp.sum(jax.grad(value)(query) ** 2)

  got = jax.grad(lambda q: along(loss, params, state, q))(batch.query)
  want = jax.grad(lambda q: along(in_batch_softmax(temperature=0.5), {}, {}, q))(batch.query)
  _assert_close(got, 4 * want, 1e-5)


def test_each_term_runs_forward_and_backward_once():
  """The products of matrices of the sum are those of the terms alone: the shares cost none, nor does the backward."""
  terms = {"a": (1.0, in_batch_softmax(bidirectional=False)), "b": (0.5, samtone(bidirectional=False))}
  batch = _batch()

  def products(loss):
    params, state = _start(loss)

    def value(query, passage):
      output, _ = loss.apply(
        params, state, batch._replace(query=query, passage=passage), rng=None, train=True
      )
      return output.loss, output.metrics

    text = jax.jit(jax.grad(value, (0, 1), has_aux=True)).lower(batch.query, batch.passage).as_text()
    return text.count("dot_general")

  assert products(weighted_sum(terms)) == sum(products(loss) for _, loss in terms.values())


def test_every_term_draws_from_its_own_key():
  loss = weighted_sum({"a": (1.0, _noisy()), "b": (1.0, _noisy())})
  _, metrics, _, _ = _run(loss, _batch(), *_start(loss), rng=jax.random.key(3))
  assert abs(float(metrics["a/loss"]) - float(metrics["b/loss"])) > 1e-3


def test_bfloat16_gradients_are_summed_before_they_are_rounded():
  """1 + 2^-8 + 2^-8 is one bfloat16 step above 1; rounded after every term it would stay 1."""
  small = 2.0**-8
  ones = _of_embeddings(lambda q, p: jnp.sum(q.astype(jnp.float32)))
  loss = weighted_sum({"a": (1.0, ones), "b": (small, ones), "c": (small, ones)})
  _, _, _, (_, query, _) = _run(loss, _batch(jnp.bfloat16), *_start(loss))
  assert query.dtype == jnp.bfloat16
  np.testing.assert_array_equal(np.asarray(query, np.float32), 1 + 2.0**-7)
  assert float(jnp.bfloat16(1) + jnp.bfloat16(small) + jnp.bfloat16(small)) == 1


def test_float64_throughout():
  with jax.enable_x64(True):
    loss = weighted_sum({"a": (0.1, in_batch_softmax(score=scoring.dot))})
    value, metrics, _, (_, query, _) = _run(loss, _batch(np.float64), *_start(loss))
    assert value.dtype == query.dtype == metrics["a/gradient_share"].dtype == jnp.float64


# --- schedules ----------------------------------------------------------------------------------------------------


def test_weights_follow_the_batches_seen():
  one, two = _of_embeddings(lambda q, p: jnp.float32(1)), _of_embeddings(lambda q, p: jnp.float32(10))
  loss = weighted_sum({"first": (stage(end=2), one), "second": (stage(start=2), two)})
  params, state = _start(loss)
  values = []
  for _ in range(4):
    value, _, state, _ = _run(loss, _batch(), params, state)
    values.append(float(value))
  assert values == [1, 1, 10, 10]
  assert int(state["step"]) == 4


def test_evaluation_does_not_advance_the_schedule():
  loss = weighted_sum({"a": (stage(end=1), _of_embeddings(lambda q, p: jnp.float32(1)))})
  params, state = _start(loss)
  for _ in range(2):
    value, _, state, _ = _run(loss, _batch(), params, state, train=False)
    assert float(value) == 1


@pytest.mark.parametrize(
  "schedule, weights",
  [
    (optax.linear_schedule(0.0, 1.0, 4), [0, 0.25, 0.5]),
    (ramp(start=1, end=3, initial=2.0, final=0.0), [2, 2, 1]),
    (lambda step: 3 * step, [0, 3, 6]),
  ],
)
def test_any_function_of_the_step_is_a_schedule(schedule, weights):
  loss = weighted_sum({"a": (schedule, in_batch_softmax())})
  params, state = _start(loss)
  for weight in weights:
    _, metrics, state, _ = _run(loss, _batch(), params, state)
    assert float(metrics["a/weight"]) == pytest.approx(weight)


def test_a_weight_that_becomes_nan_is_seen_in_the_loss():
  loss = weighted_sum({"a": (lambda step: step / 0.0 * 0, in_batch_softmax())})
  assert np.isnan(_run(loss, _batch(), *_start(loss))[0])


def test_requires_what_the_terms_require():
  reads = [in_batch_softmax()._replace(requires=frozenset([name])) for name in ("targets", "teacher_scores")]
  loss = weighted_sum({"a": (1.0, reads[0]), "b": (1.0, reads[1])})
  assert loss.requires == {"targets", "teacher_scores"}


# --- mistakes -----------------------------------------------------------------------------------------------------

# Past the tests' type checker, which would refuse first and which users do not run under.
unchecked = inspect.unwrap(weighted_sum)
LOSS = in_batch_softmax()


@pytest.mark.parametrize(
  "terms, message",
  [
    ({}, r"terms is \{\}; expected at least one name: \(weight, loss\)"),
    ([(1.0, LOSS)], r"expected at least one name: \(weight, loss\)"),
    ({"a/b": (1.0, LOSS)}, "the name 'a/b': expected text without '/'"),
    ({"": (1.0, LOSS)}, "the name '': expected text"),
    ({3: (1.0, LOSS)}, "the name 3: expected text"),
    ({"a": LOSS}, r"'a' is a loss without a weight; expected \(weight, loss\)"),
    ({"a": (LOSS, 1.0)}, r"'a' has the loss first; expected \(weight, loss\)"),
    ({"a": (1.0,)}, r"'a' is \(1.0,\); expected a pair \(weight, loss\)"),
    ({"a": 1.0}, r"'a' is 1.0; expected a pair"),
    ({"a": (1.0, in_batch_softmax)}, r"got <function .*@name is a function and @name\(\) the loss it makes"),
    ({"a": (1.0, "samtone")}, "expected a Loss after the weight, got 'samtone'.$"),
    ({"a": (float("nan"), LOSS)}, "the weight is nan; expected a finite number or a schedule"),
    ({"a": (float("inf"), LOSS)}, "the weight is inf"),
    ({"a": ("0.1", LOSS)}, "the weight is '0.1'"),
    ({"a": (None, LOSS)}, "the weight is None"),
    ({"a": (True, LOSS)}, "the weight is True"),
    ({"a": (inspect.unwrap(stage), LOSS)}, r"no schedule, .*@name\(\) the schedule.*TypeError"),
    ({"a": (optax.linear_schedule, LOSS)}, "is no schedule, step -> number.*TypeError: linear_schedule"),
    ({"a": (lambda step: jnp.ones(2), LOSS)}, r"gives an array of shape \(2,\); expected one number"),
  ],
)
def test_refuses(terms, message):
  with pytest.raises(UserError, match=f"weighted_sum: .*{message}"):
    unchecked(terms)


@pytest.mark.parametrize("weight", [1, 0.0, -0.5, np.float32(0.1), np.int64(2)])
def test_any_finite_number_is_a_weight(weight):
  loss = unchecked({"a": [weight, LOSS]})
  _, metrics, _, _ = _run(loss, _batch(), *_start(loss))
  assert float(metrics["a/weight"]) == pytest.approx(float(weight))
