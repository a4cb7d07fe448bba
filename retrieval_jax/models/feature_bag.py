"""The feature-bag tower of the Gramian paper (Krichene et al. 2019, arXiv 1807.07187, section 4): bags of ids, no text."""

from collections.abc import Mapping, Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from retrieval_jax import scoring, sharding
from retrieval_jax.errors import UserError
from retrieval_jax.models.dense import Dense
from retrieval_jax.models.embed import Embed
from retrieval_jax.records import AnyArray

TABLE_STD = 0.1  # of the initial tables; a bag's mean of n rows has this over sqrt(n)


class BagEmbedder(nn.Module):
  """Returns the concatenated means of each feature's rows, [b, features * embed_dim]; id 0 pads, an empty bag gives 0."""

  features: tuple[tuple[str, int], ...]
  embed_dim: int
  dtype: str

  @nn.compact
  def __call__(self, bags: Mapping[str, Int[AnyArray, "b _"]]) -> Float[Array, "b f"]:
    means = []
    for name, rows in self.features:
      ids = jnp.asarray(bags[name])
      embed = Embed(rows, self.embed_dim, nn.initializers.normal(TABLE_STD), dtype=self.dtype, name=name)
      seen = (ids != 0).astype(jnp.float32)
      total = jnp.einsum("bnd,bn->bd", embed(ids).astype(jnp.float32), seen, precision="highest")
      means.append(total / jnp.maximum(jnp.sum(seen, axis=1, keepdims=True), 1.0))
    return jnp.concatenate(means, axis=-1)


class BagMlp(nn.Module):
  """Returns the hidden layers' last output: ReLU between them, and after the last one only if asked."""

  hidden_dims: tuple[int, ...]
  final_relu: bool
  dtype: str

  @nn.compact
  def __call__(self, x: Float[Array, "b f"]) -> Float[Array, "b d"]:
    init = nn.initializers.he_normal()
    last = len(self.hidden_dims) - 1
    axis = sharding.EMBED
    for i, width in enumerate(self.hidden_dims):
      # Alternating, so that what one layer splits the next one sums over.
      inner = sharding.MLP if axis == sharding.EMBED else sharding.EMBED
      axes = (axis, sharding.AFFINITY if i == last else inner)
      axis = inner
      x = Dense(width, axes, init, use_bias=True, dtype=self.dtype, name=f"layers_{i}")(x)
      if i < last or self.final_relu:
        x = jax.nn.relu(x)
    return x.astype(jnp.float32)


class FeatureBagTower(nn.Module):
  """Returns MLP(concat(mean of each feature's embedded ids)) in float32: an embedding for an item made of id sets.

  Parameters: token_embedder/<feature>/embedding and encoder/layers_<i>/{kernel, bias}, so that the sharing scheme
  "ade_ste" is the paper's: the two towers share the features' tables and nothing else.

  features: (name, rows) of every feature; row 0 is padding. hidden_dims: (256, 64) or (512, 128) in the paper.
  final_relu: the paper does not say whether the embeddings themselves are rectified; they are not here by default.
  normalize: False gives raw inner products, as in the paper.

  Raises: UserError if an input lacks a feature, brings another one, or no feature or layer is configured.

  Example: `FeatureBagTower((("id", 5000), ("ngrams", 9000), ("categories", 800)), embed_dim=50)`.
  """

  features: Sequence[tuple[str, int]]
  embed_dim: int
  hidden_dims: Sequence[int] = (256, 64)
  final_relu: bool = False
  normalize: bool = False
  dtype: str = "float32"

  def __post_init__(self) -> None:
    # gin gives lists; a module must be hashable.
    object.__setattr__(self, "features", tuple((name, rows) for name, rows in self.features))
    object.__setattr__(self, "hidden_dims", tuple(self.hidden_dims))
    if not self.features or not self.hidden_dims:
      raise UserError(
        f"FeatureBagTower needs at least one feature and one hidden layer, got features={self.features!r}, "
        f"hidden_dims={self.hidden_dims!r}."
      )
    super().__post_init__()

  def setup(self) -> None:
    self.token_embedder = BagEmbedder(tuple(self.features), self.embed_dim, self.dtype)
    self.encoder = BagMlp(tuple(self.hidden_dims), self.final_relu, self.dtype)

  @property
  def embed_dim_out(self) -> int:
    """The width of the embeddings."""
    return self.hidden_dims[-1]

  def with_dtype(self, dtype: str) -> "FeatureBagTower":
    """Returns the same tower with other activations; parameters stay float32."""
    return self.clone(dtype=dtype)

  def example(self) -> dict[str, Int[Array, "1 1"]]:
    """Returns the smallest input: what parameters are initialised with."""
    return {name: jnp.zeros((1, 1), jnp.int32) for name, _ in self.features}

  def __call__(self, bags: Mapping[str, Int[AnyArray, "b _"]], *, train: bool) -> Float[Array, "b d"]:
    expected = {name for name, _ in self.features}
    if set(bags) != expected:
      raise UserError(f"the tower reads the features {sorted(expected)}, got {sorted(bags)}.")
    embedding = self.encoder(self.token_embedder(bags))
    return scoring.l2_normalize(embedding) if self.normalize else embedding
