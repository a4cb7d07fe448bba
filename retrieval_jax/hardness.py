"""How hard a batch is: the cosine of each query to those of the batch that are most like it."""

from typing import Final

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from retrieval_jax.losses.triplet import Candidates, hardest
from retrieval_jax.records import AnyArray
from retrieval_jax.scoring import cosine

HARDNESS: Final = "in_batch_hardness"


def in_batch_hardness(
  query: Float[Array, "q d"], query_rows: Int[AnyArray, "q"], *, nearest: int = 10
) -> Float[Array, ""]:
  """Returns the mean cosine of each query to the `nearest` other queries of the batch that are most like it.

  Random batches of a large set have a low one; batches of NGAME's clusters a higher one, the more so the larger the
  clusters. Queries of the same text (equal query_rows) and padding (-1) do not count, nor do queries that have no other.
  0 where nothing is left. No gradient should be taken of it. Cost: q^2 d products, O(q^2) memory over the shards.

  Example: of the queries [[1, 0], [1, 0], [0, 1]] with rows 0, 1, 2 and nearest=1 it is (1 + 1 + 0) / 3.
  """
  present = (
    (query_rows[:, None] != query_rows[None, :]) & (query_rows >= 0)[:, None] & (query_rows >= 0)[None, :]
  )
  scores, kept = hardest(Candidates(cosine(query, query), present), nearest)
  counts = jnp.sum(kept, axis=1)
  means = jnp.sum(jnp.where(kept, scores, 0), axis=1) / jnp.maximum(counts, 1)
  return jnp.sum(means) / jnp.maximum(jnp.sum(counts > 0), 1)
