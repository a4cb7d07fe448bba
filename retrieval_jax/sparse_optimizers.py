"""Optimizers of single rows of a large matrix: rows that a batch does not touch are neither read nor changed."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

from retrieval_jax.errors import UserError

Schedule = optax.Schedule  # steps done before -> float32 rate
Slots = Mapping[str, Array]  # name -> [c, d] beside the weights, or [u, d] of the touched rows


class SparseOptimizer(NamedTuple):
  """slots: the names of the arrays [c, d] that it keeps beside the weights, filled with `start` at first; a checkpoint has
  them.

  update: (gradient [u d], the slots' rows [u d], the number of steps done before) -> (what is added to the rows, the slots'
    new rows). It sees the touched rows alone.
  learning_rate: steps done before -> rate.
  """

  slots: tuple[str, ...]
  update: Callable[[Array, Slots, Array], tuple[Array, Slots]]
  learning_rate: Schedule
  start: float = 0.0

  def init(self, weights: Float[Array, "c d"]) -> dict[str, Array]:
    """Returns the slots at the start."""
    return {name: jnp.full_like(weights, self.start) for name in self.slots}


class Touched(NamedTuple):
  """The rows that a batch touches: their numbers, different from each other, what stood in them, and the gradient there. A
  number beyond the last row is padding: nothing is written for it."""

  rows: Int[Array, "u"]
  weights: Float[Array, "u d"]
  gradient: Float[Array, "u d"]


def rows_of(
  matrix: Float[Array, "c d"], rows: Int[Array, "u"], *, ascending: bool = True
) -> Float[Array, "u d"]:
  """Returns the given rows, different from each other; one beyond the last is zeros. ascending: whether they are."""
  return matrix.at[rows].get(mode="fill", fill_value=0, unique_indices=True, indices_are_sorted=ascending)


def apply_sparse(
  optimizer: SparseOptimizer,
  weights: Float[Array, "c d"],
  slots: Slots,
  touched: Touched,
  step: Int[Array, ""],
  *,
  ascending: bool = True,
) -> tuple[Float[Array, "c d"], Slots]:
  """Returns the weights and slots after a step. O(u d) time; in place where the arguments are donated.

  ascending: whether the touched rows' numbers are, which some devices write faster.

  Example: `apply_sparse(sparse_sgd(rate), weights, {}, Touched(rows, weights[rows], gradient), step)`.
  """
  rows = touched.rows
  old = {name: rows_of(slots[name], rows, ascending=ascending) for name in optimizer.slots}
  change, new = optimizer.update(touched.gradient, old, step)

  def written(matrix: Float[Array, "c d"], values: Float[Array, "u d"]) -> Float[Array, "c d"]:
    return matrix.at[rows].set(values, mode="drop", unique_indices=True, indices_are_sorted=ascending)

  return written(weights, touched.weights + change), {
    name: written(slots[name], new[name]) for name in optimizer.slots
  }


def sparse_adam(
  learning_rate: Schedule, *, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8
) -> SparseOptimizer:
  """Returns Adam on the touched rows alone. For such a row, with t the number of steps so far, this one included:

    m <- b1 m + (1 - b1) g      v <- b2 v + (1 - b2) g^2      w <- w - lr sqrt(1 - b2^t) / (1 - b1^t) m / (sqrt(v) + eps)

  All other rows keep w, m and v bit for bit: their moments do not decay and they do not drift. t counts all steps, not
  those that touched the row, as torch.optim.SparseAdam has it; a row that is first touched late moves further in its first
  step than in its own count, by (1 - b1) / sqrt(1 - b2) at most: 3.2 times with these numbers.
  Memory: two arrays as large as the weights.

  Raises: UserError for b1 or b2 outside [0, 1), or eps that is not above 0.

  Source: torch.optim.SparseAdam's definition; NGAME's published code trains its classifiers so.

  Example: `sparse_adam(linear(peak=1e-3, total_steps=20_000, warmup_steps=500))`.
  """
  for name, value in (("b1", b1), ("b2", b2)):
    if not 0 <= value < 1:
      raise UserError(f"sparse_adam: {name} is {value}; expected 0 or more and less than 1.")
  if not eps > 0:
    raise UserError(f"sparse_adam: eps is {eps}; it must be above 0.")

  def update(gradient: Array, slots: Slots, step: Array) -> tuple[Array, Slots]:
    t = (step + 1).astype(gradient.dtype)
    m = b1 * slots["m"] + (1 - b1) * gradient
    v = b2 * slots["v"] + (1 - b2) * gradient * gradient
    rate = jnp.asarray(learning_rate(step)) * jnp.sqrt(1 - b2**t) / (1 - b1**t)
    return -rate * m / (jnp.sqrt(v) + eps), {"m": m, "v": v}

  return SparseOptimizer(("m", "v"), update, learning_rate)


def sparse_sgd(learning_rate: Schedule) -> SparseOptimizer:
  """Returns stochastic gradient descent, w <- w - lr g on the touched rows; it keeps nothing beside the weights.

  The gradient keeps the divisors of the loss, so rates lie far above Adam's. A row moves as far as its loss asks, and not
  at all once there is none, where Adam moves every touched row by about its rate: on 12,000 titles with 8,712 labels
  (MiniLM as it is, P@1 0.265; batches of 512) P@1 was 0.291 after 1,000 steps and 0.289 after 3,000; with Adam at 1e-3
  0.287 and 0.223.

  Source: Renee (Jain et al., 2023) too reports it above Adam for classifiers, with another loss.

  Example: `sparse_sgd(linear(peak=100.0, total_steps=20_000, warmup_steps=500))`.
  """

  def update(gradient: Array, slots: Slots, step: Array) -> tuple[Array, Slots]:
    return -jnp.asarray(learning_rate(step)) * gradient, slots

  return SparseOptimizer((), update, learning_rate)


def sparse_adagrad(
  learning_rate: Schedule, *, initial_accumulator: float = 0.0, eps: float = 1e-10
) -> SparseOptimizer:
  """Returns Adagrad on the touched rows, with one accumulator for each number (Duchi et al., 2011):

    a <- a + g^2      w <- w - lr g / (sqrt(a) + eps)

  A row without a gradient is one that Adagrad leaves alone, so this is Adagrad of the whole matrix, exactly. A row's first
  step is lr long in every number, whatever its gradient, unless initial_accumulator holds it back; rows that many batches
  touch then slow down by themselves, rare ones do not.
  Memory: one array as large as the weights.

  Raises: UserError for an initial_accumulator below 0, or eps that is not above 0.

  Source: torch.optim.Adagrad's definition, with its defaults.

  Example: `sparse_adagrad(schedule("constant", base_learning_rate=0.1))`.
  """
  if not initial_accumulator >= 0:
    raise UserError(f"sparse_adagrad: initial_accumulator is {initial_accumulator}; it must be 0 or more.")
  if not eps > 0:
    raise UserError(f"sparse_adagrad: eps is {eps}; it must be above 0.")

  def update(gradient: Array, slots: Slots, step: Array) -> tuple[Array, Slots]:
    a = slots["accumulator"] + gradient * gradient
    return -jnp.asarray(learning_rate(step)) * gradient / (jnp.sqrt(a) + eps), {"accumulator": a}

  return SparseOptimizer(("accumulator",), update, learning_rate, float(initial_accumulator))
