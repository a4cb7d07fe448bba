"""Makes a folder with a link graph, nodes and the edges between them, which data/link_graph.gin reads.

`packages` writes the packages of this machine's package index (Debian, Ubuntu), or of the files given, and which other packages
each of them names: nodes.tsv and links.tsv, not split. data/debian_packages.gin reads the folder and splits it.

`planted` writes an artificial graph of any size whose best possible ranking is known, and prints the map@10 of that ranking.

`split` writes your own nodes and edges with the edges split into train, dev and test by a hash of seed, source and target: an edge
that is added later moves no other one. Nodes: JSON lines (.jsonl) with "id" and perhaps "title", "text" and features, or TSV whose
first line names these columns. Edges: TSV of source id and target id. An edge that comes again is left out.

The folder is written whole or not at all. Exit status: 0, or 2 after a message that names file and line.

  python scripts/prepare_graph.py packages data/packages
  python scripts/prepare_graph.py planted data/planted_300k --items 300000
  python scripts/prepare_graph.py split data/mine --nodes nodes.jsonl --edges edges.tsv --dev_share 0.02 --test_share 0.08
  python -m retrieval_jax.train --gin_file=data/link_graph.gin --gin.DATA_PATH=data/mine ...
"""

import argparse
import logging
import pathlib
import sys
from collections.abc import Sequence

from retrieval_jax.errors import UserError


def main(argv: Sequence[str] | None = None) -> int:
  """Parses the command line, does what it says and returns the exit status."""
  logging.basicConfig(level=logging.WARNING, format="%(message)s")
  options = _parser().parse_args(argv)
  try:
    options.action(options)
  except UserError as error:
    print(f"error: {error}", file=sys.stderr)
    return 2
  except OSError as error:
    print(f"error: {error.filename}: {error.strerror}", file=sys.stderr)
    return 2
  except KeyboardInterrupt:
    print("stopped; nothing was written", file=sys.stderr)
    return 130
  return 0


def _parser() -> argparse.ArgumentParser:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  actions = parser.add_subparsers(required=True, metavar="packages | planted | split")
  packages = actions.add_parser("packages", help="the packages of a Debian or Ubuntu machine")
  packages.add_argument("output", help="the folder; it must not be there, or be empty")
  packages.add_argument("--index", nargs="+", metavar="FILE", help="files Packages, plain or compressed; without it, those of "
                        "this machine")  # fmt: skip
  packages.add_argument("--links", default="", metavar="FIELDS", help="the fields that are links, such as "
                        "depends,recommends; without it, these and pre-depends, suggests and enhances")  # fmt: skip
  packages.set_defaults(action=_packages)
  planted = actions.add_parser("planted", help="an artificial graph")
  planted.add_argument("output", help="the folder; it must not be there, or be empty")
  planted.add_argument("--items", type=int, default=300_000, help="nodes: 300000 take 15 s")
  planted.add_argument("--topics", type=int, default=200, help="a multiple of 10")
  planted.add_argument("--seed", type=int, default=0, help="of every draw")
  planted.set_defaults(action=_planted)
  split = actions.add_parser("split", help="your own nodes and edges")
  split.add_argument("output", help="the folder; it must not be there, or be empty")
  split.add_argument("--nodes", required=True, metavar="FILE")
  split.add_argument("--edges", required=True, metavar="FILE")
  split.add_argument("--dev_share", type=float, default=0.0, help="the share of the edges that is dev")
  split.add_argument("--test_share", type=float, default=0.1, help="the share that is test")
  split.add_argument("--seed", type=int, default=0, help="of the hash")
  split.set_defaults(action=_split)
  return parser


def _packages(options: argparse.Namespace) -> None:
  from retrieval_jax.data.debian_packages import link_fields, write_packages
  from retrieval_jax.data.extreme_writer import free_folder, whole_folder
  from retrieval_jax.data.package_index import LINKS, index_files

  links = link_fields(options.links.split(",")) if options.links else LINKS
  output = free_folder(options.output)
  files = [_file(name) for name in options.index] if options.index else index_files()
  with whole_folder(output) as folder:
    found = write_packages(files, folder, links=links)
  print(
    f"{options.output}: {found['nodes']:,} of {found['packages']:,} packages have links ({', '.join(links)}), "
    f"{found['links']:,} in all; from {', '.join(map(str, files))}."
  )


def _planted(options: argparse.Namespace) -> None:
  from retrieval_jax.data.extreme_writer import free_folder, whole_folder
  from retrieval_jax.data.planted_graph import write_planted
  from retrieval_jax.data.planted_plan import SPLITS, Recipe

  recipe = Recipe(options.items, options.topics, options.seed)
  recipe.check()
  with whole_folder(free_folder(options.output)) as folder:
    found = write_planted(recipe, folder)
  print(
    f"{options.output}: {recipe.items:,} items; links: {', '.join(f'{found[split]:,} {split}' for split in SPLITS)}.\n"
    f"map@10 of the test links on {found['queries']:,} queries: {found['oracle_map@10']:.4f} by what was planted, which no model "
    f"beats but by chance; {found['popularity_map@10']:.4f} by the number of training links."
  )


def _split(options: argparse.Namespace) -> None:
  from retrieval_jax.data.extreme_writer import free_folder, whole_folder
  from retrieval_jax.data.split_graph import Shares, write_split

  shares = Shares(options.dev_share, options.test_share, options.seed)
  shares.check()
  with whole_folder(free_folder(options.output)) as folder:
    found = dict(write_split(_file(options.nodes), _file(options.edges), folder, shares=shares))
  nodes = found.pop("nodes")
  print(
    f"{options.output}: {nodes:,} nodes; edges: {', '.join(f'{count:,} {split}' for split, count in found.items())}."
  )


def _file(name: str) -> pathlib.Path:
  """Returns a file that can be read twice.

  Raises: UserError if it is not there, or is a pipe or a folder.
  """
  from retrieval_jax.paths import resolve

  found = resolve(name)
  if not found.is_file():
    raise UserError(f"{name}: no regular file. Write it into a file first.")
  return found


if __name__ == "__main__":
  sys.exit(main())
