"""DebianPackages: which other packages does a package name, from its name and description; any Debian machine's index."""

import dataclasses
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence

from retrieval_jax import paths
from retrieval_jax.data.built_folder import built_folder, short_hash
from retrieval_jax.data.built_graph import BuiltGraph
from retrieval_jax.data.file_task import files_fingerprint
from retrieval_jax.data.link_graph import LinkGraph
from retrieval_jax.data.package_index import LINKS, Package, index_files, read_packages
from retrieval_jax.data.split_graph import Shares, split_folder
from retrieval_jax.errors import UserError, nearest
from retrieval_jax.paths import atomic_write, resolve

RULES_VERSION = 2  # raise it when a rule below changes: every cached graph is then made anew
MACHINE = "apt"  # a path that stands for the index of this machine
NODES_HEADER = "# id\tname\tsection\ttags\tshort description\n"
EDGES_HEADER = "# source id\ttarget id\n"


@dataclasses.dataclass(frozen=True)
class DebianPackages(BuiltGraph):
  """Packages and the packages that their fields name, split by a hash of each link: 90% train, 10% test.

  path: "apt": this machine's package index; or the name of such a file; or of a folder with nodes and links that are not
    split (LinkGraph).
  links: the fields that are links, where an index is read. graph: makes the reader (BuiltGraph).

  Time for Debian's 60,000 packages: 6 s at the first call; memory: 160 MB.

  Example: `load(DebianPackages(split="test"), inputs)`.
  """

  path: str = MACHINE
  split: str = "train"
  dev_share: float = 0.0
  test_share: float = 0.1
  split_seed: int = 0
  links: Sequence[str] = LINKS
  graph: Callable[..., LinkGraph] = LinkGraph

  @property
  def name(self) -> str:
    """The folder's name; "debian_packages" for a package index."""
    if self.path != MACHINE and (found := resolve(self.path)).is_dir():
      return found.resolve().name
    return "debian_packages"

  def folder(self) -> pathlib.Path:
    """Returns the folder with the split graph, made at the first call."""
    shares = Shares(self.dev_share, self.test_share, self.split_seed)
    return split_folder(package_graph(self.path, links=self.links), shares, name=self.name)


def package_graph(path: str = MACHINE, *, links: Sequence[str] = LINKS) -> pathlib.Path:
  """Returns a folder with the graph of packages, not split: the folder `path`, or one that is made of an index.

  Args:
    path: as DebianPackages takes it.
    links: the fields that are links.

  Raises: UserError for a field that names no packages, a file that cannot be read, and a machine without an index.

  Example: `LinkGraph(str(package_graph()))`.
  """
  if path != MACHINE and resolve(path).is_dir():
    return resolve(path)
  files = index_files() if path == MACHINE else [resolve(path)]
  fields = link_fields(links)
  definition = {"rules": RULES_VERSION, "index": files_fingerprint(files), "links": fields}
  target = paths.cache_dir() / "debian_packages" / short_hash(definition)

  def build(output: pathlib.Path) -> None:
    write_packages(files, output, links=fields)

  return built_folder(target, definition=definition, build=build)


def link_fields(names: Sequence[str]) -> list[str]:
  """Returns fields of a package index in lower case, each once.

  Raises: UserError for none, for what is no list of texts, and for one that names no packages to be had with it.
  """
  listed = isinstance(names, Sequence) and not isinstance(names, str)
  if not listed or not names or not all(isinstance(name, str) for name in names):
    raise UserError(f"the fields that are links: {names!r}; expected a list out of {', '.join(LINKS)}.")
  for name in names:
    if name.lower() not in LINKS:
      raise UserError(
        f"no field of links is called {name!r}{nearest(name.lower(), LINKS)} ({', '.join(LINKS)})."
      )
  return list(dict.fromkeys(name.lower() for name in names))


def write_packages(
  files: Iterable[pathlib.Path], output: pathlib.Path, *, links: Sequence[str] = LINKS
) -> Mapping[str, int]:
  """Writes nodes.tsv and links.tsv into a folder, ascending; returns the numbers of packages, nodes and links.

  A package that comes again, as another version or of another architecture, adds its links alone. A link to a name that no
  package has (a virtual package) is left out, and so are packages without any link. Ids are the names. Memory: 3 kB a package.

  Raises: UserError if no package names another, and what read_packages raises; nothing is written then.

  Example: `write_packages(index_files(), folder)` returns `{"packages": 63436, "nodes": 60376, "links": 300076}`.
  """
  files = list(files)
  packages: dict[str, Package] = {}
  named: dict[str, set[str]] = {}
  for file in files:
    for package in read_packages(file, links):
      packages.setdefault(package.name, package)
      named.setdefault(package.name, set()).update(package.links)
  pairs = [
    (name, other)
    for name in sorted(packages)
    for other in sorted(named[name])
    if other in packages and other != name
  ]
  if not pairs:
    raise UserError(
      f"{', '.join(map(str, files))}: none of the {len(packages):,} packages names another one. Is it a package index?"
    )
  nodes = sorted({name for pair in pairs for name in pair})
  with atomic_write(output / "nodes.tsv") as file:
    file.write(NODES_HEADER)
    file.writelines(_row(packages[name]) for name in nodes)
  with atomic_write(output / "links.tsv") as file:
    file.write(EDGES_HEADER)
    file.writelines(f"{source}\t{target}\n" for source, target in pairs)
  return {"packages": len(packages), "nodes": len(nodes), "links": len(pairs)}


def _row(package: Package) -> str:
  name, section, tags, description, _ = package
  return f"{name}\t{name}\t{section}\t{' '.join(tags)}\t{description}\n"
