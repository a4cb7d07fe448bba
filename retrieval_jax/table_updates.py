"""Training of large tables: a step reads, differentiates and writes the rows that its batch touches, and no other."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax.traverse_util import flatten_dict, unflatten_dict
from jaxtyping import Array, Bool, Float, Int

from retrieval_jax import sharding
from retrieval_jax.errors import UserError
from retrieval_jax.freezing import frozen_mask
from retrieval_jax.models.dual_encoder import SIDES, Side, TowerPair
from retrieval_jax.records import AnyArray, Batch, Tokens
from retrieval_jax.sparse_optimizers import SparseOptimizer, Touched, apply_sparse

Path = tuple[str, ...]  # of a parameter, such as ("model", "token_embedder", "id", "embedding")


class Narrowed(NamedTuple):
  """What the gradient of a step is taken of, in the place of the whole.

  params: those of a train state with each table narrowed to the rows that the batch touches. model: the one of these tables.
  batch: the batch with the rows' places there as ids; embeddings, loss and gradient are what they were. rows: of each
  narrowed table, the number of every row in the whole one; a number beyond the last row belongs to one that is not to be
  written."""

  model: TowerPair
  params: Mapping[str, Any]
  batch: Batch
  rows: Mapping[Path, Int[Array, "u"]]


class TableUpdates(NamedTuple):
  """Updates the tables of a model with an optimizer of rows; `frozen` ones (freezing.py) are no concern of it.

  The result is that of the same optimizer on whole tables where a row without a gradient is one that it leaves alone (SGD,
  Adagrad), to rounding; gradients of a row that the batch touches several times are summed first.
  Cost: O(n d) for n ids of the batch, padding included, and 4 bytes a row of the table that are filled with a constant.
  Under a mesh the ids are gathered (n integers), and each side's gradient of the rows is reduced over the data axis: n d
  floats instead of a whole table's. To read the rows of a table that is split over the model axis takes one more reduction of
  n d floats, and one for each slot.

  Example: `TableUpdates(model, sparse_adagrad(rate)).narrowed(state.params, batch).rows`.
  """

  model: TowerPair
  optimizer: SparseOptimizer
  frozen: Sequence[str] = ()

  def split(self, params: Mapping[str, Any]) -> tuple[dict[str, Any], dict[Path, Array]]:
    """Returns (all the parameters but the tables that are trained here, these tables); `joined` puts them together.

    Raises: UserError for a model without tables, or one of which all are frozen.
    """
    flat = flatten_dict(dict(params), keep_empty_nodes=True)
    kept = flatten_dict(dict(frozen_mask(params, self.frozen)))
    known = {("model", *path) for side in SIDES for path in self.model.table_paths(side).values()}
    if not known:
      raise UserError(
        "the optimizer has a part for tables, and this model has none: only feature-bag towers (models/feature_bag_*.gin) "
        "have. Choose an optimizer for all parameters, such as optimizers/adamw.gin or optimizers/sgd.gin."
      )
    paths = sorted(path for path in known if not kept[path])
    if not paths:
      raise UserError(
        "the optimizer has a part for tables, and FROZEN or the sharing scheme keeps every table as it is. Freeze fewer, or "
        "choose an optimizer for all parameters, such as optimizers/sgd.gin."
      )
    tables: dict[Path, Any] = {path: flat.pop(path) for path in paths}
    return unflatten_dict(flat), tables

  def init(self, params: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the optimizer's slots at the start: name -> the tree of the tables' parameters."""
    slots = {path: self.optimizer.init(table) for path, table in self.split(params)[1].items()}
    return {
      name: unflatten_dict({path: own[name] for path, own in slots.items()}) for name in self.optimizer.slots
    }

  def narrowed(self, params: Mapping[str, Any], batch: Batch) -> Narrowed:
    """Returns what the gradient of a step is taken of. The batch's estimation batch, if any, is left as it is: it is
    embedded with the whole tables. As long as the loss's gradient depends on it, no table is copied for that; without such a
    dependence XLA's CPU compiler puts a copy before the write.
    """
    rest, tables = self.split(params)
    tokens: dict[Side, Tokens] = {"query": batch.query_tokens, "passage": batch.passage_tokens}
    bags = {side: self._bags(side, tokens[side], tables) for side in SIDES}
    rows, small = {}, {}
    for path, table in tables.items():
      users = [(side, name) for side in SIDES for name, own in self._paths(side).items() if own == path]
      ids = [bags[side][name] for side, name in users]
      places, rows[path], small[path] = touched_rows(table, ids)
      for (side, name), new in zip(users, places, strict=True):
        bags[side][name] = new
    tokens = {side: bags[side] or tokens[side] for side in SIDES}
    batch = batch._replace(query_tokens=tokens["query"], passage_tokens=tokens["passage"])
    model = self.model.with_table_rows({path[1:]: len(values) for path, values in small.items()})
    return Narrowed(model, joined(rest, small), batch, rows)

  def written(
    self,
    params: Mapping[str, Any],
    slots: Mapping[str, Any],
    narrowed: Narrowed,
    gradient: Mapping[Path, Float[Array, "u d"]],
    step: Int[Array, ""],
    *,
    keep: Bool[Array, ""] | None = None,
  ) -> tuple[dict[Path, Array], dict[str, Any]]:
    """Returns the tables and slots after a step: in place, where they are donated.

    gradient: of the narrowed tables. keep: where it is False, nothing is written.
    """
    _, tables = self.split(params)
    _, small = self.split(narrowed.params)
    flat: dict[str, Mapping[Path, Any]] = {
      name: flatten_dict(dict(slots[name])) for name in self.optimizer.slots
    }
    new_slots: dict[str, dict[Path, Array]] = {name: {} for name in self.optimizer.slots}
    for path, table in tables.items():
      rows = narrowed.rows[path]
      if keep is not None:
        rows = jnp.where(keep, rows, len(table) + jnp.arange(len(rows), dtype=rows.dtype))
      touched = Touched(rows, small[path], gradient[path])
      own = {name: of_tables[path] for name, of_tables in flat.items()}
      tables[path], own = apply_sparse(self.optimizer, table, own, touched, step, ascending=False)
      for name, slot in own.items():
        new_slots[name][path] = slot
    return tables, {name: unflatten_dict(of_tables) for name, of_tables in new_slots.items()}

  def _paths(self, side: Side) -> dict[str, Path]:
    return {name: ("model", *path) for name, path in self.model.table_paths(side).items()}

  def _bags(self, side: Side, tokens: Tokens, tables: Mapping[Path, Array]) -> dict[str, AnyArray]:
    """Returns the side's ids by feature, or nothing where none of its tables is among these."""
    if not any(path in tables for path in self._paths(side).values()):
      return {}
    return dict(self.model.bags(side, tokens))


