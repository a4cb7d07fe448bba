"""Gradient accumulation: one batch cut into microbatches, each with a pool of negatives of its own."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from retrieval_jax.records import AnyArray, Batch, LossOutput

# (loss state, batch, rng) -> (gradient, output, next loss state, values of each query) of one batch.
Pass = Callable[[PyTree, Batch, Array], tuple[PyTree, LossOutput, PyTree, PyTree]]


def cut(batch: Batch, count: int, *, shards: int = 1) -> Batch:
  """Returns the batch with a new first axis of `count` microbatches on every field: [count, q / count, ...].

  Microbatch j takes the j-th part of each data shard's queries, so that each of them occupies all devices and no query
  moves. Passages go with their queries: first the microbatch's positives, then its hard negatives, row-major, as a
  Batch wants them. teacher_scores keep the microbatch's own passages alone.

  count must divide the q / shards queries of a shard (StepOptions.check). The estimation batch is not cut: the train step
  has used it by then.

  Example: `cut(batch, 2).query_rows` is `[[0, 1], [2, 3]]` for the rows 0 to 3, and `cut(batch, 2, shards=2)` makes it
  `[[0, 2], [1, 3]]`.
  """
  q = batch.query_rows.shape[0]

  def queries(x: AnyArray) -> Array:
    parts = jnp.asarray(x).reshape(shards, count, q // shards // count, *x.shape[1:])
    return parts.swapaxes(0, 1).reshape(count, q // count, *x.shape[1:])

  def passages(x: AnyArray) -> Array:
    own = queries(x[q:].reshape(q, x.shape[0] // q - 1, *x.shape[1:]))
    return jnp.concatenate([queries(x[:q]), own.reshape(count, -1, *x.shape[1:])], axis=1)

  def scores(x: AnyArray) -> Array:
    of_queries = queries(x).swapaxes(1, 2)  # [count, p, q / count]
    own = jax.vmap(lambda columns, number: passages(columns)[number])(of_queries, jnp.arange(count))
    return own.swapaxes(1, 2)

  optional = lambda function, x: None if x is None else function(x)  # noqa: E731
  return Batch(
    query_tokens=jax.tree.map(queries, batch.query_tokens),
    passage_tokens=jax.tree.map(passages, batch.passage_tokens),
    query_rows=queries(batch.query_rows),
    passage_rows=passages(batch.passage_rows),
    positives=queries(batch.positives),
    weights=queries(batch.weights),
    targets=optional(queries, batch.targets),
    teacher_scores=optional(scores, batch.teacher_scores),
    in_batch=optional(queries, batch.in_batch),
    marginals=jax.tree.map(queries, batch.marginals),
  )


def joined(values: Array, *, shards: int = 1) -> Array:
  """Returns values [count, q / count, ...] of the queries of `cut`'s microbatches in the order of the whole batch.

  Example: of the rows that `cut(batch, 2, shards=2)` has, `[[0, 2], [1, 3]]`, it makes `[0, 1, 2, 3]`.
  """
  count, size = values.shape[:2]
  parts = values.reshape(count, shards, size // shards, *values.shape[2:])
  return parts.swapaxes(0, 1).reshape(count * size, *values.shape[2:])


def accumulate(
  one: Pass, loss_state: PyTree, batch: Batch, rng: Array, *, count: int, shards: int = 1
) -> tuple[PyTree, LossOutput, PyTree, PyTree]:
  """Returns (gradient, output, loss state, values of each query) over `count` microbatches, one after the other.

  Gradient, loss and metrics are the mean over the microbatches, each weighted with its share of the examples' weights;
  the state goes from one to the next in order; microbatch j draws from fold_in(rng, j).
  The pool of negatives is the microbatch's q / count examples: this is not the gradient of the whole batch's loss,
  which TRAIN_CHUNKS (chunked_encoding.py) computes in as little memory. One microbatch is `one` itself.

  Example: with two microbatches of weights 3 and 1, the loss is (3 * first + second) / 4.
  """
  if count == 1:
    return one(loss_state, batch, rng)
  parts = cut(batch, count, shards=shards)
  weights = jnp.sum(jnp.maximum(parts.weights, 0), axis=1)
  total = jnp.sum(weights)
  shares = weights / jnp.where(total > 0, total, 1)

  def add(carry: tuple[PyTree, PyTree], part: tuple) -> tuple[tuple[PyTree, PyTree], PyTree]:
    mean, loss_state = carry
    number, share, microbatch = part
    gradient, output, loss_state, queries = one(loss_state, microbatch, jax.random.fold_in(rng, number))
    mean = jax.tree.map(lambda m, x: m + (share * x).astype(m.dtype), mean, (gradient, output))
    return (mean, loss_state), queries

  first = jax.tree.map(lambda x: x[0], parts)
  gradient, output, _, _ = jax.eval_shape(one, loss_state, first, rng)
  zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), (gradient, output))
  (mean, loss_state), queries = jax.lax.scan(add, (zeros, loss_state), (jnp.arange(count), shares, parts))
  gradient, output = mean
  return gradient, output, loss_state, jax.tree.map(lambda x: joined(x, shards=shards), queries)
