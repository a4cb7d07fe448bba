"""The edges of a link graph, split into train, dev and test by a hash of each edge."""

import contextlib
import pathlib
import shutil
from array import array
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool

from retrieval_jax import paths
from retrieval_jax.data.built_folder import built_folder, short_hash
from retrieval_jax.data.file_task import files_fingerprint
from retrieval_jax.data.lines import ENDINGS
from retrieval_jax.data.link_graph import Edge, graph_files, known_edges, read_edges, read_nodes
from retrieval_jax.data.tables import is_json
from retrieval_jax.data.text_table import hash_text
from retrieval_jax.errors import UserError
from retrieval_jax.paths import atomic_write

RULES_VERSION = 2  # raise it when a rule below changes: every cached split is then made anew
SPLITS = ("train", "dev", "test")


class Shares(NamedTuple):
  """The shares of the edges that are dev and test; the others are train. seed: of the hash.

  Example: `Shares(dev=0.05, test=0.1)`.
  """

  dev: float = 0.0
  test: float = 0.1
  seed: int = 0

  def check(self) -> None:
    """Raises: UserError for shares that are none, or leave nothing to train on."""
    numbers = all(type(share) in (int, float) and 0 <= share < 1 for share in (self.dev, self.test))
    if not numbers or self.dev + self.test >= 1:
      raise UserError(
        f"shares of dev and test edges: {self.dev!r} and {self.test!r}; expected numbers from 0 to below 1, below 1 together."
      )
    if type(self.seed) is not int:
      raise UserError(f"the seed of a split: {self.seed!r}; expected a whole number.")

  def hash_of(self, edge: Edge) -> int:
    """Returns the hash of an edge: it depends on the seed and the two ids alone, so that a new edge moves no old one."""
    return hash_text(f"{self.seed}\t{edge.source}\t{edge.target}")

  def split_of(self, hashed: int) -> str:
    """Returns the split of the edge with this hash."""
    place = hashed / 2.0**64
    return "test" if place < self.test else "dev" if place < self.test + self.dev else "train"


def split_folder(folder: pathlib.Path, shares: Shares, *, name: str) -> pathlib.Path:
  """Returns a folder in the cache with the nodes of a graph and its edges split, made at the first call.

  A folder is kept for each version of the files. Time: 4 s for 60,000 nodes and 300,000 edges.

  Args:
    folder: with a link graph whose edges are one file (LinkGraph); a graph of one's own.
    shares: of the splits.
    name: what the folder's name begins with.

  Raises: UserError for a folder that is no link graph or is split already, for bad shares, and for a split without edges.

  Example: `split_folder(pathlib.Path("data/graph_debian"), Shares(), name="graph_debian")`.
  """
  shares.check()
  nodes, edges = unsplit_files(folder)
  definition = {
    "rules": RULES_VERSION,
    "of": files_fingerprint([nodes, edges]),
    "folder": str(folder.absolute()),
    **shares._asdict(),
  }
  target = paths.cache_dir() / "split_graphs" / f"{name}.{short_hash(definition)}"

  def build(output: pathlib.Path) -> None:
    write_split(nodes, edges, output, shares=shares)

  return built_folder(target, definition=definition, build=build)


def unsplit_files(folder: pathlib.Path) -> tuple[pathlib.Path, pathlib.Path]:
  """Returns the files of nodes and of edges of a graph that is not split.

  Raises: UserError for a folder that is no link graph, or has edges of several splits.
  """
  nodes, edges = graph_files(folder)
  if list(edges) != ["train"]:
    raise UserError(
      f"{folder}: its edges are split already ({', '.join(file.name for file in edges.values())}). Read it as it is: "
      f"--gin_file=data/link_graph.gin --gin.DATA_PATH={folder}."
    )
  return nodes, edges["train"]


def write_split(
  nodes: pathlib.Path, edges: pathlib.Path, output: pathlib.Path, *, shares: Shares
) -> Mapping[str, int]:
  """Writes edges.<split>.tsv and a copy of the nodes into a folder; returns the numbers of nodes and edges by name.

  An edge that comes again is left out, and so is one of a node that is not there (known_edges). The edges are read twice.
  Memory: the ids of the nodes, and 33 bytes an edge.

  Args:
    nodes, edges: files as LinkGraph reads them, under any name.
    output: a folder that is there.
    shares: of the splits.

  Raises: UserError for a split that is wanted and has no edge.

  Example: `write_split(nodes, edges, folder, shares=Shares())` returns `{"nodes": 60376, "train": 269964, ...}`.
  """
  ids = {node.id for node in read_nodes(nodes)}
  hashes = array(
    "Q", (shares.hash_of(edge) for edge in known_edges(read_edges(edges, ids), ids, where=str(edges)))
  )
  kept = (edge for edge in read_edges(edges, ids) if edge.source in ids and edge.target in ids)
  wanted = [name for name in SPLITS if name == "train" or getattr(shares, name)]
  counts = {"nodes": len(ids), **dict.fromkeys(wanted, 0)}
  with contextlib.ExitStack() as stack:
    files = {name: stack.enter_context(atomic_write(output / f"edges.{name}.tsv")) for name in wanted}
    for file in files.values():
      file.write("# source id\ttarget id\n")
    for edge, hashed in _first_ones(kept, hashes):
      split = shares.split_of(hashed)
      counts[split] += 1
      files[split].write(f"{edge.source}\t{edge.target}\n")
    if empty := [name for name in wanted if not counts[name]]:
      raise UserError(
        f"{edges}: none of its {sum(counts[name] for name in wanted):,} edges is {' or '.join(empty)}. Give larger shares, or "
        "another seed."
      )
  shutil.copyfile(nodes, output / _name_of_nodes(nodes))
  return counts


def _name_of_nodes(path: pathlib.Path) -> str:
  """Returns the name by which a graph's folder has a file of nodes of this form."""
  packed = path.suffix if path.suffix in ENDINGS else ""
  return f"nodes.{'jsonl' if is_json(path) else 'tsv'}{packed}"


def _first_ones(edges: Iterator[Edge], hashes: array) -> Iterator[tuple[Edge, int]]:
  """Yields each edge the first time it comes, and its hash."""
  new = _new(hashes)
  return ((edge, hashed) for edge, hashed, first in zip(edges, hashes, new, strict=True) if first)


def _new(hashes: array) -> Bool[np.ndarray, "e"]:
  """Returns whether each hash comes for the first time."""
  if not hashes:
    return np.zeros(0, bool)
  new = np.zeros(len(hashes), bool)
  new[np.unique(np.frombuffer(hashes, np.uint64), return_index=True)[1]] = True
  return new
