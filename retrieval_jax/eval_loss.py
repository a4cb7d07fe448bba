"""The loss on data that training does not see: batches drawn as in training, dropout off, nothing learned."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Array

from retrieval_jax.batching.shuffled import shuffled
from retrieval_jax.data import dataset
from retrieval_jax.data.dataset import RetrievalData
from retrieval_jax.data.text_inputs import TextInputs
from retrieval_jax.errors import UserError
from retrieval_jax.losses.base import Loss
from retrieval_jax.models.dual_encoder import TowerPair
from retrieval_jax.partitioning import Partitioner
from retrieval_jax.records import Batch, EmbeddedBatch
from retrieval_jax.train_state import TrainState

NAME = "eval_loss"


class EvalLoss(NamedTuple):
  """Measures the training's loss on `source` whenever the evaluators run.

  batches: so many of the training's batch size, always the same ones; the mean over them is reported. Its in-batch
  negatives are the batch's own, so the number compares with the training's loss and with other runs of this batch size.
  """

  source: dataset.Source
  batches: int = 10

  def check(self, loss: Loss) -> None:
    """Raises UserError for a number of batches below 1, and for a loss that reads what held-out batches lack."""
    if "teacher_scores" in loss.requires:
      raise UserError(
        "EVAL_LOSS: the loss reads teacher_scores, which held-out batches do not have. Leave evaluation/eval_loss.gin out."
      )
    if type(self.batches) is not int or self.batches < 1:
      raise UserError(f"EVAL_LOSS_BATCHES={self.batches!r}: expected a whole number of at least 1.")

  def batches_of(
    self,
    inputs: TextInputs,
    batch_size: int,
    *,
    seed: int,
    hard_negatives: int = 0,
    prepare: Callable[[RetrievalData], RetrievalData] = lambda data: data,
  ) -> list[Callable[[], Batch]]:
    """Returns the batches, each made when it is called; with hard negatives where the data have some.

    prepare: makes the data's examples what the training's are (ExampleOptions.of).
    """
    data = prepare(dataset.load(self.source, inputs))
    per_query = 0 if data.negatives is None else hard_negatives
    batcher = shuffled(batch_size)
    plan = batcher.plan(num_examples=data.num_examples, seed=seed)
    count = min(self.batches, batcher.steps_per_epoch(plan))

    def maker(step: int) -> Callable[[], Batch]:
      return lambda: dataset.make_batch(
        data, batcher.rows(plan, step), seed=seed, epoch=0, hard_negatives=per_query
      )

    return [maker(step) for step in range(count)]


LossStep = Callable[[TrainState, Batch], Array]


def make_loss_step(model: TowerPair, loss: Loss, partitioner: Partitioner) -> LossStep:
  """Returns (state, batch) -> the loss of a batch, a float32 scalar; jitted over the mesh, compiled once.

  Memory: a forward pass of the whole batch, whatever TRAIN_CHUNKS.
  """

  def value(state: TrainState, batch: Batch) -> Array:
    params = state.params
    query = model.encode_queries(params["model"], batch.query_tokens)
    passage = model.encode_passages(params["model"], batch.passage_tokens)
    embedded = EmbeddedBatch.of(batch, query, passage)
    output, _ = loss.apply(params["loss"], state.loss_state, embedded, rng=jax.random.key(0), train=False)
    return jax.numpy.asarray(output.loss, jax.numpy.float32)

  return jax.jit(partitioner.traced(value))


def mean_loss(
  step: LossStep, state: TrainState, batches: list[Callable[[], Batch]], partitioner: Partitioner
) -> Mapping[str, float]:
  """Returns {"eval_loss": the mean over the batches}; of a batch that padding fills up, its examples count alone.

  Raises: UserError if it is not finite.
  """
  losses, weights = [], []
  for make in batches:
    batch = make()
    losses.append(float(step(state, partitioner.put_batch(batch))))
    weights.append(float(np.sum(batch.weights)))
  mean = float(np.average(losses, weights=weights))
  if not np.isfinite(mean):
    raise UserError(f"{NAME} is {mean}: the parameters have diverged. Lower LEARNING_RATE.")
  return {NAME: mean}
