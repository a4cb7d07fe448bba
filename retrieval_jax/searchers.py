"""Searchers: what ranks a corpus for queries. A checkpoint's embeddings, or BM25."""

import contextlib
import pathlib
import time
from collections.abc import Callable
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float

from retrieval_jax import processes
from retrieval_jax.data.dataset import RetrievalData, Source
from retrieval_jax.embedding_writer import Manifest, is_complete, writing
from retrieval_jax.embeddings import ROWS_PER_SHARD, Layout, ShardedEmbeddings, open_embeddings
from retrieval_jax.encoding import NAMES, Encoder
from retrieval_jax.errors import UserError
from retrieval_jax.index.base import Embeddings, Index
from retrieval_jax.index.bm25 import BM25
from retrieval_jax.index.exact import exact
from retrieval_jax.models.dual_encoder import Side
from retrieval_jax.parameter_digest import parameter_digest
from retrieval_jax.partitioning import Partitioner
from retrieval_jax.paths import output_dir
from retrieval_jax.records import Ranking
from retrieval_jax.retriever import Retriever, announce
from retrieval_jax.weights import evaluation_params

# In memory, or memory-mapped where they are kept; both are read by row numbers too.
SideEmbeddings = np.ndarray | ShardedEmbeddings


EXACT = "dense"  # the name of a checkpoint's own, exact search


def name_of(function: Callable) -> str:
  """Returns a function's name, also of one that gin or functools.partial wraps.

  Example: `name_of(functools.partial(ann.faiss_ivf, num_probes=8))` is `"faiss_ivf"`.
  """
  return getattr(function, "__name__", None) or name_of(function.func)  # pyright: ignore[reportFunctionMemberAccess]  (of a partial)


def task_name(task: RetrievalData | Source) -> str:
  """Returns the task's name in folders and tables: with the split behind it unless that is "test"."""
  return task.name if task.split == "test" else f"{task.name}_{task.split}"


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
    """Returns the k best passages of every row of data.judged, in that order."""
    ...


class EmbeddedTask(NamedTuple):
  """The embeddings of a task: of the queries of data.judged, in that order, and of its whole corpus."""

  queries: Float[np.ndarray, "e d"]
  passages: SideEmbeddings
  build_index: Callable[[Embeddings], Index] = exact

  def search(self, *, k: int) -> Ranking:
    """Returns the k best passages of every query."""
    return self.build_index(self.passages).search(self.queries, k=k)


class EncodedSide(NamedTuple):
  """A side's embeddings. folder: where they are kept, if they are. encoded: how many rows this call had to encode and
  write, in so many seconds.
  """

  embeddings: SideEmbeddings
  folder: pathlib.Path | None
  encoded: int
  seconds: float


