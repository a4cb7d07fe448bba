"""The Tasks `debian_packages` and `debian_packages_text`: which packages does a package name, in this machine's package index.

A real link graph that every Debian and Ubuntu machine carries: Debian 12 has 60,376 packages with links, and 300,076 links
(depends, pre-depends, recommends, suggests, enhances), 90% of them train and 10% test, by a hash. Directed, so the two sides
differ. `debian_packages` writes a package as JSON with its id, name, description, section and tags, for feature-bag towers
(configs/models/feature_bag_small.gin); `debian_packages_text` as name and description. The measure is map@10 of each package,
over all packages. A machine without an index gets an error that says what to give in its place: configs/data/debian_packages.gin
reads a file Packages.gz of an archive, or a folder with a graph.
"""

from collections.abc import Sequence

from retrieval_jax.data import features
from retrieval_jax.data.debian_packages import DebianPackages
from retrieval_jax.data.link_graph import GraphFiles, graph_files, graph_task

SPLITS = ("train", "test")
INFO = features.TaskInfo(
  metrics=("map@10", "mrr@10", "recall@10", "recall@100"),
  drop_identical=True,
  source="the package index of this machine, as its distribution publishes it",
)


def files() -> GraphFiles:
  """Returns the files of the split graph, made at the first call."""
  return graph_files(DebianPackages().folder())


def task(name: str, fields: Sequence[str] | None) -> features.TextTask:
  """Returns one of the Tasks."""
  return graph_task(name, files, SPLITS, features=fields, info=INFO)


features.register(task("debian_packages", ("id", "title", "text", "section", "tags")))
features.register(task("debian_packages_text", None))
