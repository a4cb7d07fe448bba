"""Who is whose negative: masks from the identities of a batch, for the whole batch or for a slice of its rows."""

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from retrieval_jax.errors import UserError
from retrieval_jax.records import AnyArray, EmbeddedBatch

# Rows are examples by one side (a passage: the example's positive), columns the candidates on the other. Columns of
# query_passage and passage_candidate are all passages, hard negatives too; of passage_passage the positives alone.
Block = Literal["query_passage", "passage_query", "query_query", "passage_passage", "passage_candidate"]


class Queries(NamedTuple):
  """Identities of some or all queries of the batch; may be sliced along the rows with jax.tree.map."""

  index: Int[Array, "q"]  # position in the batch
  rows: Int[AnyArray, "q"]
  passage_rows: Int[AnyArray, "q"]  # of the query's own positive
  positives: Int[AnyArray, "q r"]
  present: Bool[Array, "q"]  # not padding
  in_batch: Bool[Array, "q"] | None = None  # EmbeddedBatch.in_batch


class Passages(NamedTuple):
  """Identities of some or all passages of the batch, in its order."""

  index: Int[Array, "p"]
  owner: Int[Array, "p"]  # position of the query whose positive or hard negative it is
  rows: Int[AnyArray, "p"]
  query_rows: Int[AnyArray, "p"]  # of the query whose positive it is; -1 for a hard negative
  present: Bool[Array, "p"]  # neither padding nor an empty slot
  in_batch: Bool[Array, "p"] | None = None  # of the query whose positive or hard negative it is


class Pairs(NamedTuple):
  """Both sides of some or all examples: their queries, and their own positives."""

  queries: Queries
  passages: Passages


