"""Low-rank priors of the gravity: the score p_ij = <a_i, b_j> that a pair is drawn to instead of 0."""

import pathlib
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from retrieval_jax.errors import UserError
from retrieval_jax.losses.base import DataSizes
from retrieval_jax.losses.gramian_matrices import moments
from retrieval_jax.losses.schedules import is_number
from retrieval_jax.records import EmbeddedBatch

Factors = tuple[Float[Array, "q f"], Float[Array, "q f"]]


class Prior(NamedTuple):
  """A prior p_ij = <a_i, b_j>.

  factors: batch -> (a of its queries [q, rank], b of the queries' own passages [q, rank]); a row's factors must be the
    same in every batch. Where the batch has padding they may be anything.
  rank: the length of the factors.
  requires: the optional fields of the batch that `factors` reads, beside the marginals.
  sizes: of the data whose rows the factors are of, which must be those of the training; None: it fits all data.
  """

  factors: Callable[[EmbeddedBatch], Factors]
  rank: int
  requires: frozenset[str] = frozenset()
  sizes: DataSizes | None = None


def constant(value: float) -> Prior:
  """Returns the prior p_ij = value.

  Raises: UserError for a value that is no finite number.

  Example: `sogram(prior=constant(0.1))` draws the scores of all pairs to .1.
  """
  if not is_number(value):
    raise UserError(f"prior constant: value is {value!r}; expected a finite number.")

  def factors(batch: EmbeddedBatch) -> Factors:
    ones = jnp.ones((batch.query_rows.shape[0], 1))
    return value * ones, ones

  return Prior(factors, 1)


def popularity(scale: float) -> Prior:
  """Returns the prior p_ij = scale w_j, with w_j the share of the examples whose passage is j: share / mass of the batch's
  marginals. A passage of mass 0 has no part in the gravity and gets 0.

  Raises: UserError for a scale that is no finite number.

  Example: with scale 100, passages that 1% of the examples have are drawn to the score 1.
  """
  if not is_number(scale):
    raise UserError(f"prior popularity: scale is {scale!r}; expected a finite number.")

  def factors(batch: EmbeddedBatch) -> Factors:
    marginals = batch.marginals
    assert marginals is not None  # every gravity requires them
    share, mass = jnp.asarray(marginals.passage_share), jnp.asarray(marginals.passage_mass)
    frequency = jnp.where(mass > 0, share / jnp.where(mass > 0, mass, 1), 0)
    return jnp.ones((frequency.shape[0], 1), frequency.dtype), scale * frequency[:, None]

  return Prior(factors, 1)


def low_rank(query: Any, passage: Any) -> Prior:
  """Returns the prior p_ij = <query[i], passage[j]> of the factors of every row: query [num_queries, f], passage
  [num_passages, f], arrays or paths of .npy files, of finite numbers. They stand whole on every device. Rows are those of the
  training's data; held-out data (EVAL_LOSS) number theirs anew, so that the loss on them has another prior.

  Raises: UserError for a file that is not there or no array, other shapes, or numbers that are not finite; the loss's init
    raises it for another number of rows than the data have; while tracing nothing: a row number beyond the arrays gives
    NaN, which the loss shows.

  Example: `low_rank("query_factors.npy", "passage_factors.npy")`.
  """
  of_query, of_passage = _loaded("query", query), _loaded("passage", passage)
  if of_query.shape[1] != of_passage.shape[1]:
    raise UserError(
      f"prior low_rank: query has factors of {of_query.shape[1]} numbers, passage of {of_passage.shape[1]}; expected "
      "the same, since p_ij is their inner product."
    )

  def factors(batch: EmbeddedBatch) -> Factors:
    def of(table: np.ndarray, rows: Any) -> Float[Array, "q f"]:
      rows = jnp.asarray(rows)
      index = jnp.where(rows < 0, len(table), rows)
      return jnp.asarray(table).at[index].get(mode="fill", fill_value=jnp.nan)

    return of(of_query, batch.query_rows), of(of_passage, batch.passage_rows[: batch.query_rows.shape[0]])

  return Prior(factors, of_query.shape[1], sizes=DataSizes(len(of_query), len(of_passage)))


def mean_square(factors: Factors, query: Float[Array, "q"], passage: Float[Array, "q"]) -> Float[Array, ""]:
  """Returns sum_ij w_i z_j p_ij^2 with the weights w of `query` and z of `passage`, in O(q f^2): the constant of the gravity,
  which has no gradient."""
  of_query, of_passage = factors
  return jnp.sum(moments(of_query, of_query, query) * moments(of_passage, of_passage, passage))


def _loaded(name: str, given: Any) -> np.ndarray:
  where = f"prior low_rank: {name}"
  if isinstance(given, str | pathlib.Path):
    where = f"{where} {given}"
    try:
      given = np.load(given, allow_pickle=False)
    except Exception as error:  # of many types: numpy parses a header as Python and opens archives
      raise UserError(f"{where}: cannot be read as an array of numbers (.npy): {error}") from error
  try:
    array = np.asarray(given)
  except ValueError as error:
    raise UserError(f"{where} is no array: {error} Expected numbers [rows, f].") from error
  if array.ndim != 2 or 0 in array.shape or array.dtype.kind not in "fiu":
    raise UserError(
      f"{where} has shape {array.shape} of {array.dtype}; expected numbers [rows, f], one row for each {name} of the data."
    )
  if not np.isfinite(array).all():
    row = int(np.flatnonzero(~np.isfinite(array).all(axis=1))[0])
    raise UserError(f"{where}: row {row} has numbers that are not finite.")
  return array.astype(np.float64 if array.dtype == np.float64 else np.float32)
