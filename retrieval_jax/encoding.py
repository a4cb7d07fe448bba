"""Encoding many texts: sorted by length, in a few fixed shapes, over all devices; order and values as if one by one."""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree
from tqdm import tqdm

from retrieval_jax import progress
from retrieval_jax.data.text_inputs import Text, TextInputs
from retrieval_jax.errors import UserError
from retrieval_jax.models.dual_encoder import PARTS, Side, TowerPair
from retrieval_jax.partitioning import Partitioner

SHOWN_ROWS: Final = 1000  # fewer are done before a progress bar could be read

CPU_TOKENS: Final = 1024
DEVICE_TOKENS: Final = 16_384
FEWEST_ROWS: Final = 8  # of a batch: fewer rows than that cost about the same


@runtime_checkable
class Rows(Protocol):
  """Token rows by number: a TokenStore on disk, or RaggedRows in memory."""

  @property
  def lengths(self) -> Int[np.ndarray, "c"]: ...

  @property
  def length(self) -> int: ...

  def gather(self, rows: Int[np.ndarray, "e"]) -> Int[np.ndarray, "e l"]: ...

  def name(self, row: int) -> str: ...


class RaggedRows(NamedTuple):
  """Tokenised texts in memory, padded only when a batch is made. length: the longest that one may be."""

  tokens: Sequence[Int[np.ndarray, "_"]]
  length: int

  @property
  def lengths(self) -> Int[np.ndarray, "c"]:
    """The number of tokens of each row."""
    return np.array([len(row) for row in self.tokens], np.int32)

  def gather(self, rows: Int[np.ndarray, "e"]) -> Int[np.ndarray, "e l"]:
    """Returns the rows padded with 0 to the longest of them; row -1 is all padding."""
    chosen = [self.tokens[row] if row >= 0 else () for row in rows]
    padded = np.zeros((len(chosen), max(map(len, chosen))), np.int32)
    for target, row in zip(padded, chosen, strict=True):
      target[: len(row)] = row
    return padded

  def name(self, row: int) -> str:
    """Returns what to call a row in a message."""
    return f"text {row}"


class Encoder(NamedTuple):
  """A model with its parameters, ready to encode tokens.

  tokens_per_batch: padded tokens of one batch, over all devices; bounds the activation memory. None: 1,024 a CPU device,
  whose caches then hold a layer's activations (1.3 times the rate of 8,192), 16,384 a GPU or TPU.
  dtype: of the activations; embeddings come out in float32. How exactly "float32" multiplies is the backend's choice (TF32
  on GPUs, one pass of bfloat16 on TPUs); set jax_default_matmul_precision="float32" for more.
  A batch has one of the few shapes of `shapes`, each compiled once, whatever is encoded (lengths in multiples of 16 ran at
  3.1 times the rate of padding to 128). While a batch is on the device the next is gathered.
  """

  model: TowerPair
  params: PyTree[Array]
  partitioner: Partitioner
  tokens_per_batch: int | None = None
  dtype: str = "float32"

  @property
  def budget(self) -> int:
    """The padded tokens of one batch over all devices."""
    if self.tokens_per_batch is not None:
      return self.tokens_per_batch
    on_cpu = self.partitioner.mesh.devices.flat[0].platform == "cpu"
    return (CPU_TOKENS if on_cpu else DEVICE_TOKENS) * self.partitioner.data_size

  def queries(self, store: Rows) -> Float[np.ndarray, "q d"]:
    """Returns the query tower's embeddings of every row, float32, in row order."""
    return self._encode("query", store)

  def passages(self, store: Rows) -> Float[np.ndarray, "c d"]:
    """Returns the passage tower's embeddings of every row, float32, in row order."""
    return self._encode("passage", store)

  def texts(self, side: Side, texts: Sequence[Text], inputs: TextInputs) -> Float[np.ndarray, "e d"]:
    """Returns the embeddings of texts in memory, tokenised with `inputs`, float32, in their order."""
    own = inputs.query_side if side == "query" else inputs.passage_side
    return self._encode(side, RaggedRows(own.ragged(texts), own.length))

  def shapes(self, longest: int) -> list[tuple[int, int]]:
    """Returns every (rows, length) that a batch of rows of up to `longest` tokens can have: the most that compile.

    They bound the compilations of one side; of both sides together where one tower serves both ("sde") and `longest` is
    the same for both. Two towers compile once a side.

    Example: `Encoder(model, params, partitioner(), tokens_per_batch=512).shapes(32)` on one device is
    `[(32, 16), (8, 16), (16, 32), (8, 32)]`.
    """
    lengths = sorted({bucket(n, longest) for n in range(1, longest + 1)})
    data_size = self.partitioner.data_size
    return [(rows, n) for n in lengths for rows in row_counts(n, self.budget, multiple=data_size)]

  def _encode(self, side: Side, store: Rows) -> Float[np.ndarray, "c d"]:
    run = _compiled(self.model, self.dtype, side, self.partitioner)
    title = f"encode {'queries' if side == 'query' else 'passages'}"
    lengths = np.asarray(store.lengths)
    output = np.empty((len(lengths), self.model.embed_dim), np.float32)
    pending: tuple[np.ndarray, Array] | None = None

    def finish() -> None:
      if pending is not None:
        rows, embedded = pending
        real = rows >= 0
        output[rows[real]] = np.asarray(embedded)[real]
        bar.update(int(real.sum()))

    with tqdm(
      total=len(lengths),
      desc=title,
      unit="row",
      disable=jax.process_index() != 0 or len(lengths) < SHOWN_ROWS,
      mininterval=progress.interval(),
    ) as bar:
      for rows, length in length_batches(
        lengths, store.length, self.budget, multiple=self.partitioner.data_size
      ):
        tokens = store.gather(rows)[:, :length]
        tokens = np.pad(tokens, ((0, 0), (0, length - tokens.shape[1])))
        embedded = run(self.params, jnp.asarray(tokens))
        finish()
        pending = rows, embedded
      finish()
    bad = ~np.isfinite(output).all(axis=1)
    if bad.any():
      row = int(np.argmax(bad))
      raise UserError(
        f"{title}: {int(bad.sum())} embeddings are not finite, the first of {store.name(row)}. "
        "The checkpoint's parameters or the activation dtype are at fault; try ENCODE_DTYPE='float32'."
      )
    return output


