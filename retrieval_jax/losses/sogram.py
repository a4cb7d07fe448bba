"""The steps of SOGram: an exponential moving average of the batches' Gramians, updated once a training step.

With alpha 1 the average is the last batch alone, which is what gravity by sampling uses.
"""

from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from retrieval_jax import scoring
from retrieval_jax.errors import UserError
from retrieval_jax.losses.gramian_matrices import Gramians
from retrieval_jax.losses.gramian_prior import Prior
from retrieval_jax.losses.gramian_rows import gramians_of, loss_against, metrics_of, rows_of
from retrieval_jax.losses.gramian_state import OnlineState, Pending
from retrieval_jax.losses.schedules import Weight, fraction
from retrieval_jax.records import EmbeddedBatch, LossOutput
from retrieval_jax.scoring import Score

Start = Literal["harmonic", "debiased", "zero"]
Batches = Literal["lagged", "two", "in_batch"]


class Options(NamedTuple):
  """What the factories of gramian.py say. name: of the factory, for messages."""

  name: str
  alpha: Weight
  start: Start
  batches: Batches
  score: Score
  prior: Prior | None


def initial(options: Options, embed_dim: int) -> OnlineState:
  """Returns the state before the first step."""
  nothing = Pending(zeros(embed_dim, options.prior), jnp.zeros(()))
  return OnlineState(
    estimate=zeros(embed_dim, options.prior),
    step=jnp.zeros((), jnp.int32),
    batches=jnp.zeros(()),
    mass=jnp.zeros(()),
    alpha=jnp.zeros(()),
    pending=None if options.batches == "two" else nothing,
    unit=jnp.asarray(scoring.preparation(options.score) is scoring.l2_normalize),
  )


def zeros(embed_dim: int, prior: Prior | None) -> Gramians:
  """Returns Gramians of zeros, each an array of its own: one array at two places could not be donated."""
  shapes = [(embed_dim, embed_dim)] * 2 + ([] if prior is None else [(embed_dim, prior.rank)] * 2)
  return Gramians(*(jnp.zeros(shape) for shape in shapes))


def before(options: Options, state: OnlineState, estimation: EmbeddedBatch | None) -> OnlineState:
  """Returns the state updated with the estimation batch."""
  if estimation is None:
    raise UserError(
      f'{options.name}: batches is "two" and there was no estimation batch; expected one before each step (Loss.before).'
    )
  rows = rows_of(options.name, estimation, options.score, options.prior)
  return _updated(options, state, gramians_of(rows), rows.total > 0)


def after(options: Options, state: OnlineState) -> OnlineState:
  """Returns the state updated with the mean of the microbatches' Gramians."""
  pending = state.pending
  assert pending is not None  # only where batches is not "two"
  some = pending.weight > 0
  mean = jax.tree.map(lambda x: x / jnp.where(some, pending.weight, 1), pending.sums)
  state = _updated(options, state, mean, some)
  return state._replace(pending=jax.tree.map(jnp.zeros_like, pending))


def apply(
  options: Options, state: OnlineState, batch: EmbeddedBatch, *, train: bool
) -> tuple[LossOutput, OnlineState]:
  """Returns the loss of one microbatch and the state that has it pending."""
  rows = rows_of(options.name, batch, options.score, options.prior)
  own = gramians_of(rows)
  used = _updated(options, state, own, rows.total > 0) if options.batches == "in_batch" else state
  # Without any estimate the batch's own: a step without repulsion would let the embeddings fold.
  lacking = (used.mass == 0) & (options.start != "zero")
  estimate = jax.tree.map(lambda mine, x: jnp.where(lacking, mine, x), own, used.estimate)
  loss, alpha = loss_against(rows, estimate), used.alpha
  if train and callable(options.alpha) and options.batches == "lagged":
    # `after` updates with it when the step's metrics are gone: an alpha that is none is shown by this step already.
    coming = step_size(options, state)[0]
    loss, alpha = (jnp.where(jnp.isnan(coming), jnp.nan, x) for x in (loss, alpha))
  output = LossOutput(loss, {"alpha": alpha, **metrics_of(rows, own, estimate)})
  if not train or state.pending is None:
    return output, state
  added = jax.tree.map(lambda x: rows.total * x, Pending(own, jnp.ones_like(rows.total)))
  return output, state._replace(pending=jax.tree.map(_add, state.pending, added))


def step_size(options: Options, state: OnlineState) -> tuple[Float[Array, ""], Float[Array, ""]]:
  """Returns the weight of the next batch in the estimate, and the mass that the estimate then has.

  Not a number where a schedule of alpha gives none above 0 and at most 1.
  """
  dtype = state.mass.dtype
  if callable(options.alpha):
    alpha = fraction(jnp.asarray(options.alpha(state.step), dtype))
  else:
    alpha = jnp.asarray(options.alpha, dtype)
  if options.start == "harmonic":
    alpha = jnp.maximum(alpha, 1 / (state.batches + 1))
  mass = (1 - alpha) * state.mass + alpha
  if options.start == "debiased":
    # The average divided by its mass, as a recurrence: the estimate itself is kept, not the average.
    alpha = jnp.where(mass == 0, 0, alpha / jnp.where(mass == 0, 1, mass))
  return alpha, mass


def _updated(options: Options, state: OnlineState, batch: Gramians, some: Any) -> OnlineState:
  """Returns the state with the batch's Gramians averaged in; the same state unless `some` rows made them."""
  alpha, mass = step_size(options, state)
  mixed = jax.tree.map(
    lambda old, new: ((1 - alpha) * old + alpha * new).astype(old.dtype), state.estimate, batch
  )
  new = state._replace(estimate=mixed, step=state.step + 1, batches=state.batches + 1, mass=mass, alpha=alpha)
  return jax.tree.map(lambda a, b: jnp.where(some, a, b), new, state)


def _add(total: Array, x: Array) -> Array:
  return (total + x).astype(total.dtype)
