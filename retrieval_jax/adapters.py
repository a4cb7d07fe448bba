"""Adapters: a DualEncoder in the shape that BEIR and MTEB evaluate, so that their numbers are of the same embeddings."""

import functools
import hashlib
from collections.abc import Iterable, Mapping, Sequence, Sized
from typing import TYPE_CHECKING, Any, Final

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from retrieval_jax import scoring
from retrieval_jax.data.text_inputs import Text
from retrieval_jax.dual_encoder import DualEncoder
from retrieval_jax.errors import UserError

if TYPE_CHECKING:
  import torch

QUERY_PROMPTS: Final = (None, "query")
PASSAGE_PROMPTS: Final = ("document", "passage")


class BeirModel:
  """A DualEncoder as the model of BEIR's DenseRetrievalExactSearch and its other dense searches (beir 2).

  Titles reach the model apart from texts, so its own passage_template joins them, and its prefixes are applied: give
  BEIR no prompts. The model makes its own batches (by length, in fixed shapes) and shows a progress bar for more than a
  thousand texts: batch_size and show_progress_bar, which BEIR always passes, are taken and change nothing.

  BEIR scores by cosine unless told otherwise. For a model that does not normalise say
  `EvaluateRetrieval(search, score_function="dot")`.

  Example:
    search = DenseRetrievalExactSearch(BeirModel(DualEncoder.load("/tmp/run")))
    results = EvaluateRetrieval(search, score_function="dot").retrieve(corpus, queries)
  """

  def __init__(self, dual_encoder: DualEncoder):
    self.dual_encoder = dual_encoder

  def encode_queries(
    self,
    queries: Sequence[str],
    batch_size: int = 128,
    *,
    show_progress_bar: bool = True,
    convert_to_tensor: bool = False,
    normalize_embeddings: bool = False,
  ) -> "np.ndarray | torch.Tensor":
    """Returns the embeddings of queries, float32 [q, d], in their order.

    batch_size, show_progress_bar: without effect.
    convert_to_tensor: a torch tensor on the CPU in place of a numpy array; BEIR asks for it.
    normalize_embeddings: divided by their norms; BEIR's Faiss searches ask for it to score by cosine.
    """
    del batch_size, show_progress_bar
    embeddings = self.dual_encoder.encode_queries(queries)
    return _as_asked(embeddings, tensor=convert_to_tensor, normalized=normalize_embeddings)

  def encode_corpus(
    self,
    corpus: Sequence[Text] | Mapping[str, Sequence[str]],
    batch_size: int = 128,
    *,
    show_progress_bar: bool = True,
    convert_to_tensor: bool = False,
    normalize_embeddings: bool = False,
  ) -> "np.ndarray | torch.Tensor":
    """Returns the embeddings of passages, float32 [c, d], in their order.

    corpus: {"title", "text"} mappings (or bare texts), or one mapping of the lists "text" and perhaps "title". A
      passage whose title is missing, None or blank is its text alone.
    The other arguments are those of encode_queries.

    Raises: UserError for a corpus without texts, with what is no list of them, or with more or fewer titles than
    texts.
    """
    del batch_size, show_progress_bar
    passages = _columns(corpus, body="text") if isinstance(corpus, Mapping) else corpus
    embeddings = self.dual_encoder.encode_passages(passages)
    return _as_asked(embeddings, tensor=convert_to_tensor, normalized=normalize_embeddings)


