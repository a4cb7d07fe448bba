"""The pair of towers: which parts they share, and their parameters as one plain tree."""

import dataclasses
import hashlib
from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal, NamedTuple

import flax.linen as nn
import jax
import numpy as np
from jaxtyping import Array, Float, PyTree

from retrieval_jax.errors import UserError, nearest
from retrieval_jax.models import layer_stack
from retrieval_jax.models.feature_bag import Bags, FeatureBagTower
from retrieval_jax.models.tower import Tower
from retrieval_jax.records import Tokens


class Scheme(NamedTuple):
  """Which parts of the towers are one, and which of them training leaves as they are."""

  shared: frozenset[str]
  frozen: frozenset[str] = frozenset()


AnyTower = Tower | FeatureBagTower

# The parts of a tower in the order of the flow, and the schemes of Dong et al. 2022 (arXiv 2204.07120), section 2.
PARTS: Final = ("token_embedder", "encoder", "pooler", "projection_layer")
SHARING: Final[dict[str, Scheme]] = {
  "sde": Scheme(frozenset(PARTS)),
  "ade": Scheme(frozenset()),
  "ade_ste": Scheme(frozenset({"token_embedder"})),
  "ade_fte": Scheme(frozenset({"token_embedder"}), frozen=frozenset({"token_embedder"})),
  "ade_spl": Scheme(frozenset({"projection_layer"})),
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

  query_tower: AnyTower
  passage_tower: AnyTower
  shared: frozenset[str]
  frozen: frozenset[str] = frozenset()

  def __post_init__(self) -> None:
    for tower in (self.query_tower, self.passage_tower):
      dtype = tower.dtype
      if dtype not in DTYPES:
        raise UserError(
          f"activation dtype {dtype!r}: set ACTIVATION_DTYPE to {' or '.join(map(repr, DTYPES))}"
          f"{nearest(str(dtype), DTYPES) or '.'}"
        )

  @property
  def embed_dim(self) -> int:
    """The width of both sides' embeddings."""
    return self.query_tower.embed_dim_out

  @property
  def digest(self) -> str:
    """A hash of the architecture with all its options (pooling, heads, normalisation): the same in every process."""
    text = f"{self.query_tower!r} {self.passage_tower!r} {sorted(self.shared)} {sorted(self.frozen)}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]

  def computation(self) -> dict[str, Any]:
    """Returns, by name, all that decides what the towers compute of given parameters: kinds, sizes, heads, epsilons,
    pooling, normalisation, what is shared. Plain values: a checkpoint keeps them.

    Example: `dual_encoder(tower).computation()["query/encoder/num_heads"]` is 12.
    """
    shared = {"shared": sorted(self.shared)}
    return {**_settings(self.query_tower, "query"), **_settings(self.passage_tower, "passage"), **shared}

  @property
  def frozen_paths(self) -> tuple[str, ...]:
    """Patterns (whole matches) of the parameters that the sharing scheme keeps as they are, for freezing.py."""
    return tuple(f"{part}/.*" for part in sorted(self.frozen))

  def init(self, rng: Array) -> PyTree[Array]:
    """Returns fresh float32 parameters; the parts of the two sides that are not shared differ."""
    return nn.unbox(self._boxed_init(rng))

  def logical_axes(self) -> PyTree[tuple[str | None, ...]]:
    """Returns the tree of `init` with each array's logical axis names (sharding.py) in its place. Allocates nothing."""
    boxed = jax.eval_shape(self._boxed_init, jax.random.key(0))
    return jax.tree.map(lambda box: box.names, boxed, is_leaf=lambda leaf: isinstance(leaf, nn.Partitioned))

  def encode_queries(
    self, params: PyTree[Array], tokens: Tokens, *, dropout_rng: Array | None = None
  ) -> Float[Array, "q d"]:
    """Returns the queries' embeddings; with a `dropout_rng` in training mode."""
    return _encode(self.query_tower, self.tower_params(params, "query"), tokens, dropout_rng)

  def encode_passages(
    self, params: PyTree[Array], tokens: Tokens, *, dropout_rng: Array | None = None
  ) -> Float[Array, "p d"]:
    """Returns the passages' embeddings; with a `dropout_rng` in training mode."""
    return _encode(self.passage_tower, self.tower_params(params, "passage"), tokens, dropout_rng)

  def tower_params(self, params: Mapping[str, Any], side: Side) -> dict[str, Any]:
    """Returns the parameters of one side ("query" or "passage") under the tower's own part names."""
    return {part: params[name] for part, name in self._names(side) if name in params}

  def table_paths(self, side: Side) -> dict[str, tuple[str, ...]]:
    """Returns where in the tree of `init` the table of each feature of one side lies: those that `bags` has ids of. A side
    that reads text has none.

    Example: `dual_encoder(bag_tower).table_paths("query")["id"]` is `("token_embedder", "id", "embedding")`.
    """
    tower = self._tower(side)
    if not isinstance(tower, FeatureBagTower):
      return {}
    names = dict(self._names(side))
    return {feature: (names[part], *rest) for feature, (part, *rest) in tower.table_paths.items()}

  def bags(self, side: Side, tokens: Tokens) -> Bags:
    """Returns the ids of each feature in one side's tokens, which that side reads as it reads the tokens; 0 pads.

    A side that reads text has none.
    """
    tower = self._tower(side)
    return tower.bags(tokens) if isinstance(tower, FeatureBagTower) else {}

  def with_table_rows(self, rows: Mapping[tuple[str, ...], int]) -> "TowerPair":
    """Returns the same model with other numbers of rows of some tables, by their `table_paths`.

    Example: `model.with_table_rows({("token_embedder", "id", "embedding"): 257})`.
    """

    def resized(side: Side) -> AnyTower:
      tower, paths = self._tower(side), self.table_paths(side)
      if not isinstance(tower, FeatureBagTower):
        return tower
      return tower.clone(
        features=tuple((name, rows.get(paths[name], number)) for name, number in tower.features)
      )

    return dataclasses.replace(self, query_tower=resized("query"), passage_tower=resized("passage"))

  def portable_params(self, params: Mapping[str, Any], side: Side) -> dict[str, Any]:
    """Returns one side's parameters under the tower's own part names with one subtree a layer, scanned or not."""
    own = self.tower_params(params, side)
    tower = self._tower(side)
    if _is_scanned(tower):
      own["encoder"] = layer_stack.unstacked(own["encoder"], tower.encoder.num_layers)
    return own

  def with_pretrained(
    self,
    params: Mapping[str, Any],
    tower_params: Mapping[str, Any],
    passage_params: Mapping[str, Any] | None = None,
  ) -> dict[str, Any]:
    """Returns `params` with the parts in `tower_params`, as numpy, in both towers; other parts are left as they are.

    tower_params: {"token_embedder": ..., "encoder": ...} as interop's readers give it, one subtree a layer.
    passage_params: the same for the passage tower, where it gets other weights.

    Raises: UserError for a part or parameter that the towers lack, one that is missing, or another shape; and when the
      two sides would get different values for a part that they share.

    Example: `model.with_pretrained(model.init(rng), interop_tower.params)`.
    """
    sources = {"query": tower_params, "passage": tower_params if passage_params is None else passage_params}
    result = dict(params)
    filled: dict[str, Any] = {}
    for side in SIDES:
      source, own, tower = sources[side], self.tower_params(params, side), self._tower(side)
      _check_fit(source, self._portable_shapes(own, tower))
      for part, name in self._names(side):
        if part in source and name in filled:
          _check_same(part, filled[name], source[part])
        elif part in source:
          filled[name] = source[part]
          value = source[part]
          if part == "encoder" and _is_scanned(tower):
            value = layer_stack.stacked(value, tower.encoder.num_layers)
          # On the host: a model for many devices must not pass through one of them.
          result[name] = jax.tree.map(lambda new, old: np.asarray(new, old.dtype), value, own[part])
    return result

  def with_dtype(self, dtype: str) -> "TowerPair":
    """Returns the same model with other activations ("float32" or "bfloat16"); parameters stay float32.

    Raises: UserError for another dtype.
    """
    return dataclasses.replace(
      self,
      query_tower=self.query_tower.with_dtype(dtype),
      passage_tower=self.passage_tower.with_dtype(dtype),
    )

  def _tower(self, side: Side) -> AnyTower:
    return self.query_tower if side == "query" else self.passage_tower

  @staticmethod
  def _portable_shapes(own: dict[str, Any], tower: AnyTower) -> dict[str, Any]:
    if not _is_scanned(tower):
      return own
    unstack = lambda encoder: layer_stack.unstacked(encoder, tower.encoder.num_layers)  # noqa: E731
    return {**own, "encoder": jax.eval_shape(unstack, own["encoder"])}

  def _names(self, side: Side) -> Iterator[tuple[str, str]]:
    for part in PARTS:
      yield part, part if part in self.shared else f"{side}_{part}"

  def _boxed_init(self, rng: Array) -> dict[str, Any]:
    result = {}
    # The query side last: a shared part starts as the query tower's.
    towers: tuple[tuple[int, Side, AnyTower], ...] = (
      (1, "passage", self.passage_tower),
      (0, "query", self.query_tower),
    )
    for number, side, tower in towers:
      if side == "passage" and self.shared.issuperset(PARTS):
        continue
      own = tower.init(jax.random.fold_in(rng, number), tower.example(), train=False)["params"]
      result.update({name: own[part] for part, name in self._names(side) if part in own})
    return result


def dual_encoder(
  tower: AnyTower, *, sharing: str = "sde", passage_tower: AnyTower | None = None
) -> TowerPair:
  """Returns the dual encoder of `tower` on both sides, or of two towers, under a parameter-sharing scheme.

  sharing: "sde" (one tower), "ade" (nothing shared), "ade_ste" (the token embedder), "ade_fte" (the token embedder, which
  training leaves as it is), "ade_spl" (the projection). Source: Dong et al. 2022 (arXiv 2204.07120), section 2.

  Raises: UserError for an unknown scheme or towers that cannot share what the scheme shares.

  Example: `dual_encoder(Tower(BertEncoder(6, 12, 384, 1536), vocab_size=30522))`.
  """
  if sharing not in SHARING:
    raise UserError(
      f"unknown sharing scheme {sharing!r}; expected one of {', '.join(SHARING)}{nearest(sharing, SHARING) or '.'}"
    )
  scheme = SHARING[sharing]
  passage_tower = tower if passage_tower is None else passage_tower
  if sharing == "sde" and passage_tower != tower:
    raise UserError(
      "sharing 'sde' means one tower for both sides, got two different towers: "
      "leave out passage_tower, or set SHARING = 'ade_spl', 'ade_ste' or 'ade'."
    )
  if sharing == "ade_spl":
    _check_shared_projection(tower, passage_tower)
  if "token_embedder" in scheme.shared and passage_tower != tower:
    _check_shared_embedder(tower, passage_tower, sharing)
  if tower.embed_dim_out != passage_tower.embed_dim_out:
    raise UserError(
      f"queries get {tower.embed_dim_out} dimensions and passages {passage_tower.embed_dim_out}: scores need equal "
      "widths. Give both towers the same projection_dim."
    )
  return TowerPair(tower, passage_tower, scheme.shared, scheme.frozen)


def _check_shared_projection(query: AnyTower, passage: AnyTower) -> None:
  if not isinstance(query, Tower) or not isinstance(passage, Tower):
    raise UserError(
      "sharing 'ade_spl' shares the projection layer, which a feature-bag tower has not: set SHARING = 'ade_ste' to "
      "share the features' tables, or 'ade'."
    )
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
  heads = [(t.projection_dim, t.projection_bias, t.projection_activation) for t in (query, passage)]
  if heads[0] != heads[1]:
    raise UserError(
      f"sharing 'ade_spl' needs one projection layer, got (width, bias, activation) {heads[0]} for queries and "
      f"{heads[1]} for passages. Give both towers the same, or set SHARING = 'ade'."
    )


def _check_shared_embedder(query: AnyTower, passage: AnyTower, sharing: str) -> None:
  tables = []
  for tower in (query, passage):
    own = jax.eval_shape(lambda t=tower: t.init(jax.random.key(0), t.example(), train=False))["params"]
    tables.append(_shapes(nn.unbox(own["token_embedder"])))
  if tables[0] != tables[1]:
    raise UserError(
      f"sharing {sharing!r} needs one token embedder, so vocabularies and widths must be equal: got {tables[0]} for "
      f"queries and {tables[1]} for passages. Use encoders of one width and vocabulary, or SHARING = 'ade'."
    )


# Fields that change how a model is trained or compiled, and nothing of what given parameters compute.
TRAINING_ONLY: Final = frozenset(
  {"dropout_rate", "dtype", "scan_layers", "remat_policy", "init_std", "parent", "name"}
)


def _settings(module: nn.Module, prefix: str) -> dict[str, Any]:
  found: dict[str, Any] = {f"{prefix}/kind": type(module).__name__}
  for field in dataclasses.fields(module):
    value = getattr(module, field.name)
    if field.name in TRAINING_ONLY:
      continue
    if isinstance(value, nn.Module):
      found.update(_settings(value, f"{prefix}/{field.name}"))
    else:
      found[f"{prefix}/{field.name}"] = list(value) if isinstance(value, tuple) else value
  return found


def _is_scanned(tower: AnyTower) -> bool:
  return isinstance(tower, Tower) and tower.encoder.scan_layers


def _check_same(part: str, query: Any, passage: Any) -> None:
  """Raises UserError unless both sides bring the same values for a part that they share."""
  if query is passage:
    return
  pairs = zip(jax.tree.leaves(query), jax.tree.leaves(passage), strict=True)
  if not all(a is b or np.array_equal(a, b) for a, b in pairs):
    raise UserError(
      f"the pretrained weights of queries and passages differ in {part}, which the sharing scheme makes one. "
      "Set SHARING to a scheme that shares less, such as 'ade'."
    )


def _encode(
  tower: AnyTower, params: Mapping[str, Any], tokens: Tokens, dropout_rng: Array | None
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
      "Choose the configs/models file that belongs to these weights, or set INITIAL_CHECKPOINT_PATH = None to start from random "
      "parameters."
    )
