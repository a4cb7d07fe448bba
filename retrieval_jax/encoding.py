"""Encoding many texts: sorted by length, in a few fixed shapes, over all devices; order and values as if one by one."""

import contextlib
import functools
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Final, NamedTuple, Protocol, runtime_checkable

import jax
import numpy as np
from jaxtyping import Array, Float, Int, PyTree
from tqdm import tqdm

from retrieval_jax import progress, watchdog
from retrieval_jax.data.row_tokens import RowTokens
from retrieval_jax.data.text_inputs import Text, TextInputs
from retrieval_jax.errors import UserError, nearest
from retrieval_jax.length_batches import bucket, length_batches, row_counts
from retrieval_jax.models.dual_encoder import DTYPES, PARTS, Side, TowerPair
from retrieval_jax.models.feature_bag import FeatureBagTower
from retrieval_jax.partitioning import Partitioner

SHOWN_ROWS: Final = 1000  # fewer are done before a progress bar could be read

CPU_TOKENS: Final = 1024
DEVICE_TOKENS: Final = 16_384
NAMES: Final = {"query": "queries", "passage": "passages"}


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
  whose caches then hold a layer's activations (1.3 times the rate of 8,192), 16,384 a GPU or TPU, and for feature bags, which
  have no such activations (3 times the rate of 1,024).
  dtype: of the activations; embeddings come out in float32. How exactly "float32" multiplies is the backend's choice (TF32
  on GPUs, one pass of bfloat16 on TPUs); set jax_default_matmul_precision="float32" for more.
  A batch has one of the few shapes of `shapes`, each compiled once, whatever is encoded (lengths in multiples of 16 ran at
  3.1 times the rate of padding to 128). While a batch is on the device the next is gathered. Several processes encode together:
  all call the same methods, each reads the rows of its own devices, and all get all embeddings.
  """

  model: TowerPair
  params: PyTree[Array]
  partitioner: Partitioner
  tokens_per_batch: int | None = None
  dtype: str = "float32"

  @property
  def budget(self) -> int:
    """The padded tokens of one batch over all devices."""
    given = self.tokens_per_batch
    if given is not None:
      if type(given) is not int or given < 1:
        raise UserError(f"TOKENS_PER_BATCH={given!r}: expected a whole number of at least 1, or None.")
      return given
    on_cpu = self.partitioner.mesh.devices.flat[0].platform == "cpu"
    bags = isinstance(self.model.query_tower, FeatureBagTower)
    return (CPU_TOKENS if on_cpu and not bags else DEVICE_TOKENS) * self.partitioner.data_size

  def queries(self, store: Rows) -> Float[np.ndarray, "q d"]:
    """Returns the query tower's embeddings of every row, float32, in row order."""
    return self._all("query", store)

  def passages(self, store: Rows) -> Float[np.ndarray, "c d"]:
    """Returns the passage tower's embeddings of every row, float32, in row order."""
    return self._all("passage", store)

  def texts(self, side: Side, texts: Sequence[Text], inputs: TextInputs) -> Float[np.ndarray, "e d"]:
    """Returns the embeddings of texts in memory, tokenised with `inputs`, float32, in their order."""
    own = inputs.query_side if side == "query" else inputs.passage_side
    return self._all(side, RaggedRows(own.ragged(texts), own.length))

  def spans(
    self, side: Side, store: Rows, spans: Sequence[range], *, dtype: str = "float32"
  ) -> Iterator[Float[np.ndarray, "_ d"]]:
    """Yields the embeddings of each span of consecutive rows, in row order, as `dtype` ("float32" or "float16").

    Memory is that of one span's embeddings and two batches, plus 16 bytes a row of the span, however many rows there
    are; what was yielded is the caller's. Each span's rows are encoded longest first, and the device has the next
    span's first batch before this one is yielded. Values do not depend on the spans beyond float32's rounding (1e-6),
    nor do they add shapes to `shapes`. The progress bar counts the rows outside `spans` as done before.

    Raises: UserError, naming the row, for an embedding that is not finite or that float16 cannot hold, and for a batch
    that does not fit into a device's memory.

    Example: `list(encoder.spans("passage", store, [range(0, 4), range(4, 8)]))`.
    """
    results = self._batches(side, store, spans, dtype)
    for span in spans:
      output = np.empty((len(span), self.model.embed_dim), dtype)
      left = len(span)
      while left:
        rows, embeddings = next(results)
        output[rows - span.start] = embeddings
        left -= len(rows)
      yield output

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

  def _all(self, side: Side, store: Rows) -> Float[np.ndarray, "c d"]:
    (output,) = self.spans(side, store, [range(len(store.lengths))])
    return output

  def _batches(
    self, side: Side, store: Rows, spans: Sequence[range], dtype: str
  ) -> Generator[tuple[Int[np.ndarray, "q"], Float[np.ndarray, "q d"]]]:
    """Yields (rows, their embeddings), batch by batch, span by span, each while the device has the batch after it."""
    run = encode_program(self.model, self.dtype, side, self.partitioner)
    total, wanted = len(store.lengths), sum(len(span) for span in spans)
    pending: tuple[np.ndarray, Array] | None = None
    with tqdm(
      total=total,
      initial=total - wanted,
      desc=f"encode {NAMES[side]}",
      unit="row",
      disable=jax.process_index() != 0 or wanted < SHOWN_ROWS,
      mininterval=progress.interval(),
    ) as bar:

      def finished(rows: np.ndarray, embedded: Array) -> tuple[np.ndarray, np.ndarray]:
        real = rows >= 0
        with _explaining_memory(self.budget):
          found = np.asarray(embedded)[real]
        watchdog.beat()
        bar.update(len(found))
        return rows[real], _stored(found, dtype, side, lambda i: store.name(int(rows[real][i])))

      for rows, length in self._span_batches(store, spans):
        tokens = RowTokens(store, rows, length)
        with _explaining_memory(self.budget):
          embedded = run(self.params, self._placed(tokens))
        if pending is not None:
          yield finished(*pending)
        pending = rows, embedded
      if pending is not None:
        yield finished(*pending)

  def _placed(self, tokens: RowTokens) -> Array:
    """Returns a batch's tokens on the devices; each of several processes reads the rows of its own."""
    return self.partitioner.put_rows(tokens[:] if jax.process_count() == 1 else tokens)

  def _span_batches(self, store: Rows, spans: Sequence[range]) -> Iterator[tuple[Int[np.ndarray, "q"], int]]:
    """Yields (rows, padded length) of every batch of every span; -1 pads."""
    lengths = store.lengths
    for span in spans:
      own = np.asarray(lengths[span.start : span.stop])
      for rows, length in length_batches(own, store.length, self.budget, multiple=self.partitioner.data_size):
        yield np.where(rows >= 0, rows + span.start, -1), length


