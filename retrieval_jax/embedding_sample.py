"""geometry.npz: some of an evaluation's embeddings, to be drawn and measured later without the model."""

import pathlib
import zipfile
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from retrieval_jax.errors import UserError
from retrieval_jax.paths import atomic_write

PAIRS = 500  # pairs of a query and its passage
TOPS = 2000  # queries whose cosine with their first result is kept
BYTES = 1_900_000  # of the directions, so that the file stays below 2 MB: fewer pairs from 951 dimensions on


class EmbeddingSample(NamedTuple):
  """Pairs of a query and its first positive, each embedding as a direction of length 1 and a length.

  queries, passages: float16; passage i answers query i. A row of zeros has the length 0.
  query_norms, passage_norms: the lengths. top_cosines: of judged queries, more than those of the pairs, with what the search
  ranked first; queries without a result, or with an embedding of zeros, are left out.
  """

  queries: Float[np.ndarray, "e d"]
  passages: Float[np.ndarray, "e d"]
  query_norms: Float[np.ndarray, "e"]
  passage_norms: Float[np.ndarray, "e"]
  top_cosines: Float[np.ndarray, "q"]


def fixed_sample(count: int, most: int) -> Int[np.ndarray, "e"]:
  """Returns at most `most` of the rows 0 .. count - 1, ascending: a function of the two numbers alone.

  Example: `fixed_sample(2, 5)` is `[0, 1]`.
  """
  if count <= most:
    return np.arange(count)
  return np.sort(np.random.default_rng(0).choice(count, most, replace=False))


def most_pairs(dim: int) -> int:
  """Returns how many pairs are kept of embeddings of so many dimensions."""
  return max(2, min(PAIRS, BYTES // (4 * dim)))


def sample_of(
  pairs: tuple[Float[np.ndarray, "e d"], Float[np.ndarray, "e d"]],
  tops: tuple[Float[np.ndarray, "q d"], Float[np.ndarray, "q d"]],
) -> EmbeddingSample:
  """Returns the sample of embeddings that were chosen.

  pairs: queries and the positive of each. tops: queries and the first result of each.
  """
  (queries, query_norms), (passages, passage_norms) = (_split(side) for side in pairs)
  (asked, asked_norms), (found, found_norms) = (_split(side) for side in tops)
  cosines = np.sum(asked * found, axis=1)[(asked_norms > 0) & (found_norms > 0)]
  half = np.float16
  return EmbeddingSample(
    queries.astype(half), passages.astype(half), query_norms, passage_norms, np.clip(cosines, -1, 1)
  )


def _split(rows: Float[np.ndarray, "e d"]) -> tuple[Float[np.ndarray, "e d"], Float[np.ndarray, "e"]]:
  """Returns directions and lengths, float32."""
  wide = np.asarray(rows, np.float32)
  norms = np.linalg.norm(wide.astype(np.float64), axis=1)
  return (wide / np.where(norms > 0, norms, 1)[:, None]).astype(np.float32), norms.astype(np.float32)


def write_sample(path: pathlib.Path, sample: EmbeddingSample) -> None:
  """Writes the arrays as one .npz file, whole or not at all: 4 bytes a dimension and pair, below 2 MB."""
  with atomic_write(path, "wb") as file:
    np.savez(file, **sample._asdict())


def read_sample(path: pathlib.Path) -> EmbeddingSample:
  """Returns what `write_sample` wrote.

  Raises: UserError for a file that is cut off, of another form, or of numbers that are not finite.
  """
  try:
    with np.load(path, allow_pickle=False) as file:
      sample = EmbeddingSample(**{name: np.asarray(file[name]) for name in EmbeddingSample._fields})
  except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
    raise UserError(f"{path}: not a whole sample of embeddings ({error}). Evaluate again.") from error
  shape = sample.queries.shape
  fits = len(shape) == 2 and sample.passages.shape == shape and sample.top_cosines.ndim == 1
  if not fits or sample.query_norms.shape != shape[:1] or sample.passage_norms.shape != shape[:1]:
    raise UserError(f"{path}: its arrays do not fit together. Evaluate again.")
  if not all(np.isfinite(part).all() for part in sample):
    raise UserError(f"{path}: holds numbers that are not finite. Evaluate again.")
  return sample
