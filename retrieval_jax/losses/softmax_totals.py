"""Totals of the softmax family without its matrices: what is left of a row or column of logits once it is summed."""

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from retrieval_jax.losses.softmax_terms import Term


class Totals(NamedTuple):
  """Of the negatives of each example in one block: largest logit, sum of e^(logit - top), number, sum of logits."""

  top: Float[Array, "q"]
  total: Float[Array, "q"]
  count: Float[Array, "q"]
  sum: Float[Array, "q"]

  @classmethod
  def none(cls, size: int, dtype: jnp.dtype) -> "Totals":
    """Returns the totals of no logit at all."""
    zeros = jnp.zeros(size, dtype)
    return cls(jnp.full(size, jnp.finfo(dtype).min), zeros, zeros, zeros)

  @classmethod
  def of_rows(
    cls, logits: Float[Array, "q x"], allowed: Bool[Array, "q x"]
  ) -> tuple["Totals", Float[Array, "q x"]]:
    """Returns the totals of each row, and e^(logit - top) where it is allowed, else 0."""
    top = jnp.max(logits, axis=1)
    weights = jnp.where(allowed, jnp.exp(logits - top[:, None]), 0)
    return cls(top, jnp.sum(weights, axis=1), *_count_and_sum(logits, allowed, axis=1)), weights

  def with_columns(self, logits: Float[Array, "x q"], allowed: Bool[Array, "x q"]) -> "Totals":
    """Returns the totals of columns of which these are further rows."""
    top = jnp.maximum(self.top, jnp.max(logits, axis=0))
    weights = jnp.where(allowed, jnp.exp(logits - top[None, :]), 0)
    count, sum_ = _count_and_sum(logits, allowed, axis=0)
    total = self.total * jnp.exp(self.top - top) + jnp.sum(weights, axis=0)
    return Totals(top, total, self.count + count, self.sum + sum_)

  @property
  def logsumexp(self) -> Float[Array, "q"]:
    """The log of the sum of e^logit; the lowest finite number for a row without negatives."""
    some = self.total != 0  # not > 0, which would take NaN for a row without negatives
    lowest = jnp.finfo(self.total.dtype).min
    return jnp.where(some, self.top + jnp.log(jnp.where(some, self.total, 1)), lowest)


class TermRows(NamedTuple):
  """One term of each example: its value, the log of its denominator, and the number of negatives in it."""

  loss: Float[Array, "q"]
  log_total: Float[Array, "q"]
  count: Float[Array, "q"]


def term_rows(
  term: Term, positive: Float[Array, "q"], blocks: Sequence[Totals], *, label_smoothing: float
) -> TermRows:
  """Returns the term of each example; 0 for a row without negatives (log 2 with the positive counted twice).

  As softplus(logsumexp(negatives) - positive), which keeps its relative precision when the loss is tiny.
  """
  negative = functools.reduce(jnp.logaddexp, [block.logsumexp for block in blocks])
  count = functools.reduce(jnp.add, [block.count for block in blocks])
  if term.positives:
    extra = math.log(term.positives)
    loss = extra + jax.nn.softplus(negative - positive - extra)
    log_total = jnp.logaddexp(negative, positive + extra)
  else:
    loss = jnp.where(count > 0, negative - positive, 0)
    log_total = negative
  if label_smoothing:
    summed = functools.reduce(jnp.add, [block.sum for block in blocks])
    loss += label_smoothing * (positive - (positive + summed) / (1 + count))
  return TermRows(loss, log_total, count)


def _count_and_sum(logits: Array, allowed: Array, *, axis: int) -> tuple[Array, Array]:
  return (
    jnp.sum(allowed, axis=axis, dtype=logits.dtype),
    jnp.sum(jnp.where(allowed, logits, 0), axis=axis),
  )
