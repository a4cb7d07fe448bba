"""Evaluation inside a training: the loss on held-out batches and every evaluator, of the parameters of one step."""

import pathlib
import time
from collections.abc import Callable, Mapping

from retrieval_jax.encoding import Encoder
from retrieval_jax.eval_loss import make_loss_step, mean_loss
from retrieval_jax.partitioning import Partitioner
from retrieval_jax.recipe import Recipe
from retrieval_jax.searchers import DenseSearcher
from retrieval_jax.train_state import TrainState

SECONDS = "eval_seconds"
Evaluate = Callable[[TrainState, int], Mapping[str, float]]


def make_evaluation(recipe: Recipe, partitioner: Partitioner, folder: pathlib.Path, *, seed: int) -> Evaluate:
  """Returns (state, step) -> every evaluator's metrics as "<evaluator>/<metric>", the "eval_loss" if the recipe has
  one, and "eval_seconds"; nothing at all for a recipe without evaluators and loss.

  The step of the loss is compiled at its first call, and so is the encoder, once for all evaluators.
  """
  loss_step, batches = None, []
  if recipe.eval_loss is not None:
    loss_step = make_loss_step(recipe.retriever.model, recipe.loss, partitioner)
    batches = recipe.eval_loss.batches_of(
      recipe.inputs,
      recipe.batcher.batch_size,
      seed=seed,
      hard_negatives=recipe.negatives.per_query,
      prepare=lambda data: recipe.examples.of(data, recipe.loss, held_out=True),
    )

  def evaluate(state: TrainState, step: int) -> Mapping[str, float]:
    start = time.perf_counter()
    scores: dict[str, float] = {}
    if loss_step is not None:
      scores.update(mean_loss(loss_step, state, batches, partitioner))
    if recipe.evaluators:
      encoder = Encoder(recipe.retriever.model, state.params["model"], partitioner)
      searcher = DenseSearcher(encoder, step, str(folder / f"checkpoint_{step}"))
      for evaluator in recipe.evaluators:
        for name, results in evaluator.run_all(searcher, model_dir=folder).items():
          scores.update({f"{name}/{metric}": value for metric, value in results.items()})
    return {**scores, SECONDS: time.perf_counter() - start} if scores else {}

  return evaluate
