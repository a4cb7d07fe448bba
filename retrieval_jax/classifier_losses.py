"""Losses of label classifiers: data points against the union of their labels, by a loss of scores or one of losses/."""

from typing import Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from retrieval_jax import scoring
from retrieval_jax.errors import UserError
from retrieval_jax.label_unions import UnionBatch
from retrieval_jax.losses.base import DataSizes, Loss
from retrieval_jax.losses.multi_triplet import multi_triplets
from retrieval_jax.records import AnyArray, EmbeddedBatch, LossOutput
from retrieval_jax.scoring import Score


@runtime_checkable
class ClassifierLoss(Protocol):
  def __call__(
    self, points: Float[Array, "q d"], classifiers: Float[Array, "u d"], batch: UnionBatch, *, num_labels: int
  ) -> LossOutput:
    """Returns the weighted mean over the points. classifiers: the rows of batch.labels, zeros for padding. num_labels:
    the labels there are; a number from there on is padding."""
    ...


@runtime_checkable
class ColumnLoss(Protocol):
  def __call__(
    self, scores: Float[Array, "q u"], relevant: Bool[Array, "q u"], present: Bool[Array, "q u"], /
  ) -> Float[Array, "q"]:
    """Returns the loss of each point; columns that are not present are neither positive nor negative."""
    ...


def of_columns(compute: ColumnLoss = multi_triplets, *, score: Score = scoring.cosine) -> ClassifierLoss:
  """Returns the loss of each point's scores with the union's columns: its labels are positives, all else negatives, and
  neither padding nor what is filtered is either. NGAME's own is `multi_triplets`.

  Memory: [q, u] float32 scores. Metrics: positives and negatives, their mean numbers per point.

  Example: `of_columns(functools.partial(multi_triplets, margin=0.1))`.
  """

  def loss(
    points: Float[Array, "q d"], classifiers: Float[Array, "u d"], batch: UnionBatch, *, num_labels: int
  ) -> LossOutput:
    relevant, present = masks(batch, num_labels)
    weights = mean_weights(batch)
    per_point = compute(score(points, classifiers), relevant, present)
    metrics = {
      "positives": jnp.sum(weights * jnp.sum(relevant & present, axis=1, dtype=jnp.float32)),
      "negatives": jnp.sum(weights * jnp.sum(~relevant & present, axis=1, dtype=jnp.float32)),
    }
    return LossOutput(jnp.sum(weights * per_point), metrics)

  return loss


def of_pairs(loss: Loss) -> ClassifierLoss:
  """Returns a loss of losses/ on the same batches: each point has one of its labels for its passage, drawn anew in every
  epoch, and the labels of the union that nobody drew stand behind them as hard negatives; all of a point's labels, and what
  is filtered for it, are known to answer it. A label that several points drew comes as often, as it does in training.

  Raises: UserError for a loss with parameters, a state, or more to read than the embeddings (a teacher's scores).

  Example: `of_pairs(in_batch_softmax(temperature=0.05))`.
  """
  if loss.requires:
    raise UserError(
      f"CLASSIFIER_LOSS: the loss reads {', '.join(sorted(loss.requires))}, which the batches of classifiers do not have. "
      "Choose another file of losses/."
    )
  params, state = loss.init(jax.random.key(0), embed_dim=1, data=DataSizes(num_queries=1, num_passages=1))
  if jax.tree.leaves((params, state)):
    raise UserError(
      "CLASSIFIER_LOSS: the loss has parameters or a state of its own, which a training of classifiers does not keep. "
      "Choose another file of losses/, or a fixed temperature."
    )

  def paired(
    points: Float[Array, "q d"], classifiers: Float[Array, "u d"], batch: UnionBatch, *, num_labels: int
  ) -> LossOutput:
    q, u = len(batch.weights), len(batch.labels)
    present = jnp.asarray(batch.weights) > 0
    numbers = jnp.where(jnp.asarray(batch.labels) < num_labels, batch.labels, -1)
    drawn = jnp.zeros(u, bool).at[batch.own].set(True, mode="drop")
    extra = -u % q
    rest = jnp.pad(jnp.where(drawn, -1, numbers), (0, extra), constant_values=-1)

    def names(columns: Int[AnyArray, "..."]) -> Int[Array, "..."]:
      return numbers.at[columns].get(mode="fill", fill_value=-1)

    embedded = EmbeddedBatch(
      query=points,
      passage=jnp.concatenate([_rows(classifiers, batch.own), jnp.pad(classifiers, ((0, extra), (0, 0)))]),
      query_rows=jnp.where(present, jnp.arange(q), -1),
      passage_rows=jnp.concatenate([names(batch.own), rest]),
      positives=jnp.concatenate([names(batch.positives), names(batch.filtered)], axis=1),
      weights=batch.weights,
    )
    return loss.apply(params, state, embedded, rng=None, train=True)[0]

  return paired


def masks(batch: UnionBatch, num_labels: int) -> tuple[Bool[Array, "q u"], Bool[Array, "q u"]]:
  """Returns (relevant, present): which columns are labels of each point, and which it sees at all."""
  q, u = len(batch.weights), len(batch.labels)
  real = jnp.broadcast_to(jnp.asarray(batch.labels) < num_labels, (q, u))
  return _marked(batch.positives, u), real & ~_marked(batch.filtered, u)


def mean_weights(batch: UnionBatch) -> Float[Array, "q"]:
  """Returns weights that make a sum over the points their weighted mean; all 0 in a batch of padding."""
  weights = jnp.asarray(batch.weights)
  total = jnp.sum(weights)
  return weights / jnp.where(total > 0, total, 1)


def _marked(columns: Int[AnyArray, "q r"], size: int) -> Bool[Array, "q u"]:
  """Returns [q, size], True at the given columns of each row; a column of `size` is none."""
  # Row by row: a scatter over [q, size] would bring all columns to every device.
  return jax.vmap(lambda row: jnp.zeros(size, bool).at[row].set(True, mode="drop"))(jnp.asarray(columns))


def _rows(matrix: Float[Array, "u d"], rows: Int[AnyArray, "q"]) -> Float[Array, "q d"]:
  return matrix.at[rows].get(mode="fill", fill_value=0)
