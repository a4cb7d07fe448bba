"""The encoder of T5 1.0, T5 1.1, mT5, umT5 and Flan (Raffel et al. 2020, arXiv 1910.10683), with T5X's parameter names."""

from collections.abc import Callable
from functools import partial
from typing import Final

import flax.linen as nn
import jax
from jaxtyping import Array, Bool, Float

from retrieval_jax import sharding
from retrieval_jax.errors import UserError, nearest
from retrieval_jax.models.attention import SelfAttention
from retrieval_jax.models.dense import Dense
from retrieval_jax.models.dropout import Dropout
from retrieval_jax.models.layer_stack import run_layers
from retrieval_jax.models.norms import RmsNorm
from retrieval_jax.models.parameter import Initializer
from retrieval_jax.models.relative_position import RelativePositionBias

# T5X draws one dropout mask for all positions of a text; so do we, which also makes dropout nearly free.
OVER_LENGTH = (-2,)


ACTIVATIONS: Final[dict[str, Callable[[Array], Array]]] = {
  "gelu": partial(jax.nn.gelu, approximate=True),  # T5 1.1 and mT5: the tanh approximation
  "relu": jax.nn.relu,
  "silu": jax.nn.silu,
}


class T5Mlp(nn.Module):
  """Returns f(x W_i) W_o, or gated (f(x W_0) * x W_1) W_o (Shazeer 2020, arXiv 2002.05202)."""

  mlp_dim: int
  activation: str
  gated: bool
  dropout_rate: float
  dtype: str

  @nn.compact
  def __call__(self, x: Float[Array, "b l d"], *, train: bool) -> Float[Array, "b l d"]:
    init = nn.initializers.variance_scaling(1.0, "fan_in", "truncated_normal")
    up, down = (sharding.EMBED, sharding.MLP), (sharding.MLP, sharding.EMBED)
    hidden = Dense(self.mlp_dim, up, init, dtype=self.dtype, name="wi_0" if self.gated else "wi")(x)
    hidden = ACTIVATIONS[self.activation](hidden)
    if self.gated:
      hidden = hidden * Dense(self.mlp_dim, up, init, dtype=self.dtype, name="wi_1")(x)
    hidden = Dropout(self.dropout_rate, OVER_LENGTH)(hidden, train=train)
    hidden = sharding.constrain(hidden, sharding.MLP_HIDDEN)
    return Dense(x.shape[-1], down, init, dtype=self.dtype, name="wo")(hidden)


class T5Layer(nn.Module):
  """Returns y + mlp(norm(y)) where y = x + attention(norm(x)).

  relpos: (buckets, largest distance) of a bias table of the layer's own (umT5); None: the bias is given.
  """

  num_heads: int
  head_dim: int
  mlp_dim: int
  activation: str
  gated: bool
  relpos: tuple[int, int] | None
  layer_norm_eps: float
  dropout_rate: float
  dtype: str

  @nn.compact
  def __call__(
    self,
    x: Float[Array, "b l d"],
    mask: Bool[Array, "b l"],
    position_bias: Float[Array, "1 h l l"] | None,
    *,
    train: bool,
  ) -> Float[Array, "b l d"]:
    if self.relpos is not None:
      position_bias = RelativePositionBias(self.num_heads, *self.relpos, name="relpos_bias")(x.shape[1])
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
    y = RmsNorm(self.layer_norm_eps, self.dtype, name="pre_attention_layer_norm")(x)
    y = attention(y, mask, position_bias, train=train)
    x = x + Dropout(self.dropout_rate, OVER_LENGTH)(y, train=train)
    y = RmsNorm(self.layer_norm_eps, self.dtype, name="pre_mlp_layer_norm")(x)
    mlp = T5Mlp(self.mlp_dim, self.activation, self.gated, self.dropout_rate, self.dtype, name="mlp")
    y = mlp(y, train=train)
    return sharding.constrain(x + Dropout(self.dropout_rate, OVER_LENGTH)(y, train=train), sharding.HIDDEN)


class T5Encoder(nn.Module):
  """Returns the normalised hidden states of embedded tokens.

  Pre-norm (RMS), logits not divided by sqrt(head_dim), one table of relative position biases for all layers; no bias in
  any linear map. Rows of nothing but padding give finite values and gradients.

  activation, gated: of the MLP. T5 1.1, mT5, umT5 and Flan: "gelu", True (the default); T5 1.0: "relu", False.
  relpos_per_layer: a table of relative position biases in each layer (umT5).
  scan_layers, remat_policy: see layer_stack.run_layers.

  Raises: UserError for an unknown activation.

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
  activation: str = "gelu"
  gated: bool = True
  relpos_per_layer: bool = False
  layer_norm_eps: float = 1e-6
  scan_layers: bool = False
  remat_policy: str = "none"

  @property
  def embedding_init(self) -> Initializer:
    """The initialiser of the token embedding that belongs to this encoder."""
    return nn.initializers.normal(1.0)

  @nn.compact
  def __call__(
    self, embedded: Float[Array, "b l d"], mask: Bool[Array, "b l"], *, train: bool
  ) -> Float[Array, "b l d"]:
    if self.activation not in ACTIVATIONS:
      raise UserError(
        f"T5Encoder.activation {self.activation!r}: expected one of {', '.join(ACTIVATIONS)}"
        f"{nearest(self.activation, ACTIVATIONS) or '.'}"
      )
    relpos = (self.relpos_buckets, self.relpos_max_distance)
    position_bias = None
    if not self.relpos_per_layer:
      position_bias = RelativePositionBias(self.num_heads, *relpos, name="relpos_bias")(embedded.shape[1])
    x = Dropout(self.dropout_rate, OVER_LENGTH)(embedded, train=train)
    x = sharding.constrain(x, sharding.HIDDEN)

    def layer(name: str) -> T5Layer:
      return T5Layer(
        self.num_heads,
        self.head_dim,
        self.mlp_dim,
        self.activation,
        self.gated,
        relpos if self.relpos_per_layer else None,
        self.layer_norm_eps,
        self.dropout_rate,
        self.dtype,
        name=name,
      )

    x = run_layers(
      layer,
      lambda module, x: module(x, mask, position_bias, train=train),
      x,
      num_layers=self.num_layers,
      scan_layers=self.scan_layers,
      remat_policy=self.remat_policy,
    )
    x = RmsNorm(self.layer_norm_eps, self.dtype, name="encoder_norm")(x)
    return Dropout(self.dropout_rate, OVER_LENGTH)(x, train=train)
