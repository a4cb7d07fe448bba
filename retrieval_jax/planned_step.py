"""The training step and the encoding step of a recipe, traced for a mesh that need not exist, and what they hold there."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from retrieval_jax.abstract_batch import AssumedData, abstract_batch
from retrieval_jax.encoding import Encoder, encode_program
from retrieval_jax.models.dual_encoder import Side
from retrieval_jax.partitioning import Partitioner
from retrieval_jax.planned_program import PlannedProgram, device_bytes, plan_program
from retrieval_jax.recipe import Recipe
from retrieval_jax.records import Batch
from retrieval_jax.topologies import Topology
from retrieval_jax.train_state import TrainState, abstract_with, initial_state, state_shardings


class Held(NamedTuple):
  """Bytes of one device that a step is given: by shapes, so that nothing needs to be compiled."""

  parameters: float
  optimizer: float
  loss_state: float
  batch: float

  @property
  def total(self) -> float:
    """All of them."""
    return sum(self)


class StepShapes(NamedTuple):
  """The state and the batch of a training step: structs of shapes and types in the place of arrays."""

  state: TrainState
  batch: Batch

  @property
  def num_parameters(self) -> int:
    """Parameters of the model."""
    return sum(leaf.size for leaf in jax.tree.leaves(self.state.params["model"]))


class Layout(NamedTuple):
  """How they lie on a mesh, and what a device holds of them."""

  partitioner: Partitioner
  shardings: TrainState
  held: Held


def shapes_of(recipe: Recipe, data: AssumedData, *, seed: int = 0) -> StepShapes:
  """Returns the shapes of a recipe's training.

  Raises: UserError for data that cannot be.

  Example: `shapes_of(recipe, AssumedData(query_length=64, passage_length=256)).num_parameters`.
  """
  data.check()
  recipe.negatives.check_number()

  def create() -> TrainState:
    return initial_state(
      jax.random.key(seed),
      recipe.retriever.model,
      recipe.loss,
      recipe.transform,
      data=data.sizes,
      tables=recipe.tables,
    )

  return StepShapes(jax.eval_shape(create), abstract_batch(recipe, data))


def layout_of(recipe: Recipe, shapes: StepShapes, partitioner: Partitioner) -> Layout:
  """Returns how a recipe's training lies on a mesh.

  Raises: UserError for a batch or a parameter that the mesh does not divide.
  """
  size = recipe.batcher.batch_size
  partitioner.check_batch_size(size)
  recipe.step.check(size, partitioner.data_size)
  partitioner.check_batch_size(recipe.examples.estimation_size(recipe.loss, size), "ESTIMATION_BATCH_SIZE")
  shardings = state_shardings(shapes.state, recipe.retriever.model, partitioner, recipe.loss)
  held = Held(
    device_bytes(shapes.state.params, shardings.params),
    device_bytes(shapes.state.opt_state, shardings.opt_state),
    device_bytes(shapes.state.loss_state, shardings.loss_state),
    device_bytes(shapes.batch, jax.tree.map(lambda _: partitioner.rows, shapes.batch)),
  )
  return Layout(partitioner, shardings, held)


def traced_step(recipe: Recipe, shapes: StepShapes, layout: Layout, *, seed: int = 0) -> Any:
  """Returns the recipe's training step as `train` makes it, traced for plan_program.

  Raises: UserError for parts that do not fit together.
  """
  step = recipe.make_step(seed=seed)
  return layout.partitioner.jit_step(step, layout.shardings).trace(shapes.state, shapes.batch)


class EncodingPlan(NamedTuple):
  """The encoding of a batch of the longest passages. rows, tokens: of the batch, over all devices."""

  program: PlannedProgram
  rows: int
  tokens: int


def plan_encoding(
  recipe: Recipe,
  partitioner: Partitioner,
  data: AssumedData,
  topology: Topology,
  *,
  dtype: str,
  tokens_per_batch: int | None,
) -> EncodingPlan:
  """Returns what encoding passages becomes, as the program `encode` runs it."""
  model = recipe.retriever.model
  abstract = jax.eval_shape(model.init, jax.random.key(0))
  params = abstract_with(abstract, partitioner.shardings(abstract, model.logical_axes()))
  side: Side = "passage"
  _, length = data.lengths(model)
  encoder = Encoder(model, params, partitioner, tokens_per_batch, dtype)
  rows = max(rows for rows, tokens in encoder.shapes(length) if tokens == length)
  tokens = jax.ShapeDtypeStruct((rows, length), jnp.int32)
  traced = encode_program(model, dtype, side, partitioner).trace(params, tokens)
  held = device_bytes(abstract, jax.tree.map(lambda x: x.sharding, params))
  return EncodingPlan(plan_program(traced, topology, held), rows, length)