def joined(rest: Mapping[str, Any], tables: Mapping[Path, Array]) -> dict[str, Any]:
  """Returns the parameters of which TableUpdates.split made these two."""
  return unflatten_dict({**flatten_dict(dict(rest), keep_empty_nodes=True), **tables})


def touched_rows(
  table: Float[Array, "c d"], ids: Sequence[Int[AnyArray, "_ _"]]
) -> tuple[list[Int[Array, "_ _"]], Int[Array, "u"], Float[Array, "u d"]]:
  """Returns (places, rows, values): the ids replaced by places among `values`, the touched rows of the table, whose numbers
  are `rows`. 0 stays 0, the padding. values[i] is a row of its own only where rows[i] is below c; what else there is,
  padding and repeats that no place points to, has a number beyond the last row.

  Without sorting, which costs a CPU 90 times as much as this (15,000 ids of 60,000 rows: 2.8 ms): each id's first
  occurrence is its place. Of more ids than rows, every row has a place.

  Example: of a table of 9 rows and ids [[7, 0, 7, 3]] the places are [[1, 0, 1, 4]] and the rows [9, 7, 11, 12, 3].
  """
  count = len(table)
  # Every device handles all of the ids: they are few, and a table's rows may lie anywhere.
  arrays = [sharding.constrain(jnp.asarray(x, jnp.int32), (None, None)) for x in ids]
  flat = jnp.concatenate([jnp.zeros(1, jnp.int32), *(x.reshape(-1) for x in arrays)])
  flat = sharding.constrain(jnp.clip(flat, 0, count - 1), (None,))
  number = jnp.arange(min(len(flat), count), dtype=jnp.int32)
  if len(flat) > count:
    seen = jnp.zeros(count, bool).at[flat].set(True)
    rows, own, places = number, seen, flat
  else:
    first = jnp.full(count, len(flat), jnp.int32).at[flat].min(number)
    places = sharding.constrain(first[flat], (None,))
    rows, own = flat, places == number
  # In bounds by the clip above; each number beyond the last row is another one, so that all rows differ.
  values = sharding.constrain(table.at[rows].get(mode="promise_in_bounds"), (None, sharding.EMBED))
  rows = sharding.constrain(jnp.where(own & (rows != 0), rows, count + number), (None,))
  ends, found = 1, []
  for x in arrays:
    own_places = jax.lax.slice(places, (ends,), (ends + x.size,)).reshape(x.shape)
    # Whole first: a slice that is split while it is cut takes a chain of permutations.
    whole = sharding.constrain(own_places, (None, None))
    found.append(sharding.constrain(whole, (sharding.BATCH, None)))
    ends += x.size
  return found, rows, values