def _stored(
  embeddings: Float[np.ndarray, "q d"], dtype: str, side: Side, name: Callable[[int], str]
) -> Float[np.ndarray, "q d"]:
  """Returns the embeddings as `dtype`. name: what to call one of them.

  Raises: UserError for one that is not finite, before or after.
  """
  with np.errstate(over="ignore"):  # it is looked for below
    stored = embeddings.astype(dtype, copy=False)
  bad = np.flatnonzero(~np.isfinite(stored).all(axis=1))
  if len(bad):
    where = f"encode {NAMES[side]}: the embedding of {name(int(bad[0]))}"
    others = f" ({len(bad)} of a batch of {len(stored)})"
    if np.isfinite(embeddings[bad]).all():
      raise UserError(f"{where} is beyond the largest {dtype}, 65504{others}. Set EMBEDDING_DTYPE='float32'.")
    raise UserError(
      f"{where} is not finite{others}. The checkpoint's parameters or the activation dtype are at fault; try "
      "ENCODE_DTYPE='float32'."
    )
  return stored


@contextlib.contextmanager
def _explaining_memory(budget: int) -> Iterator[None]:
  """Turns JAX's RESOURCE_EXHAUSTED inside the block into a UserError that names the setting to change."""
  try:
    yield
  except jax.errors.JaxRuntimeError as error:
    if "RESOURCE_EXHAUSTED" not in str(error):
      raise
    raise UserError(
      f"a batch does not fit into a device's memory. TOKENS_PER_BATCH (now {budget:,}): try {budget // 2:,}.\n"
      f"JAX said: {error}"
    ) from error


def encode_program(model: TowerPair, dtype: str, side: Side, partitioner: Partitioner) -> Callable:
  """Returns the jitted (params, tokens [q l]) -> embeddings [q d]; of one tower for both sides, the same for both.

  Raises: UserError for a dtype of the activations that there is not.
  """
  if dtype not in DTYPES:
    raise UserError(
      f"ENCODE_DTYPE={dtype!r}: expected {' or '.join(map(repr, DTYPES))}{nearest(str(dtype), DTYPES) or '.'}"
    )
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
