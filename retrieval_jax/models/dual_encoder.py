"""The pair of towers: which parts they share, and their parameters as one plain tree."""

import dataclasses
import hashlib
from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from retrieval_jax.errors import UserError, nearest
from retrieval_jax.models.tower import Tower
from retrieval_jax.records import AnyArray

# The parts of a tower in the order of the flow, and the schemes of Dong et al. 2022 (arXiv 2204.07120), section 2.
PARTS: Final = ("token_embedder", "encoder", "projection_layer")
SHARING: Final[dict[str, frozenset[str]]] = {
  "sde": frozenset(PARTS),
  "ade": frozenset(),
  "ade_spl": frozenset({"projection_layer"}),
}
Side = Literal["query", "passage"]
SIDES: Final[tuple[Side, ...]] = ("query", "passage")
DTYPES: Final = ("float32", "bfloat16")
SHOWN_FAULTS: Final = 12


@dataclasses.dataclass(frozen=True)
class TowerPair:
  """Two towers over one tree of parameters; make it with `dual_encoder`.

  A shared part stands in the tree under its plain name (`encoder`), another one once a side (`query_encoder`,
  `passage_encoder`).
  """

  query_tower: Tower
  passage_tower: Tower
  shared: frozenset[str]

  def __post_init__(self) -> None:
    for tower in (self.query_tower, self.passage_tower):
      dtype = tower.encoder.dtype
      if dtype not in DTYPES:
        raise UserError(
          f"activation dtype {dtype!r}: set ACTIVATION_DTYPE to {' or '.join(map(repr, DTYPES))}"
          f"{nearest(str(dtype), DTYPES)}"
        )

  @property
  def embed_dim(self) -> int:
    """The width of both sides' embeddings."""
    return self.query_tower.embed_dim_out

  @property
  def digest(self) -> str:
    """A hash of the architecture with all its options (pooling, heads, normalisation): the same in every process."""
    text = f"{self.query_tower!r} {self.passage_tower!r} {sorted(self.shared)}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]

  def init(self, rng: Array) -> PyTree[Array]:
    """Returns fresh float32 parameters; the parts of the two sides that are not shared differ."""
    return nn.unbox(self._boxed_init(rng))

  def logical_axes(self) -> PyTree[tuple[str | None, ...]]:
    """Returns the tree of `init` with each array's logical axis names (sharding.py) in its place. Allocates nothing."""
    boxed = jax.eval_shape(self._boxed_init, jax.random.key(0))
    return jax.tree.map(lambda box: box.names, boxed, is_leaf=lambda leaf: isinstance(leaf, nn.Partitioned))

  def encode_queries(
    self, params: PyTree[Array], tokens: Int[AnyArray, "q l"], *, dropout_rng: Array | None = None
  ) -> Float[Array, "q d"]:
    """Returns the queries' embeddings; with a `dropout_rng` in training mode."""
    return _encode(self.query_tower, self.tower_params(params, "query"), tokens, dropout_rng)

  def encode_passages(
    self, params: PyTree[Array], tokens: Int[AnyArray, "p m"], *, dropout_rng: Array | None = None
  ) -> Float[Array, "p d"]:
    """Returns the passages' embeddings; with a `dropout_rng` in training mode."""
    return _encode(self.passage_tower, self.tower_params(params, "passage"), tokens, dropout_rng)

  def tower_params(self, params: Mapping[str, Any], side: Side) -> dict[str, Any]:
    """Returns the parameters of one side ("query" or "passage") under the tower's own part names."""
    return {part: params[name] for part, name in self._names(side) if name in params}

  def with_pretrained(self, params: Mapping[str, Any], tower_params: Mapping[str, Any]) -> dict[str, Any]:
    """Returns `params` with the parts in `tower_params` copied into both towers; other parts are left as they are.

    tower_params: {"token_embedder": ..., "encoder": ...} as interop's readers give it.

    Raises: UserError for a part or parameter that the towers lack, one that is missing, or another shape.

    Example: `model.with_pretrained(model.init(rng), load_bert(folder))`.
    """
    result = dict(params)
    for side in SIDES:
      own = self.tower_params(params, side)
      _check_fit(tower_params, own)
      for part, name in self._names(side):
        if part in tower_params:
          result[name] = jax.tree.map(
            lambda new, old: jnp.asarray(new, old.dtype), tower_params[part], own[part]
          )
    return result

  def with_dtype(self, dtype: str) -> "TowerPair":
    """Returns the same model with other activations ("float32" or "bfloat16"); parameters stay float32.

    Raises: UserError for another dtype.
    """
    return dataclasses.replace(
      self,
      query_tower=self.query_tower.clone(encoder=self.query_tower.encoder.clone(dtype=dtype)),
      passage_tower=self.passage_tower.clone(encoder=self.passage_tower.encoder.clone(dtype=dtype)),
    )

  def _names(self, side: Side) -> Iterator[tuple[str, str]]:
    for part in PARTS:
      yield part, part if part in self.shared else f"{side}_{part}"

  def _boxed_init(self, rng: Array) -> dict[str, Any]:
    result = {}
    # The query side last: a shared part starts as the query tower's.
    towers: tuple[tuple[int, Side, Tower], ...] = (
      (1, "passage", self.passage_tower),
      (0, "query", self.query_tower),
    )
    for number, side, tower in towers:
      if side == "passage" and self.shared.issuperset(PARTS):
        continue
      tokens = jnp.zeros((1, 1), jnp.int32)
      own = tower.init(jax.random.fold_in(rng, number), tokens, train=False)["params"]
      result.update({name: own[part] for part, name in self._names(side) if part in own})
    return result


