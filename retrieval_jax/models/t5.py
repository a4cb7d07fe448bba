"""The T5 1.1 encoder (Raffel et al. 2020, arXiv 1910.10683; Shazeer 2020, arXiv 2002.05202), with T5X's parameter names."""

import flax.linen as nn
import jax
from jaxtyping import Array, Bool, Float

from retrieval_jax import sharding
from retrieval_jax.models.attention import SelfAttention
from retrieval_jax.models.dense import Dense
from retrieval_jax.models.dropout import Dropout
from retrieval_jax.models.norms import RmsNorm
from retrieval_jax.models.parameter import Initializer
from retrieval_jax.models.relative_position import RelativePositionBias

# T5X draws one dropout mask for all positions of a text; so do we, which also makes dropout nearly free.
OVER_LENGTH = (-2,)


class T5Mlp(nn.Module):
  """Returns (gelu(x W_0) * x W_1) W_o with the tanh approximation of gelu."""

  mlp_dim: int
  dropout_rate: float
  dtype: str

  @nn.compact
  def __call__(self, x: Float[Array, "b l d"], *, train: bool) -> Float[Array, "b l d"]:
    init = nn.initializers.variance_scaling(1.0, "fan_in", "truncated_normal")
    up, down = (sharding.EMBED, sharding.MLP), (sharding.MLP, sharding.EMBED)
    gate = Dense(self.mlp_dim, up, init, dtype=self.dtype, name="wi_0")(x)
    linear = Dense(self.mlp_dim, up, init, dtype=self.dtype, name="wi_1")(x)
    hidden = jax.nn.gelu(gate, approximate=True) * linear
    hidden = Dropout(self.dropout_rate, OVER_LENGTH)(hidden, train=train)
    return Dense(x.shape[-1], down, init, dtype=self.dtype, name="wo")(hidden)


class T5Layer(nn.Module):
  """Returns y + mlp(norm(y)) where y = x + attention(norm(x))."""

  num_heads: int
  head_dim: int
  mlp_dim: int
  dropout_rate: float
  dtype: str

  @nn.compact
  def __call__(
    self,
    x: Float[Array, "b l d"],
    mask: Bool[Array, "b l"],
    position_bias: Float[Array, "1 h l l"],
    *,
    train: bool,
  ) -> Float[Array, "b l d"]:
    attention = SelfAttention(
      self.num_heads,
      self.head_dim,
      kernel_init=nn.initializers.variance_scaling(1.0, "fan_in", "normal"),
      # The missing 1 / sqrt(head_dim) of the logits lies in the query's initialiser.
      query_init=nn.initializers.variance_scaling(1.0 / self.head_dim, "fan_in", "normal"),
      dropout_rate=self.dropout_rate,
      dropout_broadcast_axes=OVER_LENGTH,
      dtype=self.dtype,
      name="attention",
    )
    y = RmsNorm(dtype=self.dtype, name="pre_attention_layer_norm")(x)
    y = attention(y, mask, position_bias, train=train)
    x = x + Dropout(self.dropout_rate, OVER_LENGTH)(y, train=train)
    y = RmsNorm(dtype=self.dtype, name="pre_mlp_layer_norm")(x)
    y = T5Mlp(self.mlp_dim, self.dropout_rate, self.dtype, name="mlp")(y, train=train)
    return x + Dropout(self.dropout_rate, OVER_LENGTH)(y, train=train)


class T5Encoder(nn.Module):
  """Returns the normalised hidden states of embedded tokens.

  Pre-norm (RMS), gated gelu, logits not divided by sqrt(head_dim), one table of relative position biases for all
  layers; no bias in any linear map. Rows of nothing but padding give finite values and gradients.

  Example: `T5Encoder(num_layers=12, num_heads=12, head_dim=64, embed_dim=768, mlp_dim=2048)` is T5 1.1 base.
  """

  num_layers: int
  num_heads: int
  head_dim: int
  embed_dim: int
  mlp_dim: int
  dropout_rate: float = 0.0
  dtype: str = "float32"
  relpos_buckets: int = 32
  relpos_max_distance: int = 128

  @property
  def embedding_init(self) -> Initializer:
    """The initialiser of the token embedding that belongs to this encoder."""
    return nn.initializers.normal(1.0)

  @nn.compact
  def __call__(
    self, embedded: Float[Array, "b l d"], mask: Bool[Array, "b l"], *, train: bool
  ) -> Float[Array, "b l d"]:
    position_bias = RelativePositionBias(
      self.num_heads, self.relpos_buckets, self.relpos_max_distance, name="relpos_bias"
    )(embedded.shape[1])
    x = Dropout(self.dropout_rate, OVER_LENGTH)(embedded, train=train)
    for i in range(self.num_layers):
      layer = T5Layer(
        self.num_heads, self.head_dim, self.mlp_dim, self.dropout_rate, self.dtype, name=f"layers_{i}"
      )
      x = layer(x, mask, position_bias, train=train)
    x = RmsNorm(dtype=self.dtype, name="encoder_norm")(x)
    return Dropout(self.dropout_rate, OVER_LENGTH)(x, train=train)
