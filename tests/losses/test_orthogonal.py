import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from retrieval_jax.errors import UserError
from retrieval_jax.losses.orthogonal import orthogonal
from tests.embedded_batches import embedded_batch

# Cosines .6 (0, 1), 0 (0, 2) and .8 (1, 2); in 2 dimensions the second moment of random directions is 1/2.
THREE = np.array([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]])
FIRST, SECOND = (0.6 + 0.0 + 0.8) / 3, (0.36 + 0.0 + 0.64) / 3


def _run(loss, batch):
  """Returns (value, metrics) as numbers."""
  output, _ = loss.apply({}, {}, batch, rng=None, train=True)
  return float(output.loss), {name: float(x) for name, x in output.metrics.items()}


@pytest.mark.parametrize("bits, tolerance", [(32, 1e-5), (64, 1e-6)])
def test_oracle(oracles, bits, tolerance):
  """sentence-transformers' two terms; hard negatives take no part."""
  record = json.loads((oracles / "losses.json").read_text())
  expected = record["gor_mean_aggregation_mean"]
  with jax.enable_x64(bits == 64):
    query, passage, hard = (
      np.array(record[key], f"float{bits}") for key in ("q", "p", "hard_neg_one_per_query")
    )
    for passages in (passage, np.concatenate([passage, hard])):
      batch = embedded_batch(query, passages)
      first = orthogonal(second_moment_weight=0.0)
      second = orthogonal(mean_weight=0.0)
      assert _run(first, batch)[0] == pytest.approx(expected["gor_mean"], rel=tolerance)
      assert _run(second, batch)[0] == pytest.approx(expected["gor_second_moment"], rel=tolerance)
      both = expected["gor_mean"] + expected["gor_second_moment"]
      assert _run(orthogonal(), batch)[0] == pytest.approx(both, rel=tolerance)


def test_value_and_metrics_by_hand():
  """Queries: second moment 1/3 below 1/2, so the mean alone. Passages all alike: both moments 1."""
  alike = np.array([[2.0, 0.0]] * 3)  # lengths do not matter
  value, metrics = _run(
    orthogonal(mean_weight=3.0, second_moment_weight=5.0), embedded_batch(5 * THREE, alike)
  )
  assert value == pytest.approx((3 * FIRST**2 + (3 * 1 + 5 * (1 - 1 / 2))) / 2, rel=1e-6)
  assert metrics == pytest.approx(
    {
      "query_mean_cosine": FIRST,
      "query_second_moment": SECOND,
      "passage_mean_cosine": 1,
      "passage_second_moment": 1,
    }
  )


def test_the_example_of_the_docstring():
  x = np.eye(4)[[0, 0, 1, 2]]
  assert _run(orthogonal(mask_false_negatives=False), embedded_batch(x, x))[0] == pytest.approx(1 / 36)


@pytest.mark.parametrize(
  "rows",
  [
    {"query_rows": [7, 7, 2]},
    {"passage_rows": [100, 100, 102]},
    {"positives": [[100, 101], [101, -1], [102, -1]]},
    {"positives": [[100, -1], [101, 100], [102, -1]]},
  ],
)
def test_examples_that_belong_together_are_not_pushed_apart(rows):
  """Examples 0 and 1 share a query, a passage or a positive: only the pairs (0, 2) and (1, 2) are left, both ways."""
  batch = embedded_batch(THREE, THREE, **rows)
  _, metrics = _run(orthogonal(), batch)
  assert metrics["query_mean_cosine"] == pytest.approx((0.0 + 0.8) / 2)
  assert metrics["passage_second_moment"] == pytest.approx((0.0 + 0.64) / 2)
  _, unmasked = _run(orthogonal(mask_false_negatives=False), batch)
  assert unmasked["query_mean_cosine"] == pytest.approx(FIRST)


def test_a_pair_counts_with_the_product_of_its_weights():
  _, metrics = _run(orthogonal(), embedded_batch(THREE, THREE, weights=[1, 2, 0.5]))
  expected = np.average([0.6, 0.0, 0.8], weights=[1 * 2, 1 * 0.5, 2 * 0.5])
  assert metrics["query_mean_cosine"] == pytest.approx(expected)
  _, without = _run(orthogonal(), embedded_batch(THREE, THREE, weights=[1, 2, 0]))
  assert without["query_mean_cosine"] == pytest.approx(0.6)


@pytest.mark.parametrize(
  "batch", [embedded_batch(THREE[:1], THREE[:1]), embedded_batch(THREE, THREE, query_rows=[4, 4, 4])]
)
def test_no_pair_is_0(batch):
  def value(query, passage):
    output, _ = orthogonal().apply({}, {}, batch._replace(query=query, passage=passage), rng=None, train=True)
    return output.loss

  got, gradients = jax.value_and_grad(value, (0, 1))(batch.query, batch.passage)
  assert float(got) == 0
  assert all(not np.any(g) for g in gradients)


def test_descent_spreads_a_cluster():
  """From nearly one direction to the moments of random ones."""
  rng = np.random.default_rng(0)
  start = jnp.asarray(1 + 0.1 * rng.normal(size=(16, 4)), jnp.float32)

  @jax.jit
  def value(x):
    return orthogonal().apply({}, {}, embedded_batch(x, x), rng=None, train=True)[0]

  x = start
  for _ in range(100):
    x = x - 2.0 * jax.grad(lambda x: value(x).loss)(x)
  assert float(value(start).loss) > 1.5
  assert float(value(x).loss) < 1e-2
  assert float(value(x).metrics["query_second_moment"]) == pytest.approx(1 / 4, abs=0.05)


@pytest.mark.parametrize("first, second", [(0.0, 0.0), (-1.0, 1.0), (1.0, float("nan")), (float("inf"), 1.0)])
def test_refuses_weights(first, second):
  with pytest.raises(
    UserError, match=r"orthogonal: mean_weight is .*; expected finite numbers of at least 0"
  ):
    orthogonal(mean_weight=first, second_moment_weight=second)
