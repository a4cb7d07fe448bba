"""The planning program: what a training needs on a TPU slice that is not there. `python -m retrieval_jax.plan --topology=v5e:4x4`."""

import json
import pathlib
import sys
from collections.abc import Mapping
from typing import Any

import jax

from retrieval_jax.abstract_batch import AssumedData
from retrieval_jax.activation_estimate import with_remat
from retrieval_jax.errors import UserError
from retrieval_jax.fitting import MakePartitioner, Search, find_changes
from retrieval_jax.paths import atomic_write, output_file
from retrieval_jax.plan_report import PlanReport
from retrieval_jax.planned_program import plan_program
from retrieval_jax.planned_step import Layout, StepShapes, layout_of, plan_encoding, shapes_of, traced_step
from retrieval_jax.recipe import Recipe
from retrieval_jax.step_costs import Products, products
from retrieval_jax.topologies import topology as find_topology


def plan(
  recipe: Recipe,
  *,
  make_partitioner: MakePartitioner,
  topology: str,
  data: AssumedData = AssumedData(),  # noqa: B008  (an immutable record)
  encode_dtype: str = "bfloat16",
  tokens_per_batch: int | None = None,
  encoding: bool = True,
  compilations: int = 1,
  json_path: str | None = None,
) -> Mapping[str, Any]:
  """Compiles the training step and the encoding step for a topology, prints what they need, and returns it as plain values.

  No data are read, no weights made, no array allocated: the programs are compiled of shapes alone, by the compiler and with
  the settings of the topology's own chips. What does not fit is followed by the changes that would help.
  make_partitioner: called with devices=..., and with num_partitions or rules for the changes.
  data: the rows, lengths and positives to assume. encoding: whether the encoding step is compiled too (PLAN_ENCODE).
  compilations: so many changes are compiled, the others estimated (PLAN_TRIES). json_path: where all numbers are written.

  Raises: UserError for a topology that there is not, without libtpu, and for parts that do not fit together.

  Example: `plan(recipe, make_partitioner=partitioner, topology="cpu:8")["bytes_per_device"]["total"]`.
  """
  if type(compilations) is not int or compilations < 0:
    raise UserError(f"PLAN_TRIES={compilations!r}: expected a whole number of at least 0.")
  if json_path is not None:
    output_file(json_path, "--json")  # before minutes of compiling
  found = find_topology(topology)
  print(f"planning for {found.describe()}: compiling takes minutes", file=sys.stderr, flush=True)
  shapes = shapes_of(recipe, data)
  layout = layout_of(recipe, shapes, make_partitioner(devices=found.devices))
  traced = traced_step(recipe, shapes, layout)
  program = plan_program(traced, found, layout.held.total)
  search = Search(recipe, make_partitioner, data, found, shapes, layout, program)
  encoded = None
  if encoding:
    encoded = plan_encoding(
      recipe, layout.partitioner, data, found, dtype=encode_dtype, tokens_per_batch=tokens_per_batch
    )
  report = PlanReport(
    found,
    recipe,
    shapes,
    layout,
    program,
    _once(recipe, shapes, layout),
    _forward(recipe, shapes),
    [] if program.fits else find_changes(search, compilations=compilations),
    encoded,
  )
  print(report.text(), flush=True)
  values = report.values()
  if json_path is not None:
    with atomic_write(pathlib.Path(json_path)) as file:
      json.dump(values, file, indent=2)
      file.write("\n")
  return values


def _once(recipe: Recipe, shapes: StepShapes, layout: Layout) -> Products:
  """Returns the products of the step if it computed nothing twice."""
  model = with_remat(recipe.retriever.model, "none") or recipe.retriever.model
  plain = recipe._replace(
    retriever=recipe.retriever._replace(model=model), step=recipe.step._replace(chunks=1)
  )
  return products(traced_step(plain, shapes, layout).jaxpr)


def _forward(recipe: Recipe, shapes: StepShapes) -> Products:
  """Returns the products of both sides' encoding, one way."""
  model, batch = recipe.retriever.model, shapes.batch
  params = shapes.state.params["model"]
  queries = jax.make_jaxpr(model.encode_queries)(params, batch.query_tokens)
  passages = jax.make_jaxpr(model.encode_passages)(params, batch.passage_tokens)
  return products(queries) + products(passages)


if __name__ == "__main__":
  from retrieval_jax import launch

  launch.main("plan")
