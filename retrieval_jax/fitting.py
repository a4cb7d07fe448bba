"""Which change of settings would make a step fit into a device's memory: estimates of all, and the best one compiled."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from retrieval_jax import sharding
from retrieval_jax.abstract_batch import AssumedData
from retrieval_jax.activation_estimate import estimated_bytes, with_remat
from retrieval_jax.device_mesh import DATA_AXIS, MODEL_AXIS
from retrieval_jax.errors import UserError
from retrieval_jax.models.tower import Tower
from retrieval_jax.partitioning import Partitioner, standard_rules
from retrieval_jax.planned_program import PlannedProgram, plan_program
from retrieval_jax.planned_step import Layout, StepShapes, layout_of, traced_step
from retrieval_jax.recipe import Recipe
from retrieval_jax.topologies import Topology

MakePartitioner = Callable[..., Partitioner]
ROOM: Final = 0.9  # of the memory: an estimate that fills more is not trusted to fit


class Change(NamedTuple):
  """settings: what to add to the command. cost: in forward passes and the like, to order the changes by."""

  settings: tuple[str, ...]
  cost: float
  remat: str | None = None
  chunks: int | None = None
  fsdp: bool = False
  partitions: int | None = None


class Tried(NamedTuple):
  """A change, the bytes of one device that it is estimated to need, and what its compilation found, where it was compiled.

  problem: why it cannot be made at all.
  """

  change: Change
  estimate: float | None
  program: PlannedProgram | None = None
  problem: str | None = None

  def fits(self, limit: float) -> bool | None:
    """Returns whether it fits: as compiled, else by its estimate; None if it cannot be made."""
    if self.program is not None:
      return self.program.fits
    return None if self.estimate is None else self.estimate <= ROOM * limit


class Search(NamedTuple):
  """What all changes start from: the recipe as it is, its shapes and layout, and what the compiler said of it."""

  recipe: Recipe
  make_partitioner: MakePartitioner
  data: AssumedData
  topology: Topology
  shapes: StepShapes
  layout: Layout
  program: PlannedProgram

  @property
  def limit(self) -> float:
    """The memory of one device."""
    return self.program.limit or self.topology.hbm_bytes or math.inf


def find_changes(search: Search, *, compilations: int) -> list[Tried]:
  """Returns the changes by themselves, then the cheapest that fits, alone or together with others.

  Each has an estimate of its bytes. compilations: so many of those that fit by their estimate are compiled, the cheapest
  first, until one does; the one of the lowest estimate where none fits by it.

  Example: `find_changes(search, compilations=1)[-1].change.settings`.
  """
  layouts: dict[tuple[bool, int | None], Layout | str] = {}
  tried = [_estimate(change, search, layouts) for change in _changes(search)]
  promising = sorted((one for one in tried if one.fits(search.limit)), key=lambda one: one.change.cost)
  if not promising:  # estimates are rough: the best of them may fit after all
    possible = [one for one in tried if one.estimate is not None]
    promising = sorted(possible, key=lambda one: one.estimate or 0.0)[:1] if compilations else []
  shown = [one for one in tried if len(one.change.settings) == 1]
  for number, one in enumerate(promising):
    if number < compilations:
      recipe = _changed(one.change, search.recipe)
      layout = _layout(one.change, search, layouts)
      assert isinstance(layout, Layout)
      one = one._replace(
        program=plan_program(traced_step(recipe, search.shapes, layout), search.topology, layout.held.total)
      )
    shown = [*(other for other in shown if other.change != one.change), one]
    if number >= compilations or one.fits(search.limit):
      break
  return shown


def _changes(search: Search) -> Iterator[Change]:
  """Yields single changes, then pairs, then all together."""
  recipe, mesh = search.recipe, search.layout.partitioner
  model = recipe.retriever.model
  towers = [t for t in (model.query_tower, model.passage_tower) if isinstance(t, Tower)]
  policy = str(getattr(towers[0].encoder, "remat_policy", None)) if towers else None
  remat = [Change((f"--gin.REMAT_POLICY={name}",), cost, remat=name) for name, cost in _REMAT.get(policy, ())]
  rows = recipe.batcher.batch_size // mesh.data_size // recipe.step.microbatches
  least = max(recipe.step.chunks, 1)
  chunks = [
    Change((f"--gin.TRAIN_CHUNKS={n}",), 1.0 + 0.05 * n.bit_length(), chunks=n)
    for n in (2, 4, 8, 16, 32)
    if least < n <= rows
  ]
  is_split = (sharding.EMBED, DATA_AXIS) in mesh.rules
  split = [] if is_split else [Change(("--gin_file=partitioning/fsdp.gin",), 0.4, fsdp=True)]
  now = mesh.mesh.shape[MODEL_AXIS]
  model_axis = [
    Change((f"--gin.NUM_PARTITIONS={n}",), 0.6 + 0.3 * n.bit_length(), partitions=n)
    for n in (2, 4, 8)
    if now < n <= len(search.topology.devices)
  ]
  single = [kind for kind in (remat, chunks, split, model_axis) if kind]
  for kind in single:
    yield from kind
  for i, kind in enumerate(single):
    for other in single[i + 1 :]:
      yield from (_together(a, b) for a in kind for b in other)
  if remat and chunks:
    yield from (_together(remat[-1], c, s) for c in chunks for s in split or model_axis)
    yield from (_together(remat[-1], c, s, m) for c in chunks for s in split for m in model_axis)


# REMAT_POLICY now -> what keeps less, and what it costs.
_REMAT: Final[dict[str | None, Sequence[tuple[str, float]]]] = {
  "none": (("minimal", 0.3), ("full", 1.0)),
  "minimal": (("full", 1.0),),
}


def _together(*changes: Change) -> Change:
  return Change(
    tuple(text for one in changes for text in one.settings),
    sum(one.cost for one in changes),
    next((one.remat for one in changes if one.remat), None),
    next((one.chunks for one in changes if one.chunks), None),
    any(one.fsdp for one in changes),
    next((one.partitions for one in changes if one.partitions), None),
  )


def _changed(change: Change, recipe: Recipe) -> Recipe:
  if change.remat is not None:
    model = with_remat(recipe.retriever.model, change.remat)
    recipe = recipe._replace(retriever=recipe.retriever._replace(model=model))
  if change.chunks is not None:
    recipe = recipe._replace(step=recipe.step._replace(chunks=change.chunks))
  return recipe


def _layout(
  change: Change, search: Search, layouts: dict[tuple[bool, int | None], Layout | str]
) -> Layout | str:
  """Returns the layout of a change, or why there is none, such as a width that the devices do not divide."""
  key = change.fsdp, change.partitions
  if key == (False, None):
    return search.layout
  if key not in layouts:
    options: dict[str, Any] = {}
    if change.partitions is not None:
      options |= {"num_partitions": change.partitions, "ici_mesh_shape": None}
    if change.fsdp:
      options["rules"] = standard_rules(parameter_partitioning_dims=2)
    try:
      partitioner = search.make_partitioner(devices=search.topology.devices, **options)
      layouts[key] = layout_of(search.recipe, search.shapes, partitioner)
    except UserError as error:
      layouts[key] = str(error)
  return layouts[key]


def _estimate(change: Change, search: Search, layouts: dict[tuple[bool, int | None], Layout | str]) -> Tried:
  layout = _layout(change, search, layouts)
  if isinstance(layout, str):
    return Tried(change, None, problem=layout)
  lengths = search.data.lengths(search.recipe.retriever.model)
  known = search.recipe, search.layout, search.program.temporaries
  return Tried(change, estimated_bytes(_changed(change, search.recipe), layout, lengths, known=known))
