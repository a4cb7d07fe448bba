"""ExampleOptions: what an example of the training is, how its rows count, and which further examples a step sees."""

import hashlib
import pathlib
from typing import NamedTuple

from retrieval_jax.data.dataset import RetrievalData
from retrieval_jax.data.marginals import FREQUENCY, KINDS, MarginalOptions, marginal_tables
from retrieval_jax.data.pair_examples import by_pair
from retrieval_jax.errors import UserError, nearest
from retrieval_jax.losses.base import Loss

QUERIES, PAIRS = "queries", "pairs"
MARGINALS, ESTIMATION = "marginals", "estimation"  # Batch fields that a loss may require


class ExampleOptions(NamedTuple):
  """The default trains on queries, with one of its positives each.

  kind (TRAIN_EXAMPLES): "queries": an epoch has each query once, with one of its positives; "pairs": it has each pair of a
    query and a positive once.
  marginals (QUERY_MARGINAL, PASSAGE_MARGINAL): how strongly a gravity pulls at each row (data/marginals.py).
  estimation_batch_size (ESTIMATION_BATCH_SIZE): examples that a step draws besides, for a loss that estimates from others
    than it learns from; None: as many as BATCH_SIZE. They cost a forward pass.

  Example: `ExampleOptions("pairs", MarginalOptions(passage="uniform"))`.
  """

  kind: str = QUERIES
  marginals: MarginalOptions = MarginalOptions()
  estimation_batch_size: int | None = None

  def of(self, data: RetrievalData, loss: Loss, *, held_out: bool = False) -> RetrievalData:
    """Returns the data with these examples, and with marginals where the loss reads them. held_out: of data that are not
    the training's.

    Raises: UserError for options that cannot be, or that this loss would take no notice of.
    """
    if self.kind not in (QUERIES, PAIRS):
      raise UserError(
        f"TRAIN_EXAMPLES={self.kind!r}: expected {QUERIES!r} or {PAIRS!r}{nearest(str(self.kind), (QUERIES, PAIRS)) or '.'}"
      )
    data = by_pair(data) if self.kind == PAIRS else data
    if MARGINALS in loss.requires:
      return data._replace(marginals=marginal_tables(data, self.marginals, held_out=held_out))
    for macro, kind in zip(("QUERY_MARGINAL", "PASSAGE_MARGINAL"), self.marginals, strict=True):
      if kind != FREQUENCY:
        raise UserError(
          f"{macro}={kind!r}, but the loss has no gravity whose marginals it could be. Choose one that has, such as "
          "--gin_file=losses/sogram.gin, or leave it out."
        )
    return data

  def marginal_record(self) -> list[str]:
    """Returns what a checkpoint says of the marginals: their kinds, and of files a hash of what is in them too."""
    return [kind if kind in KINDS else f"{kind} {_hash(kind)}" for kind in self.marginals]

  def estimation_size(self, loss: Loss, batch_size: int) -> int:
    """Returns how many examples of their own a step draws for the loss: 0 unless it asks for them.

    Raises: UserError for a number below 1, and for one that this loss would take no notice of.
    """
    size = self.estimation_batch_size
    if size is not None and (type(size) is not int or size < 1):
      raise UserError(f"ESTIMATION_BATCH_SIZE={size!r}: expected a whole number of at least 1, or None.")
    if ESTIMATION in loss.requires:
      return batch_size if size is None else size
    if size is not None:
      raise UserError(
        f"ESTIMATION_BATCH_SIZE={size}, but the loss estimates from the batch that it learns from. Choose one that draws two, "
        "such as --gin_file=losses/sogram_two_batches.gin, or leave it out."
      )
    return 0


def _hash(path: str) -> str:
  with open(pathlib.Path(path).expanduser(), "rb") as file:
    return hashlib.file_digest(file, "sha256").hexdigest()[:16]
