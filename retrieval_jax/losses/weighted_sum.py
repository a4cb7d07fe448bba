"""Several losses as one: their weighted sum, with weights that may change over the training."""

import functools
import math
import numbers
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from retrieval_jax.errors import UserError
from retrieval_jax.losses import schedules
from retrieval_jax.losses.base import DataSizes, Loss, LossAfter, LossBefore, replicated
from retrieval_jax.losses.schedules import Weight
from retrieval_jax.records import EmbeddedBatch, LossOutput
from retrieval_jax.scoring import upcast


class _Term(NamedTuple):
  weight: Weight
  loss: Loss


class _Context(NamedTuple):
  """What the terms read and no gradient flows to."""

  state: Mapping[str, Any]
  batch: EmbeddedBatch  # without its embeddings
  rng: Array | None


# Parameters of all terms, query, passage: what the gradient is taken of.
_Inputs = tuple[Mapping[str, PyTree[Array]], Float[Array, "q d"], Float[Array, "p d"]]


def weighted_sum(terms: Mapping[str, tuple[Weight, Loss]]) -> Loss:
  """Returns the loss sum_k w_k(t) L_k of the terms {name: (w_k, L_k)}.

  A weight is a number or a schedule, a function of the step t: the number of training batches this loss has seen,
  which is the training's step unless a batch is split into microbatches. A term whose weight is 0 is still computed.
  What a term does before and after a step (Loss.before, Loss.after) is done for it, and its state lies as it says.

  Parameters: {name: the term's}. State: {"step": t, "terms": {name: the term's}}. Each term draws from a key of its
  own. Under "<name>/": the term's own metrics; loss, its unweighted value; weight, w_k(t); gradient_share,
    |w_k| |g_k| / sum_j |w_j| |g_j|,
  where g_k is the gradient of L_k by the embeddings of both sides (the shares are 0 if all gradients are). It says
  which term steers the towers, which values cannot: a term that is large and flat teaches nothing.

  Cost: one forward and one backward of each term, evaluation included; the backward's is the one that training needs
  anyway. Reverse mode only (jax.grad, jax.vjp), and only by the embeddings and the parameters of the loss.

  Raises: UserError for no terms, a name that is empty or has a "/", a weight that is neither a finite number nor a
  schedule, and whatever stands in a Loss's place.

  Example: `weighted_sum({"samtone": (1.0, samtone()), "orthogonal": (0.1, orthogonal())})`.
  """
  if not isinstance(terms, Mapping) or not terms:
    raise UserError(f"weighted_sum: terms is {terms!r}; expected at least one name: (weight, loss).")
  checked = {name: _checked(name, terms[name]) for name in sorted(terms, key=str)}
  value = _with_gradient(checked)

  def init(rng: Array, *, embed_dim: int, data: DataSizes) -> tuple[dict[str, Any], dict[str, Any]]:
    parts = {
      name: term.loss.init(jax.random.fold_in(rng, i), embed_dim=embed_dim, data=data)
      for i, (name, term) in enumerate(checked.items())
    }
    state = {"step": jnp.zeros((), jnp.int32), "terms": {name: part[1] for name, part in parts.items()}}
    return {name: part[0] for name, part in parts.items()}, state

  def apply(
    params: Mapping[str, Any],
    state: Mapping[str, Any],
    batch: EmbeddedBatch,
    *,
    rng: Array | None,
    train: bool,
  ) -> tuple[LossOutput, dict[str, Any]]:
    inputs = (params, jnp.asarray(batch.query), jnp.asarray(batch.passage))
    rest = batch._replace(query=None, passage=None)  # pyright: ignore[reportArgumentType]  (put back in _computed)
    total, (metrics, states) = value(train, inputs, _Context(state, rest, rng))
    step = state["step"] + 1 if train else state["step"]
    return LossOutput(total, metrics), {"step": step, "terms": states}

  losses = [term.loss for term in checked.values()]
  ranges = [loss.target_range for loss in losses if loss.target_range is not None]
  return Loss(
    init,
    apply,
    frozenset().union(*(loss.requires for loss in losses)),
    (max(low for low, _ in ranges), min(high for _, high in ranges)) if ranges else None,
    *_hooks({name: term.loss for name, term in checked.items()}),
  )


def _hooks(
  losses: Mapping[str, Loss],
) -> tuple[LossBefore | None, LossAfter | None, Callable[[PyTree], PyTree] | None]:
  """Returns the sum's before, after and state_axes: what the terms have, each on its own state; None if none has any."""

  def before(state: Mapping[str, Any], estimation: EmbeddedBatch | None) -> dict[str, Any]:
    states = {
      name: state["terms"][name]
      if loss.before is None
      else loss.before(state["terms"][name], estimation if "estimation" in loss.requires else None)
      for name, loss in losses.items()
    }
    return {**state, "terms": states}

  def after(state: Mapping[str, Any]) -> dict[str, Any]:
    states = {
      name: state["terms"][name] if loss.after is None else loss.after(state["terms"][name])
      for name, loss in losses.items()
    }
    return {**state, "terms": states}

  def state_axes(state: Mapping[str, Any]) -> dict[str, Any]:
    axes = {
      name: replicated(state["terms"][name])
      if loss.state_axes is None
      else loss.state_axes(state["terms"][name])
      for name, loss in losses.items()
    }
    return {**replicated({key: part for key, part in state.items() if key != "terms"}), "terms": axes}

  return (
    before if any(loss.before for loss in losses.values()) else None,
    after if any(loss.after for loss in losses.values()) else None,
    state_axes if any(loss.state_axes for loss in losses.values()) else None,
  )


