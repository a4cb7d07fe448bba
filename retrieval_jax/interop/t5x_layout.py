"""T5X's parameter names and ours: sides, scanned layers, attention kernels with an axis of heads."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal, NamedTuple

import numpy as np

from retrieval_jax.errors import UserError

Side = Literal["query", "passage"]
SIDES: Final[tuple[Side, ...]] = ("query", "passage")
PARTS: Final = ("token_embedder", "encoder", "projection_layer")

# left and right are T5X Retrieval's words, query and passage ours.
SIDE_OF: Final[Mapping[str, Side]] = {
  "left": "query",
  "right": "passage",
  "query": "query",
  "passage": "passage",
}
ROOT: Final = re.compile(rf"(?:({'|'.join(SIDE_OF)})_)?({'|'.join(PARTS)}|decoder)/(.+)")

# The parameters of one layer, and of all of them under a layer's axis where T5X scans over layers (scalable_t5,
# umT5); it scans inside a second module `encoder`, and the layers are axis 1 of every array.
IN_LAYER: Final = (
  r"(?:relpos_bias/rel_embedding|pre_attention_layer_norm/scale|attention/(?:query|key|value|out)/kernel"
  r"|pre_mlp_layer_norm/scale|mlp/(?:wi|wi_0|wi_1|wo)/kernel)"
)
SCANNED: Final = re.compile(rf"encoder/({IN_LAYER})")
LAYER_AXIS: Final = 1
PLAIN: Final = {
  "token_embedder": re.compile("embedding"),
  "encoder": re.compile(rf"relpos_bias/rel_embedding|encoder_norm/scale|layers_\d+/{IN_LAYER}"),
  "projection_layer": re.compile("kernel|bias"),
}
# An encoder of its own, without a decoder, may keep the token table inside.
INNER_TABLE: Final = "token_embedder/embedding"

SHOWN: Final = 8


class Place(NamedTuple):
  """Where a file's parameter goes. side: None if both towers share it. name: within the part, ours.

  scanned: name is that of one layer, and the array holds all layers.
  """

  side: Side | None
  part: str
  name: str
  scanned: bool = False


class Placed(NamedTuple):
  """A file's array as our parameters. label: all their names in one. note: how it was reshaped."""

  values: Mapping[str, np.ndarray]
  label: str
  note: str


def places(names: Iterable[str], folder: object) -> dict[str, Place | None]:
  """Returns the place of every parameter (names without "target/"); None for a decoder's, which has none.

  Raises: UserError listing the parameters that no T5 dual encoder has, and those with a place that is taken.
  """
  result: dict[str, Place | None] = {}
  taken: set[Place] = set()
  strange = []
  for name in sorted(names):
    match = ROOT.fullmatch(name)
    place = None if match is None else _place(match[1], match[2], match[3])
    if match is None or (place is None and match[2] != "decoder") or place in taken:
      strange.append(name)
      continue
    result[name] = place
    if place is not None:
      taken.add(place)
  if strange:
    raise UserError(
      f"{folder}: these parameters have no place in a T5 dual encoder: {few(strange)}. Only T5 1.0, T5 1.1, mT5 and "
      "umT5 encoders (with the decoder left out), token tables and projection layers can be read."
    )
  return result


def placed(place: Place, array: np.ndarray) -> Placed:
  """Returns our float32 parameters that an array of the file becomes: one, or one a layer."""
  notes = []
  if not place.scanned:
    values = {place.name: _joined_heads(place.name, array)}
    label = place.name
  else:
    count = array.shape[LAYER_AXIS]
    layers = np.moveaxis(array, LAYER_AXIS, 0)
    values = {f"layers_{i}/{place.name}": _joined_heads(place.name, layers[i]) for i in range(count)}
    label = f"layers_{{0..{count - 1}}}/{place.name}"
    notes.append(f"{count} layers unstacked from axis {LAYER_AXIS}")
  if "attention/" in place.name and array.ndim == 3 + place.scanned:
    notes.append("heads joined")
  values = {name: np.ascontiguousarray(value, dtype=np.float32) for name, value in values.items()}
  return Placed(values, label, ", ".join(notes))


def few(names: Sequence[str]) -> str:
  """Returns the first names as text, and how many more there are."""
  more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
  return ", ".join(names[:SHOWN]) + more


def _place(side: str | None, part: str, name: str) -> Place | None:
  if part == "decoder":
    return None
  ours = None if side is None else SIDE_OF[side]
  if part == "encoder" and name == INNER_TABLE:
    return Place(ours, "token_embedder", "embedding")
  scanned = SCANNED.fullmatch(name) if part == "encoder" else None
  if scanned is not None:
    return Place(ours, part, scanned[1], scanned=True)
  return Place(ours, part, name) if PLAIN[part].fullmatch(name) else None


def _joined_heads(name: str, kernel: np.ndarray) -> np.ndarray:
  """Returns an attention kernel as a matrix: [d, h, k] -> [d, h * k], and of "out" [h, k, d] -> [h * k, d]."""
  if "attention/" not in name or kernel.ndim != 3:
    return kernel
  return kernel.reshape(-1, kernel.shape[-1]) if "/out/" in name else kernel.reshape(kernel.shape[0], -1)
