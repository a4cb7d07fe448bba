"""One update of the label classifiers: gather the batch's rows, loss and gradient on them alone, scatter them back."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PyTree

from retrieval_jax.classifier_losses import ClassifierLoss
from retrieval_jax.classifier_state import NAME
from retrieval_jax.errors import UserError
from retrieval_jax.hardness import HARDNESS, in_batch_hardness
from retrieval_jax.label_unions import UnionBatch
from retrieval_jax.partitioning import Partitioner
from retrieval_jax.sparse_optimizers import SparseOptimizer, Touched, apply_sparse, rows_of
from retrieval_jax.train_state import TrainState

Step = Callable[[TrainState, UnionBatch], tuple[TrainState, Mapping[str, Array]]]


class ClassifierStepOptions(NamedTuple):
  """dropout_rate: share of a point's cached embedding that is zeroed in each step, before the cosine. NGAME's is 0.5.
  max_nonfinite_steps: as in StepOptions: above 0 a step that is not finite changes nothing but the step number.
  hardness: as in StepOptions: above 0 the metric "in_batch_hardness" is the mean cosine of each point to so many of the
    batch that are most like it.
  """

  dropout_rate: float = 0.5
  max_nonfinite_steps: int = 0
  hardness: int = 0

  def check(self) -> None:
    """Raises UserError for numbers that cannot be."""
    if not 0 <= self.dropout_rate < 1:
      raise UserError(
        f"POINT_DROPOUT={self.dropout_rate!r}: expected 0 or more and less than 1: the share of a point's embedding that "
        "is zeroed."
      )
    for name, value in (
      ("MAX_NONFINITE_STEPS", self.max_nonfinite_steps),
      ("IN_BATCH_HARDNESS", self.hardness),
    ):
      if type(value) is not int or value < 0:
        raise UserError(f"{name}={value!r}: expected a whole number of at least 0.")


def make_classifier_step(
  loss: ClassifierLoss,
  optimizer: SparseOptimizer,
  *,
  num_labels: int,
  seed: int,
  options: ClassifierStepOptions = ClassifierStepOptions(),  # noqa: B008  (an immutable record)
) -> Step:
  """Returns step(state, batch) -> (state', metrics), pure; jit it with `jit_classifier_step`.

  Dropout keys are fold_in(key(seed), step): a resumed run draws the same masks.
  metrics: loss, grad_norm, labels (how many columns are not padding) and the loss's own, all float32 scalars. A state of
  which a metric is not finite is not to be kept: step_guard.py looks at them before anything is saved.
  Cost: O(q u d), the scores; O(u d) for all that is done with classifiers and slots, whatever their number c. With
  several devices the u rows are gathered from where they lie, and the gradient on them is reduced, once each.
  """

  def step(state: TrainState, batch: UnionBatch) -> tuple[TrainState, Mapping[str, Array]]:
    rng = jax.random.fold_in(jax.random.key(seed), state.step)
    weights = state.params[NAME]
    assert isinstance(weights, jax.Array)
    points = dropped(jnp.asarray(batch.points), rng, rate=options.dropout_rate)
    labels = jnp.asarray(batch.labels)

    def objective(table: Float[Array, "u d"]) -> tuple[Array, Mapping[str, Any]]:
      output = loss(points, table, batch, num_labels=num_labels)
      return jnp.asarray(output.loss), output.metrics

    table = rows_of(weights, labels)
    (value, found), gradient = jax.value_and_grad(objective, has_aux=True)(table)
    metrics = {
      "loss": value,
      "grad_norm": optax.tree.norm(gradient),
      "labels": jnp.sum(labels < num_labels),
      **found,
    }
    if options.hardness:
      rows = jnp.where(jnp.asarray(batch.weights) > 0, jnp.arange(len(points)), -1)
      metrics[HARDNESS] = in_batch_hardness(jnp.asarray(batch.points), rows, nearest=options.hardness)
    metrics = {name: jnp.asarray(metric, jnp.float32) for name, metric in metrics.items()}
    if options.max_nonfinite_steps:
      # Beyond the last row: nothing is written, at the cost of the batch's rows instead of all rows.
      finite = jnp.all(jnp.isfinite(jnp.stack(list(metrics.values()))))
      labels = jnp.where(finite, labels, len(weights) + jnp.arange(len(labels), dtype=labels.dtype))
    weights, slots = apply_sparse(
      optimizer, weights, state.opt_state, Touched(labels, table, gradient), state.step
    )
    return TrainState(state.step + 1, {NAME: weights}, {}, slots), metrics  # pyright: ignore[reportArgumentType]  (jaxtyping's Int)

  return step


def dropped(points: Float[Array, "q d"], rng: Array, *, rate: float) -> Float[Array, "q d"]:
  """Returns the points with each number zeroed with probability `rate` and the rest divided by 1 - rate."""
  if not rate:
    return points
  return jnp.where(jax.random.bernoulli(rng, 1 - rate, points.shape), points / (1 - rate), 0)


def batch_shardings(partitioner: Partitioner) -> UnionBatch:
  """Returns the shardings of a batch: points over the data axis, the union's labels everywhere."""
  shardings: Any = dict.fromkeys(UnionBatch._fields, partitioner.rows)
  return UnionBatch(**{**shardings, "labels": partitioner.replicated})


def put_batch(batch: UnionBatch, partitioner: Partitioner) -> UnionBatch:
  """Places the host arrays of a batch on the mesh."""
  return jax.device_put(batch, batch_shardings(partitioner))


def jit_classifier_step(step: Step, shardings: PyTree, partitioner: Partitioner) -> Callable:
  """Returns the compiled step, one program for each size of union; the old state's buffers are donated and written in
  place. shardings: of the state."""
  return jax.jit(
    partitioner.traced(step),
    in_shardings=(shardings, batch_shardings(partitioner)),
    out_shardings=(shardings, partitioner.replicated),
    donate_argnums=0,
  )
