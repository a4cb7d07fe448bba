"""What a batcher is told of the data: their tasks and rates, and whether a batch can then be learnt from."""

from collections.abc import Sequence

import numpy as np

from retrieval_jax.batching.base import Group, Plan, Texts
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
        f"TASK_IN_BATCH_NEGATIVES of {task.name} is False, which leaves its queries their own hard negatives alone, and "
        "HARD_NEGATIVES is 0. Set --gin.HARD_NEGATIVES to how many of them a batch is to have for each query."
      )
  groups = [Group(task.name, task.num_examples, task.rate) for task in data.tasks]
  return recipe.batcher.plan(
    num_examples=data.num_examples, seed=seed, groups=groups, texts=lambda: texts_of(data)
  )


def texts_of(data: RetrievalData) -> Texts:
  """Returns the texts of each example as numbers: the identity of its query, and, counted on from the last query, those
  of all its positives.

  Example: query 0 of 3 with the positives 4 and 7 has the texts 0, 7 and 10.
  """
  rows, relevance = data.examples, data.relevance
  counts = relevance.counts[rows].astype(np.int64)
  offsets = np.concatenate([[0], np.cumsum(1 + counts)])
  numbers = np.empty(offsets[-1], np.int64)
  firsts = offsets[:-1]
  numbers[firsts] = data.queries.identity[rows]
  within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
  positives = relevance.passage_rows[np.repeat(relevance.offsets[rows], counts) + within]
  numbers[np.repeat(firsts + 1, counts) + within] = data.queries.num_rows + data.passages.identity[positives]
  return Texts(offsets, numbers)


def describe_tasks(data: RetrievalData) -> Sequence[str]:
  """Returns the lines to print at the start of a training on a mixture: each task's part in it."""
  total = sum(task.rate for task in data.tasks)
  return [
    f"  {task.name}: {task.num_examples:,} examples, {task.rate / total:.1%} of the batches"
    + ("" if task.in_batch_negatives else ", without in-batch negatives")
    for task in data.tasks
  ]
