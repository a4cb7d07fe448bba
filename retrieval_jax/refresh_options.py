"""How a training makes its batches anew on the way: by clusters of examples (NGAME) and by mined negatives (ANCE)."""

from typing import NamedTuple

from retrieval_jax.batching.base import Batcher, Plan
from retrieval_jax.embedding_bank import check_dtype
from retrieval_jax.errors import UserError
from retrieval_jax.paths import output_dir

SOURCES = ("bank", "encode")


class ClusterOptions(NamedTuple):
  """Where the embeddings come from that a batcher clusters the examples by; without meaning for batchers that do not.

  embeddings (CLUSTER_EMBEDDINGS): "bank": the training steps' own, the freshest of each example: they cost no encoding, and are
    those of training mode (dropout on). Examples that no step has seen yet are encoded. "encode": all are encoded at each
    refresh, in evaluation mode: one forward pass over the queries.
  dtype, path (BANK_DTYPE, BANK_PATH): of the bank: "float16" or "float32", and the folder of its working file (None:
    MODEL_DIR/batches), best a local disk.
  on_devices (CLUSTER_ON_DEVICES): whether the products of the clustering run on the training's devices, the embeddings
    sharded over them, instead of on the CPU of process 0.

  Example: `ClusterOptions("encode")`.
  """

  embeddings: str = "bank"
  dtype: str = "float16"
  path: str | None = None
  on_devices: bool = False

  def check(self) -> None:
    """Raises UserError for settings that cannot be."""
    if self.embeddings not in SOURCES:
      raise UserError(f"CLUSTER_EMBEDDINGS={self.embeddings!r}: expected {' or '.join(map(repr, SOURCES))}.")
    check_dtype(self.dtype)
    if self.path is not None:
      output_dir(self.path, "BANK_PATH")
    if type(self.on_devices) is not bool:
      raise UserError(f"CLUSTER_ON_DEVICES={self.on_devices!r}: expected True or False.")


class NegativeRefresh(NamedTuple):
  """Hard negatives mined anew with the model as it is (ANCE-like, in step with the training).

  At a refresh all queries and passages are encoded, every query's `depth` best passages that are no known answers become
  its hard negatives, and each epoch draws HARD_NEGATIVES of them (ANCE: of the 200 best).

  start (NEGATIVES_FROM_EPOCH): the epoch before which they are mined first; until then the places of hard negatives are
    empty, unless the data have some of their own, which a refresh replaces.
  epochs (NEGATIVES_EPOCHS): so many epochs later they are mined again, and so on.
  depth (NEGATIVES_DEPTH): candidates of each query.

  Cost of a refresh: one forward pass over queries and passages and one exact search.
  Source: Xiong et al. (2021), "Approximate Nearest Neighbor Negative Contrastive Learning for Dense Text Retrieval".

  Example: `NegativeRefresh(epochs=1, depth=200)`.
  """

  start: int = 0
  epochs: int = 1
  depth: int = 200

  def check(self, per_query: int) -> None:
    """Raises UserError for numbers that cannot be, and for batches that would take none of the negatives."""
    for name, value, least in (
      ("NEGATIVES_FROM_EPOCH", self.start, 0),
      ("NEGATIVES_EPOCHS", self.epochs, 1),
      ("NEGATIVES_DEPTH", self.depth, 1),
    ):
      if type(value) is not int or value < least:
        raise UserError(f"{name}={value!r}: expected a whole number of at least {least}.")
    if per_query < 1:
      raise UserError(
        f"HARD_NEGATIVES={per_query} and negatives are to be mined in the training: set how many of them each query brings "
        "to a batch, for example --gin.HARD_NEGATIVES=1."
      )

  def due(self, batcher: Batcher, plan: Plan, step: int, last: int | None) -> bool:
    """Returns whether negatives are mined before batch `step`. last: the step of the last time, None: never."""
    if step % batcher.steps_per_epoch(plan):
      return False
    epoch = batcher.epoch_of(plan, step)
    if last is None:
      return epoch >= self.start
    return epoch - batcher.epoch_of(plan, last) >= self.epochs
