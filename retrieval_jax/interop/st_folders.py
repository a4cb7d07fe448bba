"""The modules of one or two towers laid out as sentence-transformers lays them out."""

import pathlib
from collections.abc import Mapping
from typing import Any, Final

from retrieval_jax.interop import huggingface
from retrieval_jax.interop.foreign import ForeignTower, TextSpec
from retrieval_jax.interop.huggingface_parameters import flatten
from retrieval_jax.interop.st_modules import OLD_PREFIX, write_dense, write_json, write_pooling

MODULES: Final = "modules.json"
ROUTER: Final = "router_config.json"


def same_tower(query: ForeignTower, passage: ForeignTower) -> bool:
  """Whether both sides compute the same from the same tokens: the same arrays, not equal ones."""
  ours, theirs = dict(flatten(query.params)), dict(flatten(passage.params))
  return (
    query.spec == passage.spec
    and (*query.text[:2], query.text.options) == (*passage.text[:2], passage.text.options)
    and ours.keys() == theirs.keys()
    and all(ours[name] is theirs[name] for name in ours)
  )


def write_plain(folder: pathlib.Path, tower: ForeignTower) -> None:
  """Writes the modules of one tower into a folder, and the list of them."""
  _write_transformer(folder, tower)
  kinds = _kinds(tower)
  entries = []
  for i, kind in enumerate(kinds):
    path = f"{i}_{kind}" if i else ""
    _write_after(folder / path, kind, tower)
    entries.append({"idx": i, "name": str(i), "path": path, "type": f"{OLD_PREFIX}{kind}"})
  write_json(folder / MODULES, entries)


def write_router(folder: pathlib.Path, query: ForeignTower, passage: ForeignTower) -> None:
  """Writes the modules of two towers into a folder, what they share once, and the Router that picks one."""
  types: dict[str, str] = {}
  structure: dict[str, list[str]] = {}
  written: dict[
    Any, str
  ] = {}  # a module's parameters -> where they are: what the sides share is written once
  for side, tower in (("query", query), ("document", passage)):
    structure[side] = []
    for i, kind in enumerate(_kinds(tower)):
      name = written.setdefault(_identity(kind, tower), f"{side}_{i}_{kind}")
      if name not in types:
        types[name] = f"{OLD_PREFIX}{kind}"
        if kind == "Transformer":
          (folder / name).mkdir()
          _write_transformer(folder / name, tower)
        _write_after(folder / name, kind, tower)
      structure[side].append(name)
  parameters = {"default_route": "document", "allow_empty_key": True}
  write_json(folder / ROUTER, {"types": types, "structure": structure, "parameters": parameters})
  write_json(folder / MODULES, [{"idx": 0, "name": "0", "path": "", "type": f"{OLD_PREFIX}Router"}])


def _kinds(tower: ForeignTower) -> list[str]:
  dense = [] if tower.spec.projection_dim is None else ["Dense"]
  return ["Transformer", "Pooling", *dense, *(["Normalize"] if tower.spec.normalize else [])]


def _identity(kind: str, tower: ForeignTower) -> Any:
  """Returns what two modules must have in common to be one: their arrays and their settings."""
  spec, text = tower.spec, tower.text
  if kind == "Transformer":
    arrays = [id(array) for name, array in flatten(tower.params) if not name.startswith("projection_layer/")]
    return (
      kind,
      *arrays,
      spec.encoder.family,
      str(spec.encoder.fields),
      str(text._replace(prefix="", template=None)),
    )
  if kind == "Dense":
    arrays = [id(array) for _, array in flatten(tower.params["projection_layer"])]
    return kind, *arrays, spec.projection_activation
  return (kind, spec.pooling, spec.encoder.fields["embed_dim"]) if kind == "Pooling" else kind


def _write_transformer(folder: pathlib.Path, tower: ForeignTower) -> None:
  huggingface.write_encoder(folder, tower)
  length = _max_length(tower.text, tower.spec.encoder.fields)
  settings: dict[str, Any] = {"max_seq_length": length, "do_lower_case": False}
  if tower.spec.encoder.fields.get("token_types"):
    # Without it transformers reports the missing layer over [CLS], which nothing uses, at every load.
    settings["model_args"] = {"add_pooling_layer": False}
  write_json(folder / "sentence_bert_config.json", settings)


def _max_length(text: TextSpec, fields: Mapping[str, Any]) -> int | None:
  limits = [limit for limit in (text.max_length, fields.get("max_positions")) if limit]
  return min(limits, default=None)


def _write_after(folder: pathlib.Path, kind: str, tower: ForeignTower) -> None:
  if kind == "Pooling":
    write_pooling(folder, tower.spec)
  elif kind == "Dense":
    write_dense(folder, tower.spec, tower.params["projection_layer"])
