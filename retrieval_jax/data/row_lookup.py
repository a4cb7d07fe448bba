"""The corpus rows of passages that pairs name by their ids, found as the pairs stream by."""

import logging
import pathlib
from array import array
from collections.abc import Sequence

import numpy as np
from jaxtyping import Int

from retrieval_jax.data.text_rows import TextRows
from retrieval_jax.data.text_table import hash_text
from retrieval_jax.errors import UserError

MOST_MISSING = 0.01  # beyond this share of dangling judgements the corpus is of another version than they
LOOKED_UP = 2**14  # ids that are looked up in the corpus at once
SHOWN = 3  # missing ids that a message names
COMPARED = 1000  # texts of pairs that are compared with the corpus
LOG = logging.getLogger(__name__)


class RowLookup:
  """Takes passages as a RowWriter does, but finds them in a corpus that is there already. Memory: 4 bytes an `add`."""

  def __init__(self, corpus: pathlib.Path):
    self._corpus = TextRows(corpus)
    self._waiting: list[str] = []  # ids that are looked up together
    self._rows = array("i")
    self._missing = array("Q")  # the hashes of those that the corpus lacks, in the order they came
    self._first_missing: list[str] = []
    # Some that pairs carry themselves: number of the `add`, id, text.
    self._texts: list[tuple[int, str, str]] = []

  def add(self, id: str, text: str, title: str) -> None:
    """Notes a wanted id; text and title are the corpus's own."""
    del title
    if text and len(self._texts) < COMPARED:
      self._texts.append((len(self._rows) + len(self._waiting), id, text))
    self._waiting.append(id)
    if len(self._waiting) == LOOKED_UP:
      self._look_up()

  def _look_up(self) -> None:
    hashes = np.array([hash_text(id) for id in self._waiting], np.uint64)
    rows = self._corpus.rows_of_hashes(hashes)
    missing = np.flatnonzero(rows < 0)
    self._missing.frombytes(hashes[missing].tobytes())
    self._first_missing += [self._waiting[place] for place in missing[: SHOWN - len(self._first_missing)]]
    self._rows.frombytes(rows.astype(np.int32).tobytes())
    self._waiting.clear()

  def finish(self, where: str) -> Int[np.ndarray, "e"]:
    """Returns the corpus row of each `add`; -1 - m for the missing passage m, numbered from 0. Says how many miss.

    Raises: UserError if they are more than 1%.
    """
    self._look_up()
    rows = np.array(self._rows, np.int64)
    missing = np.flatnonzero(rows < 0)
    if missing.size:
      _warn_of_missing(where, len(rows), missing.size, self._first_missing)
    self._warn_of_other_texts(where, rows)
    _, numbers = np.unique(np.array(self._missing, np.uint64), return_inverse=True)
    rows[missing] = -1 - numbers
    return rows

  def _warn_of_other_texts(self, where: str, rows: Int[np.ndarray, "e"]) -> None:
    """Warns if pairs carry other texts than the corpus has under their passages' ids: it is of another version."""
    known = [(i, id, text) for i, id, text in self._texts if rows[i] >= 0]
    differing = [id for i, id, text in known if self._corpus.bodies[int(rows[i])].strip() != text.strip()]
    if differing:
      LOG.warning(
        "%s: %d of %d pairs have another text than the corpus has under the same passage id (the first is %r). The "
        "corpus's is taken; check that both files are of one version.",
        *(where, len(differing), len(known), differing[0]),
      )


def _warn_of_missing(where: str, total: int, missing: int, first: Sequence[str]) -> None:
  message = f"{where}: {missing} of {total} judgements name passages that the corpus lacks ({', '.join(map(repr, first))})"
  if missing > MOST_MISSING * total:
    raise UserError(f"{message}. Above 1% the corpus is of another version: get the files of one release.")
  LOG.warning(
    "%s: nothing can find these, but a metric counts them among what should have been found.", message
  )
