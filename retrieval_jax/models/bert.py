"""The BERT encoder (Devlin et al. 2019, arXiv 1810.04805) and DistilBERT's: post-norm, learnt positions, exact gelu."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from retrieval_jax import sharding
from retrieval_jax.errors import UserError
from retrieval_jax.models.attention import SelfAttention
from retrieval_jax.models.dense import Dense
from retrieval_jax.models.dropout import Dropout
from retrieval_jax.models.embed import Embed
from retrieval_jax.models.layer_stack import run_layers
from retrieval_jax.models.norms import LayerNorm
from retrieval_jax.models.parameter import Initializer


class BertMlp(nn.Module):
  """Returns gelu(x W_i + b_i) W_o + b_o with the exact (erf) gelu."""

  mlp_dim: int
  init_std: float
  dtype: str

  @nn.compact
  def __call__(self, x: Float[Array, "b l d"]) -> Float[Array, "b l d"]:
    init = nn.initializers.normal(self.init_std)
    up, down = (sharding.EMBED, sharding.MLP), (sharding.MLP, sharding.EMBED)
    hidden = Dense(self.mlp_dim, up, init, use_bias=True, dtype=self.dtype, name="wi")(x)
    hidden = sharding.constrain(jax.nn.gelu(hidden, approximate=False), sharding.MLP_HIDDEN)
    return Dense(x.shape[-1], down, init, use_bias=True, dtype=self.dtype, name="wo")(hidden)


class BertLayer(nn.Module):
  """Returns norm(y + mlp(y)) where y = norm(x + attention(x))."""

  num_heads: int
  mlp_dim: int
  dropout_rate: float
  dtype: str
  layer_norm_eps: float
  init_std: float

  @nn.compact
  def __call__(
    self, x: Float[Array, "b l d"], mask: Bool[Array, "b l"], *, train: bool
  ) -> Float[Array, "b l d"]:
    head_dim = x.shape[-1] // self.num_heads
    attention = SelfAttention(
      self.num_heads,
      head_dim,
      kernel_init=nn.initializers.normal(self.init_std),
      scale=head_dim**-0.5,
      use_bias=True,
      dropout_rate=self.dropout_rate,
      dtype=self.dtype,
      name="attention",
    )
    y = Dropout(self.dropout_rate)(attention(x, mask, train=train), train=train)
    x = LayerNorm(self.layer_norm_eps, self.dtype, name="attention_layer_norm")(x + y)
    y = BertMlp(self.mlp_dim, self.init_std, self.dtype, name="mlp")(x)
    y = Dropout(self.dropout_rate)(y, train=train)
    y = LayerNorm(self.layer_norm_eps, self.dtype, name="mlp_layer_norm")(x + y)
    return sharding.constrain(y, sharding.HIDDEN)


class BertEncoder(nn.Module):
  """Returns the last layer's hidden states of embedded tokens.

  Adds the position and token-type embeddings and their LayerNorm itself, so it takes the bare token embeddings.
  Rows of nothing but padding give finite values and gradients.

  Raises: UserError if a text is longer than `max_positions`, or if num_heads does not divide embed_dim.

  token_types: rows of the token type table, of which a single text uses the first; 0 for none (DistilBERT).
  scan_layers, remat_policy: see layer_stack.run_layers.

  Example: `BertEncoder(num_layers=6, num_heads=12, embed_dim=384, mlp_dim=1536)` is all-MiniLM-L6-v2's encoder.
  """

  num_layers: int
  num_heads: int
  embed_dim: int
  mlp_dim: int
  max_positions: int = 512
  dropout_rate: float = 0.0
  dtype: str = "float32"
  layer_norm_eps: float = 1e-12
  init_std: float = 0.02
  token_types: int = 2
  scan_layers: bool = False
  remat_policy: str = "none"

  @property
  def embedding_init(self) -> Initializer:
    """The initialiser of the token embedding that belongs to this encoder."""
    return nn.initializers.normal(self.init_std)

  @nn.compact
  def __call__(
    self, embedded: Float[Array, "b l d"], mask: Bool[Array, "b l"], *, train: bool
  ) -> Float[Array, "b l d"]:
    _, length, width = embedded.shape
    if length > self.max_positions:
      raise UserError(
        f"texts of {length} tokens, but the model has {self.max_positions} positions: "
        "lower QUERY_LENGTH or PASSAGE_LENGTH."
      )
    if self.num_heads < 1 or width % self.num_heads:
      raise UserError(
        f"BERT's embed_dim {width} is not a multiple of num_heads {self.num_heads}: change one of them."
      )

    def table(rows: int, axis: str | None, name: str) -> Embed:
      return Embed(rows, width, self.embedding_init, axes=(axis, sharding.EMBED), dtype=self.dtype, name=name)

    extra = table(self.max_positions, sharding.POSITION, "position_embedding")(jnp.arange(length))
    if self.token_types:
      types = table(self.token_types, None, "token_type_embedding")(jnp.zeros((1,), jnp.int32))
      extra = extra + types
    x = embedded + extra[None]
    x = LayerNorm(self.layer_norm_eps, self.dtype, name="embedding_layer_norm")(x)
    x = Dropout(self.dropout_rate)(sharding.constrain(x, sharding.HIDDEN), train=train)

    def layer(name: str) -> BertLayer:
      return BertLayer(
        self.num_heads,
        self.mlp_dim,
        self.dropout_rate,
        self.dtype,
        self.layer_norm_eps,
        self.init_std,
        name=name,
      )

    return run_layers(
      layer,
      lambda module, x: module(x, mask, train=train),
      x,
      num_layers=self.num_layers,
      scan_layers=self.scan_layers,
      remat_policy=self.remat_policy,
    )