class _Result(NamedTuple):
  """One term at one batch."""

  loss: Float[Array, ""]
  weight: Float[Array, ""]
  gradient: PyTree  # of the unweighted loss, by the term's parameters, query and passage
  metrics: Mapping[str, Any]
  state: PyTree[Array]


def _with_gradient(terms: Mapping[str, _Term]) -> Callable[[bool, _Inputs, _Context], tuple[Array, tuple]]:
  """Returns (train, inputs, context) -> (sum, (metrics, states)) that keeps the gradient it has computed.

  The shares need every term's gradient in the forward pass; left to autodiff, the backward pass would compute all of
  them again.
  """

  def forward(train: bool, inputs: _Inputs, context: _Context) -> tuple[tuple[Array, tuple], PyTree]:
    results = {
      name: _computed(name, term, _folded(context.rng, i), train, inputs, context)
      for i, (name, term) in enumerate(terms.items())
    }
    total = sum((r.weight * r.loss for r in results.values()), jnp.zeros(()))
    gradient = (
      {name: _scaled(r.gradient[0], r.weight) for name, r in results.items()},
      _summed(results, side=1).astype(inputs[1].dtype),
      _summed(results, side=2).astype(inputs[2].dtype),
    )
    states = {name: r.state for name, r in results.items()}
    return (total, jax.lax.stop_gradient((_metrics(results), states))), gradient

  def backward(train: bool, gradient: PyTree, cotangents: tuple[Array, tuple]) -> tuple[PyTree, None]:
    del train
    return _scaled(gradient, cotangents[0]), None

  def value(train: bool, inputs: _Inputs, context: _Context) -> tuple[Array, tuple]:
    return forward(train, inputs, context)[0]

  with_gradient = jax.custom_vjp(value, nondiff_argnums=(0,))
  with_gradient.defvjp(forward, backward)
  return with_gradient


def _computed(
  name: str, term: _Term, rng: Array | None, train: bool, inputs: _Inputs, context: _Context
) -> _Result:
  def value(params: Any, query: Array, passage: Array) -> tuple[Array, tuple]:
    batch = context.batch._replace(query=query, passage=passage)
    output, state = term.loss.apply(params, context.state["terms"][name], batch, rng=rng, train=train)
    return jnp.asarray(output.loss), (output.metrics, state)

  params, query, passage = inputs
  # In float32, as every loss takes its scores, so that the gradient is rounded to the embeddings' dtype once: summed.
  loss, vjp, (metrics, state) = jax.vjp(value, params[name], upcast(query), upcast(passage), has_aux=True)
  weight = term.weight(context.state["step"]) if callable(term.weight) else term.weight
  return _Result(loss, jnp.asarray(weight, loss.dtype), vjp(jnp.ones_like(loss)), metrics, state)


def _metrics(results: Mapping[str, _Result]) -> dict[str, Array]:
  """Returns every number to log: the terms' own, and what the sum knows of them."""
  sizes = {name: jnp.abs(r.weight) * _norm(*r.gradient[1:]) for name, r in results.items()}
  whole = sum(sizes.values(), jnp.zeros(()))
  whole = jnp.where(whole == 0, 1, whole)
  metrics = {}
  for name, result in results.items():
    metrics |= {f"{name}/{metric}": number for metric, number in result.metrics.items()}
    metrics[f"{name}/loss"] = result.loss
    metrics[f"{name}/weight"] = result.weight
    metrics[f"{name}/gradient_share"] = sizes[name] / whole
  return metrics


def _norm(*gradients: Float[Array, "_ d"]) -> Float[Array, ""]:
  return jnp.sqrt(sum((jnp.sum(g**2) for g in gradients), jnp.zeros(())))


def _summed(results: Mapping[str, _Result], *, side: int) -> Float[Array, "_ d"]:
  """Returns the gradient of the sum by the queries (side 1) or passages (side 2), in float32."""
  return functools.reduce(jnp.add, (r.weight * r.gradient[side] for r in results.values()))


def _scaled(gradient: PyTree, factor: Float[Array, ""]) -> PyTree:
  """Returns the gradient times a number, each part in its dtype; what has no gradient (integers) stays without."""

  def scaled(part: Any) -> Any:
    return part if part.dtype == jax.dtypes.float0 else (factor * part).astype(part.dtype)

  return jax.tree.map(scaled, gradient)


def _folded(rng: Array | None, index: int) -> Array | None:
  return None if rng is None else jax.random.fold_in(rng, index)


def _checked(name: Any, pair: Any) -> _Term:
  """Returns the term, or raises UserError saying what stands where."""
  if not isinstance(name, str) or not name or "/" in name:
    raise UserError(
      f"weighted_sum: the name {name!r}: expected text without '/', which parts a term from its metric in the log."
    )
  where = f"weighted_sum: {name!r}"
  if isinstance(pair, Loss):
    raise UserError(f"{where} is a loss without a weight; expected (weight, loss), for example (1.0, loss).")
  if not isinstance(pair, tuple | list) or len(pair) != 2:
    raise UserError(f"{where} is {pair!r}; expected a pair (weight, loss).")
  weight, loss = pair
  if isinstance(weight, Loss):
    raise UserError(f"{where} has the loss first; expected (weight, loss).")
  if not isinstance(loss, Loss):
    hint = " In gin, @name is a function and @name() the loss it makes." if callable(loss) else ""
    raise UserError(f"{where}: expected a Loss after the weight, got {loss!r}.{hint}")
  if callable(weight):
    schedules.check(where, "weight", weight)
  elif not isinstance(weight, numbers.Real) or isinstance(weight, bool) or not math.isfinite(weight):
    raise UserError(f"{where}: the weight is {weight!r}; expected a finite number or a schedule.")
  return _Term(weight, loss)  # pyright: ignore[reportArgumentType]  (numbers.Real is float to us)
