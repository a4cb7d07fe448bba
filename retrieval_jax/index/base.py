"""What every index of embeddings is: a corpus that is searched for the k largest inner products with each query.

The order of results is the same everywhere: the higher score first, of equal scores the smaller row, which is the passage
that stands earlier in the corpus. Ids play no part in it.
"""

from collections.abc import Iterator
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float

from retrieval_jax.errors import UserError
from retrieval_jax.records import Ranking

MAX_ROWS = 2**31 - 1
OVERFLOW = "The scores overflow float32: the embeddings are too long. Normalise them."


class Embeddings(Protocol):
  """A corpus [c, d] of any float type that is read in slices of rows: an array, a memory-mapped file, or several."""

  @property
  def shape(self) -> tuple[int, ...]: ...

  @property
  def dtype(self) -> np.dtype: ...

  def __len__(self) -> int: ...

  def __getitem__(self, rows: slice, /) -> Any:
    """Returns the rows as an array [r, d]."""
    ...


@runtime_checkable
class Index(Protocol):
  """A searchable corpus."""

  def __len__(self) -> int:
    """Returns the number of passages."""
    ...

  def search(self, queries: Float[np.ndarray, "q d"], *, k: int) -> Ranking:
    """Returns the k best passages of each query, best first: rows int32, scores float32.

    Row -1 with score -inf stands only at the end, where the corpus has fewer than k passages or an approximate index
    found fewer.
    """
    ...


def check_corpus(corpus: Embeddings) -> None:
  """Raises UserError for a corpus that is not [c, d], has no rows, or more than an int32 counts."""
  if len(corpus.shape) != 2:
    raise UserError(f"The corpus has the shape {tuple(corpus.shape)}; expected [passages, d].")
  if not 0 < len(corpus) <= MAX_ROWS:
    raise UserError(f"The corpus has {len(corpus)} passages; expected 1 .. {MAX_ROWS}.")


def check_queries(corpus_shape: tuple[int, ...], queries: Any, *, k: int) -> Float[np.ndarray, "q d"]:
  """Returns the queries as a float32 array.

  Raises: UserError for k < 1, queries that do not fit the corpus [c, d], and an embedding that is not finite.
  """
  queries = np.asarray(queries, np.float32)
  if queries.ndim != 2 or corpus_shape[1] != queries.shape[1]:
    raise UserError(
      f"The corpus has the shape {tuple(corpus_shape)} and the queries {queries.shape}; expected [passages, d] and "
      "[queries, d] with the same d. Were they encoded by the same checkpoint?"
    )
  if k < 1:
    raise UserError(f"search: k is {k}; it must be at least 1.")
  check_finite("query", queries, 0)
  return queries


def check_finite(name: str, embeddings: Float[np.ndarray, "r d"], first_row: int) -> None:
  """Raises UserError naming the first row with a value that is not finite; `first_row` is the number of row 0."""
  with np.errstate(over="ignore", invalid="ignore"):
    sums = embeddings.sum(axis=1)  # one pass without a temporary; only suspects are looked at closely
  for row in np.flatnonzero(~np.isfinite(sums)):
    if not np.isfinite(embeddings[row]).all():
      raise UserError(
        f"The embedding of {name} {first_row + row} is not finite. The model that made it has diverged, or its "
        "file is damaged: look at the training loss, or delete its folder of embeddings and encode again."
      )


def check_scores(found: Ranking) -> None:
  """Raises UserError if the score of a passage is not finite."""
  if not np.isfinite(found.scores[found.rows >= 0]).all():
    raise UserError(OVERFLOW)


def read_blocks(corpus: Embeddings, rows: int) -> Iterator[tuple[int, Float[np.ndarray, "r d"]]]:
  """Yields (first row, embeddings) of at most `rows` rows each, front to back: float32, row by row in memory.

  A block of a float32 array is a view of it; other types are converted block by block.
  """
  for first in range(0, len(corpus), rows):
    yield first, np.ascontiguousarray(corpus[first : first + rows], np.float32)