class MtebModel:
  """A DualEncoder as an encoder of MTEB (mteb 2, its EncoderProtocol).

  What MTEB calls a query goes through the query tower, a document through the passage tower, each with the model's own
  prefix; title and body of a document reach the model apart, so its own passage_template joins them. Texts without a
  prompt type (both sides of STS, clustering, classification) go through the query tower, cut at query_length: for long
  ones load the model with a larger one.

  MTEB keeps results by name and revision and reads them back in place of evaluating again. The revision made here
  changes with any parameter, prefix, length or vocabulary.

  Args:
    dual_encoder: the model.
    name: "organisation/model", what the results are filed under.
    revision: tells versions of the model apart; None: a hash of all that decides its embeddings, which reads every
      parameter (0.05 s for the 86 MB of all-MiniLM-L6-v2).

  Raises: UserError for a name that MTEB would refuse.

  Example: `mteb.evaluate(MtebModel(DualEncoder.load("/tmp/run"), name="me/run"), mteb.get_tasks(tasks=["SciFact"]))`.
  """

  def __init__(self, dual_encoder: DualEncoder, *, name: str, revision: str | None = None):
    organisation, _, model = name.partition("/") if isinstance(name, str) else ("", "", "")
    if not organisation or not model or "/" in model:
      raise UserError(f"name={name!r}: MTEB expects 'organisation/model', such as 'me/my-retriever'.")
    self.dual_encoder, self.name, self.revision = dual_encoder, name, revision

  def encode(
    self,
    inputs: Iterable[Mapping[str, Any]],
    *,
    task_metadata: Any,
    hf_split: str,
    hf_subset: str,
    prompt_type: str | None = None,
    batch_size: int = 32,
    show_progress_bar: bool = True,
    precision: str | None = None,
  ) -> Float[np.ndarray, "e d"]:
    """Returns the embeddings of all texts of the batches, float32 [e, d], in their order.

    inputs: MTEB's DataLoader, of batches {"text": [...]}; documents with "title" and "body" beside it. A query's
      "text" includes the task's instruction for it, if there is one.
    task_metadata, hf_split, hf_subset: without effect: the model's text inputs decide on prefixes, not the task.
    prompt_type: "query" or None for the query tower, "document" (or "passage") for the passage tower.
    batch_size, show_progress_bar: without effect, as in BeirModel.
    precision: None or "float32".

    Raises: UserError for another prompt type or precision, and for what is no batches of lists of texts.
    """
    del task_metadata, hf_split, hf_subset, batch_size, show_progress_bar
    if precision not in (None, "float32"):
      raise UserError(
        f"precision={precision!r}: the embeddings are float32. Leave precision out of encode_kwargs; for quantised "
        "ones wrap the model in mteb.models.CompressionWrapper."
      )
    if isinstance(inputs, str | Mapping) or not isinstance(inputs, Iterable):
      raise UserError(
        f"got {_kind(inputs)} in place of batches; expected a list of them, such as [{{'text': [...]}}]."
      )
    if prompt_type in QUERY_PROMPTS:
      return self.dual_encoder.encode_queries([text for batch in inputs for text in _column(batch, "text")])
    if prompt_type in PASSAGE_PROMPTS:
      return self.dual_encoder.encode_passages([passage for batch in inputs for passage in _documents(batch)])
    raise UserError(f"prompt_type={prompt_type!r}: expected 'query', 'document' or None.")

  def similarity(self, embeddings1: Any, embeddings2: Any) -> Float[np.ndarray, "q c"]:
    """Returns the model's scores of every pair, [q, c] float32. Takes numpy or torch, [q, d] and [c, d] or one [d]."""
    # A copy: torch warns of memory that it cannot write, and MTEB makes a tensor of it.
    return np.array(self.dual_encoder.similarity(_rows(embeddings1), _rows(embeddings2)))

  def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> Float[np.ndarray, "e"]:
    """Returns the model's score of each row with the same row of the other: sum_d a_id b_id, [e] float32.

    Raises: UserError when the numbers of rows or the widths differ.
    """
    first, second = _rows(embeddings1), _rows(embeddings2)
    if first.shape != second.shape:
      raise UserError(
        f"similarity_pairwise: got shapes {first.shape} and {second.shape}; expected equal ones."
      )
    return np.einsum("ed,ed->e", first, second)

  @functools.cached_property
  def mteb_model_meta(self) -> Any:
    """What MTEB files with the results, a mteb.ModelMeta: size, width, lengths, revision; what is unknown is None.

    Raises: UserError without the package mteb.
    """
    try:
      from mteb.models import ModelMeta  # pyright: ignore[reportMissingImports]  (extra mteb)
    except ImportError as error:
      raise UserError(
        f"MtebModel needs the package mteb ({error}). Install it with `pip install 'mteb>=2'`."
      ) from error
    inputs = self.dual_encoder.retriever.inputs
    leaves = jax.tree.leaves(self.dual_encoder.params)
    return ModelMeta(
      loader=None,
      name=self.name,
      revision=_fingerprint(self.dual_encoder) if self.revision is None else self.revision,
      release_date=None,
      languages=None,
      n_parameters=sum(leaf.size for leaf in leaves),
      memory_usage_mb=sum(leaf.nbytes for leaf in leaves) / 2**20,
      max_tokens=max(inputs.query_side.length, inputs.passage_side.length),
      embed_dim=self.dual_encoder.embed_dim,
      license=None,
      open_weights=None,
      public_training_code=None,
      public_training_data=None,
      framework=["JAX"],
      # The score is the inner product; where the model normalises that is the cosine.
      similarity_fn_name="dot",
      use_instructions=bool(inputs.query_prefix or inputs.passage_prefix),
      training_datasets=None,
    )


