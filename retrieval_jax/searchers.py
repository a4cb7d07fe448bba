"""Searchers: what ranks a corpus for queries. A checkpoint's embeddings, or BM25."""

import hashlib
import pathlib
from collections.abc import Callable
from typing import NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from retrieval_jax.data.dataset import RetrievalData, Source
from retrieval_jax.data.token_store import TokenStore
from retrieval_jax.embeddings import open_embeddings, write_embeddings
from retrieval_jax.encoding import Encoder
from retrieval_jax.errors import UserError
from retrieval_jax.index.bm25 import BM25
from retrieval_jax.index.exact import search_exact
from retrieval_jax.partitioning import Partitioner
from retrieval_jax.paths import output_dir
from retrieval_jax.records import Ranking
from retrieval_jax.retriever import Retriever, announce
from retrieval_jax.weights import evaluation_params


def task_name(task: RetrievalData | Source) -> str:
  """Returns the task's name in folders and tables: with the split behind it unless that is "test"."""
  return task.name if task.split == "test" else f"{task.name}_{task.split}"


def parameter_digest(params: PyTree[Array]) -> str:
  """Returns a hash of every parameter's sum and sum of squares: tells two states of one model apart for the price of
  reading them once on the device, whatever their size.
  """
  return hashlib.sha256(b"".join(np.asarray(x).tobytes() for x in _sums(params))).hexdigest()[:16]


@jax.jit
def _sums(params: PyTree[Array]) -> list[Array]:
  return [jnp.stack([jnp.sum(x), jnp.sum(x * x)]) for x in jax.tree.leaves(params)]


@runtime_checkable
class Searcher(Protocol):
  """Anything that ranks a corpus for queries, and says which state of what it is."""

  @property
  def name(self) -> str: ...

  @property
  def step(self) -> int:
    """The training step it was taken at; 0 for what was not trained here."""
    ...

  @property
  def checkpoint(self) -> str:
    """Where its parameters come from, for the record."""
    ...

  def search(self, data: RetrievalData, *, k: int) -> Ranking:
    """Returns the k best passages of every row of data.examples, in that order."""
    ...


class EmbeddedTask(NamedTuple):
  """The embeddings of a task: of the queries of data.examples, in that order, and of its whole corpus."""

  queries: Float[np.ndarray, "e d"]
  passages: Float[np.ndarray, "c d"]

  def search(self, *, k: int) -> Ranking:
    """Returns the k best passages of every query."""
    return search_exact(self.passages, self.queries, k=k)


class DenseSearcher(NamedTuple):
  """Exact inner-product search with the embeddings of one checkpoint.

  keep_in: folder in which embeddings are kept as <task>/step_<n>/{passages,queries} and found again by the next program
  that asks for those of the same checkpoint, texts and input settings; None keeps none.
  """

  encoder: Encoder
  step: int
  checkpoint: str
  keep_in: pathlib.Path | None = None
  name: str = "dense"

  def search(self, data: RetrievalData, *, k: int) -> Ranking:
    return self.embedded(data).search(k=k)

  def embedded(self, data: RetrievalData) -> EmbeddedTask:
    """Returns the embeddings that `search` looks into."""
    passages = self.passages(data)
    return EmbeddedTask(self.queries(data)[data.examples], passages)

  def passages(self, data: RetrievalData) -> Float[np.ndarray, "c d"]:
    """Returns the embeddings of the corpus, float32, memory-mapped where they are kept."""
    return self._embeddings(data, data.passages, "passages", self.encoder.passages)

  def queries(self, data: RetrievalData) -> Float[np.ndarray, "q d"]:
    """Returns the embeddings of every row of data.queries, float32, memory-mapped where they are kept."""
    return self._embeddings(data, data.queries, "queries", self.encoder.queries)

  def folder(self, data: RetrievalData) -> pathlib.Path | None:
    """Returns where this task's embeddings are kept."""
    return None if self.keep_in is None else self.keep_in / task_name(data) / f"step_{self.step}"

  def _embeddings(self, data: RetrievalData, store: TokenStore, side: str, encode: Callable) -> np.ndarray:
    folder = self.folder(data)
    if folder is None:
      return encode(store)
    manifest = {
      "checkpoint": self.checkpoint,
      "parameters": parameter_digest(self.encoder.params),
      "model": self.encoder.model.digest,
      "task": data.name,
      "tokens_fingerprint": store.fingerprint,
      "activation_dtype": self.encoder.dtype,
    }
    found = open_embeddings(folder / side, manifest)
    if found is None:
      found = encode(store)
      if jax.process_index() == 0:
        write_embeddings(folder / side, found, store.ids, manifest)
    return found


class BM25Searcher(NamedTuple):
  """BM25 over the passages' texts (lucene variant, English stop words, Snowball stemmer)."""

  k1: float = 1.2
  b: float = 0.75
  name: str = "bm25"
  step: int = 0

  @property
  def checkpoint(self) -> str:
    return f"bm25(k1={self.k1}, b={self.b})"

  def search(self, data: RetrievalData, *, k: int) -> Ranking:
    index = BM25(list(data.passages.texts), k1=self.k1, b=self.b)
    return index.search([data.queries.texts[int(row)] for row in data.examples], k=k)


def require_dense(searcher: Searcher) -> None:
  """Raises UserError for a searcher without embeddings, such as BM25's."""
  if not isinstance(searcher, DenseSearcher):
    raise UserError(
      f"SEARCHER: {searcher.name} has no embeddings; this program needs a model. Leave searchers/ out."
    )


def dense_searcher(
  retriever: Retriever,
  *,
  model_dir: str,
  partitioner: Partitioner,
  step: int | None = None,
  dtype: str = "float32",
  tokens_per_batch: int | None = None,
) -> DenseSearcher:
  """Returns the searcher of MODEL_DIR's checkpoint `step` (None: the newest; no checkpoint: the pretrained weights).

  Its embeddings are kept in MODEL_DIR/encode.
  """
  folder = output_dir(model_dir, "MODEL_DIR")
  announce(retriever.inputs)
  params, found, checkpoint = evaluation_params(retriever, partitioner, folder, step=step)
  encoder = Encoder(retriever.model, params, partitioner, tokens_per_batch=tokens_per_batch, dtype=dtype)
  return DenseSearcher(encoder, found, checkpoint, keep_in=folder / "encode")
