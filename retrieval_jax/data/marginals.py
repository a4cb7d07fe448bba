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


def marginal_tables(data: RetrievalData, options: MarginalOptions) -> MarginalTables:
  """Returns mass and share of every row of the data, as `records.Marginals` has them for a batch. 8 bytes a row, and 24 a
  pair while it works.

  Raises: UserError for a kind that is none, a file that cannot be read, and weights that leave nothing.

  Example: `marginal_tables(by_pair(data), MarginalOptions(passage="uniform")).passages.mass[row]`.
  """
  queries, passages, probabilities = drawn_pairs(data)
  return MarginalTables(
    _side(data.queries, queries, probabilities, options.query, "QUERY_MARGINAL"),
    _side(data.passages, passages, probabilities, options.passage, "PASSAGE_MARGINAL"),
  )


def _side(
  store: TokenStore, rows: Int[np.ndarray, "e"], probabilities: Float[np.ndarray, "e"], kind: str, macro: str
) -> SideTables:
  drawn = np.bincount(store.identity[rows], weights=probabilities, minlength=store.num_rows)
  share = _share(store, drawn, kind, macro)
  mass = np.divide(share, drawn, out=np.zeros_like(share), where=drawn > 0)
  return SideTables(mass.astype(np.float32), share.astype(np.float32))


def _share(store: TokenStore, drawn: Float[np.ndarray, "r"], kind: str, macro: str) -> Float[np.ndarray, "r"]:
  if kind == FREQUENCY:
    return drawn
  if kind == SQRT:
    weights = np.sqrt(drawn)
  elif kind == UNIFORM:
    weights = (drawn > 0).astype(np.float64)
  else:
    weights = np.where(drawn > 0, _given(store, kind, macro), 0)
    if not weights.any():
      raise UserError(f"{macro}={kind!r}: no row that the training draws has a weight above 0 in it.")
  return weights / weights.sum()


def _given(store: TokenStore, path: str, macro: str) -> Float[np.ndarray, "r"]:
  """Returns the weights of a file, summed over the rows of one identity."""
  if not isinstance(path, str | pathlib.Path) or not pathlib.Path(path).expanduser().is_file():
    raise UserError(
      f"{macro}={path!r}: expected {', '.join(KINDS)} or the path of a TSV file of id and weight"
      f"{nearest(str(path), KINDS) or '.'}"
    )
  weights = np.zeros(store.num_rows)
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
      raise UserError(f"{line.where}: no row of the data has the id {columns[0]!r}.") from error
    if row in seen:
      raise UserError(f"{line.where}: the id {columns[0]!r} stands in the file twice.")
    seen.add(row)
    weights[store.identity[row]] += weight
  return weights
