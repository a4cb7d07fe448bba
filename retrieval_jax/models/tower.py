"""A tower: the tokens of one side in, one embedding a text out."""

from typing import Any, Final, Protocol, runtime_checkable

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from retrieval_jax import scoring, sharding
from retrieval_jax.models.embed import Embed
from retrieval_jax.models.parameter import Initializer
from retrieval_jax.models.pooling import pooling
from retrieval_jax.models.projection import Projection
from retrieval_jax.records import AnyArray

PAD: Final = 0  # the token that is none: every vocabulary pads with it (data/vocabularies.py)


@runtime_checkable
class Encoder(Protocol):
  """What a tower needs of its encoder: a linen module with these fields."""

  num_layers: int
  embed_dim: int
  dtype: str
  scan_layers: bool

  @property
  def embedding_init(self) -> Initializer: ...

  def __call__(
    self, embedded: Float[Array, "b l d"], mask: Bool[Array, "b l"], *, train: bool
  ) -> Float[Array, "b l d"]: ...

  def clone(self, **fields: Any) -> Any: ...


class Tower(nn.Module):
  """Returns pool(encoder(embed(tokens))), projected and L2-normalised as asked, in float32.

  Parameters: token_embedder/embedding, encoder/..., pooler/... if pooling is "attention", and projection_layer/kernel
  (and bias) if there is a projection_dim. Dropout needs the rng "dropout" when train=True.

  pooling: "mean" (end-of-sequence counted), "max", "first", "last" or "attention". projection_activation: "none" or "tanh".

  Example: `Tower(BertEncoder(6, 12, 384, 1536), vocab_size=30522)`.
  """

  encoder: Encoder
  vocab_size: int
  projection_dim: int | None = None
  pooling: str = "mean"
  normalize: bool = True
  projection_bias: bool = False
  projection_activation: str = "none"

  def setup(self) -> None:
    self.token_embedder = Embed(
      self.vocab_size, self.encoder.embed_dim, self.encoder.embedding_init, dtype=self.encoder.dtype
    )
    self.pooler = pooling(self.pooling)
    if self.projection_dim is not None:
      self.projection_layer = Projection(
        self.projection_dim, self.projection_bias, self.projection_activation
      )

  @property
  def embed_dim_out(self) -> int:
    """The width of the embeddings."""
    return self.encoder.embed_dim if self.projection_dim is None else self.projection_dim

  @property
  def dtype(self) -> str:
    """The dtype of the activations."""
    return self.encoder.dtype

  def with_dtype(self, dtype: str) -> "Tower":
    """Returns the same tower with other activations; parameters stay float32."""
    return self.clone(encoder=self.encoder.clone(dtype=dtype))

  def example(self) -> Int[Array, "1 1"]:
    """Returns the smallest input: what parameters are initialised with."""
    return jnp.zeros((1, 1), jnp.int32)

  def __call__(self, tokens: Int[AnyArray, "b l"], *, train: bool) -> Float[Array, "b d"]:
    mask = jnp.asarray(tokens) != PAD
    hidden = self.encoder(self.token_embedder(tokens), mask, train=train)
    pooled = sharding.constrain(self.pooler(hidden, mask.astype(jnp.float32)), sharding.POOLED)
    if self.projection_dim is not None:
      pooled = self.projection_layer(pooled)
    return scoring.l2_normalize(pooled) if self.normalize else pooled
