"""Optimizers and learning rates: the usual ones as optax transformations, T5X's schedules by T5X's names."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, ArrayLike, PyTree

from retrieval_jax.errors import UserError, nearest
from retrieval_jax.per_layer import per_layer
from retrieval_jax.sparse_optimizers import SparseOptimizer

Schedule = optax.Schedule  # step -> float32 rate


class Optimizer(NamedTuple):
  """The transformation that turns gradients into updates, and the rate it uses at a step (for the log).

  The transformation counts its own steps from 0, so `learning_rate(step)` is its rate as long as the optimizer
  state began with step 0.
  tables: what trains the model's tables instead, in the rows that a batch touches alone (table_updates.py); None: the
  transformation trains them as it trains everything.
  """

  transform: optax.GradientTransformation
  learning_rate: Schedule
  tables: SparseOptimizer | None = None

  def learning_rates(self, step: int) -> dict[str, float]:
    """Returns the rates of a step, by the names that the log has them under.

    Example: `adamw(2e-5).learning_rates(0)` is `{"learning_rate": 2e-5}`; one with tables has a table_learning_rate too.
    """
    rates = {"learning_rate": self.learning_rate}
    if self.tables is not None:
      rates["table_learning_rate"] = self.tables.learning_rate
    return {name: float(np.asarray(rate(step))) for name, rate in rates.items()}


class _Numbers(NamedTuple):
  """The numbers a factor of `schedule` may use; see there."""

  base_learning_rate: float
  warmup_steps: int
  decay_factor: float
  steps_per_decay: int
  steps_per_cycle: int


def _constant(step: Array, n: _Numbers) -> Array:
  return jnp.full_like(step, n.base_learning_rate)


def _linear_warmup(step: Array, n: _Numbers) -> Array:
  return jnp.minimum(1.0, step / n.warmup_steps)


def _linear_decay(step: Array, n: _Numbers) -> Array:
  # Warm-up and base rate are part of this factor: `linear_decay` stands alone in T5X's files.
  return n.base_learning_rate * jnp.minimum(
    step / n.warmup_steps, 1.0 + n.decay_factor * (n.warmup_steps - step)
  )


def _rsqrt_decay(step: Array, n: _Numbers) -> Array:
  return jax.lax.rsqrt(jnp.maximum(step, n.warmup_steps))


def _rsqrt_normalized_decay(step: Array, n: _Numbers) -> Array:
  return jnp.sqrt(n.warmup_steps) * _rsqrt_decay(step, n)


def _decay_every(step: Array, n: _Numbers) -> Array:
  return n.decay_factor ** jnp.floor(step / n.steps_per_decay)


def _cosine_decay(step: Array, n: _Numbers) -> Array:
  cycles = jnp.maximum(0.0, (step - n.warmup_steps) / n.steps_per_cycle)
  return 0.5 * (1.0 + jnp.cos(jnp.pi * (cycles % 1.0)))


_FACTORS = {
  "constant": _constant,
  "linear_warmup": _linear_warmup,
  "linear_decay": _linear_decay,
  "rsqrt_decay": _rsqrt_decay,
  "rsqrt_normalized_decay": _rsqrt_normalized_decay,
  "decay_every": _decay_every,
  "cosine_decay": _cosine_decay,
}


def schedule(
  factors: str = "constant * linear_warmup * rsqrt_decay",
  *,
  base_learning_rate: float = 0.5,
  warmup_steps: int = 1000,
  decay_factor: float = 0.5,
  steps_per_decay: int = 20_000,
  steps_per_cycle: int = 100_000,
  step_offset: int = 0,
  min_learning_rate: float = 1e-8,
) -> Schedule:
  """Returns T5X's learning rate: the product of the named factors, at least min_learning_rate, in float32.

  With s = max(0, step - step_offset) and w = warmup_steps, the factors are
    constant                base_learning_rate
    linear_warmup           min(1, s / w)
    linear_decay            base_learning_rate * min(s / w, 1 + decay_factor * (w - s))
    rsqrt_decay             1 / sqrt(max(s, w))
    rsqrt_normalized_decay  sqrt(w / max(s, w))
    decay_every             decay_factor ^ floor(s / steps_per_decay)
    cosine_decay            (1 + cos(pi * frac((s - w) / steps_per_cycle))) / 2; 1 while s < w

  Raises: UserError for an unknown factor, and for a step count below 1.

  Source: T5X's create_learning_rate_scheduler, with its defaults.

  Example: `schedule("linear_decay", base_learning_rate=1e-3, warmup_steps=100, decay_factor=1e-4)(100)` is 1e-3.
  """
  names = [name.strip() for name in factors.split("*")]
  for name in names:
    if name not in _FACTORS:
      raise UserError(
        f"schedule: unknown factor {name!r} in {factors!r}{nearest(name, _FACTORS) or '.'} "
        f"Known: {', '.join(_FACTORS)}."
      )
  counts = {
    "warmup_steps": warmup_steps,
    "steps_per_decay": steps_per_decay,
    "steps_per_cycle": steps_per_cycle,
  }
  for name, count in counts.items():
    if count < 1:
      raise UserError(f"schedule: {name} is {count}; it must be at least 1 (leave the factor out instead).")
  numbers = _Numbers(base_learning_rate, warmup_steps, decay_factor, steps_per_decay, steps_per_cycle)

  def at(step: ArrayLike) -> Array:
    # Subtracted as integers: float32 has no room for an offset of a million and a fraction.
    counted = jnp.maximum(jnp.asarray(step) - step_offset, 0).astype(jnp.float32)
    rate = jnp.ones((), jnp.float32)
    for name in names:
      rate = rate * _FACTORS[name](counted, numbers)
    return jnp.maximum(rate, min_learning_rate)

  return at


def linear(*, peak: float, total_steps: int, warmup_steps: int = 0) -> Schedule:
  """Returns the rate that rises from 0 to `peak` over warmup_steps and falls to 0 at total_steps, both linearly.

  rate(s) = peak * max(0, min(s / warmup_steps, (total_steps - s) / (total_steps - warmup_steps))); without warm-up
  it starts at the peak.

  Raises: UserError unless peak > 0 and 0 <= warmup_steps < total_steps.

  Source: SamToNe (Moiseev et al., 2023), section 3: 1e-3 to 0 over 20,000 steps, no warm-up.

  Example: `linear(peak=1e-3, total_steps=100)(50)` is 5e-4.
  """
  if not peak > 0:
    raise UserError(f"linear: peak is {peak}; the highest learning rate must be above 0.")
  if total_steps < 1:
    raise UserError(f"TRAIN_STEPS={total_steps!r}: expected a whole number of at least 1.")
  if not 0 <= warmup_steps < total_steps:
    raise UserError(
      f"linear: warmup_steps is {warmup_steps} and total_steps is {total_steps}; the warm-up must be shorter than "
      f"the run. Lower WARMUP_STEPS={warmup_steps} or raise TRAIN_STEPS={total_steps}."
    )

  def at(step: ArrayLike) -> Array:
    step = jnp.asarray(step)
    rising = step / warmup_steps if warmup_steps else jnp.ones((), jnp.float32)
    falling = (total_steps - step) / (total_steps - warmup_steps)
    return (peak * jnp.maximum(0.0, jnp.minimum(rising, falling))).astype(jnp.float32)

  return at


def _as_schedule(learning_rate: float | Schedule) -> Schedule:
  if callable(learning_rate):
    return learning_rate
  if not learning_rate > 0:
    raise UserError(f"learning_rate is {learning_rate}; it must be above 0.")
  value = float(learning_rate)
  return lambda step: jnp.full(jnp.shape(step), value, jnp.float32)


def _decays(params: PyTree[Array]) -> PyTree[bool]:
  """True for matrices. By name too: scanned layers stack the vectors of a bias or scale into a matrix."""

  def one(path: tuple, leaf: Array) -> bool:
    name = jax.tree_util.keystr(path[-1:], simple=True)
    return leaf.ndim > 1 and name not in ("bias", "scale")

  return jax.tree_util.tree_map_with_path(one, params)


def adamw(
  learning_rate: float | Schedule,
  *,
  b1: float = 0.9,
  b2: float = 0.999,
  eps: float = 1e-8,
  weight_decay: float = 0.01,
  clip_norm: float | None = None,
) -> Optimizer:
  """Returns AdamW: Adam with the decay learning_rate * weight_decay * param beside it (Loshchilov & Hutter, 2019).

  Biases and norm scales (rank 0 and 1) do not decay. clip_norm, if given, first scales the gradients of all
  parameters together down to that L2 norm.

  Raises: UserError for a learning rate or clip_norm that is not above 0.

  Example: `adamw(2e-5, clip_norm=1.0).transform.init(params)`.
  """
  rate = _as_schedule(learning_rate)
  adam = optax.adamw(rate, b1=b1, b2=b2, eps=eps, weight_decay=weight_decay, mask=_decays)
  return Optimizer(_clipped("adamw", adam, clip_norm), rate)


def adafactor(
  learning_rate: float | Schedule,
  *,
  decay_rate: float = 0.8,
  clipping_threshold: float | None = 1.0,
  multiply_by_parameter_scale: bool = True,
  min_dim_size_to_factor: int = 128,
  weight_decay_rate: float | None = None,
) -> Optimizer:
  """Returns Adafactor (Shazeer & Stern, 2018): second moments kept as row and column means, no momentum.

  Equal to T5X's for parameters of rank up to 2, with T5X's defaults; of scanned layers each is a parameter of its own. The decay of the second moments is
  1 - (t + 1)^-decay_rate with t counted from the start of this optimizer's state. An update's RMS is clipped to
  clipping_threshold and, with multiply_by_parameter_scale, multiplied by the parameter's own RMS (at least 1e-3),
  which makes learning_rate relative. weight_decay_rate is subtracted as rate * param, not scaled by learning_rate.

  Raises: UserError for a learning rate that is not above 0.

  Example: `adafactor(linear(peak=1e-3, total_steps=20_000))`.
  """
  rate = _as_schedule(learning_rate)
  transform = optax.adafactor(
    rate,
    min_dim_size_to_factor=min_dim_size_to_factor,
    decay_rate=decay_rate,
    multiply_by_parameter_scale=multiply_by_parameter_scale,
    clipping_threshold=clipping_threshold,
    weight_decay_rate=weight_decay_rate,
  )
  return Optimizer(per_layer(transform), rate)


def sgd(
  learning_rate: float | Schedule, *, momentum: float | None = None, clip_norm: float | None = None
) -> Optimizer:
  """Returns gradient descent: w <- w - lr g, or w <- w - lr m of m <- momentum m + g.

  clip_norm, if given, first scales the gradients of all parameters together down to that L2 norm.

  Raises: UserError for a learning rate or clip_norm that is not above 0, or a momentum outside [0, 1).

  Example: `sgd(schedule("constant * linear_warmup", base_learning_rate=0.03, warmup_steps=100))`.
  """
  rate = _as_schedule(learning_rate)
  if momentum is not None and not 0 <= momentum < 1:
    raise UserError(f"sgd: momentum is {momentum}; expected 0 or more and less than 1, or None.")
  return Optimizer(_clipped("sgd", optax.sgd(rate, momentum), clip_norm), rate)


def adagrad(
  learning_rate: float | Schedule,
  *,
  initial_accumulator: float = 0.1,
  eps: float = 1e-7,
  clip_norm: float | None = None,
) -> Optimizer:
  """Returns Adagrad (Duchi et al., 2011): a <- a + g^2, w <- w - lr g / sqrt(a + eps), with optax's defaults.

  Every step passes over every parameter. For large tables of which a batch touches few rows, `with_tables` and
  `sparse_adagrad` do the same in these rows alone.

  Raises: UserError for a learning rate or clip_norm that is not above 0, an initial_accumulator below 0, or an eps that is
    not above 0.

  Example: `adagrad(0.1)`.
  """
  rate = _as_schedule(learning_rate)
  if not initial_accumulator >= 0:
    raise UserError(f"adagrad: initial_accumulator is {initial_accumulator}; it must be 0 or more.")
  if not eps > 0:
    raise UserError(f"adagrad: eps is {eps}; it must be above 0.")
  transform = optax.adagrad(rate, initial_accumulator_value=initial_accumulator, eps=eps)
  return Optimizer(_clipped("adagrad", transform, clip_norm), rate)


def with_tables(rest: Optimizer, tables: SparseOptimizer) -> Optimizer:
  """Returns the optimizer that trains the model's tables with `tables`, in the rows that a batch touches, and everything
  else with `rest`, whose options (clip_norm, weight decay) so leave the tables out.

  A step then costs what the batch's rows cost, whatever the size of the tables. For feature-bag towers.

  Example: `with_tables(sgd(0.03), sparse_adagrad(schedule("constant", base_learning_rate=0.1)))`.
  """
  return rest._replace(tables=tables)


def _clipped(
  name: str, transform: optax.GradientTransformation, clip_norm: float | None
) -> optax.GradientTransformation:
  if clip_norm is None:
    return transform
  if not clip_norm > 0:
    raise UserError(f"{name}: clip_norm is {clip_norm}; give a norm above 0, or None for no clipping.")
  return optax.chain(optax.clip_by_global_norm(clip_norm), transform)
