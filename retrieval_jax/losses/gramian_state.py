"""The states of the gravity losses, and how to find, read and replace the Gramians in the state of any loss."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from retrieval_jax.errors import UserError, nearest
from retrieval_jax.losses.gramian_matrices import Gramians

# As many batches as a measured Gramian is worth to a running mean: its next batch then counts alpha, not 1 / (t + 1).
MEASURED = 2.0**24


class Pending(NamedTuple):
  """What the microbatches of one step have given so far."""

  sums: Gramians  # the microbatches' Gramians, each times its weight
  weight: Float[Array, ""]


class OnlineState(NamedTuple):
  """State of `sogram` and `batch_gravity`.

  estimate: the Gramians in use. step: updates done. batches: how many batches a running mean would have, mass: the sum of
  all batches' weights in the estimate, at most 1; both 0 while it holds nothing. alpha: the weight of the newest batch.
  pending: None for a loss that updates with the estimation batch. unit: whether the Gramians are of unit vectors.
  """

  estimate: Gramians
  step: Int[Array, ""]
  batches: Float[Array, ""]
  mass: Float[Array, ""]
  alpha: Float[Array, ""]
  pending: Pending | None
  unit: Bool[Array, ""]


class Cache(NamedTuple):
  """The embeddings of one side as SAGram saw them last, by row number, factors of the prior after them.

  share: the row's part in the whole Gramian; 0: not seen yet. More rows than the data have fill it up to a number that all
  usual numbers of devices divide.
  """

  rows: Float[Array, "n f"]
  share: Float[Array, "n"]


class CacheSums(NamedTuple):
  """Sums over the caches. query: sum_x share_x z_x z_x^T of the cached rows z, passage likewise; the shares' own sums: how
  much of the whole Gramian the rows seen so far make up."""

  query: Float[Array, "f f"]
  passage: Float[Array, "f f"]
  query_share: Float[Array, ""]
  passage_share: Float[Array, ""]


class PendingSums(NamedTuple):
  """What the microbatches of one step have added so far. increments: to the sums of the caches. query, passage: the
  corrections sum_i w_i m_i (z_i z_i^T - old z_i z_i^T) of beta "unbiased", each microbatch's times its weight."""

  increments: CacheSums
  query: Float[Array, "f f"]
  passage: Float[Array, "f f"]
  weight: Float[Array, ""]


class CachedState(NamedTuple):
  """State of `sagram`. estimate: the Gramians in use; ready: 1 once there are any. sums: of the caches, as at the start of
  the step; they take the pending increments after it. unit: as in OnlineState."""

  estimate: Gramians
  ready: Float[Array, ""]
  sums: CacheSums
  query: Cache
  passage: Cache
  pending: PendingSums
  unit: Bool[Array, ""]


State = OnlineState | CachedState


def estimates(loss_state: PyTree) -> dict[str, Gramians]:
  """Returns the Gramians that each gravity in the state of a loss uses, by the name of its term: "" for a gravity that stands
  alone, "gravity" for the term of that name in a weighted_sum, "outer/gravity" in one within another.

  Zeros before the first update. Example: `estimates(state.loss_state)["gravity"].query` is [d, d].
  """
  return {name: state.estimate for name, state in states(loss_state).items()}


def replaced(loss_state: PyTree, measured: Mapping[str, Gramians]) -> PyTree:
  """Returns the state with given Gramians, measured on the corpus say, in place of the estimates of those names
  (`estimates`): how training starts, or goes on after a change of the learning rate, without a bad estimate. From then on a
  batch counts alpha. Also for a traced state.

  Raises: UserError for an unknown name, other shapes, and a sagram, which makes its estimates from its caches:
    sagram_caches.filled fills those.

  Example: `replaced(state, {"": Gramians(of_queries, of_passages)})`.
  """
  found = states(loss_state)
  for name in measured:
    if name not in found:
      raise UserError(
        f"Gramians for {name!r}: the loss has a gravity at {sorted(found)}{nearest(name, found) or '.'}"
      )

  def one(name: str, state: State) -> State:
    if name not in measured:
      return state
    if isinstance(state, CachedState):
      raise UserError(
        f"Gramians for {name!r}: sagram makes its estimates from its caches; fill those (sagram_caches.filled)."
      )
    given, old = measured[name], state.estimate
    if _shapes(given) != _shapes(old):
      raise UserError(f"Gramians for {name!r} have shapes {_shapes(given)}; expected {_shapes(old)}.")
    return state._replace(
      estimate=jax.tree.map(lambda new, old: jnp.asarray(new, old.dtype), given, old),
      batches=jnp.full_like(state.batches, MEASURED),
      mass=jnp.ones_like(state.mass),
    )

  return mapped(loss_state, one)


def states(loss_state: PyTree) -> dict[str, State]:
  """Returns the state of every gravity in the state of a loss, by the names of `estimates`."""
  found: dict[str, State] = {}

  def note(name: str, state: State) -> State:
    found[name] = state
    return state

  mapped(loss_state, note)
  return found


def mapped(loss_state: PyTree, function: Callable[[str, State], State]) -> Any:
  """Returns the state of a loss with every gravity's state exchanged for function(name, state)."""

  def walk(path: tuple[str, ...], state: Any) -> Any:
    if isinstance(state, OnlineState | CachedState):
      return function("/".join(path), state)
    if not isinstance(state, Mapping):
      return state
    # A weighted_sum keeps its terms' states under "terms", which is no part of their names.
    return {key: walk(path if key == "terms" else (*path, key), part) for key, part in state.items()}

  return walk((), loss_state)


def _shapes(gramians: Gramians) -> tuple:
  return tuple(None if x is None else tuple(x.shape) for x in gramians)
