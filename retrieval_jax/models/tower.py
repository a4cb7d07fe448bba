"""A tower: the tokens of one side in, one embedding a text out."""

from typing import Any, Protocol, runtime_checkable

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from retrieval_jax import scoring
from retrieval_jax.models.embed import Embed
from retrieval_jax.models.parameter import Initializer
from retrieval_jax.models.pooling import pooling
from retrieval_jax.models.projection import Projection
from retrieval_jax.records import AnyArray


@runtime_checkable
class Encoder(Protocol):
  """What a tower needs of its encoder: a linen module with these fields."""

  embed_dim: int
  dtype: str

  @property
  def embedding_init(self) -> Initializer: ...

  def __call__(
    self, embedded: Float[Array, "b l d"], mask: Bool[Array, "b l"], *, train: bool
  ) -> Float[Array, "b l d"]: ...

  def clone(self, **fields: Any) -> Any: ...


class Tower(nn.Module):
  """Returns pool(encoder(embed(tokens))), projected and L2-normalised as asked, in float32.

  Parameters: token_embedder/embedding, encoder/..., and projection_layer/kernel if there is a projection_dim.
  Dropout needs the rng "dropout" when train=True.

  Example: `Tower(BertEncoder(6, 12, 384, 1536), vocab_size=30522)`.
  """

  encoder: Encoder
  vocab_size: int
  projection_dim: int | None = None
  pooling: str = "mean"
  normalize: bool = True
  pad_id: int = 0

  def setup(self) -> None:
    self.token_embedder = Embed(
      self.vocab_size, self.encoder.embed_dim, self.encoder.embedding_init, dtype=self.encoder.dtype
    )
    if self.projection_dim is not None:
      self.projection_layer = Projection(self.projection_dim)

  @property
  def embed_dim_out(self) -> int:
    """The width of the embeddings."""
    return self.encoder.embed_dim if self.projection_dim is None else self.projection_dim

  def __call__(self, tokens: Int[AnyArray, "b l"], *, train: bool) -> Float[Array, "b d"]:
    mask = jnp.asarray(tokens) != self.pad_id
    hidden = self.encoder(self.token_embedder(tokens), mask, train=train)
    pooled = pooling(self.pooling)(hidden, mask.astype(jnp.float32))
    if self.projection_dim is not None:
      pooled = self.projection_layer(pooled)
    return scoring.l2_normalize(pooled) if self.normalize else pooled