def _compiled(model: TowerPair, dtype: str, side: Side, partitioner: Partitioner) -> Callable:
  """Returns the jitted (params, tokens [q l]) -> embeddings [q d]; of one tower for both sides, the same for both."""
  return _jitted(model, dtype, "query" if _is_one_tower(model) else side, partitioner)


def _is_one_tower(model: TowerPair) -> bool:
  return model.query_tower == model.passage_tower and model.shared.issuperset(PARTS)


@functools.lru_cache(maxsize=8)
def _jitted(model: TowerPair, dtype: str, side: Side, partitioner: Partitioner) -> Callable:
  """One per model and side: evaluating again compiles nothing."""
  typed = model.with_dtype(dtype)
  apply = typed.encode_queries if side == "query" else typed.encode_passages
  return jax.jit(
    partitioner.traced(apply), in_shardings=(None, partitioner.rows), out_shardings=partitioner.replicated
  )


def bucket(length: int, longest: int) -> int:
  """Returns the padded length: the next multiple of 16 up to 128, then the next power of two; at most `longest`.

  Example: bucket(17, 512) is 32 and bucket(129, 512) is 256.
  """
  rounded = -(-max(length, 1) // 16) * 16
  if rounded > 128:
    rounded = 1 << (rounded - 1).bit_length()
  return min(rounded, longest)


def row_counts(length: int, tokens_per_batch: int, *, multiple: int) -> list[int]:
  """Returns the numbers of rows a batch of this length may have, largest first: the full one, and quarters of it down to
  8, for what is left over and for a handful of queries. All are multiples of `multiple`, the number of data shards.

  Example: row_counts(16, 8192, multiple=1) is [512, 128, 32, 8].
  """
  full = max(tokens_per_batch // length // multiple, 1) * multiple
  smallest = -(-FEWEST_ROWS // multiple) * multiple
  counts = [full]
  while counts[-1] > smallest:
    quarter = -(-counts[-1] // (4 * multiple)) * multiple
    counts.append(max(quarter, smallest))
  return counts


def length_batches(
  lengths: Int[np.ndarray, "c"], longest: int, tokens_per_batch: int, *, multiple: int
) -> Iterator[tuple[Int[np.ndarray, "q"], int]]:
  """Yields (rows, padded length) covering every row once, longest first; -1 pads the last batch.

  Longest first, so that a batch that does not fit in memory fails at once and the time left is never underestimated.
  Every batch but the last is full, so there is about one compilation a length (Encoder.shapes bounds them).

  Example: `length_batches(np.array([5, 60, 30]), 64, 64, multiple=1)` yields rows `[1]` at 64, then rows `[2, 0]` at 32.
  """
  order = np.argsort(-lengths, kind="stable")
  start = 0
  while start < len(order):
    length = bucket(int(lengths[order[start]]), longest)
    left = len(order) - start
    counts = row_counts(length, tokens_per_batch, multiple=multiple)
    size = min((count for count in counts if count >= left), default=counts[0])
    rows = order[start : start + size]
    yield np.pad(rows, (0, size - len(rows)), constant_values=-1), length
    start += size
