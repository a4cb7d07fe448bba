"""The feature-bag tower of the Gramian paper (Krichene et al. 2019, arXiv 1807.07187, section 4): bags of ids, no text."""

from collections.abc import Mapping, Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from retrieval_jax import scoring, sharding
from retrieval_jax.errors import UserError, nearest
from retrieval_jax.models.dense import Dense
from retrieval_jax.models.embed import Embed
from retrieval_jax.records import AnyArray, Tokens

Bags = Mapping[str, Int[AnyArray, "b _"]]

TABLE_STD = 0.1  # of the initial tables; a bag's mean of n rows has this over sqrt(n)


class BagEmbedder(nn.Module):
  """Returns the concatenated means of each feature's rows, [b, features * embed_dim]; id 0 pads, an empty bag gives 0."""

  features: tuple[tuple[str, int], ...]
  embed_dim: int
  init_std: tuple[tuple[str, float], ...]
  dtype: str

  @nn.compact
  def __call__(self, bags: Bags) -> Float[Array, "b f"]:
    means = []
    for name, rows in self.features:
      ids = jnp.asarray(bags[name])
      init = nn.initializers.normal(dict(self.init_std).get(name, TABLE_STD))
      embed = Embed(rows, self.embed_dim, init, dtype=self.dtype, name=name)
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

  Inputs are a mapping of feature to ids [b, n], 0 padding, or tokens [b, l] whose columns belong to the features in their
  order, as a bag vocabulary makes them. A row of fewer columns lacks ids of the last features; columns beyond the
  features' are padding.
  Parameters: token_embedder/<feature>/embedding and encoder/layers_<i>/{kernel, bias}, so that the sharing scheme
  "ade_ste" is the paper's: the two towers share the features' tables and nothing else.

  features: (name, rows) of every feature; row 0 is padding. hidden_dims: (256, 64) or (512, 128) in the paper.
  columns: how many columns of tokens belong to each feature; None: the inputs are mappings.
  init_std: feature -> the standard deviation of its initial table, 0.1 for the others. Small ids ({"id": 0.005}) leave the
    beginning to the features that items share.
  final_relu: the paper does not say whether the embeddings themselves are rectified; they are not here by default.
  normalize: False gives raw inner products, as in the paper.

  Raises: UserError if an input lacks a feature, brings another one, or no feature or layer is configured.

  Example: `FeatureBagTower((("id", 5000), ("ngrams", 9000), ("categories", 800)), embed_dim=50, columns=(1, 12, 4))`.
  """

  features: Sequence[tuple[str, int]]
  embed_dim: int
  hidden_dims: Sequence[int] = (256, 64)
  final_relu: bool = False
  normalize: bool = False
  dtype: str = "float32"
  columns: Sequence[int] | None = None
  init_std: Mapping[str, float] | Sequence[tuple[str, float]] = ()

  def __post_init__(self) -> None:
    # gin gives lists and dicts; a module must be hashable.
    object.__setattr__(self, "features", tuple((name, rows) for name, rows in self.features))
    object.__setattr__(self, "hidden_dims", tuple(self.hidden_dims))
    object.__setattr__(self, "columns", None if self.columns is None else tuple(self.columns))
    object.__setattr__(self, "init_std", tuple(sorted(dict(self.init_std).items())))
    if not self.features or not self.hidden_dims:
      raise UserError(
        f"FeatureBagTower needs at least one feature and one hidden layer, got features={self.features!r}, "
        f"hidden_dims={self.hidden_dims!r}."
      )
    if self.columns is not None and (len(self.columns) != len(self.features) or min(self.columns) < 1):
      raise UserError(
        f"FeatureBagTower needs at least one column for each of its {len(self.features)} features, got "
        f"columns={self.columns!r}."
      )
    for name, std in dict(self.init_std).items():
      if name not in dict(self.features) or not std > 0:
        raise UserError(
          f"init_std {name!r}: {std!r}; expected a feature, one of {', '.join(dict(self.features))}, and a number above 0"
          f"{nearest(name, dict(self.features)) or '.'}"
        )
    super().__post_init__()

  def setup(self) -> None:
    stds = tuple(dict(self.init_std).items())
    self.token_embedder = BagEmbedder(tuple(self.features), self.embed_dim, stds, self.dtype)
    self.encoder = BagMlp(tuple(self.hidden_dims), self.final_relu, self.dtype)

  @property
  def embed_dim_out(self) -> int:
    """The width of the embeddings."""
    return self.hidden_dims[-1]

  @property
  def table_paths(self) -> dict[str, tuple[str, ...]]:
    """The place of each feature's table [rows, embed_dim] among the tower's own parameters.

    Example: `FeatureBagTower((("id", 9),), 50).table_paths` is `{"id": ("token_embedder", "id", "embedding")}`.
    """
    return {name: ("token_embedder", name, "embedding") for name, _ in self.features}

  def with_dtype(self, dtype: str) -> "FeatureBagTower":
    """Returns the same tower with other activations; parameters stay float32."""
    return self.clone(dtype=dtype)

  def example(self) -> dict[str, Int[Array, "1 1"]]:
    """Returns the smallest input: what parameters are initialised with."""
    return {name: jnp.zeros((1, 1), jnp.int32) for name, _ in self.features}

  def bags(self, inputs: Tokens) -> Bags:
    """Returns the ids of each feature [b, n], n = 0 where tokens end before its columns; a mapping is returned as it is.

    Raises: UserError for tokens if the tower has no `columns`, and for a mapping of other features.

    Example: with `columns=(1, 2)`, tokens [[7, 3, 0]] are {"id": [[7]], "ngrams": [[3, 0]]}.
    """
    if isinstance(inputs, Mapping):
      expected = {name for name, _ in self.features}
      if set(inputs) != expected:
        raise UserError(f"the tower reads the features {sorted(expected)}, got {sorted(inputs)}.")
      return inputs
    if self.columns is None:
      raise UserError(
        "the tower got rows of tokens and does not know whose their columns are: give FeatureBagTower `columns`, one number "
        "a feature."
      )
    found, start = {}, 0
    for (name, _), width in zip(self.features, self.columns, strict=True):
      found[name] = inputs[:, start : start + width]
      start += width
    return found

  def __call__(self, inputs: Tokens, *, train: bool) -> Float[Array, "b d"]:
    embedding = self.encoder(self.token_embedder(self.bags(inputs)))
    return scoring.l2_normalize(embedding) if self.normalize else embedding
