"""How strongly a gravity pulls at each query and passage: its marginal distribution on either side, from the data."""

import math
import pathlib
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from retrieval_jax.data.dataset import RetrievalData
from retrieval_jax.data.lines import read_lines
from retrieval_jax.data.marginal_tables import MarginalTables, SideTables
from retrieval_jax.data.pair_examples import drawn_pairs
from retrieval_jax.data.token_store import TokenStore
from retrieval_jax.errors import UserError, nearest

FREQUENCY, SQRT, UNIFORM = "frequency", "sqrt", "uniform"
KINDS = (FREQUENCY, SQRT, UNIFORM)


class MarginalOptions(NamedTuple):
  """rho of the queries and of the passages, each one of

    frequency  as often as the training draws the row: rho = w (the paper)
    sqrt       in proportion to the square root of that
    uniform    the same for all rows that the training draws
    a path     of a TSV file "id<TAB>weight" (or .gz, .zst), weights at least 0, in any unit; a row that it does not name
               has 0. Rows that the training never draws have none in any case: they cannot be weighed.

  With frequency the score of a pair learns how much likelier than by chance the two meet; with uniform passages it learns
  how likely the passage is for the query, which is what rankings want: MAP@10 0.05 against 0.30 on a graph of packages.

  Example: `MarginalOptions(passage="uniform")`.
  """

  query: str = FREQUENCY
  passage: str = FREQUENCY


def marginal_tables(
  data: RetrievalData, options: MarginalOptions, *, held_out: bool = False
) -> MarginalTables:
  """Returns mass and share of every row of the data, as `records.Marginals` has them for a batch. 8 bytes a row, and 24 a
  pair while it works.

  held_out: the data are others than the training's, so that a file may name rows which they lack.

  Raises: UserError for a kind that is none, a file that cannot be read, and weights that leave nothing.

  Example: `marginal_tables(by_pair(data), MarginalOptions(passage="uniform")).passages.mass[row]`.
  """
  queries, passages, probabilities = drawn_pairs(data)
  return MarginalTables(
    _side(_Rows(data.queries, "QUERY_MARGINAL", held_out), queries, probabilities, options.query),
    _side(_Rows(data.passages, "PASSAGE_MARGINAL", held_out), passages, probabilities, options.passage),
  )


class _Rows(NamedTuple):
  """The rows of one side, the macro of its marginal, and whether a file may name others."""

  store: TokenStore
  macro: str
  held_out: bool


def _side(
  side: _Rows, rows: Int[np.ndarray, "e"], probabilities: Float[np.ndarray, "e"], kind: str
) -> SideTables:
  store = side.store
  drawn = np.bincount(store.identity[rows], weights=probabilities, minlength=store.num_rows)
  share = _share(side, drawn, kind)
  mass = np.divide(share, drawn, out=np.zeros_like(share), where=drawn > 0)
  return SideTables(mass.astype(np.float32), share.astype(np.float32))


def _share(side: _Rows, drawn: Float[np.ndarray, "r"], kind: str) -> Float[np.ndarray, "r"]:
  if kind == FREQUENCY:
    return drawn
  if kind == SQRT:
    weights = np.sqrt(drawn)
  elif kind == UNIFORM:
    weights = (drawn > 0).astype(np.float64)
  else:
    weights = np.where(drawn > 0, _given(side, kind), 0)
    if not weights.any():
      raise UserError(f"{side.macro}={kind!r}: no row that the training draws has a weight above 0 in it.")
  weights = weights / weights.max()  # the sum of given weights may be beyond the largest number
  return weights / weights.sum()


def _given(side: _Rows, path: str) -> Float[np.ndarray, "r"]:
  """Returns the weights of a file, summed over the rows of one identity."""
  if not isinstance(path, str | pathlib.Path) or not pathlib.Path(path).expanduser().is_file():
    raise UserError(
      f"{side.macro}={path!r}: expected {', '.join(KINDS)} or the path of a TSV file of id and weight"
      f"{nearest(str(path), KINDS) or '.'}"
    )
  store, weights = side.store, np.zeros(side.store.num_rows)
  seen: set[int] = set()
  for line in read_lines(path):
    columns = line.text.split("\t")
    if len(columns) != 2:
      raise UserError(f"{line.where}: {len(columns)} columns, expected 2 split by a tab: id, weight.")
    try:
      weight = float(columns[1])
    except ValueError:
      weight = math.nan
    if not (math.isfinite(weight) and weight >= 0):
      raise UserError(f"{line.where}: the weight is {columns[1]!r}; expected a number of at least 0.")
    try:
      row = store.row_of(columns[0])
    except UserError as error:
      if side.held_out:
        continue
      raise UserError(f"{line.where}: no row of the data has the id {columns[0]!r}.") from error
    if row in seen:
      raise UserError(f"{line.where}: the id {columns[0]!r} stands in the file twice.")
    seen.add(row)
    weights[store.identity[row]] += weight
  return weights