def sides(batch: EmbeddedBatch) -> tuple[Queries, Passages]:
  """Returns the identities of both sides. Padding: weight 0; a hard negative of row -1 is an empty slot.

  Raises: UserError if the passages are no multiple of the queries.
  """
  q, p = batch.query_rows.shape[0], batch.passage_rows.shape[0]
  if p == 0 or p % q:
    raise UserError(
      f"A batch of {q} queries came with {p} passages; expected a multiple of {q}: "
      "the positives, then the same number of hard negatives for each query."
    )
  query_rows, passage_rows = jnp.asarray(batch.query_rows), jnp.asarray(batch.passage_rows)
  present = jnp.asarray(batch.weights) > 0
  index = jnp.arange(q)
  owner = jnp.concatenate([index, jnp.repeat(index, p // q - 1, total_repeat_length=p - q)])
  negative = jnp.repeat(present, p // q - 1, total_repeat_length=p - q) & (passage_rows[q:] >= 0)
  of_queries = of_passages = None
  if batch.in_batch is not None:
    of_queries = jnp.asarray(batch.in_batch)
    hard = jnp.repeat(of_queries, p // q - 1, total_repeat_length=p - q)
    of_passages = jnp.concatenate([of_queries, hard])
  return (
    Queries(index, query_rows, passage_rows[:q], jnp.asarray(batch.positives), present, of_queries),
    Passages(
      index=jnp.arange(p),
      owner=owner,
      rows=passage_rows,
      query_rows=jnp.pad(query_rows, (0, p - q), constant_values=-1),
      present=jnp.concatenate([present, negative]),
      in_batch=of_passages,
    ),
  )


def own(queries: Queries, passages: Passages) -> Bool[Array, "q p"]:
  """Returns which passage is the query's own positive of this batch."""
  return queries.index[:, None] == passages.index[None, :]


def relevant(queries: Queries, passages: Passages) -> Bool[Array, "q p"]:
  """Returns which passages are known to answer which query: what must not act as its negative.

  Passage j answers query i if its row is among positives[i], if it equals i's own passage, or if it is the passage
  of an equal query. Rows are those of equal text, so equal texts are caught too. Row -1 equals nothing but itself.
  O(q p r) time in passes over [q, p] booleans, O(q p) memory.
  """
  return (
    own(queries, passages)
    | _contains(queries.positives, passages.rows)
    | _equal(queries.passage_rows, passages.rows)
    | _equal(queries.rows, passages.query_rows)
  )


def together(rows: Queries | Passages, columns: Queries | Passages) -> Bool[Array, "q x"] | bool:
  """Returns which columns the rows may have for in-batch negatives by EmbeddedBatch.in_batch: both must take part. True
  for a batch that does not say."""
  if rows.in_batch is None or columns.in_batch is None:
    return True
  return rows.in_batch[:, None] & columns.in_batch[None, :]


def visible(queries: Queries, passages: Passages) -> Bool[Array, "q p"]:
  """Returns which passages the loss of a query reads at all: none that is absent, and of another example only where both
  examples take part in in-batch negatives."""
  if queries.in_batch is None:
    return jnp.broadcast_to(passages.present[None, :], (queries.index.shape[0], passages.index.shape[0]))
  mine = queries.index[:, None] == passages.owner[None, :]
  return passages.present[None, :] & (mine | together(queries, passages))


def negatives(
  block: Block,
  rows: Pairs,
  queries: Queries,
  passages: Passages,
  *,
  mask_false_negatives: bool = True,
  in_batch: bool = True,
) -> Bool[Array, "q x"]:
  """Returns who is a negative in one block of logits, whose rows are the examples `rows` and whose columns are all
  the `queries` or `passages`.

  Between two queries or two passages, j is no negative of i if the passage of either is known to answer the other's
  query; a hard negative is none of its own example's positive. Without mask_false_negatives every other example is a
  negative; with in_batch=False only an example's own hard negatives are, and so it is for the examples that the batch
  says it of, which are negatives of no others either. Padding never is.
  """
  related = relevant if mask_false_negatives else own
  if block == "query_passage":
    others = ~related(rows.queries, passages) & visible(rows.queries, passages)
    return others if in_batch else others & owned(rows, passages)
  back = related(queries, rows.passages).T
  if block == "passage_query":
    found, candidates = back, queries
  else:
    answers = passages if block == "passage_candidate" else first(passages, queries.index.shape[0])
    hard = answers.index.shape[0] - queries.index.shape[0]
    found = related(rows.queries, answers) | jnp.pad(back, ((0, 0), (0, hard)))
    if hard:
      found = found | owned(rows, answers)
    candidates = queries if block == "query_query" else answers
  return ~found & candidates.present[None, :] & in_batch & together(rows.queries, candidates)


def first(passages: Passages, count: int) -> Passages:
  """Returns the first `count` passages: the positives, if that is the number of queries."""
  return jax.tree.map(lambda x: x[:count], passages)


def owned(rows: Pairs, passages: Passages) -> Bool[Array, "q p"]:
  """Returns which passages are an example's own positive or hard negatives."""
  return rows.queries.index[:, None] == passages.owner[None, :]


def copies(side: Queries | Passages, num_queries: int) -> Int[Array, "p"]:
  """Returns how many of the present candidates that a query sees have each one's row; 1 for row -1, which equals nothing.
  O(p log p). What takes no part in in-batch negatives is seen beside the passages of its own query alone."""
  rows = jnp.where(side.present, jnp.asarray(side.rows), -1)
  if side.in_batch is None:
    return _copies(rows)
  own = jnp.concatenate([rows[:num_queries, None], rows[num_queries:].reshape(num_queries, -1)], axis=1)
  equal = jnp.sum(own[:, :, None] == own[:, None, :], axis=2)
  apart = jnp.where(rows >= 0, jnp.concatenate([equal[:, 0], equal[:, 1:].reshape(-1)]), 1)
  return jnp.where(side.in_batch, _copies(jnp.where(side.in_batch, rows, -1)), apart)


def _copies(rows: Int[Array, "p"]) -> Int[Array, "p"]:
  ordered = jnp.sort(rows)
  count = jnp.searchsorted(ordered, rows, side="right") - jnp.searchsorted(ordered, rows, side="left")
  return jnp.where(rows >= 0, count, 1)


def without_padding(
  batch: EmbeddedBatch, queries: Queries, passages: Passages
) -> tuple[Float[Array, "q d"], Float[Array, "p d"]]:
  """Returns the embeddings of both sides with zeros for padding, which may hold anything, NaN too: zeros keep it out
  of the gradient."""
  return (
    jnp.where(queries.present[:, None], batch.query, 0),
    jnp.where(passages.present[:, None], batch.passage, 0),
  )


def mean_weights(batch: EmbeddedBatch, queries: Queries, dtype: jnp.dtype) -> Float[Array, "q"]:
  """Returns weights that make a sum over the examples their weighted mean: they sum to 1, or are all 0 in a batch of
  padding."""
  weights = jnp.where(queries.present, batch.weights, 0).astype(dtype)
  total = jnp.sum(weights)
  return weights / jnp.where(total > 0, total, 1)


def _contains(positives: Int[AnyArray, "q r"], rows: Int[AnyArray, "p"]) -> Bool[Array, "q p"]:
  """Returns whether rows[j] is among positives[i]; -1 is never contained."""

  def add(found: Bool[Array, "q p"], one: Int[Array, "q"]) -> tuple[Bool[Array, "q p"], None]:
    return found | (one[:, None] == rows[None, :]), None

  # False everywhere, made from `rows` so that inside shard_map it is each device's own, as the scan's result is.
  start = jnp.broadcast_to((rows < -1)[None, :], (positives.shape[0], rows.shape[0]))
  found, _ = jax.lax.scan(add, start, jnp.asarray(positives).T)
  return found & (rows >= 0)[None, :]


def _equal(a: Int[AnyArray, "q"], b: Int[AnyArray, "p"]) -> Bool[AnyArray, "q p"]:
  return (a[:, None] == b[None, :]) & (a >= 0)[:, None]