def dual_encoder(tower: Tower, *, sharing: str = "sde", passage_tower: Tower | None = None) -> TowerPair:
  """Returns the dual encoder of `tower` on both sides, or of two towers, under a parameter-sharing scheme.

  sharing: "sde" (everything shared), "ade" (nothing), "ade_spl" (the projection only).

  Raises: UserError for an unknown scheme or towers that cannot share what the scheme shares.

  Example: `dual_encoder(Tower(BertEncoder(6, 12, 384, 1536), vocab_size=30522))`.
  """
  if sharing not in SHARING:
    raise UserError(
      f"unknown sharing scheme {sharing!r}; expected one of {', '.join(SHARING)}{nearest(sharing, SHARING)}"
    )
  shared = SHARING[sharing]
  passage_tower = tower if passage_tower is None else passage_tower
  if sharing == "sde" and passage_tower != tower:
    raise UserError(
      "sharing 'sde' means one tower for both sides, got two different towers: "
      "leave out passage_tower, or set SHARING = 'ade_spl' or 'ade'."
    )
  if sharing == "ade_spl":
    _check_shared_projection(tower, passage_tower)
  if tower.embed_dim_out != passage_tower.embed_dim_out:
    raise UserError(
      f"queries get {tower.embed_dim_out} dimensions and passages {passage_tower.embed_dim_out}: scores need equal "
      "widths. Give both towers the same projection_dim."
    )
  return TowerPair(tower, passage_tower, shared)


def _check_shared_projection(query: Tower, passage: Tower) -> None:
  if query.projection_dim is None or passage.projection_dim is None:
    raise UserError(
      "sharing 'ade_spl' shares the projection layer, and a tower here has none (projection_dim = None): "
      "set PROJECTION_DIM to a width, or SHARING = 'ade'."
    )
  if query.encoder.embed_dim != passage.encoder.embed_dim:
    raise UserError(
      f"sharing 'ade_spl' needs pooled vectors of one width, because one projection matrix serves both towers: got "
      f"{query.encoder.embed_dim} for queries and {passage.encoder.embed_dim} for passages. "
      "Use encoders of one width, or SHARING = 'ade'."
    )


def _encode(
  tower: Tower, params: Mapping[str, Any], tokens: Int[AnyArray, "b l"], dropout_rng: Array | None
) -> Float[Array, "b d"]:
  rngs = None if dropout_rng is None else {"dropout": dropout_rng}
  embeddings = tower.apply({"params": params}, tokens, train=dropout_rng is not None, rngs=rngs)
  assert isinstance(embeddings, jax.Array)
  return embeddings


def _shapes(parts: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
  flat, _ = jax.tree_util.tree_flatten_with_path(dict(parts))
  return {jax.tree_util.keystr(path, simple=True, separator="/"): tuple(leaf.shape) for path, leaf in flat}


def _check_fit(got: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
  """Raises UserError unless every part of `got` has exactly the parameters of that part of `expected`."""
  given = _shapes(got)
  wanted = _shapes({part: expected[part] for part in got if part in expected})
  faults = []
  for name in sorted(given.keys() | wanted.keys()):
    if name not in wanted:
      faults.append(f"{name}: got {given[name]}, but the model has no such parameter")
    elif name not in given:
      faults.append(f"{name}: got nothing, expected {wanted[name]}")
    elif given[name] != wanted[name]:
      faults.append(f"{name}: got {given[name]}, expected {wanted[name]}")
  if faults:
    shown = "\n  ".join(faults[:SHOWN_FAULTS])
    more = f"\n  and {len(faults) - SHOWN_FAULTS} more" if len(faults) > SHOWN_FAULTS else ""
    raise UserError(
      f"the pretrained weights do not fit the model:\n  {shown}{more}\n"
      "Choose the configs/models file that belongs to these weights, or set PRETRAINED = None to start from random "
      "parameters."
    )