class DenseSearcher(NamedTuple):
  """Inner-product search with the embeddings of one checkpoint.

  keep_in: folder in which embeddings are kept as <task>/step_<n>/{passages,queries} and found again by the next program
  that asks for those of the same parameters, texts and input settings; None keeps none, and they stay in memory.
  rows_per_shard: of a folder that is begun anew; host memory is that of one shard.
  embedding_dtype: "float32", or "float16" in half the room.
  build_index: what is searched, made of the corpus's embeddings; `exact` scores every passage.
  name: "dense", or that of an index that is not exact: results of the two lie apart.
  """

  encoder: Encoder
  step: int
  checkpoint: str
  keep_in: pathlib.Path | None = None
  name: str = EXACT
  rows_per_shard: int = ROWS_PER_SHARD
  embedding_dtype: str = "float32"
  build_index: Callable[[Embeddings], Index] = exact

  def search(self, data: RetrievalData, *, k: int) -> Ranking:
    return self.embedded(data).search(k=k)

  def embedded(self, data: RetrievalData) -> EmbeddedTask:
    """Returns the embeddings that `search` looks into."""
    passages = self.passages(data)
    return EmbeddedTask(self.queries(data)[data.judged], passages, self.build_index)

  def passages(self, data: RetrievalData) -> SideEmbeddings:
    """Returns the embeddings of the corpus, memory-mapped where they are kept."""
    return self.encoded(data, "passage").embeddings

  def queries(self, data: RetrievalData) -> SideEmbeddings:
    """Returns the embeddings of every row of data.queries, memory-mapped where they are kept."""
    return self.encoded(data, "query").embeddings

  def index(self, data: RetrievalData) -> Index:
    """Returns the index of the corpus."""
    return self.build_index(self.passages(data))

  def folder(self, data: RetrievalData) -> pathlib.Path | None:
    """Returns where this task's embeddings are kept."""
    return None if self.keep_in is None else self.keep_in / task_name(data) / f"step_{self.step}"

  def encoded(self, data: RetrievalData, side: Side) -> EncodedSide:
    """Returns the embeddings of every row of a side, from the disk as far as they are there.

    What is missing is encoded and written shard by shard; a process that is killed loses the shard it is at. The corpus
    of another split that has the same texts is taken in place of encoding it again.
    """
    store = data.queries if side == "query" else data.passages
    start = time.monotonic()
    parent = self.folder(data)
    layout = Layout(len(store), self.encoder.model.embed_dim, self.rows_per_shard, self.embedding_dtype)
    layout.check()
    if parent is None:
      (embeddings,) = self.encoder.spans(side, store, [range(len(store))], dtype=self.embedding_dtype)
      return EncodedSide(embeddings, None, len(store), time.monotonic() - start)
    manifest = Manifest(self._identity(store.fingerprint), layout, self._note(data))
    own = parent / NAMES[side]
    others = sorted(parent.parent.parent.glob(f"*/{parent.name}/{NAMES[side]}"))
    # Of several processes the first one looks and writes; the folder is theirs in common.
    found = processes.agree(next((str(f) for f in (own, *others) if is_complete(f, manifest)), None))
    if found is not None:
      return EncodedSide(open_embeddings(pathlib.Path(found)), pathlib.Path(found), 0, 0.0)
    with contextlib.ExitStack() as stack:
      writer = stack.enter_context(writing(own, manifest)) if processes.is_first() else None
      missing = [] if writer is None else [(n, *_ends(writer.layout.span(n))) for n in writer.missing()]
      missing = processes.agree(missing)
      spans = [range(first, stop) for _, first, stop in missing]
      shards = self.encoder.spans(side, store, spans, dtype=self.embedding_dtype)
      for number, first, stop in missing:
        shard = next(shards)
        if writer is not None:
          writer.write(number, shard, store.ids[first:stop])
        del shard  # there is one in memory
    processes.wait_for_all(f"{NAMES[side]} are encoded")
    return EncodedSide(open_embeddings(own), own, sum(map(len, spans)), time.monotonic() - start)

  def _identity(self, tokens_fingerprint: str) -> dict[str, str]:
    """Returns what decides the embeddings of a side."""
    return {
      "parameters": parameter_digest(self.encoder.params),
      "model": self.encoder.model.digest,
      "tokens_fingerprint": tokens_fingerprint,
      "activation_dtype": self.encoder.dtype,
    }

  def _note(self, data: RetrievalData) -> dict[str, str]:
    return {"checkpoint": self.checkpoint, "task": data.name}


def _ends(span: range) -> tuple[int, int]:
  return span.start, span.stop


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
    return index.search([data.queries.texts[int(row)] for row in data.judged], k=k)


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
  rows_per_shard: int = ROWS_PER_SHARD,
  embedding_dtype: str = "float32",
  build_index: Callable[[Embeddings], Index] = exact,
) -> DenseSearcher:
  """Returns the searcher of MODEL_DIR's checkpoint `step` (None: the newest; no checkpoint: the pretrained weights).

  Its embeddings are kept in MODEL_DIR/encode. dtype: of the activations (ENCODE_DTYPE); the other arguments are those of
  Encoder and DenseSearcher.
  """
  folder = output_dir(model_dir, "MODEL_DIR")
  announce(retriever.inputs)
  params, found, checkpoint = evaluation_params(retriever, partitioner, folder, step=step)
  encoder = Encoder(retriever.model, params, partitioner, tokens_per_batch=tokens_per_batch, dtype=dtype)
  return DenseSearcher(
    encoder,
    found,
    checkpoint,
    keep_in=folder / "encode",
    name=EXACT if (index := name_of(build_index)) == "exact" else index,
    rows_per_shard=rows_per_shard,
    embedding_dtype=embedding_dtype,
    build_index=build_index,
  )
