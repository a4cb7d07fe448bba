"""Batches of given embeddings, for tests of losses."""

import jax.numpy as jnp
import numpy as np

from retrieval_jax.records import EmbeddedBatch


def embedded_batch(query, passage, *, query_rows=None, passage_rows=None, positives=None, weights=None):
  """Returns a batch whose rows are all distinct unless given; a query's own passage is its one positive."""
  q, p = len(query), len(passage)
  passage_rows = np.arange(100, 100 + p) if passage_rows is None else np.asarray(passage_rows)
  return EmbeddedBatch(
    query=jnp.asarray(query),
    passage=jnp.asarray(passage),
    query_rows=np.arange(q) if query_rows is None else np.asarray(query_rows),
    passage_rows=passage_rows,
    positives=passage_rows[:q, None] if positives is None else np.asarray(positives),
    weights=np.ones(q, np.float32) if weights is None else np.asarray(weights, np.float32),
  )
