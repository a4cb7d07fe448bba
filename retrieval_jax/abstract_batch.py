"""The batch of a training whose data are not there: shapes and types, no values."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from retrieval_jax.errors import UserError
from retrieval_jax.losses.base import DataSizes
from retrieval_jax.models.dual_encoder import TowerPair
from retrieval_jax.models.feature_bag import FeatureBagTower
from retrieval_jax.recipe import Recipe
from retrieval_jax.records import Batch, Marginals


class AssumedData(NamedTuple):
  """What a plan assumes of data that it does not read.

  queries, passages (PLAN_QUERIES, PLAN_PASSAGES): rows. positives (PLAN_POSITIVES): the most known answers of a query.
  query_length, passage_length (QUERY_LENGTH, PASSAGE_LENGTH): tokens; None: of towers that read feature bags, whose columns
  say it.

  Example: `AssumedData(query_length=64, passage_length=256)`.
  """

  queries: int = 1_000_000
  passages: int = 1_000_000
  positives: int = 1
  query_length: int | None = None
  passage_length: int | None = None

  @property
  def sizes(self) -> DataSizes:
    """The rows, as a loss with caches takes them."""
    return DataSizes(self.queries, self.passages)

  def check(self) -> None:
    """Raises UserError unless all are whole numbers of at least 1 (lengths: 2)."""
    for macro, value, least in (
      ("PLAN_QUERIES", self.queries, 1),
      ("PLAN_PASSAGES", self.passages, 1),
      ("PLAN_POSITIVES", self.positives, 1),
      ("QUERY_LENGTH", self.query_length, 2),
      ("PASSAGE_LENGTH", self.passage_length, 2),
    ):
      optional = value is None and macro.endswith("LENGTH")
      if not optional and (type(value) is not int or value < least):
        raise UserError(f"{macro}={value!r}: expected a whole number of at least {least}.")

  def lengths(self, model: TowerPair) -> tuple[int, int]:
    """Returns the columns of both sides' tokens.

    Raises: UserError for a tower that does not say them, where no length is given.
    """
    found = []
    for macro, tower, given in (
      ("QUERY_LENGTH", model.query_tower, self.query_length),
      ("PASSAGE_LENGTH", model.passage_tower, self.passage_length),
    ):
      if isinstance(tower, FeatureBagTower) and tower.columns is not None:
        found.append(sum(tower.columns))
      elif given is None:
        raise UserError(f"{macro} is not set, and the tower does not say it: add --gin.{macro}=...")
      else:
        found.append(given)
    return found[0], found[1]


def abstract_batch(recipe: Recipe, data: AssumedData) -> Batch:
  """Returns the Batch of ShapeDtypeStructs that a step of this recipe would get.

  Example: `abstract_batch(recipe, data).query_tokens.shape` is (BATCH_SIZE, QUERY_LENGTH).
  """
  model, loss = recipe.retriever.model, recipe.loss
  query_length, passage_length = data.lengths(model)
  if recipe.passage_length is not None:
    passage_length = recipe.passage_length
  q = recipe.batcher.batch_size
  p = q * (1 + recipe.negatives.per_query)

  def batch(queries: int, passages: int) -> Batch:
    marginals = None
    if "marginals" in loss.requires:
      marginals = Marginals(*[_floats(queries)] * 4)
    scores = _floats(queries, passages) if "teacher_scores" in loss.requires else None
    return Batch(
      query_tokens=_ints(queries, query_length),
      passage_tokens=_ints(passages, passage_length),
      query_rows=_ints(queries),
      passage_rows=_ints(passages),
      positives=_ints(queries, data.positives),
      weights=_floats(queries),
      targets=_floats(queries),
      teacher_scores=scores,
      marginals=marginals,
    )

  whole = batch(q, p)
  second = recipe.examples.estimation_size(loss, q)
  return whole._replace(estimation=batch(second, second)) if second else whole


# Structs of shapes stand where a Batch has arrays.
def _ints(*shape: int) -> jax.Array:
  return jax.ShapeDtypeStruct(shape, jnp.int32)  # pyright: ignore[reportReturnType]  (a struct for an array)


def _floats(*shape: int) -> jax.Array:
  return jax.ShapeDtypeStruct(shape, jnp.float32)  # pyright: ignore[reportReturnType]  (a struct for an array)