def _as_asked(
  embeddings: Float[np.ndarray, "e d"], *, tensor: bool, normalized: bool
) -> "np.ndarray | torch.Tensor":
  if normalized:
    embeddings = np.array(scoring.l2_normalize(jnp.asarray(embeddings)))
  if not tensor:
    return embeddings
  try:
    import torch
  except ImportError as error:
    raise UserError(
      f"convert_to_tensor=True needs the package torch ({error}). Leave it out, or install torch."
    ) from error
  return torch.from_numpy(embeddings)


def _documents(batch: Mapping[str, Any]) -> Sequence[Text]:
  # "text" is MTEB's own joining of the two: with a title it would be another template than the model's.
  titled = isinstance(batch, Mapping) and "title" in batch and "body" in batch
  return _columns(batch, body="body") if titled else _column(batch, "text")


def _columns(batch: Mapping[str, Any], *, body: str) -> list[Text]:
  """Returns the passages of columns of titles, if any, and of texts."""
  texts = _column(batch, body)
  titles = [None] * len(texts) if batch.get("title") is None else _column(batch, "title")
  if len(titles) != len(texts):
    raise UserError(f"the passages have {len(titles)} titles and {len(texts)} texts; expected one each.")
  return [{"title": title, "text": text} for title, text in zip(titles, texts, strict=True)]


def _column(batch: Mapping[str, Any], name: str) -> Sequence[str]:
  if not isinstance(batch, Mapping):
    raise UserError(f"got {_kind(batch)} in place of a batch; expected one such as {{'text': [...]}}.")
  if name not in batch:
    raise UserError(
      f"got a batch of {sorted(map(str, batch))}; expected {name!r} in it: this model reads text alone."
    )
  column = batch[name]
  if isinstance(column, str | bytes | Mapping) or not (
    isinstance(column, Iterable) and isinstance(column, Sized)
  ):
    raise UserError(f"got {_kind(column)} as {name!r}; expected a list of texts.")
  return list(column)


def _kind(value: Any) -> str:
  """Returns a value's type and how it begins."""
  return f"{type(value).__name__} {value!r:.60}"


def _rows(embeddings: Any) -> Float[np.ndarray, "e d"]:
  return np.atleast_2d(np.asarray(embeddings, np.float32))


def _fingerprint(model: DualEncoder) -> str:
  """Returns a hash of all that decides the embeddings: architecture, text inputs, activations and parameters."""
  digest = hashlib.sha256(
    f"{model.retriever.model.digest} {model.retriever.inputs.fingerprint} {model.encoder.dtype}".encode()
  )
  for path, leaf in jax.tree_util.tree_leaves_with_path(model.params):
    digest.update(f"{jax.tree_util.keystr(path)} {leaf.shape} {leaf.dtype}".encode())
    digest.update(np.ascontiguousarray(leaf).reshape(-1).view(np.uint8).data)
  return digest.hexdigest()[:16]
