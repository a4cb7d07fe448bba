"""Encoding many texts: sorted by length, in a few fixed shapes, over all devices; order and values as if one by one."""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree
from tqdm import tqdm

from retrieval_jax import progress
from retrieval_jax.data.text_inputs import TextInputs
from retrieval_jax.data.token_store import TokenStore
from retrieval_jax.errors import UserError
from retrieval_jax.models.dual_encoder import TowerPair
from retrieval_jax.partitioning import Partitioner


class Encoder(NamedTuple):
  """A model with its parameters, ready to encode token stores.

  tokens_per_batch: padded tokens of one device batch; bounds the activation memory. dtype: of the activations;
  embeddings come out in float32. One compilation per length bucket: lengths are rounded up to multiples of 16 up to
  128, then to powers of two (tried: 3.1 times the rate of padding to 128).
  """

  model: TowerPair
  params: PyTree[Array]
  partitioner: Partitioner
  tokens_per_batch: int = 8192
  dtype: str = "float32"

  def queries(self, store: TokenStore) -> Float[np.ndarray, "q d"]:
    """Returns the query tower's embeddings of every row of the store, float32, in row order."""
    return self._encode("query", store)

  def passages(self, store: TokenStore) -> Float[np.ndarray, "c d"]:
    """Returns the passage tower's embeddings of every row of the store, float32, in row order."""
    return self._encode("passage", store)

  def query_texts(self, texts: Sequence[str], inputs: TextInputs) -> Float[np.ndarray, "q d"]:
    """Returns the query tower's embeddings of a few texts, tokenised with `inputs`, float32."""
    tokens = inputs.query_tokens(texts)
    padding = -len(texts) % self.partitioner.data_size
    tokens = np.pad(tokens, ((0, padding), (0, 0)))
    run = self._compiled("query")
    return np.asarray(run(self.params, jnp.asarray(tokens)))[: len(texts)]

  def _compiled(self, side: str) -> Callable:
    return _compiled(self.model, self.dtype, side, self.partitioner)

  def _encode(self, side: str, store: TokenStore) -> Float[np.ndarray, "c d"]:
    run = self._compiled(side)
    title = f"encode {'queries' if side == 'query' else 'passages'}"
    output = np.empty((store.num_rows, self.model.embed_dim), np.float32)
    with tqdm(
      total=store.num_rows,
      desc=title,
      unit="row",
      disable=jax.process_index() != 0,
      mininterval=progress.interval(),
    ) as bar:
      for rows, length in length_batches(
        np.asarray(store.lengths), store.length, self.tokens_per_batch, multiple=self.partitioner.data_size
      ):
        tokens = store.gather(rows)[:, :length]
        embedded = np.asarray(run(self.params, jnp.asarray(tokens)))
        real = rows >= 0
        output[rows[real]] = embedded[real]
        bar.update(int(real.sum()))
    bad = ~np.isfinite(output).all(axis=1)
    if bad.any():
      row = int(np.argmax(bad))
      raise UserError(
        f"{title}: {int(bad.sum())} embeddings are not finite, the first of {store.ids[row]!r}. "
        "The checkpoint's parameters or the activation dtype are at fault; try ENCODE_DTYPE='float32'."
      )
    return output


@functools.lru_cache(maxsize=8)
def _compiled(model: TowerPair, dtype: str, side: str, partitioner: Partitioner) -> Callable:
  """Returns the jitted (params, tokens [q l]) -> embeddings [q d], one per model: evaluating again compiles nothing."""
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


def length_batches(
  lengths: Int[np.ndarray, "c"], longest: int, tokens_per_batch: int, *, multiple: int
) -> Iterator[tuple[Int[np.ndarray, "q"], int]]:
  """Yields (rows, padded length) covering every row once, longest first; -1 pads the last batch of a bucket.

  Longest first, so that a batch that does not fit in memory fails at once and the time left is never underestimated.
  The number of rows is a multiple of `multiple` (the data shards) and fixed per bucket: one compilation each.
  """
  order = np.argsort(-lengths, kind="stable")
  padded = np.array([bucket(int(n), longest) for n in lengths[order]], np.int64)
  for length in np.unique(padded)[::-1]:
    members = order[padded == length]
    size = max(tokens_per_batch // int(length) // multiple, 1) * multiple
    size = min(size, -(-len(members) // multiple) * multiple)
    for start in range(0, len(members), size):
      rows = members[start : start + size]
      yield np.pad(rows, (0, size - len(rows)), constant_values=-1), int(length)
