"""Batches with marginals, and the steps of a training, for tests of the gravity losses."""

import jax
import jax.numpy as jnp
import numpy as np

from retrieval_jax.losses.base import DataSizes
from retrieval_jax.records import Marginals
from tests.embedded_batches import embedded_batch

DATA = DataSizes(num_queries=12, num_passages=12)


def gravity_batch(
  query,
  passage,
  *,
  rows=None,
  weights=None,
  query_mass=None,
  passage_mass=None,
  query_share=None,
  passage_share=None,
):
  """Returns a batch whose gravity follows the data unless masses are given; rows: of both sides, 0, 1, ... by default."""
  q = len(query)
  rows = np.arange(q) if rows is None else np.asarray(rows)
  dtype = jnp.asarray(query).dtype
  ones, shares = jnp.ones(q, dtype), jnp.full(q, 1 / q, dtype)
  given = (query_mass, passage_mass, query_share, passage_share)
  marginals = Marginals(
    *(
      jnp.asarray(x, dtype) if x is not None else y
      for x, y in zip(given, (ones, ones, shares, shares), strict=True)
    )
  )
  batch = embedded_batch(query, passage, query_rows=rows, passage_rows=rows, weights=weights)
  return batch._replace(weights=jnp.asarray(batch.weights, dtype), marginals=marginals)


def estimation_of(query, passage, **options):
  """Returns the same, as a loss's `before` takes it."""
  return gravity_batch(query, passage, **options)


def start(loss, embed_dim, data=DATA):
  """Returns the state before the first step."""
  return loss.init(jax.random.key(0), embed_dim=embed_dim, data=data)[1]


def step(loss, state, batch, *, estimation=None):
  """Returns (output, state) of one training step of one microbatch."""
  if loss.before is not None:
    state = loss.before(state, estimation)
  output, state = loss.apply({}, state, batch, rng=None, train=True)
  return output, state if loss.after is None else loss.after(state)
