"""How a training step is computed: in how many chunks and microbatches, and what becomes of steps that are not finite."""

from typing import NamedTuple

from retrieval_jax.errors import UserError


class StepOptions(NamedTuple):
  """The defaults are the plain step: the whole batch at once, and training stops at the first non-finite step.

  chunks (TRAIN_CHUNKS): pieces in which each side is encoded. The loss still sees the whole batch, so the negatives and
    the gradient stay what they are; activation memory falls, for one more forward pass (chunked_encoding.py).
  microbatches (TRAIN_MICROBATCHES): pieces into which the batch itself is cut, each with a loss of its own, whose
    gradients are averaged. This shrinks the pool of negatives from BATCH_SIZE to BATCH_SIZE / microbatches: another,
    easier loss. Chunks are the exact alternative. Each microbatch is encoded in `chunks` chunks.
  max_nonfinite_steps (MAX_NONFINITE_STEPS): 0 stops training at the first step whose loss or gradient is not finite;
    above 0 such a step changes nothing but the step number, is counted and named, and one more of them stops training.
  hardness (IN_BATCH_HARDNESS): above 0 the metric "in_batch_hardness" is the mean cosine of each query to so many of the
    batch that are most like it (hardness.py).

  Example: `StepOptions(chunks=4)`.
  """

  chunks: int = 1
  microbatches: int = 1
  max_nonfinite_steps: int = 0
  hardness: int = 0

  def check(self, batch_size: int, shards: int) -> None:
    """Raises UserError unless the numbers are whole and every shard's rows make `microbatches` equal parts."""
    for name, value, least in (
      ("TRAIN_CHUNKS", self.chunks, 1),
      ("TRAIN_MICROBATCHES", self.microbatches, 1),
      ("MAX_NONFINITE_STEPS", self.max_nonfinite_steps, 0),
      ("IN_BATCH_HARDNESS", self.hardness, 0),
    ):
      if type(value) is not int or value < least:
        raise UserError(f"{name}={value!r}: expected a whole number of at least {least}.")
    rows = batch_size // shards
    if rows % self.microbatches:
      divisors = [n for n in range(1, rows + 1) if rows % n == 0]
      below = max(n for n in divisors if n < self.microbatches)
      above = min((n for n in divisors if n > self.microbatches), default=below)
      near = " or ".join(map(str, sorted({below, above})))
      raise UserError(
        f"TRAIN_MICROBATCHES={self.microbatches} does not divide the {rows} examples of a data shard "
        f"(BATCH_SIZE={batch_size}, {shards} shards). Nearest valid values: {near}."
      )

  def describe(self, batch_size: int, shards: int) -> list[str]:
    """Returns the lines to print at the start: none for the plain step.

    Example: `StepOptions(chunks=4).describe(64, 1)` is one line, that each side is encoded in 4 chunks of 16 rows.
    """
    lines = []
    rows = batch_size // shards // self.microbatches
    pool = batch_size // self.microbatches
    if self.microbatches > 1:
      lines.append(
        f"{self.microbatches} microbatches: the pool of negatives shrinks from {batch_size} to {pool} examples; "
        "TRAIN_CHUNKS saves memory with the gradient of the whole batch instead"
      )
    if self.chunks > rows:
      lines.append(f"TRAIN_CHUNKS={self.chunks} is more than the {rows} queries of a shard: one a chunk")
    if self.chunks > 1:
      size = -(-rows // min(self.chunks, rows))
      if self.chunks < rows and -(-rows // size) != self.chunks:
        lines.append(f"TRAIN_CHUNKS={self.chunks} does not divide the {rows} queries of a shard")
      lines.append(
        f"each side is encoded in {-(-rows // size)} chunks of {size} queries a shard and their passages: "
        f"the gradient of all {pool} examples, one more forward pass"
      )
    if self.max_nonfinite_steps:
      lines.append(f"up to {self.max_nonfinite_steps} steps that are not finite are left out")
    return lines
