"""The architecture that the names and shapes of a T5 tower's parameters tell, and whether they agree on it."""

import re
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from retrieval_jax.errors import UserError
from retrieval_jax.interop.foreign import EncoderSpec, TowerSpec
from retrieval_jax.interop.t5x_layout import few

# What T5 has and no checkpoint says.
MAX_DISTANCE: Final = 128
LAYER_NORM_EPS: Final = 1e-6
ACTIVATION: Final = {True: "gelu", False: "relu"}  # by gated: T5 1.1, mT5, umT5; T5 1.0

TABLE: Final = "token_embedder/embedding"
RELPOS: Final = "relpos_bias/rel_embedding"
PROJECTION: Final = "projection_layer/kernel"
PROJECTION_BIAS: Final = "projection_layer/bias"


def tower_spec(params: Mapping[str, np.ndarray], place: object) -> TowerSpec:
  """Returns the architecture of a tower with these parameters (slash-joined names, ours); pooled and normalised as
  T5X Retrieval does.

  place: the file or folder, for messages.

  Raises: UserError listing what is missing, left over, or of a shape that does not fit the others.

  Example: `tower_spec(flat_params, folder).encoder.fields["num_layers"]`.
  """
  layers = [int(match[1]) for name in params if (match := re.match(r"encoder/layers_(\d+)/", name))]
  per_layer = f"encoder/{RELPOS}" not in params and f"encoder/layers_0/{RELPOS}" in params
  gated = "encoder/layers_0/mlp/wi" not in {name.rpartition("/")[0] for name in params}
  num_layers = 1 + max(layers, default=0)
  names = _names(num_layers, gated=gated, per_layer=per_layer)
  _check_names(params, names, place)
  heads, buckets = _matrix(params, f"encoder/layers_0/{RELPOS}" if per_layer else f"encoder/{RELPOS}", place)
  vocab_size, embed_dim = _matrix(params, TABLE, place)
  _, joined = _matrix(params, "encoder/layers_0/attention/query/kernel", place)
  _, mlp_dim = _matrix(params, f"encoder/layers_0/mlp/{'wi_0' if gated else 'wi'}/kernel", place)
  projection_dim = _matrix(params, PROJECTION, place)[1] if PROJECTION in params else None
  if heads < 1 or joined % heads:
    raise UserError(
      f"{place}: the attention is {joined} wide, which {heads} heads (the rows of rel_embedding) do not divide. "
      "Is this a T5 encoder?"
    )
  fields: dict[str, Any] = {
    "num_layers": num_layers,
    "num_heads": heads,
    "head_dim": joined // heads,
    "embed_dim": embed_dim,
    "mlp_dim": mlp_dim,
    "relpos_buckets": buckets,
    "relpos_max_distance": MAX_DISTANCE,
    "activation": ACTIVATION[gated],
    "gated": gated,
    "relpos_per_layer": per_layer,
    "layer_norm_eps": LAYER_NORM_EPS,
  }
  sizes = {"d": embed_dim, "j": joined, "m": mlp_dim, "h": heads, "b": buckets, "v": vocab_size}
  _check_shapes(params, names, {**sizes, "f": projection_dim or 0}, place)
  spec = EncoderSpec("t5", fields)
  return TowerSpec(spec, vocab_size, projection_dim=projection_dim, projection_bias=PROJECTION_BIAS in params)


def _names(num_layers: int, *, gated: bool, per_layer: bool) -> dict[str, str]:
  """Returns the parameters of a tower and the axes of each: d model, j heads x head size, m hidden, h heads,
  b buckets, v tokens, f projection.
  """
  layer = {
    "pre_attention_layer_norm/scale": "d",
    "attention/query/kernel": "dj",
    "attention/key/kernel": "dj",
    "attention/value/kernel": "dj",
    "attention/out/kernel": "jd",
    "pre_mlp_layer_norm/scale": "d",
    **({"mlp/wi_0/kernel": "dm", "mlp/wi_1/kernel": "dm"} if gated else {"mlp/wi/kernel": "dm"}),
    "mlp/wo/kernel": "md",
    **({RELPOS: "hb"} if per_layer else {}),
  }
  return {
    TABLE: "vd",
    **{f"encoder/layers_{i}/{name}": axes for i in range(num_layers) for name, axes in layer.items()},
    **({} if per_layer else {f"encoder/{RELPOS}": "hb"}),
    "encoder/encoder_norm/scale": "d",
    PROJECTION: "df",
    PROJECTION_BIAS: "f",
  }


def _check_names(params: Mapping[str, Any], names: Mapping[str, str], place: object) -> None:
  missing = sorted(names.keys() - params.keys() - {PROJECTION, PROJECTION_BIAS})
  if PROJECTION_BIAS in params and PROJECTION not in params:
    missing.append(PROJECTION)
  left = sorted(params.keys() - names.keys())
  if missing or left:
    faults = [f"missing {few(missing)}"] if missing else []
    faults += [f"left over {few(left)}"] if left else []
    raise UserError(
      f"{place}: not the parameters of a T5 encoder: {'; '.join(faults)}. Is the checkpoint whole?"
    )


def _matrix(params: Mapping[str, np.ndarray], name: str, place: object) -> tuple[int, int]:
  shape = params[name].shape
  if len(shape) != 2:
    raise UserError(f"{place}: {name} has shape {shape}, expected two axes. Is this a T5 encoder?")
  return shape[0], shape[1]


def _check_shapes(
  params: Mapping[str, np.ndarray], names: Mapping[str, str], sizes: Mapping[str, int], place: object
) -> None:
  expected = {name: tuple(sizes[axis] for axis in names[name]) for name in params}
  faults = [
    f"{name} has shape {params[name].shape}, expected {shape}"
    for name, shape in expected.items()
    if params[name].shape != shape
  ]
  if faults:
    raise UserError(
      f"{place}: parameters that do not fit each other: {few(faults)}. Is the checkpoint whole?"
    )
