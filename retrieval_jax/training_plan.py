"""What a batcher is told of the data: their tasks and rates, and whether a batch can then be learnt from."""

from collections.abc import Sequence

from retrieval_jax.batching.base import Group, Plan
from retrieval_jax.data.dataset import RetrievalData
from retrieval_jax.errors import UserError
from retrieval_jax.recipe import Recipe


def plan_of(recipe: Recipe, data: RetrievalData, seed: int) -> Plan:
  """Returns the batcher's plan for the data.

  Raises: UserError for a batcher that cannot form batches of them, and for a task that would have no negatives at all.
  """
  for task in data.tasks:
    if not task.in_batch_negatives and not recipe.negatives.per_query:
      raise UserError(
        f"in_batch_negatives of {task.name} is False, which leaves its queries their own hard negatives alone, and "
        "HARD_NEGATIVES is 0. Set --gin.HARD_NEGATIVES to how many of them a batch is to have for each query."
      )
  groups = [Group(task.name, task.num_examples, task.rate) for task in data.tasks]
  return recipe.batcher.plan(num_examples=data.num_examples, seed=seed, groups=groups)


def describe_tasks(data: RetrievalData) -> Sequence[str]:
  """Returns the lines to print at the start of a training on a mixture: each task's part in it."""
  total = sum(task.rate for task in data.tasks)
  return [
    f"  {task.name}: {task.num_examples:,} examples, {task.rate / total:.1%} of the batches"
    + ("" if task.in_batch_negatives else ", without in-batch negatives")
    for task in data.tasks
  ]
