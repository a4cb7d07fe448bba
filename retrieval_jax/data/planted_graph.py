"""PlantedGraph: an artificial link graph of any size whose best ranking is known: by topic, and popularity in it."""

import contextlib
import dataclasses
import json
import pathlib
from collections.abc import Callable, Mapping
from typing import IO

import numpy as np
from jaxtyping import Int
from tqdm import tqdm

from retrieval_jax import paths, progress
from retrieval_jax.data.built_folder import built_folder, short_hash
from retrieval_jax.data.built_graph import BuiltGraph
from retrieval_jax.data.link_graph import LinkGraph
from retrieval_jax.data.planted_baselines import Baselines
from retrieval_jax.data.planted_plan import SPLITS, Plan, Recipe
from retrieval_jax.data.planted_texts import HEADER, write_rows
from retrieval_jax.paths import atomic_write

RULES_VERSION = 1  # raise it when what is drawn changes: every cached graph is then made anew
BLOCK = 20_000  # items drawn at once: some 50 MB
RECORD = "planted.json"


@dataclasses.dataclass(frozen=True)
class PlantedGraph(BuiltGraph):
  """An artificial graph: items of topics, some of them popular; titles out of their topics' words, and noisy categories.

  65% of an item's draws go to its own topic, 25% to related ones, 10% anywhere, popular items first (Zipf, 1.2). The links are
  split by a hash: 89% train, 1% dev, 10% test. The same items, topics and seed make the same graph on every machine.

  Time: 15 s for 300,000 items with 2.8 million links; memory: 100 MB and 70 bytes an item. graph: makes the reader (BuiltGraph).

  Example: `load(PlantedGraph(items=2000, topics=20, split="test"), inputs)`.
  """

  split: str = "train"
  items: int = 300_000
  topics: int = 200
  seed: int = 0
  graph: Callable[..., LinkGraph] = LinkGraph

  @property
  def name(self) -> str:
    """The kind and the number of items."""
    return f"planted_{self.items}"

  def folder(self) -> pathlib.Path:
    """Returns the folder with the graph, made at the first call.

    Raises: UserError for numbers that make no graph.
    """
    recipe = Recipe(self.items, self.topics, self.seed)
    recipe.check()
    definition = {"rules": RULES_VERSION, **recipe._asdict()}
    target = paths.cache_dir() / "planted_graphs" / f"{self.name}.{short_hash(definition)}"

    def build(output: pathlib.Path) -> None:
      write_planted(recipe, output)

    return built_folder(target, definition=definition, build=build)


def write_planted(recipe: Recipe, output: pathlib.Path) -> Mapping[str, float]:
  """Writes nodes.tsv, edges.<split>.tsv and planted.json into a folder; returns what planted.json holds.

  That are the numbers of items, topics and links, and the map@10 of two rankings on about 10,000 queries of the test split:
  "oracle_map@10" by what was planted, which no model beats but by chance, "popularity_map@10" by the number of training links.

  Raises: UserError for numbers that make no graph.

  Example: `write_planted(Recipe(2000, 20), folder)["oracle_map@10"]`.
  """
  recipe.check()
  plan = Plan.of(recipe)
  baselines = Baselines(plan)
  counts = np.zeros(len(SPLITS), np.int64)
  with contextlib.ExitStack() as stack:
    nodes = stack.enter_context(atomic_write(output / "nodes.tsv"))
    edges = [stack.enter_context(atomic_write(output / f"edges.{split}.tsv")) for split in SPLITS]
    nodes.write(HEADER)
    bar = stack.enter_context(
      tqdm(total=recipe.items, desc="plant a graph", unit=" items", mininterval=progress.interval())
    )
    for start in range(0, recipe.items, BLOCK):
      items = np.arange(start, min(start + BLOCK, recipe.items))
      nodes.writelines(write_rows(items, plan.topics_of(items), recipe))
      links = plan.links(start, start + len(items))
      splits = plan.splits(links)
      for place, file in enumerate(edges):
        _write_links(file, links[splits == place])
      counts += np.bincount(splits, minlength=len(SPLITS))
      baselines.add(links, splits)
      bar.update(len(items))
  record = {**recipe._asdict(), **dict(zip(SPLITS, counts.tolist(), strict=True)), **baselines.measure()}
  with atomic_write(output / RECORD) as file:
    json.dump(record, file, indent=2)
    file.write("\n")
  return record


def _write_links(file: IO[str], links: Int[np.ndarray, "e 2"]) -> None:
  file.writelines(f"{source}\t{target}\n" for source, target in links.tolist())
