import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from retrieval_jax import scoring
from retrieval_jax.errors import UserError
from retrieval_jax.losses.base import DataSizes, Loss
from retrieval_jax.losses.in_batch import in_batch_softmax, samtone
from retrieval_jax.losses.matryoshka import matryoshka
from retrieval_jax.records import EmbeddedBatch, LossOutput

DATA = DataSizes(num_queries=10, num_passages=10)
# On the first coordinate all cosines are 1; on both, they are those of the identity.
QUERY = np.array([[1.0, 0.0], [1.0, 2.0]])
PASSAGE = np.array([[3.0, 0.0], [0.5, 1.0]])
COSINE = 1 / np.sqrt(5)


def _batch(query, passage):
  rows = np.arange(len(query))
  return EmbeddedBatch(
    query=jnp.asarray(query, jnp.float32),
    passage=jnp.asarray(passage, jnp.float32),
    query_rows=rows,
    passage_rows=rows,
    positives=rows[:, None],
    weights=np.ones(len(query), np.float32),
  )


def _start(loss, embed_dim):
  return loss.init(jax.random.key(0), embed_dim=embed_dim, data=DATA)


def _run(loss, batch, rng=None):
  return loss.apply(*_start(loss, batch.query.shape[1]), batch, rng=rng, train=True)


def _recording():
  """A loss with a parameter and a state that say which embeddings they are for; it draws its value."""

  def init(rng, *, embed_dim, data):
    return {"scale": jax.random.uniform(rng, (embed_dim,))}, {
      "cache": jnp.zeros((data.num_queries, embed_dim))
    }

  def apply(params, state, batch, *, rng, train):
    assert params["scale"].shape == batch.query.shape[1:]
    return LossOutput(jax.random.uniform(rng), {}), {"cache": state["cache"] + train}

  return Loss(init, apply, frozenset({"targets"}))


def test_every_prefix_is_normalised_by_a_loss_of_cosines():
  """Size 1: all cosines 1, log 2. Size 2: 1 for the own passage, 1 / sqrt(5) for the other."""
  loss = matryoshka(in_batch_softmax(temperature=1.0), dims=(2, 1))
  output, _ = _run(loss, _batch(QUERY, PASSAGE))
  one, two = np.log(2), np.log1p(np.exp(COSINE - 1))
  assert float(output.loss) == pytest.approx((one + two) / 2, rel=1e-6)
  assert float(output.metrics["dim_1/loss"]) == pytest.approx(one, rel=1e-6)
  assert float(output.metrics["dim_2/loss"]) == pytest.approx(two, rel=1e-6)
  assert float(output.metrics["dim_2/accuracy"]) == 1
  assert float(output.metrics["dim_1/temperature"]) == 1


def test_inner_products_take_the_prefix_as_it_is():
  one_way = in_batch_softmax(temperature=1.0, bidirectional=False, score=scoring.dot)
  output, _ = _run(matryoshka(one_way, dims=(1,)), _batch(QUERY, PASSAGE))
  expected = [np.log1p(np.exp(0.5 - 3.0)), np.log1p(np.exp(3.0 - 0.5))]
  assert float(output.loss) == pytest.approx(np.mean(expected), rel=1e-6)


def test_weights_make_a_mean():
  loss = matryoshka(in_batch_softmax(temperature=1.0), dims=(2, 1), weights=(3.0, 1.0))
  output, _ = _run(loss, _batch(QUERY, PASSAGE))
  expected = (3 * np.log1p(np.exp(COSINE - 1)) + np.log(2)) / 4
  assert float(output.loss) == pytest.approx(expected, rel=1e-6)


def test_gradient_is_the_mean_of_the_prefixes_gradients():
  rng = np.random.default_rng(0)
  batch = _batch(rng.normal(size=(4, 6)), rng.normal(size=(4, 6)))
  plain = samtone(temperature=0.1)
  loss = matryoshka(plain, dims=(6, 4, 2))
  params, state = _start(loss, 6)

  def value(query, passage):
    return loss.apply(params, state, batch._replace(query=query, passage=passage), rng=None, train=True)[
      0
    ].loss

  def mean(query, passage):
    prefixes = (batch._replace(query=query[:, :d], passage=passage[:, :d]) for d in (2, 4, 6))
    return sum(plain.apply({}, {}, prefix, rng=None, train=True)[0].loss for prefix in prefixes) / 3

  got, want = (jax.grad(f, (0, 1))(batch.query, batch.passage) for f in (value, mean))
  np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)


def test_each_size_has_its_parameters_state_and_key():
  loss = matryoshka(_recording(), dims=(4, 2))
  params, state = _start(loss, 4)
  assert {name: p["scale"].shape for name, p in params.items()} == {"dim_4": (4,), "dim_2": (2,)}
  assert not np.allclose(params["dim_4"]["scale"][:2], params["dim_2"]["scale"])
  assert state["terms"]["dim_2"]["cache"].shape == (DATA.num_queries, 2)
  output, after = _run(loss, _batch(np.eye(4), np.eye(4)), jax.random.key(1))
  assert float(output.metrics["dim_4/loss"]) != float(output.metrics["dim_2/loss"])
  assert float(after["terms"]["dim_2"]["cache"][0, 0]) == 1
  assert loss.requires == {"targets"}


# --- mistakes -----------------------------------------------------------------------------------------------------

unchecked = inspect.unwrap(matryoshka)  # past the tests' type checker, which would refuse first
LOSS = in_batch_softmax()


def test_a_size_above_the_embeddings():
  loss = matryoshka(LOSS, dims=(2, 8))
  message = r"the size 8 of dims \(2, 8\) is above the embeddings' 4"
  with pytest.raises(UserError, match=message):
    loss.init(jax.random.key(0), embed_dim=4, data=DATA)
  with pytest.raises(UserError, match=message):
    loss.apply({}, {}, _batch(np.eye(4), np.eye(4)), rng=None, train=True)


@pytest.mark.parametrize(
  "dims, message",
  [
    ((), r"dims is \(\); expected sizes of at least 1"),
    ((2, 0), r"dims is \(2, 0\)"),
    ((2.0,), r"dims is \(2.0,\)"),
    (64, "dims is 64; expected sizes"),
    ((4, 2, 4), r"dims \(4, 2, 4\) names a size twice"),
  ],
)
def test_refuses_dims(dims, message):
  with pytest.raises(UserError, match=f"matryoshka: {message}"):
    unchecked(LOSS, dims=dims)


@pytest.mark.parametrize(
  "weights, message",
  [
    ((1.0,), r"weights is \(1.0,\) for the dims \(4, 2\); expected 2 numbers"),
    (1.0, "weights is 1.0 for the dims"),
    ((1.0, 0.0), r"weights is \(1.0, 0.0\); expected finite numbers above 0"),
    ((1.0, float("nan")), r"weights is \(1.0, nan\); expected finite numbers above 0"),
  ],
)
def test_refuses_weights(weights, message):
  with pytest.raises(UserError, match=f"matryoshka: {message}"):
    unchecked(LOSS, dims=(4, 2), weights=weights)


def test_refuses_what_is_no_loss():
  with pytest.raises(
    UserError, match=r"matryoshka: expected a Loss, got <function .*@name\(\) the loss it makes"
  ):
    unchecked(in_batch_softmax, dims=(2,))
